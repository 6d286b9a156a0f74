//! The simulator: the real protocol, store and logs of two nodes, run by one thread in a world made
//! from a seed. Never shipped.
//!
//! The same seed makes the same world: nothing here reads a clock, starts a thread that runs beside
//! another, or asks the system for anything random.

pub mod check;
pub mod history;
pub mod scenario;
pub mod shrink;
pub mod small;
pub mod soak;
pub mod told;
pub mod workload;
pub mod world;

pub use lockstep_lossy::{disk, random};
