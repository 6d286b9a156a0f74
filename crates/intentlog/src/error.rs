//! What can go wrong with a log. Every message names the file, the cause and what to do.

use std::io;

use crate::position::Position;

/// A failure of the log.
///
/// By what the owner must do: [`Self::Full`] and [`Self::TooLarge`] refuse one record, which is
/// not in the log, and leave the log usable. [`Self::Io`] and [`Self::Poisoned`], from an append
/// or a sync, poison: stop accepting operations. All others come from opening or reading, and
/// nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The disk refused. From an append or sync, the log is poisoned from here on, unless an append
    /// only found the disk full.
    #[error("cannot {operation} intent log {path}: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: String,
        /// What the disk said.
        source: io::Error,
    },
    /// A write or sync failed before; nothing more is accepted.
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
    /// The record is longer than a record may be.
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
         docs/operations.md"
    )]
    Damaged {
        /// The segment file.
        path: String,
        /// The first position that cannot be read.
        position: Position,
        /// How that is known.
        cause: String,
    },
    /// A record that is intact but makes no sense to this version.
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
        /// What was wrong with its payload.
        source: postcard::Error,
    },
    /// A file of the log is not there.
    #[error(
        "intent log {path} is missing: put it back if it was moved, else see \"A store is damaged\" in \
         docs/operations.md"
    )]
    Missing {
        /// The segment file.
        path: String,
    },
    /// There is a log already.
    #[error("intent log {path} exists already and is left as it is")]
    Exists {
        /// The segment file.
        path: String,
    },
    /// Something else bears the log's name.
    #[error(
        "{path} is not an intent log: it does not begin with the magic of one. See \"A store is damaged\" in \
         docs/operations.md"
    )]
    NotALog {
        /// The file.
        path: String,
    },
    /// A later version made it.
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
    /// The file is shorter than it was made.
    #[error(
        "intent log {path} is truncated: it has {length} of {expected} bytes. See \"A store is damaged\" in \
         docs/operations.md"
    )]
    Truncated {
        /// The segment file.
        path: String,
        /// Bytes it has.
        length: u64,
        /// Bytes it must have.
        expected: u64,
    },
    /// The checkpoint is older than what the log has let go.
    #[error(
        "intent log {path} no longer has the records after position {asked}: its oldest is at \
         {oldest}. The store's checkpoint is older than its log: see \"A store is damaged\" in \
         docs/operations.md"
    )]
    Gone {
        /// The segment file.
        path: String,
        /// Where the checkpoint ends.
        asked: Position,
        /// The oldest position kept.
        oldest: Position,
    },
    /// The checkpoint is newer than the log can be.
    #[error(
        "intent log {path} ends at position {end}, but the store's checkpoint covers {asked}: the \
         log is an older copy. See \"A store is damaged\" in \
         docs/operations.md"
    )]
    Behind {
        /// The segment file.
        path: String,
        /// Where the checkpoint ends.
        asked: Position,
        /// Where the log ends.
        end: Position,
    },
    /// The options make no log.
    #[error("an intent log segment of {bytes} bytes is not possible: {cause}")]
    BadSegmentBytes {
        /// What was asked for.
        bytes: u64,
        /// Why not.
        cause: &'static str,
    },
}

impl LogError {
    /// Whether there was only no room: later there may be some.
    pub fn is_full_disk(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }

    /// Whether an append or a sync that ends so has poisoned the log, or met one poisoned before.
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
