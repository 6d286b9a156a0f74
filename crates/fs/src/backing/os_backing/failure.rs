//! A failed call of the disk: operation, path and cause, carried inside an [`io::Error`].
//!
//! The kind of the error stays that of the cause, so callers that match on `NotFound` or
//! `StorageFull` need not know of this module.

use std::io;

use lockstep_types::Errno;
use rustix::io::Errno as OsErrno;

/// A call to the disk below that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {path}: {source}{}", advice(source))]
pub struct BackingFailure {
    /// The operation, as a verb.
    pub operation: &'static str,
    /// The file or directory, as the operator knows it.
    pub path: String,
    /// The error of the operating system.
    pub source: io::Error,
}

/// The cure; empty if it depends on the purpose of the file.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound
        | io::ErrorKind::AlreadyExists
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::WouldBlock => "",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => " (make room on that disk)",
        io::ErrorKind::PermissionDenied => " (run as the user that it belongs to, usually root)",
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
            " (something else has taken its place: move that away and put back what was there, or \
             see \"A store is damaged\" in docs/operations/disks.md)"
        }
        _ => " (check the disk)",
    }
}

/// Wraps `source` with operation and path.
pub(super) fn failed(operation: &'static str, path: String, source: io::Error) -> io::Error {
    let kind = source.kind();
    io::Error::new(
        kind,
        BackingFailure {
            operation,
            path,
            source,
        },
    )
}

/// A refusal by this crate, before the operating system was asked.
pub(super) fn refused(operation: &'static str, path: String, why: &'static str) -> io::Error {
    let source = io::Error::new(io::ErrorKind::InvalidInput, why);
    failed(operation, path, source)
}

/// The error that a client gets for `error` of the disk below: the error number of the operating system if known (also
/// below a [`BackingFailure`]), otherwise the nearest number for its kind.
pub fn errno_of(error: &io::Error) -> Errno {
    if let Some(code) = os_code(error) {
        return Errno::from_code(code);
    }
    match error.kind() {
        io::ErrorKind::StorageFull => Errno::NoSpace,
        io::ErrorKind::QuotaExceeded => Errno::QuotaExceeded,
        io::ErrorKind::FileTooLarge => Errno::TooBig,
        io::ErrorKind::ReadOnlyFilesystem => Errno::ReadOnly,
        io::ErrorKind::OutOfMemory => Errno::NoMemory,
        io::ErrorKind::Unsupported => Errno::NotSupported,
        io::ErrorKind::NotFound => Errno::NoEntry,
        _ => Errno::Io,
    }
}

/// The error number of the operating system, if known.
pub(crate) fn os_code(error: &io::Error) -> Option<i32> {
    let below = || error.get_ref()?.downcast_ref::<BackingFailure>();
    error
        .raw_os_error()
        .or_else(|| below()?.source.raw_os_error())
}

/// Whether the file system below lacks the call, so that a longer way must be taken.
pub(super) fn is_lacking(errno: OsErrno) -> bool {
    matches!(errno, OsErrno::OPNOTSUPP | OsErrno::NOSYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_operation_and_path_and_keep_the_cause() {
        let cause = io::Error::from(OsErrno::NOSPC);
        let error = failed("write", "/store/content/1".into(), cause);
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(errno_of(&error), Errno::NoSpace);
        let text = error.to_string();
        assert!(
            text.starts_with("cannot write /store/content/1: "),
            "{text}"
        );
    }

    #[test]
    fn errors_without_a_number_map_by_kind() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(errno_of(&full), Errno::NoSpace);
        assert_eq!(errno_of(&io::Error::other("?")), Errno::Io);
    }
}
