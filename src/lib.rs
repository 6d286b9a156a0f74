//! Lockstep: one directory, identical on two servers at every moment.
//!
//! This crate is the program: node, control socket and commands, around the mount (`lockstep-mount`) and the driver of the
//! protocol (`lockstep-driver`). `docs/ARCHITECTURE.md` shows all crates.

pub mod control;
pub mod node;
pub mod private_directory;
pub mod service_manager;
pub mod signals;
pub mod stop_signal;
pub mod witness;

pub use lockstep_config as config;
