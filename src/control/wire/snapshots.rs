//! Commands about snapshots, and their answers.

use lockstep_driver::report::{CommandFailure, SnapshotCommand, SnapshotStatus};

use super::super::proto;
use super::super::proto::snapshots_reply::Outcome;
use super::super::proto::snapshots_request::Command;
use super::convert;

pub(in crate::control) fn request(
    datastore: &str,
    command: &SnapshotCommand,
) -> proto::SnapshotsRequest {
    let command = match command.clone() {
        SnapshotCommand::List => Command::List(proto::ListSnapshots {}),
        SnapshotCommand::ListSpace => Command::ListSpace(proto::ListSnapshotSpace {}),
        SnapshotCommand::Create { name, hooks } => Command::Create(proto::CreateSnapshot {
            name,
            without_hooks: !hooks,
        }),
        SnapshotCommand::Rename { name, to } => Command::Rename(proto::RenameSnapshot { name, to }),
        SnapshotCommand::Delete { name } => Command::Delete(proto::DeleteSnapshot { name }),
        SnapshotCommand::Hold { name, hold } => Command::Hold(proto::HoldSnapshot { name, hold }),
        SnapshotCommand::Release { name, hold } => {
            Command::Release(proto::ReleaseSnapshot { name, hold })
        }
    };
    proto::SnapshotsRequest {
        datastore: datastore.to_owned(),
        command: Some(command),
    }
}

/// Returns the command; `None` for one of a newer program that this node does not know.
pub(in crate::control) fn command(command: Option<Command>) -> Option<SnapshotCommand> {
    Some(match command? {
        Command::List(proto::ListSnapshots {}) => SnapshotCommand::List,
        Command::ListSpace(proto::ListSnapshotSpace {}) => SnapshotCommand::ListSpace,
        Command::Create(proto::CreateSnapshot {
            name,
            without_hooks,
        }) => SnapshotCommand::Create {
            name,
            hooks: !without_hooks,
        },
        Command::Rename(proto::RenameSnapshot { name, to }) => SnapshotCommand::Rename { name, to },
        Command::Delete(proto::DeleteSnapshot { name }) => SnapshotCommand::Delete { name },
        Command::Hold(proto::HoldSnapshot { name, hold }) => SnapshotCommand::Hold { name, hold },
        Command::Release(proto::ReleaseSnapshot { name, hold }) => {
            SnapshotCommand::Release { name, hold }
        }
    })
}

pub(in crate::control) fn reply(
    outcome: Result<Vec<SnapshotStatus>, CommandFailure>,
) -> serde_json::Result<proto::SnapshotsReply> {
    let outcome = match outcome {
        Ok(snapshots) => {
            let snapshots: Result<_, _> = snapshots.into_iter().map(convert).collect();
            Outcome::List(proto::SnapshotList {
                snapshots: snapshots?,
            })
        }
        Err(failure) => Outcome::Failure(convert(failure)?),
    };
    Ok(proto::SnapshotsReply {
        outcome: Some(outcome),
    })
}
