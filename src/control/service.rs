//! The commands that a running node answers.

use lockstep_driver::report::{CommandFailure, VerifyProgress, VerifyReport};

use super::report::NodeStatus;

/// The commands that a running node answers. Methods may block; several threads call them at once.
pub trait ControlService: Send + Sync + 'static {
    /// Returns the current status of the node. Must not wait for a peer or a disk.
    fn status(&self) -> NodeStatus;

    /// Compares both nodes of the datastore `name`, and calls `progress` from time to time.
    fn verify(
        &self,
        name: &str,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, CommandFailure>;
}
