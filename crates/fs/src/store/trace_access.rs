//! The trace of a store, for a driver: the changes of a node that serves alone, on stable storage (rule P28).

use lockstep_types::mutants::{Mutant, is_active};

use super::facade::Store;
use crate::delta::Trace;
use crate::error::StoreError;

/// The trace of one store.
#[derive(Clone, Copy)]
pub struct TraceAccess<'a> {
    trace: &'a Trace,
    store: &'a Store,
}

impl<'a> TraceAccess<'a> {
    /// The trace of this store.
    pub fn of(store: &'a Store) -> Self {
        Self {
            trace: store.delta.trace(),
            store,
        }
    }

    /// Begins the trace of a node that serves alone, unless it has one. The changes are then known after a loss of power, too. Returns
    /// whether a trace has begun. May wait for the disk.
    ///
    /// # Errors
    /// If the disk fails, which poisons the store (P16), or is full. Then there is no trace, and no change is lost.
    pub fn begin(self) -> Result<bool, StoreError> {
        let disk = self.store.content.disk();
        disk.check_not_poisoned()?;
        self.store.delta.barriers().before_change()?;
        let begun = self.store.metadata_log.begin_trace(self.store.tree());
        disk.poison_unless_full(begun)
    }

    /// The trace ends: after a loss of power, this node knows no barrier whose name is hidden. Before the other node gets anything.
    ///
    /// # Errors
    /// If the disk fails, which poisons the store (P16), or is full.
    pub fn end(self) -> Result<(), StoreError> {
        if is_active(Mutant::TraceOutlivesAlone) {
            return Ok(());
        }
        let disk = self.store.content.disk();
        disk.check_not_poisoned()?;
        disk.poison_unless_full(self.trace.end())
    }

    /// Whether this node has a trace.
    pub fn is_active(self) -> bool {
        self.trace.is_active()
    }

    /// Whether the rest of this process has begun on stable storage, after a loss of power: with the trace, which names the writes that were
    /// under way, too, or with the copy at a barrier of a resync. Then the other node has marks of these writes.
    pub fn begins_rest(self) -> bool {
        self.trace.begins_rest()
    }
}
