//! When acknowledged things may have been taken back.
//!
//! Clients are served by the primary, and after a loss its copy is the one that counts (rule P12).
//! So only what the primary's disk lost is seen: at a power loss of the primary, and after a failed
//! flush, whose dropped pages may be missed at once, and the log's when the process starts anew. What
//! the secondary loses is made good from the primary.

use super::{History, NodeEvent, Stop};
use crate::world::Side;

/// How things were taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The machine lost power. What was under way is rolled back, and what is there afterwards is on
    /// the disk.
    Power,
    /// A flush failed: content may be gone, and what is there may not be on the disk.
    FlushFailed,
    /// The process started anew on a disk whose flush had failed.
    Restart,
}

/// A moment at which what was not durable may have been taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// When.
    pub at: u64,
    /// How.
    pub cause: Cause,
}

impl Loss {
    /// Whether no open call happens afterwards.
    pub fn ends_open(&self) -> bool {
        self.cause == Cause::Power
    }

    /// Whether it may take back names and attributes: the process has those in memory.
    pub fn takes_names(&self) -> bool {
        self.cause != Cause::FlushFailed
    }
}

impl History {
    /// All moments of loss, in order.
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
