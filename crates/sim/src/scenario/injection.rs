//! Schedules with faults at exact points: one fault, or one fault after the other. This file only
//! declares the parts.
//!
//! Such a schedule begins with a [`Baseline`](super::Baseline): the requests of one client, on
//! stable storage on both nodes, in sync. The nodes start with the baseline. When they are in sync
//! and idle, the clients start. From then on, or after some answers, every disk call and every frame
//! counts: these are the points. The points depend only on baseline, setup and source, so a first
//! run without fault finds all of them. After a fault the points are counted anew until the nodes are
//! in sync and idle again. A run with only that fault finds these points.

mod fault;
mod probe;
mod runner;

pub use fault::{FaultKind, InjectedFault, Point, PointInfo, Setup, StoppedNodes};
pub use runner::{Outcome, make_baseline, points, run};
