//! The comparison of the two nodes of a datastore, while it is in use.
//!
//! [`compare()`] or [`compare_inodes()`] runs on the primary and asks; [`secondary`] answers. The comparison changes nothing on either
//! node. Two inodes are equal if their digests are equal. Only different inodes are compared further,
//! to name the differences.
//!
//! [`compare_offline()`] compares two copies that no node uses, without a connection between them.

pub mod compare;
pub mod digest;
mod explain;
mod long_files;
mod manifest_row;
pub mod offline;
mod paths;
pub mod report;
pub mod secondary;

pub use compare::{compare, compare_inodes};
pub use digest::digest;
pub use offline::{OfflineCopy, OfflineError, OfflineReport, compare_offline};
pub use report::{DifferenceKind, InodeDifference, Report, Side};
pub use secondary::answer;
