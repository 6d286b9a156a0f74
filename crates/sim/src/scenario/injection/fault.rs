//! The points of a schedule, and the faults at these points, as data.

use std::time::Duration;

use crate::disk::{CallKind, Survivors, Verdict};
use crate::history::Stop;
use crate::scenario::settings::Settings;
use crate::world::Side;

/// A schedule without its baseline, its operations and its faults.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The configuration of the datastore.
    pub settings: Settings,
    /// The seed of every random choice during the run.
    pub seed: u64,
    /// Share of a thread's steps that let other threads go first, in percent.
    pub step_percent: u64,
    /// Number of clients.
    pub clients: u32,
    /// Number of answers before any point counts.
    pub answers_before: u64,
    /// The simulated time in which disk calls count.
    pub calls_counted: Duration,
    /// The simulated time in which frames count. Later frames are pings.
    pub frames_counted: Duration,
}

/// A point of a schedule. The numbers count from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A call of a side's disk.
    Call(Side, u64),
    /// The moment before a side sends a frame.
    Frame(Side, u64),
}

/// The nodes that stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoppedNodes {
    /// One node.
    One(Side),
    /// Both nodes at the same moment.
    Both,
}

impl StoppedNodes {
    /// Returns whether the node of a side stops.
    pub fn includes(self, side: Side) -> bool {
        self == Self::Both || self == Self::One(side)
    }
}

/// The fault at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Nodes stop, and start again.
    Stop {
        /// The nodes.
        nodes: StoppedNodes,
        /// The way in which they stop.
        stop: Stop,
        /// The result of the disk call, if the node that makes the call stops.
        verdict: Verdict,
        /// The data of each side that survives a power loss, and the seed of the choices that this
        /// leaves open.
        survivors: [(Survivors, u64); 2],
        /// Most frames in flight from a stopped node that still arrive.
        frames_kept: u64,
    },
    /// The connection is lost.
    Disconnect {
        /// Most frames of the other direction that still arrive.
        frames_kept: u64,
    },
}

/// One fault at a point. The point is counted from the begin, or from the previous fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedFault {
    /// The point.
    pub point: Point,
    /// The fault.
    pub kind: FaultKind,
}

/// A point that a run passed, with the state of the world at that point.
#[derive(Clone, Copy, Debug)]
pub struct PointInfo {
    /// The point.
    pub point: Point,
    /// The disk call at a [`Point::Call`]: its kind, offset and length.
    pub call: Option<(CallKind, u64, u64)>,
    /// Number of unsynced changes on the disk of each side.
    pub unsynced: [u64; 2],
    /// Number of frames of each side in flight.
    pub frames_in_flight: [u64; 2],
    /// Number of frames that each side has sent.
    pub frames_sent: [u64; 2],
    /// Number of events in the history.
    pub events: u64,
}
