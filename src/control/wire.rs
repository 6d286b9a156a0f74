//! Conversion between the reports and the messages of `proto/control.proto`.
//!
//! Invariant: a message has the fields of its report, with the same names and the same values in JSON. So one
//! conversion through JSON serves all of them. A word of a setting is text in a message: a command reports a word
//! of a newer node that it does not know.

use lockstep_driver::report::{
    CommandFailure, ResyncPhase, RoleReport, VerifyProgress, VerifyReport,
};
use lockstep_types::Choice;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::proto;
use super::proto::change_role_reply::Outcome;
use super::proto::change_role_request::Change;
use super::proto::verify_event::Event;
use super::report::NodeStatus;
use super::service::RoleCommand;

/// Converts a report into its message, or a message into its report.
///
/// # Errors
/// When a message holds a word that this program does not know.
pub(super) fn convert<T: DeserializeOwned>(value: impl Serialize) -> serde_json::Result<T> {
    serde_json::from_value(serde_json::to_value(value)?)
}

/// Converts the answer to a status request.
pub(super) fn node_status(mut reply: proto::StatusReply) -> serde_json::Result<NodeStatus> {
    for datastore in &mut reply.datastores {
        // An older node omits the field: it shows only running datastores.
        datastore.started.get_or_insert(true);
        if let Some(resync) = &mut datastore.resync {
            // An older node omits the field: it shows only a resync of content.
            let phase = || ResyncPhase::Content.word().to_owned();
            resync.phase.get_or_insert_with(phase);
        }
    }
    convert(reply)
}

pub(super) fn progress_event(progress: VerifyProgress) -> serde_json::Result<proto::VerifyEvent> {
    let event = Some(Event::Progress(convert(progress)?));
    Ok(proto::VerifyEvent { event })
}

pub(super) fn outcome_event(
    outcome: Result<VerifyReport, CommandFailure>,
) -> serde_json::Result<proto::VerifyEvent> {
    let event = match outcome {
        Ok(report) => Event::Report(convert(report)?),
        Err(failure) => Event::Failure(convert(failure)?),
    };
    Ok(proto::VerifyEvent { event: Some(event) })
}

pub(super) fn change_request(datastore: &str, change: RoleCommand) -> proto::ChangeRoleRequest {
    let change = match change {
        RoleCommand::HandOver => Change::HandOver(proto::HandOver {}),
        RoleCommand::Promote { accepts_loss } => Change::Promote(proto::Promote { accepts_loss }),
        RoleCommand::Demote => Change::Demote(proto::Demote {}),
    };
    proto::ChangeRoleRequest {
        datastore: datastore.to_owned(),
        change: Some(change),
    }
}

/// Returns the requested change; `None` for a change of a newer command that this node does not know.
pub(super) fn role_change(change: Option<Change>) -> Option<RoleCommand> {
    Some(match change? {
        Change::HandOver(proto::HandOver {}) => RoleCommand::HandOver,
        Change::Promote(proto::Promote { accepts_loss }) => RoleCommand::Promote { accepts_loss },
        Change::Demote(proto::Demote {}) => RoleCommand::Demote,
    })
}

pub(super) fn change_reply(
    outcome: Result<RoleReport, CommandFailure>,
) -> serde_json::Result<proto::ChangeRoleReply> {
    let outcome = match outcome {
        Ok(report) => Outcome::Report(convert(report)?),
        Err(failure) => Outcome::Failure(convert(failure)?),
    };
    Ok(proto::ChangeRoleReply {
        outcome: Some(outcome),
    })
}
