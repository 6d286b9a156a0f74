//! The comparison of the two nodes of a datastore, while it is in use.
//!
//! [`compare()`] runs on the primary and asks; [`secondary`] answers. Nothing is changed on either
//! side. Two inodes are equal when their digests are; only for those that differ is looked further,
//! to say what differs.

pub mod compare;
pub mod digest;
mod explain;
mod paths;
pub mod report;
pub mod secondary;

pub use compare::compare;
pub use digest::digest;
pub use report::{Difference, Report, Side, What};
pub use secondary::answer;
