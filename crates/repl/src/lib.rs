//! The replication protocol: locks, messages, states, and the core that does no IO.
//!
//! Start with [`core`], which is the protocol, and [`state`], which is its state table.

pub mod checked;
mod comparison;
pub mod core;
pub mod lock;
pub mod message;
mod resync_scope;
pub mod state;
