//! The environment of the tests of the whole program: nodes, witnesses, holders, networks and disks, as real processes
//! of this machine.
//!
//! The modules from the bottom up: `address`, `chance`, `namespace` and `program` stand alone; `network` and `nodes` use them;
//! `holder`, `operator`, `server`, `small_disk` and `witness` use the nodes.
//!
//! Invariant: every process that a test starts has ended, and each of its mounts is unmounted, once the values here
//! are dropped, however the test ends. Only a process that this crate has started is ended,
//! by its number. The kernel ends the processes, too, if the test itself is killed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // a test may panic

pub mod address;
pub mod chance;
pub mod holder;
pub mod namespace;
pub mod network;
pub mod nodes;
pub mod operator;
pub mod program;
pub mod server;
pub mod small_disk;
pub mod witness;
