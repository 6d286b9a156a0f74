//! The events of the nodes: which of them served, and how they stopped.

use std::ops::RangeBounds;

use lockstep_types::{Generation, WriteVerifier};

use crate::world::Side;

/// The way in which a node stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The node's process ended. Its machine and its disk cache continued.
    Process,
    /// The node's machine lost power. Unsynced data may be lost.
    Power,
}

/// An event of a node that the world caused or observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The node stopped.
    Crashed(Stop),
    /// The node stopped in some way, but its store says that the node closed it cleanly. All data
    /// in the store is on stable storage.
    Closed,
    /// The node started.
    Started,
    /// An operator begins to promote the node, or the witness has made the node the primary.
    Promoted,
    /// The node serves clients from now on: before, another process served, or none.
    Serves,
    /// The same, and the disk of the node has failed: it serves looks only.
    ServesReads,
    /// The node is the secondary, and its copy is now equal to that of the primary.
    Equal,
    /// A flush of the node's disk failed. Unsynced data may be lost.
    FlushFailed,
}

impl NodeEvent {
    /// Returns whether the node serves clients from then on.
    pub const fn is_service(self) -> bool {
        matches!(self, Self::Serves | Self::ServesReads)
    }
}

/// A period in which a node answered clients as the primary. The period lasts from the node's first
/// answer to the first answer of another node, or of the same node in another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerPeriod {
    /// Time of the first answer.
    pub from: u64,
    /// The latest time at which a client requested one of the operations that were answered.
    pub requested: u64,
    /// The node that answered.
    pub primary: Side,
    /// The generation in which the node answered.
    pub generation: Generation,
}

/// A node that began to serve, and its write verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Time at which the node began to serve.
    pub from: u64,
    /// The node.
    pub side: Side,
    /// Its write verifier.
    pub verifier: WriteVerifier,
    /// The node has served with a copy that was given up.
    pub is_given_up: bool,
}

/// The record of all events of the nodes of a world.
#[derive(Clone, Debug, Default)]
pub struct NodeRecord {
    pub(super) answer_periods: Vec<AnswerPeriod>,
    pub(super) events: Vec<(u64, Side, NodeEvent)>,
    pub(super) services: Vec<Service>,
    /// Times at which an operator has asked a node to become the primary or the secondary.
    pub(super) operator_acts: Vec<u64>,
    /// Times at which the datastore has gone on with a copy while the other node had served alone.
    pub(super) accepted_losses: Vec<u64>,
}

impl NodeRecord {
    /// Returns the events of the nodes, by time.
    pub fn events(&self) -> &[(u64, Side, NodeEvent)] {
        &self.events
    }

    /// Returns the periods in which a node answered as the primary, by time.
    pub fn answer_periods(&self) -> &[AnswerPeriod] {
        &self.answer_periods
    }

    /// Returns the nodes that have begun to serve, by time.
    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// Returns the times at which an operator has accepted a loss: the datastore has gone on with a copy while the other node
    /// had served alone.
    pub fn accepted_losses(&self) -> &[u64] {
        &self.accepted_losses
    }

    /// Returns whether an operator has asked a node to become the primary or the secondary, or has exchanged a disk, after
    /// `from`, up to `to`.
    pub fn has_operator_acted(&self, from: u64, to: u64) -> bool {
        self.operator_acts.iter().any(|at| from < *at && *at <= to)
    }

    /// Returns the machine whose node serves, or served last.
    pub fn server(&self) -> Option<Side> {
        let mut latest = self.events.iter().rev();
        let serves = latest.find(|(_, _, event)| event.is_service());
        serves.map(|(_, side, _)| *side)
    }

    /// Returns the time since which the present process serves, or the last one did. Returns zero if
    /// no process has served.
    pub fn serving_since(&self) -> u64 {
        let mut latest = self.events.iter().rev();
        let serves = latest.find(|event| event.2.is_service());
        serves.map_or(0, |event| event.0)
    }

