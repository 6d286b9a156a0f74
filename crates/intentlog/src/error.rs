//! The errors of a log. Every message names the file, the cause and the cure.

use std::io;

use crate::position::Position;

/// A failure of the log.
///
/// The owner must act by the variant. [`Self::Full`] and [`Self::TooLarge`] refuse one record, which is not
/// in the log, and leave the log usable. [`Self::Io`] and [`Self::Poisoned`], from an append or a sync,
/// poison: the owner must stop accepting operations. All other errors come from opening or reading, and
/// nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The disk refused a call. From an append or sync, the log is poisoned from now on, unless an append
    /// only found the disk full.
    #[error("cannot {operation} intent log {path}: {source}")]
    Io {
        /// The failed operation.
        operation: &'static str,
        /// Its file.
        path: String,
        /// The error of the disk.
        source: io::Error,
    },
    /// An earlier write or sync failed. The log accepts nothing more.
    #[error(
        "intent log {path} refuses to go on because an earlier write or sync of it failed; check \
         the disk"
    )]
    Poisoned {
        /// The directory of the log.
        path: String,
    },
    /// Both segments hold records that are still needed.
    #[error(
        "intent log {path} is full: all {capacity} bytes hold operations that no checkpoint covers"
    )]
    Full {
        /// The directory of the log.
        path: String,
        /// Bytes of both segments.
        capacity: u64,
    },
    /// The record is longer than the limit.
    #[error("a record of {bytes} bytes exceeds the intent log's limit of {max}")]
    TooLarge {
        /// Bytes of its payload.
        bytes: usize,
        /// Most bytes allowed.
        max: usize,
    },
    /// The record has no encoding.
    #[error("cannot encode a record of the intent log: {0}")]
    Encode(#[source] postcard::Error),
    /// A synced part of the log does not read back as written.
    #[error(
        "intent log {path} is damaged at position {position}: {cause}. Nothing was changed. \
         Operations recorded there may be lost on this node: see \"A store is damaged\" in \
         docs/operations/disks.md"
    )]
    Damaged {
        /// The segment file.
        path: String,
        /// The first position that cannot be read.
        position: Position,
        /// The proof that the part was synced.
        cause: String,
    },
    /// An intact record that this version cannot interpret.
    #[error(
        "intent log {path} holds a record at position {position} (kind {kind}) that this version \
         cannot read: {source}. Use the version that wrote it"
    )]
    Unreadable {
        /// The segment file.
        path: String,
        /// The record's position.
        position: Position,
        /// The record's kind byte.
        kind: u8,
        /// The fault of its payload.
        source: postcard::Error,
    },
    /// A file of the log is missing.
    #[error(
        "intent log {path} is missing: put it back if it was moved, else see \"A store is damaged\" in \
         docs/operations/disks.md"
    )]
    Missing {
        /// The segment file.
        path: String,
    },
    /// A log exists already.
    #[error("intent log {path} exists already and is left as it is")]
    Exists {
        /// The segment file.
        path: String,
    },
    /// A foreign file has the name of the log.
    #[error(
        "{path} is not an intent log: it does not begin with the magic of one. See \"A store is damaged\" in \
         docs/operations/disks.md"
    )]
    NotALog {
        /// The file.
        path: String,
    },
    /// A later version wrote the log.
    #[error(
        "intent log {path} has format version {found}, made by a newer release; this one reads up \
         to version {supported}. Use the newer release"
    )]
    NewerFormat {
        /// The segment file.
        path: String,
        /// Its version.
        found: u32,
        /// The newest version this release reads.
        supported: u32,
    },
    /// The file is shorter than at its creation.
    #[error(
        "intent log {path} is truncated: it has {length} of {expected} bytes. See \"A store is damaged\" in \
         docs/operations/disks.md"
    )]
    Truncated {
        /// The segment file.
        path: String,
        /// Bytes it has.
        length: u64,
        /// Bytes it must have.
        expected: u64,
    },
    /// The checkpoint is older than the oldest record of the log.
    #[error(
        "intent log {path} no longer has the records after position {asked}: its oldest is at \
         {oldest}. The store's checkpoint is older than its log: see \"A store is damaged\" in \
         docs/operations/disks.md"
    )]
    Gone {
        /// The segment file.
        path: String,
        /// The end of the checkpoint.
        asked: Position,
        /// The oldest position kept.
        oldest: Position,
    },
    /// The checkpoint is newer than any record of the log can be.
    #[error(
        "intent log {path} ends at position {end}, but the store's checkpoint covers {asked}: the \
         log is an older copy. See \"A store is damaged\" in \
         docs/operations/disks.md"
    )]
    Behind {
        /// The segment file.
        path: String,
        /// The end of the checkpoint.
        asked: Position,
        /// The end of the log.
        end: Position,
    },
    /// The options are invalid.
    #[error("an intent log segment of {bytes} bytes is not possible: {cause}")]
    BadSegmentBytes {
        /// The requested size.
        bytes: u64,
        /// The rule that the size breaks.
        cause: &'static str,
    },
}

impl LogError {
    /// Whether the disk was only full: a later attempt may succeed.
    pub fn is_full_disk(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }

    /// Whether this error, from an append or a sync, means that the log is poisoned.
    pub fn is_poison(&self) -> bool {
        matches!(self, Self::Poisoned { .. })
            || (matches!(self, Self::Io { .. }) && !self.is_full_disk())
    }

    pub(crate) fn io(operation: &'static str, path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            operation,
            path,
            source,
        }
    }
}
