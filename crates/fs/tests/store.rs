//! The store as a whole: against a model of a file system, against a second store as the other node, after
//! crashes, on damaged files, and exported as a plain tree.

// Clippy knows test functions by their attribute. These helpers are test code too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods
)]

#[path = "store/adopt.rs"]
mod adopt;
#[path = "store/adopt_place.rs"]
mod adopt_place;
#[path = "store/bad_input.rs"]
mod bad_input;
#[path = "store/barriers.rs"]
mod barriers;
#[path = "store/changes.rs"]
mod changes;
#[path = "store/creation.rs"]
mod creation;
#[path = "store/delta.rs"]
mod delta;
#[path = "store/diff.rs"]
mod diff;
#[path = "store/durability.rs"]
mod durability;
#[path = "store/export.rs"]
mod export;
#[path = "store/export_narrow.rs"]
mod export_narrow;
#[path = "store/flags.rs"]
mod flags;
#[path = "store/freed.rs"]
mod freed;
#[path = "store/harness.rs"]
mod harness;
#[path = "store/history.rs"]
mod history;
#[path = "store/narrow.rs"]
mod narrow;
#[path = "store/properties.rs"]
mod properties;
#[path = "store/recovery.rs"]
mod recovery;
#[path = "store/resync_rest.rs"]
mod resync_rest;
#[path = "store/seed.rs"]
mod seed;
#[path = "store/seed_place.rs"]
mod seed_place;
#[path = "store/snapshots.rs"]
mod snapshots;
#[path = "store/steps.rs"]
mod steps;
#[path = "store/trace.rs"]
mod trace;
