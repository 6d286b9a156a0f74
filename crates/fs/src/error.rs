//! The errors of a store, and the class of each: refused, full, or poisoned.

use lockstep_intentlog::LogError;
use lockstep_types::{Errno, Ino, Osn};
use thiserror::Error;

use crate::backing::os_backing::{BackingFailure, errno_of};
use crate::backing::poison::was_tried;
use crate::kv::KvError;
use crate::paths::content_path;

/// Why an operation on a store did not happen.
#[derive(Debug, Error)]
pub enum OpError {
    /// Refused by the rules of file systems: nothing changed, the client gets the error.
    #[error("{0}")]
    Refused(#[from] Errno),
    /// The store itself failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OpError {
    /// The error a client is to see.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused(errno) => *errno,
            Self::Store(error) => error.errno(),
        }
    }

    /// The error of a call that no rule can refuse, because it reads or repeats existing records.
    pub(crate) fn into_store(self) -> StoreError {
        match self {
            Self::Store(error) => error,
            Self::Refused(errno) => StoreError::Damaged {
                what: format!("a record that exists was refused: {errno}"),
            },
        }
    }
}

impl From<KvError> for OpError {
    fn from(error: KvError) -> Self {
        Self::Store(error.into())
    }
}

impl From<LogError> for OpError {
    fn from(error: LogError) -> Self {
        Self::Store(error.into())
    }
}

/// The text of a failed call. An error of the disk below already names operation and path.
fn describe_disk_error(operation: &str, path: &str, source: &std::io::Error) -> String {
    let below = source.get_ref();
    if matches!(below, Some(below) if below.is::<BackingFailure>()) {
        return source.to_string();
    }
    format!("cannot {operation} {path}: {source}")
}

/// How to give up an adoption.
const fn give_up(is_emptying: bool) -> &'static str {
    if is_emptying {
        "; do not remove this directory, which has files that were moved out of the other one"
    } else {
        "; or remove this directory to give up, the other one is whole"
    }
}

/// How to give up an import.
const fn give_up_import(is_emptying: bool) -> &'static str {
    if is_emptying {
        "; do not remove this directory, which has the files of the seed"
    } else {
        "; or remove this directory to give up, the seed is whole"
    }
}

/// A failure of a store: of its disk, or of its data.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The key-value store failed.
    #[error("namespace: {0}")]
    Kv(#[from] KvError),
    /// The intent log failed.
    #[error("intent log: {0}")]
    Log(#[from] LogError),
    /// The disk below failed.
    #[error("{}", describe_disk_error(operation, path, source))]
    Disk {
        /// The operation.
        operation: &'static str,
        /// The file of the store.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A record of the namespace cannot be read, or two disagree.
    #[error(
        "the namespace is damaged: {what}; check the disk, then see \"A store is damaged\" in \
         docs/operations/disks.md"
    )]
    Damaged {
        /// The record and the defect.
        what: String,
    },
    /// Content that was closed cleanly has another length than recorded.
    #[error(
        "content of inode {ino} ({}) is {found} bytes long on disk but {expected} by its record; \
         another program has cut or replaced it: see \"A store is damaged\" in docs/operations/disks.md",
        content_path(*ino)
    )]
    ContentLength {
        /// The file.
        ino: Ino,
        /// Length by the record.
        expected: u64,
        /// Length on the disk.
        found: u64,
    },
    /// This node has made too many snapshots of its own copy.
    #[error(
        "there are 255 snapshots of this copy with no operation in between: delete one of them (`lockstep snapshot list`)"
    )]
    TooManySnapshots,
    /// The directory holds no store.
    #[error(
        "the directory holds no Lockstep store: {why}; correct `store` in the configuration, or mount \
         the disk that the store is on; if the store is lost, see \"A store is damaged\" in \
         docs/operations/disks.md"
    )]
    NotAStore {
        /// The evidence.
        why: String,
    },
    /// The store was made by a newer program.
    #[error(
        "by its format.json the store was made in format {found}, this program knows formats up to {known}: \
         use the newer program; nothing was changed"
    )]
    NewerFormat {
        /// Format found.
        found: u32,
        /// Newest format known here.
        known: u32,
    },
    /// The store was made by a program from before the first release.
    #[error(
        "by its format.json the store was made in format {found}, this program knows format {known} only: write it out \
         with `lockstep export` of the program that made it; nothing was changed"
    )]
    OlderFormat {
        /// Format found.
        found: u32,
        /// The format known here.
        known: u32,
    },
    /// The store belongs to another datastore.
    #[error(
        "by its format.json the store belongs to datastore {found}, the configuration says {expected}: correct \
         `store` or `uuid` there; nothing was changed"
    )]
    OtherDatastore {
        /// By the store.
        found: String,
        /// By the configuration.
        expected: String,
    },
    /// The directory for a new store is not empty.
    #[error(
        "there is no format.json, so no store, but {found}, which may hold something: name an empty or \
         missing directory as `store`; if a store was here, see \"A store is damaged\" in \
         docs/operations/disks.md"
    )]
    NotEmpty {
        /// One of the files found.
        found: String,
    },
    /// A directory was being adopted, and not to its end.
    #[error("the adoption of {source_dir} has not ended: run the same `lockstep adopt` again, it goes on{}", give_up(*.is_emptying))]
    AdoptionUnfinished {
        /// The adopted directory, escaped.
        source_dir: String,
        /// Files are being moved out of that directory.
        is_emptying: bool,
    },
    /// A seed was being imported, and not to its end.
    #[error("the import of the seed {seed} has not ended: run the same `lockstep import` again, it goes on{}", give_up_import(*.is_emptying))]
    ImportUnfinished {
        /// The directory of the seed, escaped.
        seed: String,
        /// The store is whole, and the names of moved files are being removed from the seed.
        is_emptying: bool,
    },
    /// Another process has the store open.
    #[error("{path} is in use by another node process; stop that one first")]
    InUse {
        /// The directory.
        path: String,
    },
    /// The store was opened for reading only.
    #[error("the store is open for reading only")]
    ReadOnly,
    /// A sync failed earlier: the state of the changes that it should have covered is unknown (poison).
    #[error(
        "the disk of this store has failed, and nothing more is promised on it: repair or replace \
         it, then run `lockstep clear-poison`"
    )]
    Poisoned,
    /// An operation was committed that this store cannot apply: the nodes had diverged.
    #[error(
        "operation {osn} was committed but cannot be applied here ({errno}): the nodes' stores differ; \
         everything is compared"
    )]
    Diverged {
        /// The operation.
        osn: Osn,
        /// Why it cannot be applied.
        errno: Errno,
    },
}

