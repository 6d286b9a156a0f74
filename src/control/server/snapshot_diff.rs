//! The answers to questions for differences between snapshots.

use lockstep_driver::report::DiffQuestion;
use tokio::sync::mpsc;
use tonic::Status;

use super::super::proto::snapshot_diff_event::Event;
use super::super::service::ControlService;
use super::super::{proto, wire};

/// The events of one answer, on their way to the client.
pub(super) type DiffSender = mpsc::Sender<Result<proto::SnapshotDiffEvent, Status>>;

/// Answers a question. A slow client holds the answer up; an answer whose client has left ends.
pub(super) fn tell(
    service: &dyn ControlService,
    name: &str,
    question: &DiffQuestion,
    events: &DiffSender,
) {
    let mut take = |part| {
        let event = wire::snapshot_diff::event(part).map_err(wire::internal);
        events.blocking_send(event).is_ok()
    };
    let last = match service.snapshot_diff(name, question, &mut take) {
        Ok(()) => Ok(Event::End(proto::DiffEnd {})),
        Err(failure) => wire::convert(failure).map(Event::Failure),
    };
    let last = last.map(|event| proto::SnapshotDiffEvent { event: Some(event) });
    // If the client has left, the end is not needed.
    let _ = events.blocking_send(last.map_err(wire::internal));
}
