//! Snapshots of a store: keeping the old bytes of files, and reading what a snapshot sees.
//!
//! The first change of a block since the newest snapshot keeps the old bytes in a [pack](packs), before the change
//! ([`keeper`]). The history of records is in the namespace. A file as a snapshot sees it is the present content under the kept
//! blocks ([`content_at`]). The index of what is kept gives the difference between two snapshots ([`diff`]).

pub mod arrival;
pub mod bodies;
pub mod content_at;
pub mod deletion;
pub mod diff;
pub mod given_up;
pub mod keeper;
mod kept_cache;
pub mod packs;
pub mod view;
