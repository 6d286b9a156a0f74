//! The question for a difference between snapshots, and the parts of the answer.

use lockstep_driver::report::{DiffBegin, DiffPart, DiffQuestion};

use super::super::proto;
use super::super::proto::snapshot_diff_event::Event;
use super::super::proto::snapshot_diff_request::Begin;
use super::convert;

pub(in crate::control) fn request(
    datastore: &str,
    question: &DiffQuestion,
) -> proto::SnapshotDiffRequest {
    let begin = match question.begin.clone() {
        DiffBegin::Moments { from, to } => Begin::Moments(proto::DiffMoments { from, to }),
        DiffBegin::Cursor(cursor) => Begin::Cursor(cursor),
    };
    proto::SnapshotDiffRequest {
        datastore: datastore.to_owned(),
        begin: Some(begin),
        ranges: question.ranges,
        entries_max: question.entries_max,
        accepts_torn: question.accepts_torn,
    }
}

/// Returns the datastore and the question; `None` for one of a newer program that this node does not know.
pub(in crate::control) fn question(
    request: proto::SnapshotDiffRequest,
) -> Option<(String, DiffQuestion)> {
    let begin = match request.begin? {
        Begin::Moments(proto::DiffMoments { from, to }) => DiffBegin::Moments { from, to },
        Begin::Cursor(cursor) => DiffBegin::Cursor(cursor),
    };
    let question = DiffQuestion {
        begin,
        ranges: request.ranges,
        entries_max: request.entries_max,
        accepts_torn: request.accepts_torn,
    };
    Some((request.datastore, question))
}

pub(in crate::control) fn event(part: DiffPart) -> serde_json::Result<proto::SnapshotDiffEvent> {
    let event = match part {
        DiffPart::Head(head) => Event::Head(convert(head)?),
        DiffPart::Page { items, cursor } => {
            let items: Result<_, _> = items.into_iter().map(convert).collect();
            Event::Page(proto::DiffPage {
                items: items?,
                cursor,
            })
        }
    };
    Ok(proto::SnapshotDiffEvent { event: Some(event) })
}
