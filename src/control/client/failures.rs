//! The errors of the client, from those of the transport.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::Status;

use super::super::error::ControlError;
use super::super::wire;

pub(super) fn no_answer(path: &Path, limit: Duration) -> ControlError {
    ControlError::Unreachable {
        path: path.to_owned(),
        cause: format!("no answer within {} ms", limit.as_millis()),
    }
}

/// The error of a request whose answer says nothing but the state of the node.
pub(super) fn unanswered(path: &Path, status: &Status) -> ControlError {
    // Only an error of the transport has a source: the node has stopped before its answer.
    match std::error::Error::source(status) {
        Some(source) => ControlError::Unreachable {
            path: path.to_owned(),
            cause: format!("it stopped before its answer ({})", root_cause(source)),
        },
        None => refused(path, status),
    }
}

pub(super) fn unreachable(path: &Path, error: &dyn std::error::Error) -> ControlError {
    let path = path.to_owned();
    if is_not_allowed(error) {
        return ControlError::NotAllowed { path };
    }
    let cause = root_cause(error);
    ControlError::Unreachable { path, cause }
}

fn is_not_allowed(error: &dyn std::error::Error) -> bool {
    let mut causes = std::iter::successors(error.source(), |error| error.source());
    causes.any(|cause| {
        let system = cause.downcast_ref::<std::io::Error>();
        system.is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    })
}

/// Returns the innermost cause. The transport wraps the error of the system in texts without information.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

pub(super) fn refused(path: &Path, status: &Status) -> ControlError {
    let cause = match std::error::Error::source(status) {
        Some(source) => format!("{}: {}", status.message(), root_cause(source)),
        None => status.message().to_owned(),
    };
    ControlError::Refused {
        path: path.to_owned(),
        cause,
    }
}

pub(super) fn converted<T: DeserializeOwned>(
    path: &Path,
    message: impl Serialize,
) -> Result<T, ControlError> {
    wire::convert(message).map_err(|error| unknown(path, error))
}

pub(super) fn unknown(path: &Path, source: serde_json::Error) -> ControlError {
    let path = path.to_owned();
    ControlError::Unknown { path, source }
}

pub(super) fn cut_short(path: &Path) -> ControlError {
    ControlError::Refused {
        path: path.to_owned(),
        cause: "the node ended the answer before the outcome; did it stop?".to_owned(),
    }
}
