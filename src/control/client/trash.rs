//! Commands about the trash, with blocking calls.

use lockstep_driver::report::{TrashAnswer, TrashCommand};

use super::super::proto::trash_reply::Outcome;
use super::super::wire;
use super::failures::{converted, cut_short, refused};
use super::{ControlClient, ControlError};

impl ControlClient {
    /// Carries out a command about the trash of the datastore `name`, without a time limit.
    ///
    /// # Errors
    /// If the node does not answer, or refuses.
    pub fn trash(
        &mut self,
        name: &str,
        command: &TrashCommand,
    ) -> Result<TrashAnswer, ControlError> {
        let path = &self.path;
        let answer = self.stub.trash(wire::trash::request(name, command));
        let reply = self.runtime.block_on(answer);
        let reply = reply.map_err(|status| refused(path, &status))?;
        match reply.into_inner().outcome {
            Some(Outcome::Page(page)) => Ok(TrashAnswer::Page(converted(path, page)?)),
            Some(Outcome::Restored(it)) => Ok(TrashAnswer::Restored(converted(path, it)?)),
            Some(Outcome::Emptied(count)) => Ok(TrashAnswer::Emptied(count)),
            Some(Outcome::Failure(failure)) => Err(ControlError::Trash(converted(path, failure)?)),
            None => Err(cut_short(path)),
        }
    }
}
