//! The moments at which acknowledged operations may be lost again.
//!
//! A machine that loses power lacks the operations that it had not synced. Clients see the loss when
//! this machine serves next. If the other machine serves instead, with a complete copy, nothing is
//! lost: the first machine is made equal before it serves again.
//!
//! A failed flush drops pages. On the machine that serves, the loss of content may be visible at
//! once. The loss of the log is visible when the process starts again.

use super::{History, NodeEvent, Stop};
use crate::world::Side;

/// The reason why operations were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The machine lost power. Operations under way are rolled back. Data that is present
    /// afterwards is on the disk.
    Power,
    /// A flush failed. Content may be lost, and content that is present may not be on the disk.
    FlushFailed,
    /// The process restarted on a disk whose flush had failed.
    Restart,
}

/// A moment at which non-durable data may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Time of the loss.
    pub at: u64,
    /// Reason of the loss.
    pub cause: Cause,
    /// The machine that lost operations.
    pub side: Side,
}

impl Loss {
    /// Returns whether no open call takes effect after the loss.
    pub fn ends_open(&self) -> bool {
        self.cause == Cause::Power
    }

    /// Returns whether the loss may undo changes of names and attributes. A failed flush alone
    /// cannot, because the process holds them in memory.
    pub fn takes_names(&self) -> bool {
        self.cause != Cause::FlushFailed
    }
}

/// The losses of one machine that no client has seen.
#[derive(Default)]
struct UnseenLosses {
    losses: Vec<Loss>,
    /// A flush has failed since the process started.
    flush_failed: bool,
}

impl UnseenLosses {
    /// Returns the cause of the loss that an event brings, if it brings one.
    fn cause(&mut self, event: NodeEvent) -> Option<Cause> {
        let cause = match event {
            NodeEvent::FlushFailed => Cause::FlushFailed,
            NodeEvent::Crashed(Stop::Power) => Cause::Power,
            NodeEvent::Crashed(Stop::Process) if self.flush_failed => Cause::Restart,
            _ => return None,
        };
        self.flush_failed = cause == Cause::FlushFailed;
        Some(cause)
    }
}

impl History {
    /// Returns all moments of loss, by time.
    pub fn losses(&self) -> Vec<Loss> {
        let mut seen = Vec::new();
        let mut unseen: [UnseenLosses; 2] = Default::default();
        let mut serving = Side::A;
        for &(at, side, event) in self.events() {
            let unseen = side.of_mut(&mut unseen);
            match event {
                NodeEvent::Serves => {
                    serving = side;
                    seen.append(&mut unseen.losses);
                }
                NodeEvent::Equal => unseen.losses.clear(),
                _ => {}
            }
            let Some(cause) = unseen.cause(event) else {
                continue;
            };
            let is_seen = cause == Cause::FlushFailed && side == serving;
            let losses = if is_seen {
                &mut seen
            } else {
                &mut unseen.losses
            };
            losses.push(Loss { at, cause, side });
        }
        seen.sort_unstable_by_key(|loss| loss.at);
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POWER: NodeEvent = NodeEvent::Crashed(Stop::Power);
    const PROCESS: NodeEvent = NodeEvent::Crashed(Stop::Process);

    fn losses(events: &[(Side, NodeEvent)]) -> Vec<(u64, Side, Cause)> {
        let mut history = History::new(false);
        for (at, (node, event)) in (1..).zip(events) {
            history.node(*node, *event, at);
        }
        let losses = history.losses().into_iter();
        losses
            .map(|loss| (loss.at, loss.side, loss.cause))
            .collect()
    }

    #[test]
    fn a_loss_counts_when_its_machine_serves() {
        use NodeEvent::{FlushFailed, Serves};
        let found = losses(&[
            (Side::B, POWER),
            (Side::A, PROCESS),
            (Side::A, POWER),
            (Side::A, Serves),
            (Side::A, FlushFailed),
            (Side::A, PROCESS),
            (Side::A, PROCESS),
            (Side::A, Serves),
            (Side::A, POWER),
        ]);
        let expected = [
            (3, Side::A, Cause::Power),
            (5, Side::A, Cause::FlushFailed),
            (6, Side::A, Cause::Restart),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn nothing_is_lost_when_the_other_machine_takes_over() {
        use NodeEvent::{Equal, Serves};
        let taken_over = [(Side::A, POWER), (Side::B, Serves)];
        let and_back = [(Side::A, Equal), (Side::A, Serves)];
        assert_eq!(losses(&[taken_over, and_back].concat()), []);
        let unequal = [(Side::A, Serves)];
        let found = losses(&[&taken_over[..], &unequal].concat());
        assert_eq!(found, [(1, Side::A, Cause::Power)]);
    }
}