    /// Records that `primary` acknowledged an operation that a client had requested at a time.
    pub(super) fn acknowledged(
        &mut self,
        primary: Side,
        generation: Generation,
        requested: u64,
        at: u64,
    ) {
        match self.answer_periods.last_mut() {
            Some(last) if (last.primary, last.generation) == (primary, generation) => {
                last.requested = last.requested.max(requested);
            }
            _ => self.answer_periods.push(AnswerPeriod {
                from: at,
                requested,
                primary,
                generation,
            }),
        }
    }

    /// Returns the times when the store of the machine that served was closed cleanly. A close makes
    /// operations durable on this machine only. So a close before a loss of the other machine is left
    /// out, if it is the next loss, or if the copy of the other machine has not become equal before it.
    /// A close of a machine that has lost operations and has not served since is left out, too.
    pub fn closes(&self) -> Vec<u64> {
        let losses: Vec<_> = self
            .losses()
            .iter()
            .map(|loss| (loss.at, loss.side))
            .collect();
        let counts = |closed, side| {
            let mut later = losses.iter().filter(|(at, _)| *at > closed);
            let is_other = |(_, of): &&(u64, Side)| *of != side;
            let is_next = later.clone().next().is_some_and(|loss| is_other(&loss));
            let of_other = later.find(is_other);
            !is_next
                && of_other.is_none_or(|(at, other)| self.has_become_equal(*other, closed..*at))
        };
        let mut serving = Side::A;
        let mut lacks_operations = [false; 2];
        let mut closes = Vec::new();
        for &(at, side, event) in &self.events {
            let lacks_operations = side.of_mut(&mut lacks_operations);
            match event {
                NodeEvent::Serves => (serving, *lacks_operations) = (side, false),
                NodeEvent::ServesReads => serving = side,
                NodeEvent::Equal => *lacks_operations = false,
                NodeEvent::Crashed(Stop::Power) => *lacks_operations = true,
                NodeEvent::Closed if side == serving && !*lacks_operations && counts(at, side) => {
                    closes.push(at);
                }
                _ => {}
            }
        }
        closes
    }

    /// Returns whether the copy of a machine has become equal within some time.
    pub(super) fn has_become_equal(&self, side: Side, within: impl RangeBounds<u64>) -> bool {
        let is_mark = |event: &(u64, Side, NodeEvent)| {
            within.contains(&event.0) && (event.1, event.2) == (side, NodeEvent::Equal)
        };
        self.events.iter().any(is_mark)
    }
}

#[cfg(test)]
mod tests {
    use super::super::History;
    use super::*;

    const POWER: NodeEvent = NodeEvent::Crashed(Stop::Power);

    /// Returns the closes that count in a history with these events, which are numbered from 1.
    fn closes(events: &[(Side, NodeEvent)]) -> Vec<u64> {
        let mut history = History::new(false);
        for (at, (side, event)) in (1..).zip(events) {
            history.node(*side, *event, at);
        }
        history.nodes().closes()
    }

    #[test]
    fn a_close_makes_nothing_durable_on_the_other_machine() {
        use NodeEvent::{Closed, Equal, Promoted, Serves};
        let lost_by_both = [
            (Side::A, Serves),
            (Side::A, Closed),
            (Side::A, POWER),
            (Side::B, POWER),
            (Side::A, Serves),
            (Side::A, POWER),
            (Side::B, Promoted),
            (Side::B, Serves),
        ];
        assert_eq!(closes(&lost_by_both), [0_u64; 0]);
        let (until_then, after) = lost_by_both.split_at(4);
        assert_eq!(closes(until_then), [2]);
        let equal_then_lost = [(Side::A, Serves), (Side::B, Equal), (Side::B, POWER)];
        let made_equal = [until_then, &equal_then_lost, after];
        assert_eq!(closes(&made_equal.concat()), [2]);
    }
}
