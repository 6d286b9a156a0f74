//! The comparison of the two nodes of a datastore, while it is in use.
//!
//! [`compare()`] or [`compare_inodes()`] runs on the primary and asks; [`secondary`] answers. The comparison changes no byte on either
//! node. Two inodes are equal if their digests are equal. Only different inodes are compared further,
//! to name the differences.
//!
//! [`compare_touched()`] compares what a resync has touched, by the sums of the files.
//!
//! [`compare_deep()`] reads the disks, and compares the bytes of each with the sums of its node. So it can tell which side is
//! wrong ([`attribution`]), and repair that side if it is asked to ([`deep_copy`]).
//!
//! [`compare_offline()`] compares two copies that no node uses, without a connection between them.

pub mod attribution;
pub mod compare;
pub mod deep_copy;
mod deep_work;
pub mod digest;
mod explain;
pub mod kept_blocks;
mod long_files;
mod manifest_row;
pub mod offline;
pub mod own_sums;
mod paths;
pub mod proof;
pub mod report;
mod second_look;
pub mod secondary;
pub mod side;

pub use attribution::{BlockEvidence, BlockVerdict, SumFit};
pub use compare::{compare, compare_deep, compare_deep_from, compare_fast, compare_inodes};
pub use deep_copy::{DeepCopy, RepairError};
pub use digest::digest;
pub use offline::{OfflineCopy, OfflineError, OfflineReport, compare_offline};
pub use own_sums::OwnSums;
pub use proof::compare_touched;
pub use report::{DifferenceKind, InodeDifference, RepairOutcome, Report};
pub use second_look::fetch_blocks;
pub use secondary::{answer, answer_deep};
pub use side::Side;
