//! Small worlds: every workload of one or two operations, with a fault at every point (in the
//! manner of `CrashMonkey` and ACE).
//!
//! A world is a workload with one fault in it. A second fault may happen while the nodes recover
//! from the first fault. Each world starts from the same tree, present on both nodes, with the
//! nodes at rest. Each workload runs once without fault. This run finds the points: the calls of
//! both disks and the frames of both sides.
//!
//! The workload then runs once for every fault at every point. There are two kinds of faults:
//!
//! - One node or both nodes stop before the call, after the call or in the middle of the call. The
//!   process ends, or the machine loses power. At a power loss, several choices of the unsynced
//!   data survive.
//! - The connection is lost before the frame.
//!
//! Then the nodes start, and the workload continues where it stopped. All requirements of a
//! schedule are checked. If a second fault is to follow, the points are counted again. The count
//! begins at the first fault and ends when the nodes are in sync and at rest again.
//!
//! Invariants: the list of workloads and the faults of a workload depend only on the code and the
//! random seed. So the number of a workload, the numbers of its faults, and a random seed name a
//! world.
//!
//! Two kinds of worlds are skipped:
//!
//! - If nothing else happens between two calls, a stop before the second call is skipped. It equals
//!   the stop after the first call.
//! - A world may leave the same disks, answers and frames after its last fault as another world of
//!   its workload, with the same earlier faults. Such a world is not run to its end.
//!
//! In a workload of two operations, one after the other, faults begin when the client requests the
//! second operation. The workload of one operation covers the faults in the first operation.

mod campaign;
mod faults;
mod script;
mod tree;
mod workload;

pub use campaign::{Campaign, CampaignReport, FailedWorld, WorldId, WorldSelection, replay};
pub use workload::{Workload, all, singles};
