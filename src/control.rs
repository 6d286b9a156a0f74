//! The control socket: how commands ask a running node.
//!
//! [`ControlServer`] answers on a Unix socket with mode 0600 for whatever implements
//! [`ControlService`]; [`ControlClient`] asks. Both are plain blocking code to their users: the
//! runtime lives on a thread of its own in here, and its types never leave this module.
//!
//! Nothing here changes a datastore: stopping a node is what SIGTERM is for.

mod client;
mod error;
mod report;
mod server;
mod socket;
mod wire;

pub use client::ControlClient;
pub use error::ControlError;
pub use report::NodeStatus;
pub use server::ControlServer;

use lockstep_driver::report::{VerifyFailure, VerifyProgress, VerifyReport};

/// What a node can be asked. Methods may block; they are called from any thread, several at once.
pub trait ControlService: Send + Sync + 'static {
    /// How the node is now. Must not wait for a peer or a disk.
    fn status(&self) -> NodeStatus;

    /// Compares both nodes of the datastore `name`, telling `progress` from time to time.
    fn verify(
        &self,
        name: &str,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, VerifyFailure>;
}

/// The code made from `proto/control.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod proto {
    tonic::include_proto!("lockstep.control.v1");
}

#[cfg(test)]
mod tests;
