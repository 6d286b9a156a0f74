//! Changes of the names of the sync in the role file (rule P17).
//!
//! Invariant: a name is durable on the primary before the secondary hears of it.

use std::io;

use lockstep_types::{Generation, SyncId, SyncNames};

use super::{CopyLineage, RoleFile, RoleState};

impl RoleState {
    /// The state of a copy whose sync has these names.
    const fn in_sync_named(self, sync: SyncNames) -> Self {
        self.of_lineage(CopyLineage {
            sync,
            ..self.lineage
        })
    }
}

impl RoleFile {
    /// Makes durable, on the primary, that the namespace is about to be carried to the secondary. Returns the name of
    /// that resync, made from the random bytes. `None`, without a change, if its connection is not current any more: the
    /// resync over the next one may have its name already. `told`: the name that a secondary with a base has until it hears of the
    /// new one.
    pub fn carry_over(
        &self,
        generation: Generation,
        told: Option<SyncId>,
        drawn: [u8; 16],
        is_current: impl FnOnce() -> bool,
    ) -> io::Result<Option<SyncId>> {
        let mut drawn_sync = None;
        let is_noted = self.change_if(|state| {
            if state.record.generation != generation || !is_current() {
                return None;
            }
            let sync = SyncId::next(state.lineage.sync.newest(), drawn);
            drawn_sync = Some(sync);
            let names = told.map_or(SyncNames::settled(Some(sync)), |last| SyncNames {
                last: Some(last),
                proposed: Some(sync),
            });
            Some(state.of_lineage(CopyLineage {
                was_resynced: true,
                sync: names,
                ..state.lineage
            }))
        })?;
        Ok(drawn_sync.filter(|_| is_noted))
    }

    /// Makes durable, on the secondary, that a resync is about to change its copy: of what has changed since `base`, or of everything.
    pub fn take_over(
        &self,
        generation: Generation,
        sync: SyncId,
        base: Option<Generation>,
    ) -> io::Result<()> {
        self.change_in(generation, |state| {
            let begun = state.marked(false).since(base);
            begun.in_sync_named(SyncNames::settled(Some(sync)))
        })
    }

    /// Makes durable, on a primary in sync, which name it proposes for the sync over the next connection, unless the last
    /// proposal is not known to be taken. `names`: the names of this copy, of which it is known.
    pub fn propose(
        &self,
        generation: Generation,
        names: SyncNames,
        drawn: [u8; 16],
    ) -> io::Result<()> {
        if names.proposed.is_some() || names.last.is_none() || !self.state().is_in_sync() {
            return Ok(());
        }
        let sync = SyncNames {
            last: names.last,
            proposed: Some(SyncId::next(names.last, drawn)),
        };
        self.change_in(generation, |state| state.in_sync_named(sync))
    }

    /// Makes durable, on a secondary in sync, the name that its primary proposes.
    pub fn take_name(&self, generation: Generation, sync: SyncId) -> io::Result<()> {
        let sync = SyncNames::settled(Some(sync));
        self.change_in(generation, |state| state.in_sync_named(sync))
    }
}
