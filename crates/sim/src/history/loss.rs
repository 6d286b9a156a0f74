//! The moments at which acknowledged operations may be lost again.
//!
//! The primary serves the clients, and after a loss its copy decides (rule P12). So clients see
//! only the losses of the primary's disk. Such a loss happens at a power loss of the primary, and
//! after a failed flush. A failed flush drops pages. The loss of content may be visible at once.
//! The loss of the log is visible when the process starts again. Data that the secondary loses is
//! restored from the primary.

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

impl History {
    /// Returns all moments of loss, by time.
    pub fn losses(&self) -> Vec<Loss> {
        let mut losses = Vec::new();
        let mut flush_failed = false;
        let of_primary = self
            .events
            .iter()
            .filter(|(_, node, _)| *node == Side::Primary);
        for (at, _, event) in of_primary {
            let cause = match event {
                NodeEvent::FlushFailed => Cause::FlushFailed,
                NodeEvent::Crashed(Stop::Power) => Cause::Power,
                NodeEvent::Crashed(Stop::Process) if flush_failed => Cause::Restart,
                _ => continue,
            };
            flush_failed = cause == Cause::FlushFailed;
            losses.push(Loss { at: *at, cause });
        }
        losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_primary_lost_counts() {
        let mut history = History::new(false);
        let events = [
            (Side::Secondary, NodeEvent::Crashed(Stop::Power)),
            (Side::Primary, NodeEvent::Crashed(Stop::Process)),
            (Side::Primary, NodeEvent::Crashed(Stop::Power)),
            (Side::Primary, NodeEvent::FlushFailed),
            (Side::Primary, NodeEvent::Crashed(Stop::Process)),
            (Side::Primary, NodeEvent::Crashed(Stop::Process)),
        ];
        for (at, (node, event)) in (1..).zip(events) {
            history.node(node, event, at);
        }
        let found: Vec<_> = history
            .losses()
            .iter()
            .map(|loss| (loss.at, loss.cause))
            .collect();
        let expected = [
            (3, Cause::Power),
            (4, Cause::FlushFailed),
            (5, Cause::Restart),
        ];
        assert_eq!(found, expected);
    }
}
