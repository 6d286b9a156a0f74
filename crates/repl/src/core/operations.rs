//! The life of an operation: submitted, locked, admitted, done on both nodes, finished.

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, Osn};

use super::pending::{NodePart, Op, REFUSED};
use super::send_room::Lane;
use super::{Core, Effect, Effects, LockSet, OpId, OpKind};
use crate::state::{ServiceMode, State, Trigger};

impl Core {
    pub(super) fn submit(
        &mut self,
        op: OpId,
        kind: OpKind,
        locks: LockSet,
        bytes: u64,
        effects: &mut Effects,
    ) {
        if self.ops.submit(op, Op::new(kind, locks, bytes)) {
            self.admit(op, effects);
        }
    }

    /// Whether a write of `bytes` bytes would start, or be refused, if it were submitted now. Changes nothing.
    pub fn would_start_write(&self, locks: &LockSet, bytes: u64) -> bool {
        let is_admitted = match self.state.service_mode() {
            ServiceMode::Alone | ServiceMode::WritesAlone | ServiceMode::Refused => true,
            ServiceMode::Mirrored => {
                let lane = self.room.lane(OpKind::Write, bytes);
                !self.is_window_full() && self.room.is_open(lane, bytes)
            }
            ServiceMode::Wait => false,
        };
        is_admitted && self.held.is_gate_open() && self.ops.would_grant(locks)
    }

    /// Starts an operation that has its locks, or holds it back until the state allows it.
    fn admit(&mut self, id: OpId, effects: &mut Effects) {
        let Some(kind) = self.ops.get(id).map(|op| op.kind) else {
            return;
        };
        if self.held.park(id, kind) {
            return;
        }
        match (kind, self.state.service_mode()) {
            (OpKind::Read, _) | (OpKind::Sync, ServiceMode::Alone | ServiceMode::WritesAlone) => {
                effects.push(Effect::Execute {
                    op: id,
                    osn: Osn::ZERO,
                });
            }
            (OpKind::Write, ServiceMode::Alone | ServiceMode::WritesAlone) => {
                let osn = self.number(id);
                effects.push(Effect::Execute { op: id, osn });
            }
            (_, ServiceMode::Refused) => self.refuse(id, effects),
            (OpKind::Snapshot, _) => {
                let limit_ms = self.config.gate_limit_ms;
                let ends_ms = self.clock.now_ms().saturating_add(limit_ms);
                self.held.close_gate(id, ends_ms);
            }
            (OpKind::Write | OpKind::Meta, ServiceMode::Mirrored) => {
                let bytes = self.ops.get(id).map_or(0, |op| op.bytes);
                let lane = self.room.lane(kind, bytes);
                // No operation overtakes one of its lane.
                if self.room.first(lane).is_some() || !self.start_if_room(id, kind, effects) {
                    self.room.push(lane, id);
                }
            }
            (OpKind::Sync, ServiceMode::Mirrored) => {
                if !is_active(Mutant::SyncHereOnly) {
                    self.ops.set_peer(id, NodePart::Pending);
                    effects.push(Effect::SendSync { op: id });
                }
                effects.push(Effect::Execute {
                    op: id,
                    osn: Osn::ZERO,
                });
            }
            (OpKind::Meta, ServiceMode::Alone) if !self.image.is_behind => {
                effects.push(Effect::Prepare { op: id });
            }
            _ => self.held.for_state.push_back(id),
        }
    }

    fn is_window_full(&self) -> bool {
        self.writes.window_len() >= self.config.writes_max
    }

    /// Starts an operation that goes to the peer, if there is room for it on the way to the peer (rule P19).
    fn start_if_room(&mut self, id: OpId, kind: OpKind, effects: &mut Effects) -> bool {
        if kind == OpKind::Write && self.is_window_full() {
            return false;
        }
        if let Some(op) = self.ops.get_mut(id)
            && !self.room.take(op, self.clock.now_ms())
        {
            return false;
        }
        if kind == OpKind::Write {
            self.start_mirrored_write(id, effects);
        } else {
            effects.push(Effect::Prepare { op: id });
        }
        true
    }

