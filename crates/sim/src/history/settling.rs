//! The time after which an unanswered call has no effect.
//!
//! A call that never returned may take effect long after its program is gone. But no program may find the datastore without
//! the effect, go on from that, and meet the effect later. So there is a last moment for it:
//!
//! - A request that waits at a node, while its program is killed: the first answer of the other node (rule R13).
//! - A metadata operation of a process that has ended: the first answer to a program that has asked later, by whichever node
//!   (rule P4). The datastore settles such operations before it lets a program in.
//!
//! A write of such a process may reach its file later: nobody reads its range before.

use super::{Call, CallId, Fate, History, NodeEvent};
use crate::op::Op;

impl History {
    /// Returns the time after which a call has no effect. `u64::MAX`, for never, if nothing bounds it.
    pub fn deadline(&self, id: CallId) -> u64 {
        let of_killed = self.deadline_of_killed(id);
        let call = self.calls.get(id);
        if !matches!(call.op, Op::Change(_)) || call.returned.is_some() {
            return of_killed;
        }
        let settled = self.end_of_process(id, call);
        settled.map_or(of_killed, |end| of_killed.min(self.first_answer_after(end)))
    }

    fn deadline_of_killed(&self, id: CallId) -> u64 {
        let Some(at) = self.calls.killed.get(&id.index()) else {
            return u64::MAX;
        };
        let invoked = self.calls.get(id).invoked;
        let mut later = self
            .nodes
            .answer_periods
            .iter()
            .filter(|period| period.from > invoked);
        let other = later.find(|period| period.primary != *at);
        other.map_or(u64::MAX, |period| period.from)
    }

    /// Returns the time at which the process ended that had a request.
    fn end_of_process(&self, id: CallId, call: &Call) -> Option<u64> {
        let at = self.calls.asked_at.get(&id.index())?;
        let ends = |event| matches!(event, NodeEvent::Crashed(_) | NodeEvent::Closed);
        let mut later = self
            .nodes
            .events
            .iter()
            .filter(|event| event.0 > call.invoked);
        let end = later.find(|(_, side, event)| side == at && ends(*event));
        end.map(|event| event.0)
    }

    /// Returns the time of the first answer to a call that was asked after `moment`.
    fn first_answer_after(&self, moment: u64) -> u64 {
        let later = self.calls.iter().filter(|(_, call)| call.invoked > moment);
        let answered = later.filter(|(_, call)| call.fate() != Fate::Unsure);
        let answers = answered.map(|(_, call)| call.over());
        answers.min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::{FileName, Ino, MetaRequest};

    use super::super::{Answer, Stop};
    use super::*;
    use crate::world::Side;

    /// Invokes a call at A, and returns the call.
    fn invoke(history: &mut History, op: Op, at: u64) -> CallId {
        let call = history.invoked(0, op, at);
        history.asked_at(call, Side::A);
        call
    }

    fn unlink() -> Op {
        Op::Change(MetaRequest::Unlink {
            parent: Ino::ROOT,
            name: FileName::new(b"file").unwrap(),
        })
    }

    #[test]
    fn a_change_of_an_ended_process_is_over_when_a_later_program_has_an_answer() {
        let look = || Op::GetAttr { ino: Ino::ROOT };
        let mut history = History::new(false);
        let (change, seen) = (
            invoke(&mut history, unlink(), 1),
            invoke(&mut history, look(), 2),
        );
        history.node(Side::B, NodeEvent::Crashed(Stop::Process), 3);
        history.returned(seen, Ok(Answer::Done), 4);
        assert_eq!(history.deadline(change), u64::MAX, "its process lives");
        history.node(Side::A, NodeEvent::Crashed(Stop::Process), 5);
        let early = invoke(&mut history, look(), 6);
        let late = invoke(&mut history, unlink(), 7);
        assert_eq!(history.deadline(change), u64::MAX, "nobody has an answer");
        history.returned(early, Ok(Answer::Done), 8);
        assert_eq!(history.deadline(change), 8);
        assert_eq!(history.deadline(late), u64::MAX);
    }
}
