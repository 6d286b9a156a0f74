//! The reasons for which a rollback stops.

use std::io;

use thiserror::Error;

/// Why a rollback stopped. The files that it has brought back stay; another rollback goes on from there.
#[derive(Debug, Error)]
pub enum RollbackError {
    /// The places are not those of a mount and one of its snapshots.
    #[error("cannot use {path}: {source}")]
    Place {
        /// The directory.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The snapshot has no such directory.
    #[error("the snapshot has no directory {path}")]
    NoDirectory {
        /// The path from the mount directory.
        path: String,
    },
    /// The directory has another path now, or its path leads to another directory.
    #[error("{path} was moved or replaced since the snapshot: roll back a directory above")]
    Moved {
        /// The path from the mount directory.
        path: String,
    },
    /// A program changes the same files.
    #[error(
        "{path} has changed since the rollback began: stop the programs that use these files, and roll back again"
    )]
    Changed {
        /// The path from the mount directory.
        path: String,
    },
    /// A file was moved into the directory that is brought back, or out of there.
    #[error(
        "{path} was moved between the directory and the rest since the snapshot (it was {old_path}): roll back a directory above both"
    )]
    Crossing {
        /// The path now.
        path: String,
        /// The path in the snapshot.
        old_path: String,
    },
    /// A call on the mount has failed.
    #[error("cannot {operation} {path}: {source}")]
    Call {
        /// The call.
        operation: &'static str,
        /// The path from the mount directory, or the inode.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
}

impl RollbackError {
    /// The error of a call about a path.
    pub(crate) fn call<E: Into<io::Error>>(
        operation: &'static str,
        path: impl AsRef<[u8]>,
    ) -> impl FnOnce(E) -> Self {
        let path = String::from_utf8_lossy(path.as_ref()).into_owned();
        move |source| Self::Call {
            operation,
            path,
            source: source.into(),
        }
    }
}
