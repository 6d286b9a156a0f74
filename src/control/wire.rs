//! Conversion between the reports and the messages of `proto/control.proto`.
//!
//! Invariant: a message has the fields of its report, with the same names and the same values in JSON. So one
//! conversion through JSON serves all of them. A word of a setting is text in a message: a command reports a word
//! of a newer node that it does not know.

pub(super) mod snapshot_diff;
pub(super) mod snapshots;
pub(super) mod trash;

use lockstep_driver::report::{
    ChangeReaderStatus, CommandFailure, ReaderCommand, ResyncPhase, RoleReport, VerifyProgress,
    VerifyReport,
};
use lockstep_types::Choice;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::proto;
use super::proto::change_readers_reply::Outcome as ReadersOutcome;
use super::proto::change_readers_request::Command;
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
        RoleCommand::HandOver {
            accepts_differences,
        } => Change::HandOver(proto::HandOver {
            accepts_differences,
        }),
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
        Change::HandOver(proto::HandOver {
            accepts_differences,
        }) => RoleCommand::HandOver {
            accepts_differences,
        },
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

pub(super) fn readers_request(
    datastore: &str,
    command: &ReaderCommand,
) -> proto::ChangeReadersRequest {
    let command = match command.clone() {
        ReaderCommand::List => Command::List(proto::ListReaders {}),
        ReaderCommand::Confirm { reader, point } => {
            Command::Confirm(proto::ConfirmPoint { reader, point })
        }
        ReaderCommand::Remove { reader } => Command::Remove(proto::RemoveReader { reader }),
    };
    proto::ChangeReadersRequest {
        datastore: datastore.to_owned(),
        command: Some(command),
    }
}

/// Returns the command; `None` for one of a newer program that this node does not know.
pub(super) fn reader_command(command: Option<Command>) -> Option<ReaderCommand> {
    Some(match command? {
        Command::List(proto::ListReaders {}) => ReaderCommand::List,
        Command::Confirm(proto::ConfirmPoint { reader, point }) => {
            ReaderCommand::Confirm { reader, point }
        }
        Command::Remove(proto::RemoveReader { reader }) => ReaderCommand::Remove { reader },
    })
}

pub(super) fn readers_reply(
    outcome: Result<Vec<ChangeReaderStatus>, CommandFailure>,
) -> serde_json::Result<proto::ChangeReadersReply> {
    let outcome = match outcome {
        Ok(readers) => {
            let readers: Result<_, _> = readers.into_iter().map(convert).collect();
            ReadersOutcome::List(proto::ChangeReaderList { readers: readers? })
        }
        Err(failure) => ReadersOutcome::Failure(convert(failure)?),
    };
    Ok(proto::ChangeReadersReply {
        outcome: Some(outcome),
    })
}

/// An error of this program, as an answer.
#[allow(clippy::needless_pass_by_value)] // for `map_err`
pub(super) fn internal(error: impl ToString) -> tonic::Status {
    tonic::Status::internal(error.to_string())
}
