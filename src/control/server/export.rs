//! The answers to `lockstep export`.

use std::time::{Duration, Instant};

use lockstep_fs::export::Lost;
use lockstep_fs::seed::SeedProgress;
use tokio::sync::mpsc;
use tonic::Status;

use super::super::export::ExportQuestion;
use super::super::proto::export_event::Event;
use super::super::proto::export_seed_event::Event as SeedEvent;
use super::super::service::ControlService;
use super::super::{proto, wire};

/// Time between two reports of the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The events of one answer, on their way to the client.
pub(super) type ExportSender = mpsc::Sender<Result<proto::ExportEvent, Status>>;

/// Writes a snapshot out. An export whose client has left ends.
pub(super) fn write_out(
    service: &dyn ControlService,
    name: &str,
    question: &ExportQuestion,
    events: &ExportSender,
) {
    let send = |event: serde_json::Result<Event>| {
        let event = event.map(|event| proto::ExportEvent { event: Some(event) });
        // If the client has left, `goes_on` ends the export.
        let _ = events.blocking_send(event.map_err(wire::internal));
    };
    let mut report = |lost: &Lost| send(wire::convert(lost).map(Event::Loss));
    let goes_on = || !events.is_closed();
    let outcome = service.export(name, question, &mut report, &goes_on);
    send(match outcome {
        Ok(summary) => wire::convert(summary).map(Event::Summary),
        Err(failure) => wire::convert(failure).map(Event::Failure),
    });
}

/// The events of the answer about a seed, on their way to the client.
pub(super) type SeedSender = mpsc::Sender<Result<proto::ExportSeedEvent, Status>>;

/// Writes a seed of a snapshot. An export whose client has left ends.
pub(super) fn write_seed(
    service: &dyn ControlService,
    name: &str,
    question: &ExportQuestion,
    events: &SeedSender,
) {
    let send = |event: serde_json::Result<SeedEvent>| {
        let event = event.map(|event| proto::ExportSeedEvent { event: Some(event) });
        // If the client has left, `goes_on` ends the export.
        let _ = events.blocking_send(event.map_err(wire::internal));
    };
    let mut told: Option<Instant> = None;
    let mut progress = |progress: SeedProgress| {
        if told.is_none_or(|told| told.elapsed() >= PROGRESS_INTERVAL) {
            told = Some(Instant::now());
            send(wire::convert(progress).map(SeedEvent::Progress));
        }
    };
    let goes_on = || !events.is_closed();
    let outcome = service.export_seed(name, question, &mut progress, &goes_on);
    send(match outcome {
        Ok(summary) => wire::convert(summary).map(SeedEvent::Summary),
        Err(failure) => wire::convert(failure).map(SeedEvent::Failure),
    });
}

/// The question of a request for a seed; `None` if it names no place.
pub(super) fn seed_question(request: proto::ExportSeedRequest) -> Option<(String, ExportQuestion)> {
    let question = ExportQuestion {
        at: request.at,
        dest: request.dest?.into(),
        manifest: None,
    };
    Some((request.datastore, question))
}

/// The question of a request; `None` if it names no place.
pub(super) fn question(request: proto::ExportRequest) -> Option<(String, ExportQuestion)> {
    let question = ExportQuestion {
        at: request.at,
        dest: request.dest?.into(),
        manifest: request.manifest.map(Into::into),
    };
    Some((request.datastore, question))
}
