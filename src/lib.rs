//! Lockstep: one directory, identical on two servers at every moment.
//!
//! This crate is the program around the protocol: it gives the pure core of `lockstep-repl` its
//! disks, sockets, mounts and commands. `docs/ARCHITECTURE.md` draws the whole.

pub mod config;
pub mod control;
pub mod fuse;
pub mod node;
pub mod signals;
