//! Why a seed is not imported.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::error::StoreError;
use crate::kv::KvError;

/// Why an import has stopped.
#[derive(Debug, Error)]
pub enum SeedError {
    /// The store failed. The import may go on later.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of the seed cannot be read or removed.
    #[error("cannot {operation} {path} of the seed: {source}")]
    Seed {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The directory holds no seed, or only a part of one.
    #[error(
        "the directory holds no complete seed: there is no seed.json in it, which an export writes last\n  cure: name the directory of a \
         seed; or remove this one, and export the seed again"
    )]
    NoManifest,
    /// The seed has another format.
    #[error(
        "by its seed.json the seed has format {found}, and this program knows format {known}\n  cure: run the same version of lockstep on both servers"
    )]
    OtherFormat {
        /// The format of the seed.
        found: u32,
        /// The format that is known here.
        known: u32,
    },
    /// The seed is damaged.
    #[error(
        "the seed is damaged: {path}: {what}\n  cure: copy the seed again if it is a copy; otherwise export it again"
    )]
    Damaged {
        /// The file of the seed.
        path: String,
        /// The defect.
        what: String,
    },
    /// The seed is one of another datastore.
    #[error(
        "the seed is one of the datastore {name} ({found}), and the configuration says {expected}\n  cure: name the datastore that the seed \
         is for, or a seed of this one"
    )]
    OtherDatastore {
        /// Its name where the seed was made.
        name: String,
        /// By the seed.
        found: String,
        /// By the configuration.
        expected: String,
    },
    /// The store holds something, or may do so.
    #[error(
        "a node has used the store: a seed becomes a new store only\n  cure: if nothing in this store is needed, stop the node, move the \
         store away, and import again"
    )]
    Used,
    /// The import under way is of another seed, or in another way.
    #[error(
        "the import of the seed {began} has not ended: run that command again, or remove the store"
    )]
    Other {
        /// The directory of the seed, and the option with which the import began.
        began: String,
    },
    /// Seed and store lie in each other.
    #[error("{} and the store lie in each other: put the seed elsewhere", path.display())]
    InsideStore {
        /// The directory of the seed.
        path: PathBuf,
    },
    /// The file systems cannot share blocks.
    #[error(
        "the file system of the store cannot share the blocks of the seed: nothing was changed\n  cure: --copy; or a store on the same file \
         system, if that is XFS or Btrfs"
    )]
    CannotReflink,
    /// The files cannot have names in the store.
    #[error(
        "the store is on another file system than the seed, or below another mount: nothing was changed\n  cure: --copy; or a store on the \
         same file system"
    )]
    CannotMove,
    /// A file that is to be moved has names elsewhere, by which programs would go on to change it.
    #[error(
        "{path} of the seed has further names outside of the seed: remove these, or use --copy"
    )]
    NamesOutside {
        /// The file of the seed.
        path: String,
    },
    /// The disk of the store lacks room.
    #[error(
        "the disk of the store lacks room: a copy takes {needed_bytes} bytes in {needed_files} files, and {free_bytes} bytes and \
         {free_files} files are free. Nothing was changed\n  cure: make room; or --move, if both are on one file system"
    )]
    NoRoom {
        /// Bytes that the copy takes.
        needed_bytes: u64,
        /// Files that the copy takes.
        needed_files: u64,
        /// Free bytes.
        free_bytes: u64,
        /// Free inodes.
        free_files: u64,
    },
    /// The watcher has stopped the import.
    #[error("the import was stopped: run the same command again, it goes on")]
    Stopped,
}

impl From<KvError> for SeedError {
    fn from(error: KvError) -> Self {
        Self::Store(error.into())
    }
}

impl SeedError {
    /// The error of a file of the seed that cannot be read.
    pub(super) fn reading(path: &str) -> impl FnOnce(io::Error) -> Self {
        Self::seed("read", path)
    }

    /// The error of a call on a file of the seed.
    pub(super) fn seed(operation: &'static str, path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Seed {
            operation,
            path,
            source,
        }
    }

    /// The error of a call on the store.
    pub(super) fn disk<'a>(
        operation: &'static str,
        path: &'a str,
    ) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Store(StoreError::disk(operation, path)(source))
    }

    /// A file of the seed has other bytes than were written.
    pub(super) fn damaged(path: &str, what: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            what: what.into(),
        }
    }

    /// A file of the seed has another length than was written.
    pub(super) fn length(path: &str, found: u64, expected: u64) -> Self {
        let what = format!("it is {found} bytes long, and was {expected}");
        Self::damaged(path, what)
    }
}
