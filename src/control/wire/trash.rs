//! Commands about the trash, and their answers.

use lockstep_driver::report::{CommandFailure, RestoreQuestion, TrashAnswer, TrashCommand};

use super::super::proto;
use super::super::proto::trash_reply::Outcome;
use super::super::proto::trash_request::Command;
use super::convert;

pub(in crate::control) fn request(datastore: &str, command: &TrashCommand) -> proto::TrashRequest {
    let command = match command.clone() {
        TrashCommand::List { from } => Command::ListFrom(from),
        TrashCommand::Restore(question) => Command::Restore(proto::RestoreTrash {
            path: question.path,
            inode: question.inode,
            at: question.at,
            since: question.since,
            to: question.to,
        }),
        TrashCommand::Empty { before } => Command::Empty(proto::EmptyTrash { before }),
    };
    proto::TrashRequest {
        datastore: datastore.to_owned(),
        command: Some(command),
    }
}

/// Returns the command; `None` for one of a newer program that this node does not know.
pub(in crate::control) fn command(command: Option<Command>) -> Option<TrashCommand> {
    Some(match command? {
        Command::ListFrom(from) => TrashCommand::List { from },
        Command::Restore(question) => TrashCommand::Restore(RestoreQuestion {
            path: question.path,
            inode: question.inode,
            at: question.at,
            since: question.since,
            to: question.to,
        }),
        Command::Empty(proto::EmptyTrash { before }) => TrashCommand::Empty { before },
    })
}

pub(in crate::control) fn reply(
    outcome: Result<TrashAnswer, CommandFailure>,
) -> serde_json::Result<proto::TrashReply> {
    let outcome = match outcome {
        Ok(TrashAnswer::Page(page)) => Outcome::Page(convert(page)?),
        Ok(TrashAnswer::Restored(restored)) => Outcome::Restored(convert(restored)?),
        Ok(TrashAnswer::Emptied(count)) => Outcome::Emptied(count),
        Err(failure) => Outcome::Failure(convert(failure)?),
    };
    Ok(proto::TrashReply {
        outcome: Some(outcome),
    })
}
