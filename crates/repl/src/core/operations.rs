//! The life of an operation: submitted, locked, admitted, done on both sides, finished.

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, Osn};

use super::flight::{MetaFlight, Op, Side};
use super::{Core, Effect, Effects, Kind, LockSet, OpId};
use crate::state::{Service, State, Trigger};

/// The part of an operation that a disk which has failed refuses.
const REFUSED: Side = Side::Done(Err(Errno::Io));

/// Whether there is room for so many more bytes on the way to the peer. One operation alone has room.
fn fits(taken: u64, bytes: u64, most: u64) -> bool {
    taken == 0 || taken.saturating_add(bytes) <= most || is_active(Mutant::SendWithoutRoom)
}

impl Core {
    pub(super) fn submit(
        &mut self,
        op: OpId,
        kind: Kind,
        locks: LockSet,
        bytes: u64,
        effects: &mut Effects,
    ) {
        let granted = self.locks.acquire(op, &locks);
        self.ops.insert(op, Op::new(kind, locks, bytes));
        if granted {
            self.admit(op, effects);
        }
    }

    /// Whether a write of so many bytes would start, or be refused, if it were submitted now. Changes nothing.
    pub fn would_start_write(&self, locks: &LockSet, bytes: u64) -> bool {
        let is_admitted = match self.state.service() {
            Service::Alone | Service::WritesAlone | Service::Refused => true,
            Service::Mirrored => {
                self.queued.is_empty()
                    && self.window.len() < self.config.writes_max
                    && fits(self.bytes, bytes, self.config.bytes_max)
            }
            Service::Wait => false,
        };
        is_admitted && self.locks.would_grant(locks)
    }

    /// Starts an operation that has its locks, or holds it back until the state allows it.
    fn admit(&mut self, id: OpId, effects: &mut Effects) {
        let Some(kind) = self.ops.get(&id).map(|op| op.kind) else {
            return;
        };
        match (kind, self.state.service()) {
            (Kind::Read, _) | (Kind::Sync, Service::Alone | Service::WritesAlone) => {
                effects.push(Effect::Execute {
                    op: id,
                    osn: Osn::ZERO,
                });
            }
            (Kind::Write, Service::Alone | Service::WritesAlone) => {
                let osn = self.number(id);
                effects.push(Effect::Execute { op: id, osn });
            }
            (_, Service::Refused) => self.refuse(id, effects),
            (Kind::Write | Kind::Meta, Service::Mirrored) => {
                // Nobody overtakes one that waits for more room.
                if !self.queued.is_empty() || !self.start_if_room(id, kind, effects) {
                    self.queued.push_back(id);
                }
            }
            (Kind::Sync, Service::Mirrored) => {
                if !is_active(Mutant::SyncHereOnly) {
                    self.set_peer(id, Side::Waiting);
                    effects.push(Effect::SendSync { op: id });
                }
                effects.push(Effect::Execute {
                    op: id,
                    osn: Osn::ZERO,
                });
            }
            (Kind::Meta, Service::Alone) if !self.names_behind => {
                effects.push(Effect::Prepare { op: id });
            }
            _ => self.held.push_back(id),
        }
    }

    /// Starts an operation that goes to the peer, if there is room for it on the way there (rule P19).
    fn start_if_room(&mut self, id: OpId, kind: Kind, effects: &mut Effects) -> bool {
        let is_window_full = self.window.len() >= self.config.writes_max;
        if kind == Kind::Write && is_window_full || !self.take_room(id) {
            return false;
        }
        if kind == Kind::Write {
            self.start_mirrored_write(id, effects);
        } else {
            effects.push(Effect::Prepare { op: id });
        }
        true
    }

    /// Gives an operation room on the way to the peer, unless it has some. Whether it has it now.
    fn take_room(&mut self, id: OpId) -> bool {
        let Some(op) = self.ops.get_mut(&id) else {
            return true;
        };
        if op.has_room {
            return true;
        }
        if !fits(self.bytes, op.bytes, self.config.bytes_max) {
            return false;
        }
        op.has_room = true;
        self.bytes = self.bytes.saturating_add(op.bytes);
        true
    }

    /// Starts what waits for room, in order, as far as there is some.
    pub(super) fn admit_queued(&mut self, effects: &mut Effects) {
        while self.state.service() == Service::Mirrored
            && let Some(&id) = self.queued.front()
        {
            let kind = self.ops.get(&id).map(|op| op.kind);
            if !kind.is_none_or(|kind| self.start_if_room(id, kind, effects)) {
                break;
            }
            self.queued.pop_front();
        }
    }

