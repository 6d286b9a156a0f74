//! Questions for differences between snapshots, with blocking calls.

use std::path::Path;

use lockstep_driver::report::{DiffPart, DiffQuestion};

use super::super::proto::snapshot_diff_event::Event;
use super::super::wire;
use super::events::ControlEvents;
use super::failures::{converted, cut_short};
use super::{ControlClient, ControlError};

impl ControlClient {
    /// Asks for a difference between snapshots of the datastore `name`, without a time limit, and calls `take` with each part of the answer. An
    /// error of `take` ends the question.
    ///
    /// # Errors
    /// If there is no answer, if it ends before its end, or if `take` fails.
    pub fn snapshot_diff<E: From<ControlError>>(
        &mut self,
        name: &str,
        question: &DiffQuestion,
        take: &mut dyn FnMut(DiffPart) -> Result<(), E>,
    ) -> Result<(), E> {
        let (path, stub) = (&self.path, &mut self.stub);
        let request = wire::snapshot_diff::request(name, question);
        self.runtime.block_on(async {
            let mut events = ControlEvents::of(path, stub.snapshot_diff(request).await)?;
            loop {
                match events.next().await?.event {
                    Some(Event::End(_)) => return Ok(()),
                    Some(event) => take(part(path, event)?)?,
                    None => return Err(cut_short(path).into()),
                }
            }
        })
    }
}

fn part(path: &Path, event: Event) -> Result<DiffPart, ControlError> {
    match event {
        Event::Head(head) => Ok(DiffPart::Head(converted(path, head)?)),
        Event::Page(page) => {
            let items = page.items.into_iter();
            let items: Result<_, _> = items.map(|item| converted(path, item)).collect();
            Ok(DiffPart::Page {
                items: items?,
                cursor: page.cursor,
            })
        }
        Event::Failure(failure) => Err(ControlError::Snapshots(converted(path, failure)?)),
        Event::End(_) => Err(cut_short(path)),
    }
}
