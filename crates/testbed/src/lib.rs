//! The environment of the tests of the whole program: nodes, witnesses, holders, networks and disks, as real processes
//! of this machine.
//!
//! The modules from the bottom up: `address`, `chance`, `namespace`, `program` and `wait` stand alone; `process` and `network` use
//! them; `node` is one process with its files, and `pair` has two of them with the network between. `holder`, `operator`, `server`,
//! `small_disk` and `witness` use the nodes. `status` is the status of a node that does not run.
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
mod node;
pub mod operator;
mod pair;
pub mod playground;
mod process;
mod program;
pub mod server;
pub mod small_disk;
pub mod status;
mod wait;
pub mod witness;

pub use node::{DATASTORE, Node, NodeConfig, NodeEnvironment, PeerConfig, STORE, UUID};
pub use pair::{
    ANSWER_LIMIT_LEAST_MS, FREEZING, HASTY, IMPATIENT, KEEPING, OUT_OF_SYNC, PATIENT, Pair,
    Settings, Which,
};
pub use process::{Process, Spawn, logged_command};
pub use program::{as_nobody, can_mount, program, repetitions};
pub use wait::{WAIT_LIMIT, await_that};
