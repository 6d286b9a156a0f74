//! Disks that fail, or are not there: what a store, and two nodes, still promise (rules P12, P16).

// Clippy knows test functions by their attribute; the helpers here are test code all the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "poison/missing.rs"]
mod missing;
#[path = "poison/nodes.rs"]
mod nodes;
#[path = "poison/pair.rs"]
mod pair;
#[path = "poison/store.rs"]
mod store;
