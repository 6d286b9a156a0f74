//! The store as a whole: against a model of a file system, against itself as the other node,
//! after crashes, on damaged files, and written out as a plain tree.

// Clippy knows test functions by their attribute; the helpers here are test code all the same.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods
)]

#[path = "store/bad_input.rs"]
mod bad_input;
#[path = "store/creation.rs"]
mod creation;
#[path = "store/disk.rs"]
mod disk;
#[path = "store/durability.rs"]
mod durability;
#[path = "store/export.rs"]
mod export;
#[path = "store/export_narrow.rs"]
mod export_narrow;
#[path = "store/harness.rs"]
mod harness;
#[path = "store/model.rs"]
mod model;
#[path = "store/model_acl.rs"]
mod model_acl;
#[path = "store/narrow.rs"]
mod narrow;
#[path = "store/properties.rs"]
mod properties;
#[path = "store/recovery.rs"]
mod recovery;
#[path = "store/steps.rs"]
mod steps;
