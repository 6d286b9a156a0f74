//! The looks that a failed disk has answered.
//!
//! A primary whose disk has failed answers looks from that disk (rule P16). The disk may hold what was never acknowledged, and
//! may lack what the other node has. As long as no other node serves, programs go on from that disk: such a look is judged as
//! any other. Once the other node serves, programs go on from its copy, which has everything that was acknowledged. So:
//!
//! - A look that the failed disk has answered says nothing about that copy. It is left out of the calls.
//! - A refusal is such a look, too: it changed nothing, and told what the disk held.
//! - A change, a write or a sync that was answered without an error stays. Nothing excuses its loss.
//! - Any answer that the node gave before its disk failed stays.

use super::{Call, CallId, Fate, History, NodeEvent};
use crate::op::Op;
use crate::world::Side;

impl History {
    /// Records that the disk of a machine had failed when its node answered a call.
    pub fn answered_by_failed_disk(&mut self, id: CallId, side: Side) {
        if !is_look(self.calls.get(id)) {
            return;
        }
        if self.nodes.server().is_some_and(|server| server != side) {
            self.calls.gone.insert(id.index());
        } else {
            self.at_failed_disks.push((id, side));
        }
    }

    /// Returns whether a failed disk of a machine has answered looks that still count.
    pub fn counts_on_failed_disk(&self, side: Side) -> bool {
        self.at_failed_disks.iter().any(|(_, of)| *of == side)
    }

    /// Returns the same history as it is if the node of a machine serves now.
    #[must_use]
    pub fn taken_over_by(&self, side: Side) -> Self {
        let mut taken_over = self.clone();
        taken_over.node(side, NodeEvent::Serves, self.last() + 1);
        taken_over
    }

    /// A node begins to serve: leaves the looks at the failed disk of the other machine out. The looks at its own failed disk
    /// count for good, if that disk is repaired.
    pub(super) fn leave_looks_out(&mut self, serving: Side, event: NodeEvent) {
        let gone = &mut self.calls.gone;
        self.at_failed_disks.retain(|(id, side)| {
            let is_gone = *side != serving;
            if is_gone {
                gone.insert(id.index());
            }
            !is_gone && event == NodeEvent::ServesReads
        });
    }
}

fn is_look(call: &Call) -> bool {
    let changes = matches!(call.op, Op::Change(_) | Op::Write(_) | Op::Sync { .. });
    match call.fate() {
        Fate::Done => !changes,
        Fate::Refused(_) => true,
        Fate::Unsure => false,
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::{Errno, Ino};

    use super::super::{Answer, Outcome};
    use super::*;

    const FILE: Ino = Ino::ROOT;

    fn look() -> Op {
        Op::GetAttr { ino: FILE }
    }

    /// A history of a primary whose disk has failed, with calls that the failed disk has answered.
    fn failed(answers: &[(Op, Outcome)]) -> (History, Vec<CallId>) {
        let mut history = History::new(false);
        history.node(Side::A, NodeEvent::Serves, 1);
        let answer = |(op, outcome): &(Op, Outcome)| {
            let at = history.last();
            let id = history.invoked(0, op.clone(), at + 1);
            history.returned(id, outcome.clone(), at + 2);
            history.answered_by_failed_disk(id, Side::A);
            id
        };
        let ids = answers.iter().map(answer).collect();
        (history, ids)
    }

    fn ids(history: &History) -> Vec<CallId> {
        history.calls().iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn looks_at_a_failed_disk_count_until_the_other_node_serves() {
        let sync = Op::Sync { ino: FILE };
        let (mut history, all) = failed(&[
            (look(), Ok(Answer::Done)),
            (sync.clone(), Ok(Answer::Done)),
            (sync.clone(), Err(Errno::NoEntry)),
            (sync, Err(Errno::Io)),
        ]);
        let kept = [all[1], all[3]];
        assert_eq!(ids(&history), all);
        assert_eq!(ids(&history.taken_over_by(Side::B)), kept);
        history.node(Side::A, NodeEvent::ServesReads, 20);
        assert_eq!(ids(&history), all, "the process has started again");
        history.node(Side::B, NodeEvent::Serves, 21);
        assert_eq!(ids(&history), kept);
        let late = history.invoked(0, look(), 22);
        history.returned(late, Ok(Answer::Done), 23);
        history.answered_by_failed_disk(late, Side::A);
        assert_eq!(ids(&history), kept, "answered after the takeover");
    }

    #[test]
    fn looks_at_a_disk_that_is_repaired_before_any_takeover_count() {
        let (mut history, all) = failed(&[(look(), Ok(Answer::Done))]);
        history.node(Side::A, NodeEvent::Serves, 20);
        assert!(!history.counts_on_failed_disk(Side::A));
        history.node(Side::B, NodeEvent::Serves, 21);
        assert_eq!(ids(&history), all);
    }
}
