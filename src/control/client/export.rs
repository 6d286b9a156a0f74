//! The export of a snapshot by a running node, with blocking calls.

use lockstep_fs::export::{ExportSummary, Lost};
use lockstep_fs::seed::{SeedProgress, SeedSummary};

use super::super::export::ExportQuestion;
use super::super::proto::export_event::Event;
use super::super::proto::export_seed_event::Event as SeedEvent;
use super::events::ControlEvents;
use super::failures::{converted, cut_short};
use super::{ControlClient, ControlError};
use crate::control::proto;

impl ControlClient {
    /// Has the node write a snapshot of the datastore `name` out, without a time limit. Calls `report` with each loss.
    ///
    /// # Errors
    /// If the node does not answer, refuses, or cannot write.
    pub fn export(
        &mut self,
        name: &str,
        question: ExportQuestion,
        report: &mut dyn FnMut(&Lost),
    ) -> Result<ExportSummary, ControlError> {
        let (path, stub) = (&self.path, &mut self.stub);
        let request = proto::ExportRequest {
            datastore: name.to_owned(),
            at: question.at,
            dest: Some(question.dest.into()),
            manifest: question.manifest.map(Into::into),
        };
        self.runtime.block_on(async {
            let mut events = ControlEvents::of(path, stub.export(request).await)?;
            loop {
                match events.next().await?.event {
                    Some(Event::Loss(loss)) => report(&converted(path, loss)?),
                    Some(Event::Summary(summary)) => return converted(path, summary),
                    Some(Event::Failure(failure)) => {
                        return Err(ControlError::Export(converted(path, failure)?));
                    }
                    None => return Err(cut_short(path)),
                }
            }
        })
    }

    /// Has the node write a seed of a snapshot of the datastore `name`, without a time limit. Calls `progress` from time to time.
    ///
    /// # Errors
    /// If the node does not answer, refuses, or cannot write.
    pub fn export_seed(
        &mut self,
        name: &str,
        question: ExportQuestion,
        progress: &mut dyn FnMut(SeedProgress),
    ) -> Result<SeedSummary, ControlError> {
        let (path, stub) = (&self.path, &mut self.stub);
        let request = proto::ExportSeedRequest {
            datastore: name.to_owned(),
            at: question.at,
            dest: Some(question.dest.into()),
        };
        self.runtime.block_on(async {
            let mut events = ControlEvents::of(path, stub.export_seed(request).await)?;
            loop {
                match events.next().await?.event {
                    Some(SeedEvent::Progress(done)) => progress(converted(path, done)?),
                    Some(SeedEvent::Summary(summary)) => return converted(path, summary),
                    Some(SeedEvent::Failure(failure)) => {
                        return Err(ControlError::Export(converted(path, failure)?));
                    }
                    None => return Err(cut_short(path)),
                }
            }
        })
    }
}
