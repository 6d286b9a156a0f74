//! The role record of this node, the lineage of its copy, and the news for clients, on stable storage.
//!
//! The file has two *slots* of one block each, with the same state at rest. A change overwrites the first slot, syncs
//! the file, overwrites the second slot and syncs again. So a change needs no space on the disk (rule P20), and at
//! every moment one slot is whole. Each slot has a number that counts changes, and a checksum.
//!
//! Invariants:
//! - The file is changed and synced before anything acts on the new state.
//! - A change that belongs to a generation is refused once the generation has changed: the replication that wants it is over.
//! - One damaged slot loses nothing: the other slot has the same state, or the state before a change on which nothing
//!   has acted. A flipped bit never makes another state.

pub mod marks;
mod power;
pub(crate) mod seeding;
mod slots;
mod state;
mod sync_names;
mod telling;
mod words;

use std::io;
use std::sync::Arc;

use lockstep_roles::{RoleChange, RoleRecord, UnrecordedPromotion};
use lockstep_types::backing::{Backing, draft_of, replace};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::Role;
use lockstep_types::{BootId, Generation, StoreId, SyncNames, WriteVerifier};
use parking_lot::Mutex;

pub(crate) use slots::FILE;
pub(crate) use slots::SlotChoice;
use slots::{RoleSlot, read};
pub(crate) use state::{CopyLineage, RoleState};
pub(crate) use words::Greeted;
use words::Words;

use crate::host::signal::Signal;

/// The file and its state.
pub(crate) struct RoleFile {
    backing: Arc<dyn Backing>,
    state: Mutex<RoleState>,
    /// Number of changes; `None` before there is a file. The lock is held while the file is changed.
    changes: Mutex<Option<u64>>,
    /// The words of this node that its copy is not complete.
    words: Words,
    /// The previous process was killed: it may have left unsynced data.
    was_killed: bool,
    /// Raised after each change.
    changed: Arc<Signal>,
}

impl RoleFile {
    /// The state in the file of a store; for a new store the begin with `role`. Changes nothing.
    pub fn read(backing: &dyn Backing, role: Role, choice: SlotChoice) -> io::Result<RoleState> {
        let found = read(backing, choice)?.map(|(state, _)| state);
        Ok(found.unwrap_or(RoleState::begin(role)))
    }

    /// Takes the store into use in the run `boot` of the machine, with `record`. One step writes both, before
    /// anything else in the store changes, so no stop in between can forget that the machine went down.
    pub fn open(
        backing: Arc<dyn Backing>,
        found: RoleState,
        boot: BootId,
        record: RoleRecord,
    ) -> io::Result<Self> {
        let state = RoleState {
            record,
            unrecorded: found
                .unrecorded
                .filter(|_| !is_active(Mutant::ForgetUnrecorded)),
            boot: Some(boot),
            ..found
        };
        let changes = read(backing.as_ref(), SlotChoice::Last)?.map(|(_, changes)| changes);
        let file = Self {
            changes: Mutex::new(changes),
            was_killed: found.boot.is_some(),
            ..Self::looked_at(backing, state)
        };
        file.change(|_| state)?;
        Ok(file)
    }

    /// The file of a store that is open for reading only. Changes nothing.
    pub fn looked_at(backing: Arc<dyn Backing>, found: RoleState) -> Self {
        Self {
            backing,
            state: Mutex::new(found),
            changes: Mutex::default(),
            words: Words::default(),
            was_killed: found.boot.is_some(),
            changed: Arc::default(),
        }
    }

    /// Has the file raise a signal after each change, from now on.
    pub fn raise_on_change(&mut self, changed: Arc<Signal>) {
        self.changed = changed;
    }

    /// Whether a previous process may have left unsynced data.
    pub const fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Notes a clean shutdown: the whole store is on stable storage (rule P12).
    pub fn closed(&self) -> io::Result<()> {
        self.change(|state| RoleState {
            boot: None,
            ..state
        })
    }

    /// The state in the file.
    pub fn state(&self) -> RoleState {
        *self.state.lock()
    }

    /// Makes the record of a change durable. Returns `false`, and changes nothing, if the record is another one by now than
    /// before the change. A primary's copy counts as one that others are made from, and gets a name from the random bytes if
    /// it has none. A copy that counts as complete from now on, although it may lack operations, gets another write verifier
    /// from them.
    pub fn replace(&self, change: RoleChange, drawn: [u8; 16]) -> io::Result<bool> {
        if is_active(Mutant::RecordUnwritten) {
            self.state.lock().record = change.to;
            self.changed.raise();
            return Ok(true);
        }
        self.change_if(|state| {
            let next = state.after(change);
            let lineage = next.lineage;
            let is_source = change.to.is_primary() && lineage.sync.last.is_some();
            let next = next.of_lineage(CopyLineage {
                was_resynced: lineage.was_resynced || is_source,
                ..lineage
            });
            let next = if change.makes_complete() {
                next.renewed(drawn)
            } else {
                next
            };
            (state.record == change.from).then(|| next.named(|| StoreId::from_bytes(drawn)))
        })
    }

