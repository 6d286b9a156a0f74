//! The answers to change readers.

use lockstep_driver::report::{ChangesPart, ChangesQuestion, CommandFailure};
use tokio::sync::mpsc;
use tonic::Status;

use super::super::proto::changes_event::Event;
use super::super::service::ControlService;
use super::super::{proto, wire};

/// The events of one answer, on their way to the client.
pub(super) type ChangesSender = mpsc::Sender<Result<proto::ChangesEvent, Status>>;

/// Answers a question. A slow client holds the answer up; an answer whose client has left ends.
pub(super) fn tell(
    service: &dyn ControlService,
    name: &str,
    question: &ChangesQuestion,
    events: &ChangesSender,
) {
    let mut take = |part| {
        let event = event_of(part).map_err(wire::internal);
        events.blocking_send(event).is_ok()
    };
    let last = match service.changes(name, question, &mut take) {
        Ok(()) => Ok(Event::End(proto::ChangesEnd {})),
        Err(failure) => failed(failure),
    };
    let last = last.map(|event| proto::ChangesEvent { event: Some(event) });
    // If the client has left, the end is not needed.
    let _ = events.blocking_send(last.map_err(wire::internal));
}

fn failed(failure: CommandFailure) -> serde_json::Result<Event> {
    Ok(Event::Failure(wire::convert(failure)?))
}

fn event_of(part: ChangesPart) -> serde_json::Result<proto::ChangesEvent> {
    let event = match part {
        ChangesPart::Head(head) => Event::Head(wire::convert(head)?),
        ChangesPart::Entries(entries) => {
            let entries: Result<_, _> = entries.into_iter().map(wire::convert).collect();
            Event::Entries(proto::ChangeEntries { entries: entries? })
        }
    };
    Ok(proto::ChangesEvent { event: Some(event) })
}
