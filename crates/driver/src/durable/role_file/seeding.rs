//! The role file beside seeds: a copy from which a seed is made, and a copy that is made of a seed (rule P17).
//!
//! Invariants:
//! - A copy counts as one that others are made from, durably, before a seed of it is there. So a secondary with the seed tells a primary that is
//!   older, or has another store.
//! - A copy that is made of a seed is not in sync, of no sync and not complete, from its first role file on.

use std::io;

use lockstep_fs::seed::SeedManifest;
use lockstep_types::StoreId;
use lockstep_types::backing::{Backing, replace};
use lockstep_types::settings::Role;

use super::RoleFile;
use super::slots::{FILE, RoleSlot};
use super::state::{CopyLineage, RoleState, SeededCopy};

impl RoleState {
    /// The state of a new copy that was made of a seed: that of a secondary.
    const fn of_seed(store: StoreId, seed: SeededCopy) -> Self {
        let new = Self::begin(Role::Secondary);
        new.of_lineage(CopyLineage {
            store: Some(store),
            was_resynced: true,
            seed: Some(seed),
            ..new.lineage
        })
    }
}

impl RoleFile {
    /// Makes durable that a seed is made of this copy. Returns the name of the store; `None`, without a change, for a copy that has no name
    /// yet: nothing of the datastore was ever in it.
    ///
    /// # Errors
    /// If the file cannot be changed.
    pub fn make_source(&self) -> io::Result<Option<StoreId>> {
        self.change_if(|state| {
            let lineage = state.lineage;
            let is_new = lineage.store.is_some() && !lineage.was_resynced;
            is_new.then_some(state.of_lineage(CopyLineage {
                was_resynced: true,
                ..lineage
            }))
        })?;
        Ok(self.state().lineage.store)
    }
}

/// Writes the role file of a store that is made of a seed, on stable storage.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn begin_of_seed(backing: &dyn Backing, manifest: &SeedManifest) -> io::Result<()> {
    let lineage = manifest.origin.lineage;
    let seed = SeededCopy {
        sync: lineage.sync,
        osn: manifest.snapshot.osn,
        time: manifest.snapshot.time,
    };
    let block = RoleSlot::block(0, RoleState::of_seed(lineage.store, seed))?;
    replace(backing, FILE, &[&block[..], &block].concat())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockstep_roles::{RoleChange, RoleChangeKind};
    use lockstep_types::{BootId, Generation, Osn, SyncId, SyncNames, Timestamp};

    use super::super::SlotChoice;
    use super::*;

    fn seeded() -> RoleState {
        let seed = SeededCopy {
            sync: Some(SyncId::next(None, [3; 16])),
            osn: Osn {
                sequence: 9,
                ..Osn::ZERO
            },
            time: Timestamp::default(),
        };
        RoleState::of_seed(StoreId::from_bytes([5; 16]), seed)
    }

    #[test]
    fn a_copy_of_a_seed_has_nothing_that_could_make_it_lead_or_shorten_its_resync() {
        let state = seeded();
        assert!(!state.record.is_primary() && !state.record.complete && !state.is_in_sync());
        assert_eq!((state.base(), state.left_base()), (None, None));
        assert_eq!(state.lineage.sync, SyncNames::default());
        assert!(!state.has_tables() && !state.keeps_complete());
        // The mark of a resync that has ended, and a promotion by force, end what the seed says.
        assert_eq!(state.marked(true).lineage.seed, None);
        assert!(state.marked(false).lineage.seed.is_some());
        let lead = state.record.lead(Generation::FIRST.next(), false);
        let kind = RoleChangeKind::Promote;
        let promoted = state.after(RoleChange::serving(kind, state.record, lead));
        assert_eq!(promoted.lineage.seed, None);
        assert_eq!(promoted.lineage.store, state.lineage.store);
    }

    #[test]
    fn a_source_of_a_seed_says_so_before_the_seed_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let backing = lockstep_fs::os_backing::OsBacking::open(directory.path()).unwrap();
        let backing: Arc<dyn Backing> = Arc::new(backing);
        let boot = BootId::from_bytes([1; 16]);
        let begun = RoleState::begin(Role::Primary);
        let open = |state: RoleState| {
            RoleFile::open(Arc::clone(&backing), state, boot, state.record).unwrap()
        };
        let unnamed = open(begun);
        assert_eq!(unnamed.make_source().unwrap(), None);
        assert!(!unnamed.state().lineage.was_resynced);
        let store = StoreId::from_bytes([5; 16]);
        let source = open(begun.named(|| store));
        assert_eq!(source.make_source().unwrap(), Some(store));
        let kept = RoleFile::read(&*backing, Role::Primary, SlotChoice::Last).unwrap();
        assert!(kept.lineage.was_resynced, "on stable storage");
    }
}