impl StoreError {
    /// Wraps a failed call on the disk. Only an error turns the path into text.
    pub fn disk(
        operation: &'static str,
        path: impl Into<String>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Disk {
            operation,
            path: path.into(),
            source,
        }
    }

    /// The same, for a file whose path is made for the error only.
    pub(crate) fn disk_at(
        operation: &'static str,
        path_of: impl FnOnce(Ino) -> String,
        ino: Ino,
    ) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Disk {
            operation,
            path: path_of(ino),
            source,
        }
    }

    /// The same, for the content file of an inode.
    pub(crate) fn content(
        operation: &'static str,
        ino: Ino,
    ) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Disk {
            operation,
            path: content_path(ino),
            source,
        }
    }

    /// A record of the namespace that is damaged.
    pub(crate) fn unreadable(key: &[u8]) -> Self {
        Self::Damaged {
            what: format!("the record under {} cannot be read", key.escape_ascii()),
        }
    }

    /// Whether a sync that failed with this error leaves the disk in an unknown state.
    pub(crate) fn poisons(&self) -> bool {
        match self {
            Self::Disk { source, .. } => was_tried(source),
            _ => true,
        }
    }

    /// Whether the only cause is missing space: on the disk, or in the log, which a checkpoint could not empty.
    pub fn is_full_disk(&self) -> bool {
        match self {
            Self::Kv(error) => error.is_full_disk(),
            Self::Log(error) => error.is_full_disk() || matches!(error, LogError::Full { .. }),
            Self::Disk { source, .. } => {
                matches!(errno_of(source), Errno::NoSpace | Errno::QuotaExceeded)
            }
            _ => false,
        }
    }

    /// The error a client is to see.
    pub fn errno(&self) -> Errno {
        match self {
            _ if self.is_full_disk() => Errno::NoSpace,
            Self::Disk { source, .. } if errno_of(source) == Errno::TooBig => Errno::TooBig,
            _ => Errno::Io,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::os_backing::OsBacking;
    use lockstep_types::backing::Backing;

    /// A real disk wraps its errors with operation and path.
    #[test]
    fn a_program_is_told_when_the_disk_is_full_or_the_file_too_large() {
        let full = std::io::Error::from_raw_os_error(28);
        let full = StoreError::disk("write", "content/1")(full);
        assert_eq!(full.errno(), Errno::NoSpace);
        let dir = tempfile::tempdir().unwrap();
        let backing = OsBacking::open(dir.path()).unwrap();
        let file = backing.open_or_create("largest").unwrap();
        let too_large = file.write_at((1 << 63) - 4096, &[1]).unwrap_err();
        let too_large = StoreError::disk("write", "largest")(too_large);
        assert_eq!(too_large.errno(), Errno::TooBig, "{too_large}");
    }
}
