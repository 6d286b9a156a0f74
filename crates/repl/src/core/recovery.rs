//! Distributed recovery, as the primary leads it after every reconnect (paper, sections 4.2, 5.2).
//!
//! First metadata: what the peer has committed is applied here, the rest is sent again, in order.
//! Then every range in PAW ∪ SAW from before is sent with this side's content. Then the writes that
//! clients still wait for are sent again. Only when all of that is done on both sides are new
//! operations admitted (rule P8).

use lockstep_types::Osn;
use lockstep_types::mutants::{Mutant, is_active};

use super::flight::Side;
use super::{Core, Effect, Effects, OpId, Transfer};
use crate::state::{State, Trigger};

/// How far recovery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// Metadata operations are being settled.
    Metadata,
    /// Ranges are being sent.
    Ranges,
    /// Writes in flight are being sent again.
    Writes,
}

impl Core {
    pub(super) fn start_recovery(&mut self, peer_applied: Osn, effects: &mut Effects) {
        self.recovery = Some(Recovery::Metadata);
        self.forget_sent();
        self.doubt_acks();
        let mut unknown = Vec::new();
        for meta in &mut self.metas {
            if meta.osn <= peer_applied && !is_active(Mutant::RepeatMetadata) {
                meta.committed = true;
            } else {
                unknown.push(Effect::ResendMeta { osn: meta.osn });
            }
        }
        if is_active(Mutant::MetadataOutOfOrder) {
            unknown.reverse();
        }
        effects.extend(unknown);
        self.commit_ready(effects);
    }

    /// Goes on to the next step when the present one is complete.
    pub(super) fn advance_recovery(&mut self, effects: &mut Effects) {
        match self.recovery {
            Some(Recovery::Metadata) if self.is_metadata_recovered() => {
                self.recovery = Some(Recovery::Ranges);
                self.transfer(Transfer::RecoverRanges, effects);
                if is_active(Mutant::AdmitBeforeRanges) {
                    self.ranges_recovered(effects);
                }
            }
            Some(Recovery::Writes) if self.any_write_failed() => {
                // The peer may have its bytes, and we some of them.
                self.trigger(Trigger::PeerFailed, effects);
            }
            Some(Recovery::Writes) if self.writes.is_empty() && self.waiting_syncs().is_empty() => {
                self.transfer(Transfer::TellRecovered, effects);
                self.trigger(Trigger::Recovered, effects);
            }
            _ => {}
        }
    }

    fn is_metadata_recovered(&self) -> bool {
        is_active(Mutant::RangesBeforeMetadata) || self.metas.is_empty() && self.applying == 0
    }

    /// Whether an ack counts now. One that comes before the ranges were sent is of a frame that
    /// slipped onto the new connection: what it says may yet be taken back by the ranges, with the
    /// facts of their files, which do not show writes in flight (rule P8).
    pub(super) fn heeds_acks(&self) -> bool {
        matches!(self.recovery, None | Some(Recovery::Writes))
    }

    /// Nothing has been sent over this connection, or nothing that counts.
    fn forget_sent(&mut self) {
        for op in self.ops.values_mut() {
            op.sent = None;
        }
        for meta in &mut self.metas {
            meta.sent = None;
        }
    }

    /// Writes that only the peer was done with are sent again too, for the same reason.
    fn doubt_acks(&mut self) {
        for id in self.writes.values() {
            if let Some(op) = self.ops.get_mut(id) {
                op.peer = Side::Waiting;
            }
        }
    }

    fn any_write_failed(&self) -> bool {
        let mut ops = self.writes.values().filter_map(|id| self.ops.get(id));
        ops.any(|op| matches!(op.local, Side::Done(Err(_))))
    }

    pub(super) fn ranges_recovered(&mut self, effects: &mut Effects) {
        if self.recovery != Some(Recovery::Ranges) {
            return;
        }
        self.recovery = Some(Recovery::Writes);
        self.forget_sent();
        self.settle_under_way(effects);
        if is_active(Mutant::NoResend) {
            return self.take_writes_as_done(effects);
        }
        for (op, osn) in self.resendable() {
            self.resend(op, osn, effects);
        }
        for op in self.waiting_syncs() {
            effects.push(Effect::SendSync { op });
        }
    }

    /// The bug of that name: what the peer may lack is answered.
    fn take_writes_as_done(&mut self, effects: &mut Effects) {
        for (op, _) in self.resendable() {
            if let Some(found) = self.ops.get_mut(&op) {
                found.peer = Side::Unneeded;
            }
            self.finish_if_over(op, effects);
        }
    }

    /// A write that was still being done here when recovery reached it is sent now.
    pub(super) fn resend_if_due(&mut self, id: OpId, effects: &mut Effects) {
        if self.state != State::CatchingUp || self.recovery != Some(Recovery::Writes) {
            return;
        }
        let due = self.resendable().into_iter().find(|(op, _)| *op == id);
        if let Some((op, osn)) = due {
            self.resend(op, osn, effects);
        }
    }

    fn resend(&self, op: OpId, osn: Osn, effects: &mut Effects) {
        let connection = self.connection;
        effects.push(Effect::ResendWrite {
            op,
            osn,
            connection,
        });
    }
}
