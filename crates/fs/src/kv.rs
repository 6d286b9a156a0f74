//! The ordered key-value store that holds a node's metadata, as a trait, so that the store behind
//! it can be replaced (see ADR 0001).
//!
//! A store never answers with wrong data. It answers with committed data, or with an error that names defect and cure.
//! It never panics on damaged data.

pub mod blocks;
pub mod memtable;
pub mod redb;

use std::cmp::Ordering;
use std::io;
use std::ops::{Bound, ControlFlow};

/// Called by a scan with each key and value, in the order of the scan, until it breaks.
pub type Each<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// The input of a durable commit: keys with their new value, or `None` to delete. Of several changes of one key the
/// last one holds.
pub type KvChanges<'a> = dyn Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + 'a;

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest key to the largest.
    Up,
    /// From the largest key to the smallest.
    Down,
}

impl Direction {
    /// Orders two keys as a scan meets them.
    pub fn compare(self, one: &[u8], other: &[u8]) -> Ordering {
        match self {
            Self::Up => one.cmp(other),
            Self::Down => other.cmp(one),
        }
    }
}

/// An ordered, transactional key-value store. All calls may come from many threads at once.
pub trait Kv: Send + Sync {
    /// The value of `key`, if it has one.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError>;

    /// Calls `each` for the keys from `from` to `to`, in that direction, as they were at one moment
    /// between two commits. `each` may call the store.
    fn scan(
        &self,
        direction: Direction,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        each: &mut Each<'_>,
    ) -> Result<(), KvError>;

    /// Applies all of `changes` or, when it fails, none; returns once they are on stable storage.
    /// Readers see all of them or none.
    fn commit_durable(&self, changes: &mut KvChanges<'_>) -> Result<(), KvError>;

    /// Reads all stored data and compares all checksums. Takes time in proportion to the store.
    fn check(&mut self) -> Result<(), KvError>;
}

/// Why the store could not answer. Paths are those of the store's [`Backing`].
///
/// [`Backing`]: lockstep_types::backing::Backing
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// There is no store at that path.
    #[error(
        "{path}: there is no metadata store here; put it back if it was moved, else see \"A store is \
         damaged\" in docs/operations/disks.md"
    )]
    Missing {
        /// The missing file.
        path: String,
    },

    /// A store exists in the place of a new one.
    #[error("{path}: there is a metadata store here already; move it away to make a new one")]
    Exists {
        /// The existing file.
        path: String,
    },

    /// The disk does not have the written bytes.
    #[error(
        "{path}: the metadata store is damaged: {what}; check the disk, then see \"A store is damaged\" \
         in docs/operations/disks.md"
    )]
    Damaged {
        /// The damaged file.
        path: String,
        /// The defect, and its place.
        what: String,
    },

    /// The store was made by a newer program.
    #[error(
        "{path}: the metadata store has {format} version {found}, and this program knows versions \
         up to {known}; use a newer lockstep (the store was not changed)"
    )]
    Newer {
        /// The file.
        path: String,
        /// The format in the file.
        format: &'static str,
        /// The version found.
        found: u32,
        /// The newest known version.
        known: u32,
    },

    /// The disk below refused; nothing was changed. The call may be repeated.
    #[error("{path}: cannot {operation} the metadata store: {source}")]
    Io {
        /// The file.
        path: String,
        /// The operation, as a verb.
        operation: &'static str,
        /// The error of the disk below.
        source: io::Error,
    },

    /// The state of the disk is unknown: a sync failed, or the store broke an invariant of its own. The store writes
    /// nothing more. The next opening finds the last commit.
    #[error("{path}: the metadata store was stopped because {why}; check the disk")]
    Stopped {
        /// The file.
        path: String,
        /// The cause.
        why: String,
    },
}

impl KvError {
    /// Whether the only cause is missing space: nothing was changed, and a later call may find space.
    pub fn is_full_disk(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }
}
