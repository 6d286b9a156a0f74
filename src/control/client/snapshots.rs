//! Commands about snapshots, with blocking calls.

use lockstep_driver::report::{SnapshotCommand, SnapshotStatus};

use super::super::proto::snapshots_reply::Outcome;
use super::super::wire;
use super::failures::{converted, cut_short, refused};
use super::{ControlClient, ControlError};

impl ControlClient {
    /// Carries out a command about the snapshots of the datastore `name`; returns the list of the node afterwards.
    ///
    /// # Errors
    /// If the node does not answer, or refuses.
    pub fn snapshots(
        &mut self,
        name: &str,
        command: &SnapshotCommand,
    ) -> Result<Vec<SnapshotStatus>, ControlError> {
        let path = &self.path;
        let answer = self.stub.snapshots(wire::snapshots::request(name, command));
        let reply = self.runtime.block_on(answer);
        let reply = reply.map_err(|status| refused(path, &status))?;
        match reply.into_inner().outcome {
            Some(Outcome::List(list)) => {
                let snapshots = list.snapshots.into_iter();
                snapshots
                    .map(|snapshot| converted(path, snapshot))
                    .collect()
            }
            Some(Outcome::Failure(failure)) => {
                Err(ControlError::Snapshots(converted(path, failure)?))
            }
            None => Err(cut_short(path)),
        }
    }
}
