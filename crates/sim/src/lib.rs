//! The simulator: the real protocol, stores and logs of two nodes, run by one thread in a world made
//! from a seed. The simulator is never shipped.
//!
//! Invariant: the same seed makes the same world. No code of the simulated world reads a clock,
//! starts a thread, or asks the operating system for random bytes. `soak` and `exhaustive` run
//! several worlds on several threads, each world on one thread.

pub mod check;
pub mod exhaustive;
pub mod history;
pub mod mutant_search;
pub mod op;
pub mod scenario;
pub mod shrink;
pub mod soak;
pub mod test_output;
pub mod workload;
pub mod world;

pub use lockstep_lossy::{disk, random};
