//! Distributed recovery: the primary's steps after every reconnect (paper, sections 4.2, 5.2).
//!
//! First metadata: this node applies the operations that the peer has committed and sends the others again, in order.
//! Then this node sends its own content of every range in PAW ∪ SAW from before. Then this node sends the writes again
//! that clients still wait for. New operations are admitted only when all three steps are done on both nodes (rule P8).

use lockstep_types::Osn;
use lockstep_types::mutants::{Mutant, is_active};

use super::pending::NodePart;
use super::{Core, Effect, Effects, OpId, RecoveryStep, Transfer};
use crate::state::{State, Trigger};

impl Core {
    pub(super) fn start_recovery(&mut self, peer_applied: Osn, effects: &mut Effects) {
        self.recovery = Some(RecoveryStep::Metadata);
        self.ops.forget_sent();
        self.metas.forget_sent();
        // Writes of which only the peer is done are sent again too, for the reason of `accepts_acks`.
        for (_, id) in self.writes.iter() {
            self.ops.set_peer(id, NodePart::Pending);
        }
        let unknown = self.metas.commit_through(peer_applied);
        effects.extend(unknown.into_iter().map(|osn| Effect::ResendMeta { osn }));
        self.commit_ready(effects);
    }

    /// Goes on to the next step when the present step is complete.
    pub(super) fn advance_recovery(&mut self, effects: &mut Effects) {
        match self.recovery {
            Some(RecoveryStep::Metadata)
                if self.metas.is_empty() || is_active(Mutant::RangesBeforeMetadata) =>
            {
                self.recovery = Some(RecoveryStep::Ranges);
                self.transfer(Transfer::RecoverRanges, effects);
                if is_active(Mutant::AdmitBeforeRanges) {
                    self.ranges_recovered(effects);
                }
            }
            Some(RecoveryStep::Writes) if self.any_write_failed() => {
                // The peer may have the bytes of the write, and this node some of them.
                self.trigger(Trigger::PeerFailed, effects);
            }
            Some(RecoveryStep::Writes)
                if self.writes.is_empty() && self.ops.unanswered_syncs().is_empty() =>
            {
                self.transfer(Transfer::TellRecovered, effects);
                self.trigger(Trigger::Recovered, effects);
            }
            _ => {}
        }
    }

    /// Whether an ack counts now. An ack that comes before the ranges were sent belongs to a frame that slipped onto
    /// the new connection. The ranges may yet take the acknowledged bytes back, together with the size and times of
    /// their files, which do not show writes in flight (rule P8).
    pub(super) fn accepts_acks(&self) -> bool {
        matches!(self.recovery, None | Some(RecoveryStep::Writes))
    }

    fn any_write_failed(&self) -> bool {
        let mut ops = self.writes.iter().filter_map(|(_, id)| self.ops.get(id));
        ops.any(|op| matches!(op.local, NodePart::Done(Err(_))))
    }

    pub(super) fn ranges_recovered(&mut self, effects: &mut Effects) {
        if self.recovery != Some(RecoveryStep::Ranges) {
            return;
        }
        self.recovery = Some(RecoveryStep::Writes);
        self.ops.forget_sent();
        self.metas.forget_sent();
        self.release_interrupted(effects);
        if is_active(Mutant::NoResend) {
            return self.take_writes_as_done(effects);
        }
        for (op, osn) in self.resendable() {
            self.resend(op, osn, effects);
        }
        for op in self.ops.unanswered_syncs() {
            effects.push(Effect::SendSync { op });
        }
    }

    /// The deliberate bug `NoResend`: answers writes that the peer may lack.
    fn take_writes_as_done(&mut self, effects: &mut Effects) {
        for (op, _) in self.resendable() {
            self.ops.set_peer(op, NodePart::NotNeeded);
            self.finish_if_over(op, effects);
        }
    }

    /// Sends a write again that this node was still executing when the recovery reached it.
    pub(super) fn resend_if_due(&mut self, id: OpId, effects: &mut Effects) {
        if self.state != State::CatchingUp || self.recovery != Some(RecoveryStep::Writes) {
            return;
        }
        let due = self.resendable().into_iter().find(|(op, _)| *op == id);
        if let Some((op, osn)) = due {
            self.resend(op, osn, effects);
        }
    }

    fn resend(&self, op: OpId, osn: Osn, effects: &mut Effects) {
        let connection = self.link.connection;
        effects.push(Effect::ResendWrite {
            op,
            osn,
            connection,
        });
    }

    /// Writes whose part on the peer is pending and whose part here is done.
    fn resendable(&self) -> Vec<(OpId, Osn)> {
        let is_due = |id| {
            self.ops.get(id).is_some_and(|op| {
                op.peer == NodePart::Pending && op.local == NodePart::Done(Ok(()))
            })
        };
        self.writes
            .iter()
            .filter(|(_, id)| is_due(*id))
            .map(|(osn, id)| (id, osn))
            .collect()
    }
}