    fn start_mirrored_write(&mut self, id: OpId, effects: &mut Effects) {
        let osn = self.number(id);
        if !is_active(Mutant::AnswerBeforePeer) {
            self.set_peer(id, Side::Waiting);
        }
        self.writes.insert(osn, id);
        self.window.push_back(osn);
        let connection = self.connection;
        effects.push(Effect::SendWrite {
            op: id,
            osn,
            connection,
        });
        effects.push(Effect::Execute { op: id, osn });
    }

    /// Gives an operation the next number.
    fn number(&mut self, id: OpId) -> Osn {
        let osn = self.next_osn;
        self.next_osn = osn.next();
        if let Some(op) = self.ops.get_mut(&id) {
            op.osn = Some(osn);
        }
        osn
    }

    fn set_peer(&mut self, id: OpId, side: Side) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.peer = side;
        }
    }

    /// Numbers a metadata operation, or holds it back if the state has changed since it was
    /// prepared (rule P2).
    pub(super) fn sequence(&mut self, id: OpId, effects: &mut Effects) {
        let mirrored = match self.state.service() {
            Service::Mirrored => true,
            Service::Alone if !self.names_behind => false,
            Service::Alone | Service::WritesAlone | Service::Wait => {
                self.held.push_back(id);
                return;
            }
            Service::Refused => return self.refuse(id, effects),
        };
        let osn = self.number(id);
        if mirrored {
            self.set_peer(id, Side::Waiting);
            self.metas.push_back(MetaFlight {
                osn,
                op: Some(id),
                committed: false,
                sent: None,
            });
        } else {
            self.applying += 1;
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
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        op.local = if op.kind == Kind::Read || self.state != State::Poisoned {
            Side::Done(result)
        } else {
            // Done here alone, and the other node counts: not to be acknowledged (P1).
            REFUSED
        };
        if op.kind == Kind::Meta {
            self.meta_done(id);
            self.commit_ready(effects);
        } else {
            self.resend_if_due(id, effects);
        }
        self.finish_if_over(id, effects);
    }

    /// A write is over that neither side has anything of.
    pub(super) fn refused(&mut self, id: OpId, errno: Errno, effects: &mut Effects) {
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        op.local = Side::Done(Err(errno));
        op.peer = Side::Unneeded;
        if let Some(osn) = op.osn {
            self.writes.remove(&osn);
        }
        self.finish_if_over(id, effects);
    }

    /// A metadata operation was applied here, or refused before it was sent.
    fn meta_done(&mut self, id: OpId) {
        let before = self.metas.len();
        self.metas.retain(|meta| meta.op != Some(id));
        if self.metas.len() == before {
            self.applying = self.applying.saturating_sub(1);
        }
        self.set_peer(id, Side::Unneeded);
    }

    /// A metadata operation without a client was applied.
    pub(super) fn applied(&mut self, effects: &mut Effects) {
        self.applying = self.applying.saturating_sub(1);
        self.commit_ready(effects);
    }

    pub(super) fn write_acked(&mut self, osn: Osn, failed: Option<Errno>, effects: &mut Effects) {
        let Some(&id) = self.writes.get(&osn).filter(|_| self.heeds_acks()) else {
            return;
        };
        match failed {
            None => {
                self.set_peer(id, Side::Done(Ok(())));
                self.finish_if_over(id, effects);
            }
            Some(_) => self.trigger(Trigger::PeerFailed, effects),
        }
    }

    pub(super) fn sync_acked(&mut self, id: OpId, failed: Option<Errno>, effects: &mut Effects) {
        if !self.ops.contains_key(&id) || !self.heeds_acks() {
            return;
        }
        match failed {
            None => {
                self.set_peer(id, Side::Done(Ok(())));
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
                for meta in self.metas.iter_mut().filter(|meta| meta.osn == osn) {
                    meta.committed = true;
                }
                self.commit_ready(effects);
            }
            Err(_) => self.trigger(Trigger::PeerFailed, effects),
        }
    }

    /// Applies what the peer has committed, strictly in order: what is behind an operation that
    /// is not committed yet waits (rule P2).
    pub(super) fn commit_ready(&mut self, effects: &mut Effects) {
        while self.metas.front().is_some_and(|meta| meta.committed) {
            if let Some(meta) = self.metas.pop_front() {
                self.applying += 1;
                effects.push(Effect::Commit {
                    osn: meta.osn,
                    op: meta.op,
                });
            }
        }
    }

    /// Ends an operation when neither side has anything left to do (rule P1).
    pub(super) fn finish_if_over(&mut self, id: OpId, effects: &mut Effects) {
        let Some(outcome) = self.ops.get(&id).and_then(Op::outcome) else {
            return;
        };
        let Some(op) = self.ops.remove(&id) else {
            return;
        };
        if op.has_room {
            self.bytes = self.bytes.saturating_sub(op.bytes);
        }
        let mirrored_write = op.osn.is_some_and(|osn| self.writes.remove(&osn).is_some());
        effects.push(Effect::Finish {
            op: id,
            result: outcome,
        });
        if mirrored_write && outcome.is_err() {
            // The peer has bytes that we could not write: only a resync makes us equal again (P15).
            self.trigger(Trigger::PeerFailed, effects);
        }
        if outcome.is_ok() || !is_active(Mutant::KeepLock) {
            self.release(id, &op.locks, effects);
        }
    }

    fn release(&mut self, id: OpId, locks: &LockSet, effects: &mut Effects) {
        let mut granted = Vec::new();
        self.locks.release(id, locks, |next| granted.push(next));
        for next in granted {
            self.admit(next, effects);
        }
    }

    /// Writes of the process before are settled: both nodes have the same bytes, or the other one
    /// counts no more.
    pub(super) fn settle_under_way(&mut self, effects: &mut Effects) {
        for (id, locks) in std::mem::take(&mut self.under_way) {
            self.release(id, &locks, effects);
        }
    }

    /// Lets every operation that was held back try again.
    pub(super) fn admit_held(&mut self, effects: &mut Effects) {
        let queued = std::mem::take(&mut self.queued);
        for id in queued.into_iter().chain(std::mem::take(&mut self.held)) {
            self.admit(id, effects);
        }
    }

    /// Gives up the peer's part of everything in flight: it has been marked out of sync (rule P1).
    pub(super) fn finish_alone(&mut self, effects: &mut Effects) {
        self.settle_under_way(effects);
        for meta in &mut self.metas {
            meta.committed = true;
        }
        let mut waiting: Vec<OpId> = self
            .ops
            .iter()
            .filter(|(_, op)| op.kind != Kind::Meta && op.peer == Side::Waiting)
            .map(|(id, _)| *id)
            .collect();
        waiting.sort_unstable();
        self.writes.clear();
        for id in waiting {
            self.set_peer(id, Side::Unneeded);
            self.finish_if_over(id, effects);
        }
        self.commit_ready(effects);
    }

    /// Ends an operation that nothing is being done for with an error: the disk has failed (P16).
    fn refuse(&mut self, id: OpId, effects: &mut Effects) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.local = REFUSED;
            op.peer = Side::Unneeded;
        }
        self.finish_if_over(id, effects);
    }

    /// Ends every change and sync with an error; what is being done here right now, and so holds on
    /// to its locks for a reason, when that is over.
    pub(super) fn refuse_all(&mut self, effects: &mut Effects) {
        // Reads go on, also of what was under way: what is here is all there will ever be here.
        self.settle_under_way(effects);
        self.writes.clear();
        let sent = std::mem::take(&mut self.metas);
        let held = std::mem::take(&mut self.held);
        let queued = std::mem::take(&mut self.queued);
        let waited = held.into_iter().chain(queued);
        let mut idle: Vec<OpId> = sent
            .iter()
            .filter_map(|meta| meta.op)
            .chain(waited)
            .collect();
        for (id, op) in &mut self.ops {
            let waits = op.kind != Kind::Meta && op.peer != Side::Unneeded;
            op.peer = Side::Unneeded;
            if waits && op.local != Side::Waiting {
                idle.push(*id);
            }
        }
        idle.sort_unstable();
        for id in idle {
            self.refuse(id, effects);
        }
    }

    /// Writes whose part on the peer is open and whose part here is done.
    pub(super) fn resendable(&self) -> Vec<(OpId, Osn)> {
        self.writes
            .iter()
            .filter(|(_, id)| {
                self.ops
                    .get(id)
                    .is_some_and(|op| op.peer == Side::Waiting && op.local == Side::Done(Ok(())))
            })
            .map(|(osn, id)| (*id, *osn))
            .collect()
    }

    /// Syncs whose part on the peer is open.
    pub(super) fn waiting_syncs(&self) -> Vec<OpId> {
        let mut waiting: Vec<OpId> = self
            .ops
            .iter()
            .filter(|(_, op)| op.kind == Kind::Sync && op.peer == Side::Waiting)
            .map(|(id, _)| *id)
            .collect();
        waiting.sort_unstable();
        waiting
    }
}
