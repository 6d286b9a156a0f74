//! The barriers of a store, for a driver: the marks of mirrored intervals, and the names of the barriers that both nodes know
//! (rules P27 and P29).
//!
//! Functions that say so change memory only, and wait for no disk: a driver calls them under the core's lock.

use lockstep_delta::{BarrierEffect, BarrierEvent, BarrierMachine, BarrierNames, Interval};
use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};

use super::facade::Store;
use super::trace_access::TraceAccess;
use crate::delta::IntervalMarks;
use crate::error::StoreError;

/// The barriers of one store.
#[derive(Clone, Copy)]
pub struct BarrierAccess<'a> {
    marks: &'a IntervalMarks,
    store: &'a Store,
}

impl Store {
    /// The barriers, and the marks since the last one.
    pub fn barriers(&self) -> BarrierAccess<'_> {
        BarrierAccess {
            marks: self.delta.barriers(),
            store: self,
        }
    }
}

/// The machine, in memory only.
impl BarrierAccess<'_> {
    /// Takes an event, and returns what is to be done, in order. After [`BarrierEffect::Drop`] the driver calls
    /// [`Self::drop_columns`] on a thread that may wait for the disk.
    ///
    /// [`BarrierEvent::MirroringBegun`] begins a coverage, unless one lasts: the open interval may then be above `from`.
    /// [`BarrierEvent::Turned`] does so on a secondary.
    pub fn handle(self, event: BarrierEvent) -> Vec<BarrierEffect> {
        self.marks.handle(event)
    }

    /// Another session of this process begins: the barrier and the operations under way are gone. Marks, coverage and names stay.
    pub fn restarted(self) {
        self.marks.restarted();
    }

    /// The interval of a new operation.
    pub fn open(self) -> Interval {
        self.marks.machine(BarrierMachine::open)
    }

    /// Asks the machine. Changes nothing.
    pub fn ask<T>(self, ask: impl FnOnce(&BarrierMachine) -> T) -> T {
        self.marks.machine(ask)
    }

    /// The used part of the fuller table of marks, in thousandths.
    pub fn fill(self) -> u32 {
        self.marks.fill()
    }
}

/// Marks. These may wait for the disk, but for bytes that are marked already.
impl BarrierAccess<'_> {
    /// Marks a write in the open interval. The core has numbered the write, and it is not sent yet.
    pub fn mark_write(self, ino: Ino, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        self.marks.mark_bytes(ino, &(offset..end));
    }

    /// Notes on stable storage that a barrier is complete, and empties its columns.
    ///
    /// # Errors
    /// If the disk fails, which poisons the store (P16).
    pub fn drop_columns(self) -> Result<(), StoreError> {
        self.on_disk(IntervalMarks::note_complete)?;
        self.marks.drop_columns();
        Ok(())
    }
}

/// Stable storage.
impl BarrierAccess<'_> {
    /// Puts everything that was changed before the call on stable storage: content with its names, removals, the log, and a
    /// checkpoint, which has sizes and times. Operations go on meanwhile. The names that are noted next get a copy of the rest of before,
    /// which goes to stable storage with them (P30).
    ///
    /// # Errors
    /// If the disk fails, which poisons the store (P16), or is full.
    pub fn make_stable(self) -> Result<(), StoreError> {
        // Before the sync: a change that the copy lacks is covered by that.
        let rest = self.store.delta.copy_rest();
        if !is_active(Mutant::BarrierBeforeSync) {
            self.store.sync_everything_logged()?;
        }
        self.marks.next_names.keep_copy(rest);
        Ok(())
    }

    /// Notes the names of a sync that is over, on stable storage. Everything up to them is there ([`Self::make_stable`]). Returns
    /// false, and notes nothing, if the barriers' machine waits for another sync or for none: then no event follows.
    ///
    /// # Errors
    /// If the disk fails, which poisons the store (P16), or is full. On a full disk nothing is lost.
    pub fn note_names(self, names: BarrierNames) -> Result<bool, StoreError> {
        self.on_disk(|marks| marks.note_names(names))
    }

    /// This node is about to serve alone, and marks what it does alone in memory only, until its trace begins: after a loss of power it
    /// knows no barrier. Ends the barrier under way. Marks and coverage stay, and the names with the coverage.
    ///
    /// # Errors
    /// If the disk fails, which poisons the store (P16), or is full.
    pub fn hide_names(self) -> Result<(), StoreError> {
        // A node that starts alone goes on with the trace of before.
        if !self.marks.are_hidden() {
            TraceAccess::of(self.store).end()?;
        }
        self.on_disk(IntervalMarks::hide_names)
    }

    /// This primary mirrors no more: a change of a node with a rest is in no column from now on. The next change hides the names first, on
    /// the thread of the change ([`Self::hide_names`]). Changes memory only.
    pub fn serve_alone(self) {
        self.marks.set_mirroring(false);
        self.marks.next_names.set_hiding(true);
    }

    /// Takes [`Self::hide_names`] back: the source of a resync has asked for the marks of this node, and has them in its rest.
    ///
    /// # Errors
    /// As [`Self::hide_names`].
    pub fn reveal_names(self) -> Result<(), StoreError> {
        self.on_disk(IntervalMarks::reveal_names)
    }

    /// Removes the names of all barriers from stable storage and from memory, and ends the barrier under way and the coverage. Before
    /// a copy changes in a way that no mark names: a resync of everything, another role.
    ///
    /// # Errors
    /// If the disk fails, which poisons the store (P16), or is full. Then the names may still be there.
    pub fn forget(self) -> Result<(), StoreError> {
        TraceAccess::of(self.store).end()?;
        self.on_disk(IntervalMarks::forget)
    }

    fn on_disk<T>(
        self,
        change: impl FnOnce(&IntervalMarks) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let disk = self.store.content.disk();
        disk.check_not_poisoned()?;
        disk.poison_unless_full(change(self.marks))
    }
}