    /// Makes durable that this copy is a copy of `store`. The marks about another store are dropped.
    pub fn follow(&self, generation: Generation, store: StoreId) -> io::Result<()> {
        if self.state().lineage.store == Some(store) {
            return Ok(());
        }
        self.change_in(generation, |state| {
            let other = state.marked(false).without_base();
            other.of_lineage(CopyLineage {
                store: Some(store),
                sync: SyncNames::default(),
                ..other.lineage
            })
        })
    }

    /// Makes "in sync" or "out of sync" durable, for a session of `generation`.
    pub fn mark(&self, generation: Generation, in_sync: bool) -> io::Result<()> {
        self.change_in(generation, |state| state.marked(in_sync))
    }

    /// Makes durable, on a secondary, that its copy is out of sync, and was equal to its primary's in the generation `base`, but for
    /// the writes of its tables and the delta of the primary (rule P24).
    pub fn leave_sync(&self, generation: Generation, base: Option<Generation>) -> io::Result<()> {
        self.change_in(generation, |state| state.marked(false).since(base))
    }

    /// Makes another base of a secondary's copy out of sync durable; `None`: the copy may differ in anything.
    pub fn note_base(&self, generation: Generation, base: Option<Generation>) -> io::Result<()> {
        if self.state().left_base() == base {
            return Ok(());
        }
        self.change_in(generation, |state| state.since(base))
    }

    /// Makes durable, on a secondary in sync, that this copy has the memory of the primary's (rule P22).
    pub fn adopt_verifier(
        &self,
        generation: Generation,
        verifier: WriteVerifier,
    ) -> io::Result<()> {
        if self.state().clients.verifier == verifier {
            return Ok(());
        }
        self.change_in(generation, |state| state.with_verifier(verifier))
    }

    /// Makes durable that this copy acknowledges operations which are not durable from now on.
    pub fn note_unsynced(&self) -> io::Result<()> {
        if self.state().lineage.power.all_synced {
            self.change(RoleState::unsynced)?;
        }
        Ok(())
    }

    /// Makes durable that the witness does not know of this promotion by force.
    pub fn note_unrecorded(&self, promotion: UnrecordedPromotion) -> io::Result<()> {
        self.change(|state| RoleState {
            unrecorded: Some(promotion),
            ..state
        })
    }

    /// Makes durable that the witness knows of the last promotion by force, or need not know.
    pub fn clear_unrecorded(&self) -> io::Result<()> {
        self.change_if(|state| {
            state.unrecorded.is_some().then_some(RoleState {
                unrecorded: None,
                ..state
            })
        })
        .map(drop)
    }

    /// Makes durable that the datastore goes on with a copy that may lack operations (rule P22).
    pub fn renew_verifier(&self, drawn: [u8; 16]) -> io::Result<()> {
        self.change(|state| state.renewed(drawn))
    }

    /// Changes the file for a session of `generation`, unless another generation has begun.
    fn change_in(
        &self,
        generation: Generation,
        change: impl FnOnce(RoleState) -> RoleState,
    ) -> io::Result<()> {
        let is_current = |state: &RoleState| state.record.generation == generation;
        let changed = self.change_if(|state| is_current(&state).then(|| change(state)))?;
        if changed {
            Ok(())
        } else {
            Err(io::Error::other("the role of this node has changed"))
        }
    }

    fn change(&self, change: impl FnOnce(RoleState) -> RoleState) -> io::Result<()> {
        self.change_if(|state| Some(change(state))).map(drop)
    }

    /// Changes the file, if `change` has a new state. Returns whether it has one.
    fn change_if(&self, change: impl FnOnce(RoleState) -> Option<RoleState>) -> io::Result<bool> {
        let mut changes = self.changes.lock();
        let Some(state) = change(self.state()) else {
            return Ok(false);
        };
        let number = changes.map_or(0, |number| number.saturating_add(1));
        let block = RoleSlot::block(number, state)?;
        if changes.replace(number).is_some() {
            self.overwrite(&block)?;
        } else if let Err(error) = self.make(&block) {
            *changes = None;
            return Err(error);
        }
        *self.state.lock() = state;
        self.changed.raise();
        if is_active(Mutant::LeaveDraft) {
            self.backing.open_or_create(&draft_of(FILE))?;
        }
        Ok(true)
    }

    /// Replaces the file by one with both slots.
    fn make(&self, block: &[u8]) -> io::Result<()> {
        replace(self.backing.as_ref(), FILE, &[block, block].concat())
    }

    /// Overwrites both slots, one after the other. After a failure, the next change does so with a higher number.
    fn overwrite(&self, block: &[u8]) -> io::Result<()> {
        let file = self.backing.open(FILE)?;
        for at in [0, BLOCK_BYTES as u64] {
            file.write_at(at, block)?;
            file.sync()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
