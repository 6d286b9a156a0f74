//! The moments at which acknowledged operations may be lost again.
//!
//! A machine that loses power lacks the operations that it had not synced. Clients see the loss when
//! this machine serves next. If the other machine serves instead, with a complete copy, nothing is
//! lost: the first machine is made equal before it serves again.
//!
//! An operation that a machine lost while the other machine served is still on that other machine. So
//! the operation is lost for clients only once the other machine has lost its memory, too. Until
//! then the other machine gives every answer, and clients see the operation. The loss therefore
//! counts at that moment. If the other machine has lost nothing since it served, the loss never
//! counts: only a complete copy takes over (rule R2). A machine that an operator or the witness has
//! made the primary holds the only copy that counts, also before it serves. Its later losses count
//! at once.
//!
//! A node whose disk has failed shows its losses, too, if its process starts again. They count as long as no other node serves:
//! a complete copy that takes over lacks nothing.
//!
//! A failed flush drops pages. On the machine that serves, the loss of content may be visible at
//! once. The loss of the log is visible when the process starts again.

use super::{NodeEvent, NodeRecord, Stop};
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
    /// Number of these losses that clients have seen on a failed disk.
    shown: usize,
    /// A flush has failed since the process started.
    flush_failed: bool,
    /// An operator promotes the machine's node since this time. No node has served since.
    promoted: Option<u64>,
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

    fn clear(&mut self) {
        self.losses.clear();
        self.shown = 0;
    }

    fn first(&self) -> Option<u64> {
        self.losses.first().map(|loss| loss.at)
    }

    /// Takes the losses of a machine that takes over. `other_lost`: the first time at which the other
    /// machine has lost its memory since it served.
    fn take_over(&mut self, other_lost: Option<u64>) -> Vec<Loss> {
        let promoted = self.promoted.unwrap_or(u64::MAX);
        let seen = |loss: Loss| {
            let at = if loss.at > promoted {
                loss.at
            } else {
                loss.at.max(other_lost?)
            };
            Some(Loss { at, ..loss })
        };
        let losses = std::mem::take(&mut self.losses);
        let mut losses: Vec<_> = losses.into_iter().filter_map(seen).collect();
        losses.dedup();
        losses
    }
}

/// The losses of both machines.
struct Losses {
    seen: Vec<Loss>,
    unseen: [UnseenLosses; 2],
    /// The machine that serves, or served last.
    serving: Side,
}

impl Losses {
    fn add(&mut self, at: u64, side: Side, event: NodeEvent) {
        match event {
            NodeEvent::ServesReads if side == self.serving => {
                let unseen = side.of_mut(&mut self.unseen);
                unseen.shown = unseen.losses.len();
            }
            NodeEvent::Serves | NodeEvent::ServesReads => self.serves(side),
            NodeEvent::Promoted => side.of_mut(&mut self.unseen).promoted = Some(at),
            NodeEvent::Equal => side.of_mut(&mut self.unseen).clear(),
            _ => {}
        }
        let unseen = side.of_mut(&mut self.unseen);
        let Some(cause) = unseen.cause(event) else {
            return;
        };
        let is_seen = cause == Cause::FlushFailed && side == self.serving;
        let losses = if is_seen {
            &mut self.seen
        } else {
            &mut unseen.losses
        };
        losses.push(Loss { at, cause, side });
    }

    fn serves(&mut self, side: Side) {
        let before = std::mem::replace(&mut self.serving, side);
        let other_lost = before.of(&self.unseen).first();
        let unseen = side.of_mut(&mut self.unseen);
        if side == before {
            self.seen.append(&mut unseen.losses);
        } else {
            self.seen.append(&mut unseen.take_over(other_lost));
        }
        for unseen in &mut self.unseen {
            unseen.promoted = None;
            unseen.shown = 0;
        }
    }
}

