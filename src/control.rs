//! The control socket, through which the commands reach a running node.
//!
//! [`ControlServer`] answers on a Unix socket with mode 0600 and calls a [`ControlService`]. [`ControlClient`] is
//! the other end. Both offer blocking calls: the tokio runtime is private to this module, and none of its types
//! leaves the module.
//!
//! No request changes data or stops the node: SIGTERM stops a node. One request changes the role of the node in a
//! datastore.

mod client;
mod error;
mod export;
mod report;
mod server;
mod service;
mod socket;
mod wire;

pub use client::ControlClient;
pub use error::ControlError;
pub use export::{ExportPlace, ExportQuestion};
pub use report::NodeStatus;
pub use server::ControlServer;
pub use service::{ControlService, RoleCommand};

/// The code generated from `proto/control.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod proto {
    tonic::include_proto!("lockstep.control.v1");
}

#[cfg(test)]
mod tests;
