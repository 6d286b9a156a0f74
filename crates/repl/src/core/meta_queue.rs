//! The metadata operations in flight, in the order of their OSNs (rule P2).
//!
//! Invariant: operations leave the queue from the front only, and only when the peer has committed them or has been
//! given up.

use std::collections::{BTreeSet, VecDeque};

use lockstep_types::Osn;
use lockstep_types::mutants::{Mutant, is_active};

use super::pending::PendingMeta;
use crate::lock::OpId;

/// See the head of this file.
pub(super) struct MetaQueue {
    /// Mirrored operations that are not yet to be applied here.
    queue: VecDeque<PendingMeta>,
    /// Operations that are being applied here.
    applying: BTreeSet<Osn>,
}

impl MetaQueue {
    /// A queue with the operations that were pending at the last stop.
    pub fn new(in_doubt: Vec<Osn>) -> Self {
        let pending = in_doubt.into_iter().map(|osn| PendingMeta::new(osn, None));
        Self {
            queue: pending.collect(),
            applying: BTreeSet::new(),
        }
    }

    /// Adds an operation that goes to the peer.
    pub fn push_mirrored(&mut self, osn: Osn, id: OpId) {
        self.queue.push_back(PendingMeta::new(osn, Some(id)));
    }

    /// An operation is being applied on this node alone.
    pub fn begin_alone(&mut self, osn: Osn) {
        self.applying.insert(osn);
    }

    /// The first operation that is not over on this node.
    pub fn oldest(&self) -> Option<Osn> {
        let queued = self.queue.front().map(|meta| meta.osn);
        let applying = self.applying.first().copied();
        queued.into_iter().chain(applying).min()
    }

    pub fn len(&self) -> usize {
        self.queue.len() + self.applying.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The peer has committed an operation.
    pub fn commit(&mut self, osn: Osn) {
        for meta in self.queue.iter_mut().filter(|meta| meta.osn == osn) {
            meta.committed = true;
        }
    }

    /// The peer is given up: no operation waits for it.
    pub fn commit_all(&mut self) {
        for meta in &mut self.queue {
            meta.committed = true;
        }
    }

    /// Takes the operations up to `peer_applied` as committed by the peer. Returns the others, in the order in which
    /// they are to be sent again.
    pub fn commit_through(&mut self, peer_applied: Osn) -> Vec<Osn> {
        let mut unknown = Vec::new();
        for meta in &mut self.queue {
            if meta.osn <= peer_applied && !is_active(Mutant::RepeatMetadata) {
                meta.committed = true;
            } else {
                unknown.push(meta.osn);
            }
        }
        if is_active(Mutant::MetadataOutOfOrder) {
            unknown.reverse();
        }
        unknown
    }

    /// Removes the oldest operation, which is being applied from now on, if the peer has committed it. An operation
    /// behind an uncommitted one waits (rule P2).
    pub fn next_committed(&mut self) -> Option<PendingMeta> {
        self.queue.front().filter(|meta| meta.committed)?;
        let next = self.queue.pop_front()?;
        self.applying.insert(next.osn);
        Some(next)
    }

    /// An operation was applied here.
    pub fn applied(&mut self, osn: Osn) {
        self.applying.remove(&osn);
    }

    /// An operation with a client was applied here, or refused before it was sent.
    pub fn done(&mut self, id: OpId, osn: Option<Osn>) {
        self.queue.retain(|meta| meta.op != Some(id));
        if let Some(osn) = osn {
            self.applied(osn);
        }
    }

    /// Removes all operations that are not being applied. Returns those with a client.
    pub fn drop_queued(&mut self) -> Vec<OpId> {
        let queue = std::mem::take(&mut self.queue);
        queue.iter().filter_map(|meta| meta.op).collect()
    }

    /// Notes the beat at which an operation was sent.
    pub fn note_sent(&mut self, osn: Osn, beat: u64) {
        let mut newest_first = self.queue.iter_mut().rev();
        if let Some(meta) = newest_first.find(|meta| meta.osn == osn) {
            meta.sent = Some(beat);
        }
    }

    /// No operation has been sent over the present connection.
    pub fn forget_sent(&mut self) {
        for meta in &mut self.queue {
            meta.sent = None;
        }
    }

    /// Whether the peer has left an operation uncommitted that was sent at an overdue beat.
    pub fn is_overdue(&self, is_over: impl Fn(u64) -> bool) -> bool {
        let mut queue = self.queue.iter();
        queue.any(|meta| !meta.committed && meta.sent.is_some_and(&is_over))
    }
}
