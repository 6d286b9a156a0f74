//! The mirrored writes that are not done on both nodes, by OSN.
//!
//! Invariant: the window begins at the oldest open write, once [`MirroredWrites::shrink_window`] has run.

use std::collections::{BTreeMap, VecDeque};

use lockstep_types::Osn;

use crate::lock::OpId;

/// See the head of this file.
#[derive(Default)]
pub(super) struct MirroredWrites {
    open: BTreeMap<Osn, OpId>,
    /// All mirrored writes from the oldest open one on, finished ones included: the writes that the secondary may
    /// still remember. The size of the secondary's table bounds the window.
    window: VecDeque<Osn>,
}

impl MirroredWrites {
    pub fn begin(&mut self, osn: Osn, id: OpId) {
        self.open.insert(osn, id);
        self.window.push_back(osn);
    }

    pub fn get(&self, osn: Osn) -> Option<OpId> {
        self.open.get(&osn).copied()
    }

    /// Ends a write. Returns whether the write was open.
    pub fn remove(&mut self, osn: Osn) -> bool {
        self.open.remove(&osn).is_some()
    }

    /// Ends all writes.
    pub fn clear(&mut self) {
        self.open.clear();
    }

    /// The open writes, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Osn, OpId)> {
        self.open.iter().map(|(osn, id)| (*osn, *id))
    }

    pub fn oldest(&self) -> Option<Osn> {
        self.open.keys().next().copied()
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub fn window_len(&self) -> usize {
        self.window.len()
    }

    /// Lets the window begin at the oldest open write.
    pub fn shrink_window(&mut self) {
        while self
            .window
            .front()
            .is_some_and(|osn| !self.open.contains_key(osn))
        {
            self.window.pop_front();
        }
    }
}
