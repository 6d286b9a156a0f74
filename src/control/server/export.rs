//! The answers to `lockstep export`.

use lockstep_fs::export::Lost;
use tokio::sync::mpsc;
use tonic::Status;

use super::super::export::ExportQuestion;
use super::super::proto::export_event::Event;
use super::super::service::ControlService;
use super::super::{proto, wire};

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

/// The question of a request; `None` if it names no place.
pub(super) fn question(request: proto::ExportRequest) -> Option<(String, ExportQuestion)> {
    let question = ExportQuestion {
        at: request.at,
        dest: request.dest?.into(),
        manifest: request.manifest.map(Into::into),
    };
    Some((request.datastore, question))
}