    /// Starts the operations that wait for room, as far as there is room, in the order of each lane.
    pub(super) fn admit_queued(&mut self, effects: &mut Effects) {
        for lane in Lane::ALL {
            while self.held.is_gate_open()
                && self.state.service_mode() == ServiceMode::Mirrored
                && let Some(id) = self.room.first(lane)
            {
                let kind = self.ops.get(id).map(|op| op.kind);
                if !kind.is_none_or(|kind| self.start_if_room(id, kind, effects)) {
                    break;
                }
                self.room.pop(lane);
            }
        }
    }

    fn start_mirrored_write(&mut self, id: OpId, effects: &mut Effects) {
        let osn = self.number(id);
        if !is_active(Mutant::AnswerBeforePeer) {
            self.ops.set_peer(id, NodePart::Pending);
        }
        self.writes.begin(osn, id);
        let connection = self.link.connection;
        effects.push(Effect::SendWrite {
            op: id,
            osn,
            connection,
        });
        effects.push(Effect::Execute { op: id, osn });
    }

    /// Gives an operation the next OSN.
    fn number(&mut self, id: OpId) -> Osn {
        let osn = self.next_osn;
        self.next_osn = osn.next();
        if let Some(op) = self.ops.get_mut(id) {
            op.osn = Some(osn);
        }
        osn
    }

    /// Numbers a metadata operation, or holds it back if the state has changed since it was
    /// prepared (rule P2).
    pub(super) fn sequence(&mut self, id: OpId, effects: &mut Effects) {
        match self.ops.get(id).map(|op| op.kind) {
            Some(kind) if !self.held.park(id, kind) => {}
            // It is parked, or it has lost the gate and is over.
            _ => return,
        }
        let mirrored = match self.state.service_mode() {
            ServiceMode::Mirrored => true,
            ServiceMode::Alone if !self.image.is_behind => false,
            ServiceMode::Alone | ServiceMode::WritesAlone | ServiceMode::Wait => {
                self.held.for_state.push_back(id);
                return;
            }
            ServiceMode::Refused => return self.refuse(id, effects),
        };
        let osn = self.number(id);
        for parked in self.held.note_numbered(id) {
            self.admit(parked, effects);
        }
        if mirrored {
            self.ops.set_peer(id, NodePart::Pending);
            self.metas.push_mirrored(osn, id);
        } else {
            self.metas.begin_alone(osn);
        }
        effects.push(Effect::Sequenced {
            op: id,
            osn,
            mirrored,
        });
    }

    pub(super) fn local_done(
        &mut self,
        id: OpId,
        result: Result<(), Errno>,
        effects: &mut Effects,
    ) {
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        op.local = if op.kind == OpKind::Read || self.state != State::Poisoned {
            NodePart::Done(result)
        } else {
            // This node alone has executed the operation, and the other node counts: no acknowledgement (P1).
            REFUSED
        };
        if op.kind.is_metadata() {
            op.peer = NodePart::NotNeeded;
            let osn = op.osn;
            self.metas.done(id, osn);
            self.commit_ready(effects);
        } else {
            self.resend_if_due(id, effects);
        }
        self.finish_if_over(id, effects);
    }

    /// Ends a write of which neither node has any part.
    pub(super) fn refused(&mut self, id: OpId, errno: Errno, effects: &mut Effects) {
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        op.local = NodePart::Done(Err(errno));
        op.peer = NodePart::NotNeeded;
        if let Some(osn) = op.osn {
            self.writes.remove(osn);
        }
        self.finish_if_over(id, effects);
    }

    /// The peer has done its part of a write or a sync, or failed.
    pub(super) fn peer_done(&mut self, id: OpId, failed: Option<Errno>, effects: &mut Effects) {
        if self.ops.get(id).is_none() || !self.accepts_acks() {
            return;
        }
        match failed {
            None => {
                self.ops.set_peer(id, NodePart::Done(Ok(())));
                self.finish_if_over(id, effects);
            }
            Some(_) => self.trigger(Trigger::PeerFailed, effects),
        }
    }

