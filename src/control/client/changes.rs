//! The questions of change readers, with blocking calls.

use std::path::Path;

use lockstep_driver::report::{ChangeReaderStatus, ChangesPart, ChangesQuestion, ReaderCommand};

use super::super::proto::change_readers_reply::Outcome;
use super::super::proto::changes_event::Event;
use super::super::wire;
use super::events::ControlEvents;
use super::failures::{converted, cut_short, refused};
use super::{ControlClient, ControlError};
use crate::control::proto;

impl ControlClient {
    /// Asks what has changed in the datastore `name`, without a time limit, and calls `take` with each part of the answer. An error
    /// of `take` ends the question.
    ///
    /// # Errors
    /// If there is no answer, if it ends before its end, or if `take` fails.
    pub fn changes<E: From<ControlError>>(
        &mut self,
        name: &str,
        question: &ChangesQuestion,
        take: &mut dyn FnMut(ChangesPart) -> Result<(), E>,
    ) -> Result<(), E> {
        let (path, stub) = (&self.path, &mut self.stub);
        let request = proto::ChangesRequest {
            datastore: name.to_owned(),
            reader: question.reader.clone(),
            since: question.since.clone(),
            ranges: question.ranges,
        };
        self.runtime.block_on(async {
            let mut events = ControlEvents::of(path, stub.changes(request).await)?;
            loop {
                match events.next().await?.event {
                    Some(Event::End(proto::ChangesEnd {})) => return Ok(()),
                    Some(event) => take(part(path, event)?)?,
                    None => return Err(cut_short(path).into()),
                }
            }
        })
    }

    /// Carries out a command about the change readers of the datastore `name`; returns the list afterwards.
    ///
    /// # Errors
    /// If the node does not answer, or refuses.
    pub fn change_readers(
        &mut self,
        name: &str,
        command: &ReaderCommand,
    ) -> Result<Vec<ChangeReaderStatus>, ControlError> {
        let path = &self.path;
        let answer = self
            .stub
            .change_readers(wire::readers_request(name, command));
        let reply = self.runtime.block_on(answer);
        let reply = reply.map_err(|status| refused(path, &status))?;
        match reply.into_inner().outcome {
            Some(Outcome::List(list)) => {
                let readers = list.readers.into_iter();
                readers.map(|reader| converted(path, reader)).collect()
            }
            Some(Outcome::Failure(failure)) => {
                Err(ControlError::Changes(converted(path, failure)?))
            }
            None => Err(cut_short(path)),
        }
    }
}

fn part(path: &Path, event: Event) -> Result<ChangesPart, ControlError> {
    match event {
        Event::Head(head) => Ok(ChangesPart::Head(converted(path, head)?)),
        Event::Entries(list) => {
            let entries = list.entries.into_iter();
            let entries: Result<_, _> = entries.map(|entry| converted(path, entry)).collect();
            Ok(ChangesPart::Entries(entries?))
        }
        Event::Failure(failure) => Err(ControlError::Changes(converted(path, failure)?)),
        Event::End(_) => Err(cut_short(path)),
    }
}
