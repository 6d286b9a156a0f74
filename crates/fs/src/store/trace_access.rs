//! The trace of a store, for a driver and for a resync: what has changed since both copies were equal.

use std::collections::BTreeSet;

use lockstep_types::{Generation, Ino, Osn};

use super::facade::Store;
use crate::journal::ChangedContent;

/// The trace of one store (rule P21).
#[derive(Clone, Copy)]
pub struct TraceAccess<'a> {
    store: &'a Store,
}

impl Store {
    /// What has changed since both copies were equal.
    pub const fn trace(&self) -> TraceAccess<'_> {
        TraceAccess { store: self }
    }
}

/// Begin and end.
impl TraceAccess<'_> {
    /// This secondary is in sync with the primary of generation `base`.
    pub fn follow(self, base: Generation) {
        self.store.journal.trace_primary(base);
    }

    /// The primary has done every operation below `below`.
    pub fn note_done_below(self, below: Osn) {
        self.store.journal.trace().note_done_below(below);
    }

    /// This secondary becomes the primary, without the other node.
    pub fn take_over(self) {
        self.store.journal.trace().take_over();
    }

    /// This primary has lost the connection with its secondary. The nodes were in sync, in generation `base`.
    pub fn begin_alone(self, base: Generation) {
        let applied = self.store.applied_lately();
        self.store.journal.trace().begin_alone(base, applied);
    }

    /// The copies are equal again, or the trace says nothing about the other copy any more.
    pub fn end(self) {
        self.store.journal.trace().end();
    }
}

/// Changes.
impl TraceAccess<'_> {
    /// Adds a write that may be on one node only.
    pub fn add_write(self, ino: Ino, offset: u64, length: u64) {
        self.store.journal.trace().add_write(ino, offset, length);
    }

    /// Whether the trace says in what a copy may differ that was equal in generation `base` and has the operations up to
    /// `applied`.
    pub fn covers(self, base: Generation, applied: Osn) -> bool {
        self.store.journal.trace().covers(base, applied)
    }

    /// The keys of the records that may differ from those of a copy that was equal in generation `base` and has the
    /// operations up to `applied`; `None` if the trace does not say so.
    pub fn records(self, base: Generation, applied: Osn) -> Option<BTreeSet<Vec<u8>>> {
        self.store.journal.trace().records(base, applied)
    }

    /// The bytes that may differ from those of such a copy. A file without bytes may differ in its times.
    pub fn content(self, base: Generation, applied: Osn) -> Option<ChangedContent> {
        self.store.journal.trace().content(base, applied)
    }

    /// The inodes of these records and bytes.
    pub fn inodes(self, base: Generation, applied: Osn) -> Option<BTreeSet<Ino>> {
        self.store.journal.trace().inodes(base, applied)
    }
}
