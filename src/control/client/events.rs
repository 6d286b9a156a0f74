//! The events of an answer that comes in parts.

use std::path::Path;

use tonic::{Response, Status, Streaming};

use super::super::error::ControlError;
use super::failures::{cut_short, refused};

/// See the head of this file.
pub(super) struct ControlEvents<'a, M> {
    path: &'a Path,
    stream: Streaming<M>,
}

impl<'a, M> ControlEvents<'a, M> {
    /// The events of an answer of the node at `path`.
    ///
    /// # Errors
    /// The node refuses.
    pub(super) fn of(
        path: &'a Path,
        answer: Result<Response<Streaming<M>>, Status>,
    ) -> Result<Self, ControlError> {
        let answer = answer.map_err(|status| refused(path, &status))?;
        let stream = answer.into_inner();
        Ok(Self { path, stream })
    }

    /// The next event.
    ///
    /// # Errors
    /// The node ends the answer, or an error does.
    pub(super) async fn next(&mut self) -> Result<M, ControlError> {
        let event = self.stream.message().await;
        let event = event.map_err(|status| refused(self.path, &status))?;
        event.ok_or_else(|| cut_short(self.path))
    }
}