impl NodeRecord {
    /// Returns all moments of loss, by time.
    pub fn losses(&self) -> Vec<Loss> {
        let mut losses = Losses {
            seen: Vec::new(),
            unseen: Default::default(),
            serving: Side::A,
        };
        for &(at, side, event) in self.events() {
            losses.add(at, side, event);
        }
        let serving = losses.serving.of(&losses.unseen);
        losses
            .seen
            .extend(serving.losses.iter().take(serving.shown));
        losses.seen.sort_by_key(|loss| loss.at);
        losses.seen
    }
}

#[cfg(test)]
mod tests {
    use super::super::History;
    use super::*;

    const POWER: NodeEvent = NodeEvent::Crashed(Stop::Power);
    const PROCESS: NodeEvent = NodeEvent::Crashed(Stop::Process);

    fn losses(events: &[(Side, NodeEvent)]) -> Vec<(u64, Side, Cause)> {
        let mut history = History::new(false);
        for (at, (node, event)) in (1..).zip(events) {
            history.node(*node, *event, at);
        }
        let losses = history.nodes().losses().into_iter();
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
    }

    /// A machine that takes over without its losses being made good has no excuse.
    #[test]
    fn a_loss_does_not_count_while_the_other_machine_has_all() {
        use NodeEvent::{Serves, Started};
        let alone = [(Side::A, Serves), (Side::B, POWER), (Side::B, Started)];
        let killed = [(Side::A, PROCESS), (Side::B, Serves)];
        assert_eq!(losses(&[&alone[..], &killed].concat()), []);
        let served_since = [(Side::A, POWER), (Side::A, Serves), (Side::B, Serves)];
        let found = losses(&[&alone[..], &served_since].concat());
        assert_eq!(found, [(4, Side::A, Cause::Power)], "the loss of A only");
        let and_back = [(Side::A, POWER), (Side::B, Serves), (Side::A, Serves)];
        assert_eq!(losses(&and_back), []);
    }

    #[test]
    fn a_loss_that_a_failed_disk_shows_counts_until_the_other_machine_takes_over() {
        use NodeEvent::{Equal, Serves, ServesReads};
        let shown = [(Side::A, Serves), (Side::A, POWER), (Side::A, ServesReads)];
        assert_eq!(losses(&shown[..2]), []);
        assert_eq!(losses(&shown), [(2, Side::A, Cause::Power)]);
        let lost_again = [&shown[..], &[(Side::A, POWER)]].concat();
        assert_eq!(losses(&lost_again), [(2, Side::A, Cause::Power)]);
        let repaired = [&lost_again[..], &[(Side::A, Serves)]].concat();
        let both = [(2, Side::A, Cause::Power), (4, Side::A, Cause::Power)];
        assert_eq!(losses(&repaired), both);
        let taken_over = [&shown[..], &[(Side::B, Serves)]].concat();
        assert_eq!(losses(&taken_over), []);
        let and_back = [&taken_over[..], &[(Side::A, Equal), (Side::A, Serves)]].concat();
        assert_eq!(losses(&and_back), []);
    }

    #[test]
    fn a_loss_of_a_promoted_machine_counts() {
        use NodeEvent::{Promoted, Serves};
        let found = losses(&[
            (Side::A, Serves),
            (Side::B, POWER),
            (Side::A, PROCESS),
            (Side::B, Promoted),
            (Side::B, POWER),
            (Side::B, Serves),
            (Side::A, POWER),
        ]);
        assert_eq!(found, [(5, Side::B, Cause::Power)]);
        let refused = [(Side::B, Promoted), (Side::A, Serves), (Side::B, POWER)];
        let found = losses(&[&refused[..], &[(Side::B, Serves)]].concat());
        assert_eq!(found, [], "the promotion is over");
    }

    #[test]
    fn a_loss_counts_once_the_other_machine_has_lost_its_memory_too() {
        use NodeEvent::{Serves, Started};
        let found = losses(&[
            (Side::A, Serves),
            (Side::B, POWER),
            (Side::B, POWER),
            (Side::A, PROCESS),
            (Side::A, POWER),
            (Side::A, POWER),
            (Side::B, POWER),
            (Side::B, Started),
            (Side::B, Serves),
        ]);
        let expected = [(5, Side::B, Cause::Power), (7, Side::B, Cause::Power)];
        assert_eq!(found, expected);
    }
}
