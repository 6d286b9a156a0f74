//! The history of the copy with which a datastore goes on after an operator has accepted a loss.
//!
//! A copy that lacks acknowledged operations goes on if an operator forces its node to be the primary. The other copy is
//! given up. Up to a moment, the kept copy had every acknowledged operation: the other node had not served alone yet. So:
//!
//! - An operation that was answered before that moment is in the kept copy. Nothing excuses its loss but a loss of power
//!   of the kept machine.
//! - An operation that was requested after that moment is in the other copy only, unless a resync has made the kept copy
//!   equal since. It has never happened.
//! - Any other operation may be in the kept copy.
//!
//! Invariant: the periods in which the nodes have answered ([`super::NodeRecord::answer_periods`]) stay, but for those of the other node in
//! later generations than that of the kept copy: its node may not know of them. No loss excuses two primaries of one
//! generation.

use lockstep_types::Generation;

use super::{History, NodeEvent, Stop};
use crate::world::Side;

impl History {
    /// Goes on with the copy of `kept`, which had every acknowledged operation up to `since`, in a generation. The other
    /// copy is lost at `at`.
    pub fn go_on_with(&mut self, kept: Side, generation: Generation, since: u64, at: u64) {
        self.advance(at);
        // The other node may have lost power before it was seen in sync.
        let is_behind = !self.nodes.has_become_equal(kept, since..);
        for (index, call) in self.calls.all.iter_mut().enumerate() {
            if is_behind && call.invoked > since {
                self.calls.gone.insert(index);
            } else if call.returned.as_ref().is_some_and(|(at, _)| *at > since) {
                call.returned = None;
            }
        }
        self.nodes
            .answer_periods
            .retain(|term| term.primary == kept || term.generation <= generation);
        let is_of_kept = |event: &(u64, Side, NodeEvent)| event.0 <= since || event.1 == kept;
        self.nodes.events.retain(is_of_kept);
        // The other machine has lost what it had. So a loss of the kept machine since then counts.
        let lost = NodeEvent::Crashed(Stop::Power);
        self.nodes.events.push((at, kept.other(), lost));
        self.nodes.events.push((at, kept, NodeEvent::Promoted));
        for service in &mut self.nodes.services {
            service.is_given_up |= service.from > since && service.side != kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::{FileName, Ino, MetaRequest};

    use super::super::{Answer, Fate};
    use super::*;
    use crate::op::Op;

    fn unlink(name: &str) -> Op {
        Op::Change(MetaRequest::Unlink {
            parent: Ino::ROOT,
            name: FileName::new(name.as_bytes()).unwrap(),
        })
    }

    #[test]
    fn only_what_the_kept_copy_can_lack_is_excused() {
        let mut history = History::new(false);
        let before = history.invoked(0, unlink("before"), 1);
        history.returned(before, Ok(Answer::Done), 2);
        let across = history.invoked(0, unlink("across"), 3);
        history.returned(across, Ok(Answer::Done), 5);
        let after = history.invoked(0, unlink("after"), 6);
        history.returned(after, Ok(Answer::Done), 7);
        history.go_on_with(Side::B, Generation::FIRST, 4, 8);
        let left: Vec<_> = history
            .calls()
            .iter()
            .map(|(id, call)| (id, call.fate()))
            .collect();
        assert_eq!(left, [(before, Fate::Done), (across, Fate::Unsure)]);
    }

    #[test]
    fn what_came_before_the_kept_copy_was_made_equal_is_not_gone() {
        let mut history = History::new(false);
        history.node(Side::B, NodeEvent::Equal, 5);
        let after = history.invoked(0, unlink("after"), 6);
        history.go_on_with(Side::B, Generation::FIRST, 4, 8);
        let left: Vec<_> = history
            .calls()
            .iter()
            .map(|(id, call)| (id, call.fate()))
            .collect();
        assert_eq!(left, [(after, Fate::Unsure)]);
    }

    #[test]
    fn a_loss_of_the_kept_machine_counts_once_the_other_copy_is_lost() {
        let power = NodeEvent::Crashed(Stop::Power);
        let mut history = History::new(false);
        history.node(Side::A, NodeEvent::Serves, 1);
        history.node(Side::B, power, 3);
        history.node(Side::A, power, 4);
        history.node(Side::A, NodeEvent::Serves, 5);
        history.go_on_with(Side::B, Generation::FIRST, 2, 6);
        history.node(Side::B, NodeEvent::Serves, 7);
        let losses: Vec<_> = history
            .nodes()
            .losses()
            .iter()
            .map(|loss| (loss.at, loss.side))
            .collect();
        assert_eq!(
            losses,
            [(6, Side::B)],
            "the loss of A is not in the copy of B"
        );
    }
}
