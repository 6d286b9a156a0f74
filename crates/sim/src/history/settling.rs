//! The time after which an unanswered call has no effect.
//!
//! A call that never returned may take effect long after its program is gone. But no program may find the datastore without
//! the effect, go on from that, and meet the effect later. So there is a last moment for it:
//!
//! - A request that waits at a node, while its program is killed: the first answer of the other node in a later generation (rule
//!   R13). A late answer of a node that has given its role away says nothing: the operation was let in before.
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
        let mut periods = self.nodes.answer_periods.iter();
        let until_then = periods.clone().filter(|period| period.from <= invoked);
        // The node at which the request was asked serves in this generation, or in a later one.
        let asked_in = until_then.map(|period| period.generation).max();
        let other =
            periods.find(|period| period.primary != *at && Some(period.generation) > asked_in);
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
    use lockstep_types::{FileName, Generation, Ino, MetaRequest};

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

    #[test]
    fn a_late_answer_of_an_earlier_generation_ends_no_request_of_a_killed_program() {
        let mut history = History::new(false);
        let answer = |history: &mut History, side, generation, requested, at| {
            let generation = Generation::new(generation).unwrap();
            history.acknowledged(side, generation, requested, at);
        };
        answer(&mut history, Side::B, 1, 1, 2);
        answer(&mut history, Side::A, 2, 4, 5);
        let killed = invoke(&mut history, unlink(), 6);
        history.killed(killed, Side::A);
        answer(&mut history, Side::B, 1, 3, 7);
        answer(&mut history, Side::A, 2, 8, 9);
        assert_eq!(history.deadline(killed), u64::MAX, "B was late");
        answer(&mut history, Side::B, 3, 10, 11);
        answer(&mut history, Side::A, 4, 12, 13);
        assert_eq!(history.deadline(killed), 11);
    }
}
