//! Disks that fail: what a store, and two nodes, still promise on them (rule P16).

// Clippy knows test functions by their attribute; the helpers here are test code all the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "poison/nodes.rs"]
mod nodes;
#[path = "poison/pair.rs"]
mod pair;
#[path = "poison/store.rs"]
mod store;
