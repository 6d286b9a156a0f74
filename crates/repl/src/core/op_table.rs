//! All operations from submission to finish, with their locks.
//!
//! Invariant: each lock in the lock table belongs to an operation in flight, or to a write that the previous process
//! left unfinished.

use std::collections::HashMap;

use super::OpKind;
use super::pending::{NodePart, Op};
use crate::lock::{LockSet, LockTable, OpId};

/// The highest operation id. Ids from here downwards stand for interrupted writes of the previous process.
const LAST_OP: u64 = u64::MAX;

/// Numbers of locks, for a test that all locks are given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCounts {
    /// Held or waited for.
    pub taken: usize,
    /// Taken locks that belong to nothing under way: always none.
    pub stray: usize,
}

/// See the head of this file.
pub(super) struct OpTable {
    locks: LockTable,
    ops: HashMap<OpId, Op>,
    /// Locks held for writes that the previous process left unfinished.
    interrupted: Vec<(OpId, LockSet)>,
}

impl OpTable {
    /// A table without operations, which holds the locks of interrupted writes.
    pub fn new(interrupted_writes: Vec<LockSet>) -> Self {
        let mut locks = LockTable::default();
        let numbered = (0..=LAST_OP).rev().map(OpId).zip(interrupted_writes);
        let interrupted = numbered
            .filter(|(op, held)| locks.acquire(*op, held))
            .collect();
        Self {
            locks,
            ops: HashMap::new(),
            interrupted,
        }
    }

    /// Adds an operation. Returns whether the operation holds its locks now.
    pub fn submit(&mut self, id: OpId, op: Op) -> bool {
        let granted = self.locks.acquire(id, &op.locks);
        self.ops.insert(id, op);
        granted
    }

    /// Whether an operation that asks for `locks` now would hold them at once.
    pub fn would_grant(&self, locks: &LockSet) -> bool {
        self.locks.would_grant(locks)
    }

    /// Gives locks back. Returns the operations that hold theirs now, in the order in which they asked.
    pub fn release(&mut self, id: OpId, locks: &LockSet) -> Vec<OpId> {
        let mut granted = Vec::new();
        self.locks.release(id, locks, |next| granted.push(next));
        granted
    }

    /// Removes the interrupted writes. The caller releases their locks.
    pub fn take_interrupted(&mut self) -> Vec<(OpId, LockSet)> {
        std::mem::take(&mut self.interrupted)
    }

    pub fn get(&self, id: OpId) -> Option<&Op> {
        self.ops.get(&id)
    }

    pub fn get_mut(&mut self, id: OpId) -> Option<&mut Op> {
        self.ops.get_mut(&id)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (OpId, &mut Op)> {
        self.ops.iter_mut().map(|(id, op)| (*id, op))
    }

    /// Whether an operation of a wanted kind has a number.
    pub fn has_numbered(&self, is_wanted: impl Fn(OpId, OpKind) -> bool) -> bool {
        let mut ops = self.ops.iter();
        ops.any(|(id, op)| op.osn.is_some() && is_wanted(*id, op.kind))
    }

    pub fn remove(&mut self, id: OpId) -> Option<Op> {
        self.ops.remove(&id)
    }

    pub fn len(&self) -> usize {
        self.ops.len()
    }

    pub fn set_peer(&mut self, id: OpId, part: NodePart) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.peer = part;
        }
    }

    /// Notes the beat at which an operation was sent.
    pub fn note_sent(&mut self, id: OpId, beat: u64) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.sent = Some(beat);
        }
    }

    /// No operation has been sent over the present connection, or none that counts.
    pub fn forget_sent(&mut self) {
        for op in self.ops.values_mut() {
            op.sent = None;
        }
    }

    /// Whether the peer has left an operation unanswered that was sent at an overdue beat.
    pub fn is_overdue(&self, is_over: impl Fn(u64) -> bool) -> bool {
        let mut ops = self.ops.values();
        ops.any(|op| op.peer == NodePart::Pending && op.sent.is_some_and(&is_over))
    }

    /// Whether the part of an operation on the peer is pending.
    pub fn has_unanswered(&self) -> bool {
        let mut ops = self.ops.values();
        ops.any(|op| op.peer == NodePart::Pending)
    }

    /// Writes and syncs whose part on the peer is pending.
    pub fn unanswered(&self) -> Vec<OpId> {
        self.pending_on_peer(|kind| !kind.is_metadata())
    }

    /// Syncs whose part on the peer is pending.
    pub fn unanswered_syncs(&self) -> Vec<OpId> {
        self.pending_on_peer(|kind| kind == OpKind::Sync)
    }

    fn pending_on_peer(&self, is_wanted: impl Fn(OpKind) -> bool) -> Vec<OpId> {
        let mut pending: Vec<OpId> = self
            .ops
            .iter()
            .filter(|(_, op)| is_wanted(op.kind) && op.peer == NodePart::Pending)
            .map(|(id, _)| *id)
            .collect();
        pending.sort_unstable();
        pending
    }

    /// Counts the locks one by one.
    pub fn lock_counts(&self) -> LockCounts {
        let of_ops = self.ops.values().map(|op| op.locks.len());
        let of_interrupted = self.interrupted.iter().map(|(_, locks)| locks.len());
        let taken = self.locks.len();
        LockCounts {
            taken,
            stray: taken.abs_diff(of_ops.chain(of_interrupted).sum()),
        }
    }
}
