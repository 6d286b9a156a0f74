//! Small worlds: every workload of one and two operations, with a fault at every place (in the manner
//! of `CrashMonkey` and ACE).
//!
//! A world is a workload and one fault in it, or a second one that comes while the nodes recover from the
//! first. Each is run from the same tree, on both nodes and at rest: once without fault, which tells the
//! places (calls of both disks, frames of both sides), then once for every fault at every place: one node or
//! both stop before the call, after it or in the middle of it, with their processes or their power, and of
//! what was not synced several choices survive; or the connection is lost before the frame. Then the nodes
//! start, the workload goes on where it was, and everything that is demanded of a schedule is demanded. Where
//! a second fault is to follow, the places are counted anew from the first until the nodes are in sync and at
//! rest again.
//!
//! Invariants: the list of workloads and the faults of a workload depend on nothing but the code and
//! the luck; so the numbers of a workload and its faults, and a luck, name a world.
//!
//! What is not run: where between two calls nothing else happened, what stops before the second, as it
//! has after the first; and a world whose last fault leaves the same disks, answers and frames as another of
//! its workload, after the same fault before, is not run to its end. In a workload of two operations, one
//! after the other, faults begin when the second is asked: those in the first are those of the workload of
//! one operation.

mod campaign;
mod faults;
mod script;
mod tree;
mod workload;

pub use campaign::{Campaign, Choice, Found, Report, WorldId, replay};
pub use workload::{Workload, all, singles};