    pub(super) fn meta_acked(
        &mut self,
        osn: Osn,
        outcome: Result<(), Errno>,
        effects: &mut Effects,
    ) {
        match outcome {
            Ok(()) => {
                self.metas.commit(osn);
                self.commit_ready(effects);
            }
            Err(_) => self.trigger(Trigger::PeerFailed, effects),
        }
    }

    /// Applies the operations that the peer has committed, strictly in order (rule P2).
    pub(super) fn commit_ready(&mut self, effects: &mut Effects) {
        while let Some(meta) = self.metas.next_committed() {
            effects.push(Effect::Commit {
                osn: meta.osn,
                op: meta.op,
            });
        }
    }

    /// Ends an operation when neither node has anything left to do (rule P1).
    pub(super) fn finish_if_over(&mut self, id: OpId, effects: &mut Effects) {
        let Some(outcome) = self.ops.get(id).and_then(Op::outcome) else {
            return;
        };
        let Some(op) = self.ops.remove(id) else {
            return;
        };
        self.room.give_back(&op, self.clock.now_ms());
        let mirrored_write = op.osn.is_some_and(|osn| self.writes.remove(osn));
        effects.push(Effect::Finish {
            op: id,
            result: outcome,
        });
        if mirrored_write && outcome.is_err() {
            // The peer has bytes that this node could not write: only a resync makes the nodes equal again (P15).
            self.trigger(Trigger::PeerFailed, effects);
        }
        if outcome.is_ok() || !is_active(Mutant::KeepLock) {
            self.release(id, &op.locks, effects);
        }
        for parked in self.held.open_gate_of(id) {
            self.admit(parked, effects);
        }
    }

    fn release(&mut self, id: OpId, locks: &LockSet, effects: &mut Effects) {
        for next in self.ops.release(id, locks) {
            self.admit(next, effects);
        }
    }

    /// Releases the locks of the previous process's writes: both nodes have the same bytes, or the other node
    /// counts no more.
    pub(super) fn release_interrupted(&mut self, effects: &mut Effects) {
        for (id, locks) in self.ops.take_interrupted() {
            self.release(id, &locks, effects);
        }
    }

    /// Lets every operation that was held back try again.
    pub(super) fn admit_held(&mut self, effects: &mut Effects) {
        let queued = self.room.take_waiting();
        let held = std::mem::take(&mut self.held.for_state);
        for id in queued.into_iter().chain(held) {
            self.admit(id, effects);
        }
    }

    /// Gives up the peer's part of every operation in flight: the peer has been marked out of sync (rule P1).
    pub(super) fn finish_alone(&mut self, effects: &mut Effects) {
        self.release_interrupted(effects);
        self.metas.commit_all();
        self.writes.clear();
        for id in self.ops.unanswered() {
            self.ops.set_peer(id, NodePart::NotNeeded);
            self.finish_if_over(id, effects);
        }
        self.commit_ready(effects);
    }

    /// Ends an idle operation with an error: the disk has failed (P16).
    fn refuse(&mut self, id: OpId, effects: &mut Effects) {
        if let Some(op) = self.ops.get_mut(id) {
            op.local = REFUSED;
            op.peer = NodePart::NotNeeded;
        }
        self.finish_if_over(id, effects);
    }

    /// Ends every change and sync with an error. An operation that this node is executing right now keeps its locks
    /// for a reason, and ends when its local part is over.
    pub(super) fn refuse_all(&mut self, effects: &mut Effects) {
        // Reads go on, also of interrupted writes: this node's bytes will never change again.
        self.release_interrupted(effects);
        self.writes.clear();
        let held = self.held.take_all();
        let queued = self.room.take_waiting();
        let mut idle = self.metas.drop_queued();
        idle.extend(held.into_iter().chain(queued));
        for (id, op) in self.ops.iter_mut() {
            let waits = !op.kind.is_metadata() && op.peer != NodePart::NotNeeded;
            op.peer = NodePart::NotNeeded;
            if waits && op.local != NodePart::Pending {
                idle.push(id);
            }
        }
        idle.sort_unstable();
        for id in idle {
            self.refuse(id, effects);
        }
    }
}
