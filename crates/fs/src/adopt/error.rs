//! Errors of an adoption, and the things that it reports one by one.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use serde::{Serialize, Serializer};
use thiserror::Error;

use crate::error::StoreError;
use crate::kv::KvError;
use crate::store::AdoptWay;

/// A failed call on the adopted directory, and its error.
pub(super) type FailedSourceCall = (&'static str, Errno);

/// Why an adoption has stopped.
#[derive(Debug, Error)]
pub enum AdoptError {
    /// The store failed. The adoption may go on later.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The directory cannot be read or changed.
    #[error("cannot {operation} {name}: {source}{}", advice(source))]
    Source {
        /// The operation.
        operation: &'static str,
        /// The file, escaped.
        name: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The store holds something, or may do so.
    #[error(
        "a node has used the store: only a new store adopts a directory\n  cure: copy the files into the mount; or, if \
         neither node has data, stop both, remove both stores and make them with `lockstep create-store`"
    )]
    Used,
    /// The directory is inside of the store.
    #[error("{} lies in the store itself: adopt another directory", path.display())]
    InsideStore {
        /// The directory.
        path: PathBuf,
    },
    /// The directory has things that a store cannot hold. Each was reported.
    #[error(
        "{total} names cannot be adopted as they are, and nothing was changed\n  cure: change or move away what is listed, \
         then adopt again"
    )]
    Refused {
        /// Number of reported problems.
        total: u64,
    },
    /// The adoption under way is of another directory, or in another way.
    #[error("the adoption of {began} has not ended: run that command again first, {give_up}")]
    Other {
        /// The directory and the options with which the adoption began.
        began: String,
        /// How to give up.
        give_up: &'static str,
    },
    /// The file systems cannot share blocks.
    #[error(
        "the file system of the store cannot share the blocks of this directory: nothing was changed\n  cure: --copy; or a store \
         on the same file system, if that is XFS or Btrfs"
    )]
    CannotReflink,
    /// The files cannot have names in the store.
    #[error(
        "the store is on another file system than the directory, or below another mount: nothing was changed\n  cure: --copy; \
         or a store on the same file system"
    )]
    CannotMove,
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
    /// The watcher has stopped the adoption.
    #[error("the adoption was stopped: run the same command again, it goes on")]
    Stopped,
}

impl From<KvError> for AdoptError {
    fn from(error: KvError) -> Self {
        Self::Store(error.into())
    }
}

impl AdoptError {
    /// The error of a failed call on a file of the directory.
    pub(super) fn source((operation, errno): FailedSourceCall, name: String) -> Self {
        Self::Source {
            operation,
            name,
            source: errno.into(),
        }
    }

    /// The error of a call on the store.
    pub(super) fn disk<'a>(
        operation: &'static str,
        path: &'a str,
    ) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Store(StoreError::disk(operation, path)(source))
    }

    /// Another adoption is under way, of `source` in this way.
    pub(super) fn other(
        source: &str,
        way: AdoptWay,
        one_file_system: bool,
        is_emptying: bool,
    ) -> Self {
        let option = if one_file_system {
            " --one-file-system"
        } else {
            ""
        };
        Self::Other {
            began: format!("{source} with --{}{option}", way.word()),
            give_up: if is_emptying {
                "for the store has files of it"
            } else {
                "or remove the store"
            },
        }
    }
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => " (run as root)",
        io::ErrorKind::NotFound => " (name an existing directory)",
        _ => "",
    }
}

/// A name of the directory that cannot be adopted, or was not adopted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotAdopted {
    /// The path below the directory, escaped.
    #[serde(rename = "path")]
    pub name: String,
    /// The reason. For people.
    #[serde(rename = "reason", serialize_with = "as_text")]
    pub why: Reason,
}

fn as_text<S: Serializer>(why: &Reason, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(why)
}

/// Why a name is not adopted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Reason {
    /// The file is too large.
    #[error("a file of {0} bytes is larger than a store can hold")]
    TooLarge(u64),
    /// The target of a symbolic link is too long.
    #[error("the target of the link is longer than a store can hold")]
    TargetTooLong,
    /// The name is none that a store can hold.
    #[error("the name is longer than a store can hold")]
    Name,
    /// The inode has more names than a store can hold.
    #[error("more names, or more subdirectories, than a store can hold")]
    TooManyLinks,
    /// A store cannot hold the extended attribute.
    #[error("a store cannot hold the extended attribute {0}")]
    Xattr(String),
    /// A store cannot hold the device number.
    #[error("a store cannot hold the device number {0}:{1}")]
    DeviceNumber(u32, u32),
    /// The kind of inode is unknown.
    #[error("an unknown kind of file")]
    UnknownKind,
    /// Another file system begins there.
    #[error(
        "another file system is mounted there: unmount it, or leave it out with --one-file-system"
    )]
    OtherFileSystem,
    /// A file that is to be moved has names elsewhere, by which programs would go on to change it.
    #[error(
        "the file has names outside of the directory, by which programs reach it: remove these, or use --copy"
    )]
    NamesOutside,
    /// A file that is to be moved is encrypted, or protected by fs-verity, by its file system.
    #[error(
        "the file is encrypted or sealed by its file system, so it cannot be moved: use --copy"
    )]
    Sealed,
    /// The inode cannot be read.
    #[error("cannot {0}: {1}")]
    Unreadable(&'static str, Errno),
    /// The name has come since the listing.
    #[error("has come since the directory was listed: it is not in the datastore")]
    Came,
    /// The name has gone since the listing.
    #[error("has gone since the directory was listed: it is not in the datastore")]
    Gone,
    /// A directory has gone since the listing.
    #[error(
        "the directory has gone since it was listed: the datastore has it, without the files that went with it"
    )]
    DirectoryGone,
    /// A link, pipe, socket or device is another one since the listing.
    #[error(
        "is another one since the directory was listed: the datastore has the one that was listed"
    )]
    Changed,
    /// Another inode has the name since the listing.
    #[error("is another file since the directory was listed: it is not in the datastore")]
    Replaced,
    /// Programs went on to change the file.
    #[error(
        "was changed while it was adopted: the datastore may have a mixture of old and new bytes"
    )]
    Changing,
}
