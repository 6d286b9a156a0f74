//! Disks that fail or are not mounted: the promises that a store and two nodes still keep (rules P12,
//! P16, P17).

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "poison/alone.rs"]
mod alone;
#[path = "poison/barriers.rs"]
mod barriers;
#[path = "poison/deposed.rs"]
mod deposed;
#[path = "poison/doubts.rs"]
mod doubts;
#[path = "poison/healed.rs"]
mod healed;
#[path = "poison/missing.rs"]
mod missing;
#[path = "poison/nodes.rs"]
mod nodes;
#[path = "poison/program.rs"]
mod program;
#[path = "poison/put_back.rs"]
mod put_back;
#[path = "poison/restarted.rs"]
mod restarted;
#[path = "poison/resumed.rs"]
mod resumed;
#[path = "poison/resync_power.rs"]
mod resync_power;
#[path = "poison/steps.rs"]
mod steps;
#[path = "poison/store.rs"]
mod store;
#[path = "poison/touched.rs"]
mod touched;
