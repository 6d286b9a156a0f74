//! The ordered key-value store that holds a node's metadata, as a trait, so that the store behind
//! it can be replaced (see ADR 0001).
//!
//! A store never answers with wrong data: it answers with what was committed, or with an error
//! that says what is wrong and what to do. It never panics on what it finds on the disk.

pub mod blocks;
pub mod memtable;
pub mod redb;

use std::cmp::Ordering;
use std::io;
use std::ops::{Bound, ControlFlow};

/// Called by a scan with each key and value, in the order of the scan, until it breaks.
pub type Each<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// What a durable commit takes: keys with their new value, or `None` to delete. Of several changes
/// of one key the last one holds.
pub type Changes<'a> = dyn Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + 'a;

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest key to the largest.
    Up,
    /// From the largest key to the smallest.
    Down,
}

impl Direction {
    /// Which of two keys a scan meets first.
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
    fn commit_durable(&self, changes: &mut Changes<'_>) -> Result<(), KvError>;

    /// Reads everything that is stored and compares all checksums. Takes time in proportion to
    /// the store.
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
         damaged\" in docs/operations.md"
    )]
    Missing {
        /// Where it should be.
        path: String,
    },

    /// A store was to be made where one is.
    #[error("{path}: there is a metadata store here already; move it away to make a new one")]
    Exists {
        /// Where it is.
        path: String,
    },

    /// What is on the disk is not what was written to it.
    #[error(
        "{path}: the metadata store is damaged: {what}; check the disk, then see \"A store is damaged\" \
         in docs/operations.md"
    )]
    Damaged {
        /// The damaged file.
        path: String,
        /// What does not fit, and where.
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
        /// Which of the formats in it.
        format: &'static str,
        /// What it says.
        found: u32,
        /// The newest that is understood here.
        known: u32,
    },

    /// The disk below refused; nothing was changed. May be tried again.
    #[error("{path}: cannot {operation} the metadata store: {source}")]
    Io {
        /// The file.
        path: String,
        /// What was tried, as a verb.
        operation: &'static str,
        /// What the disk below answered.
        source: io::Error,
    },

    /// What is on the disk is no longer known: a sync failed, or the store broke an invariant of
    /// its own. Nothing more is written; opening it again finds the last commit.
    #[error("{path}: the metadata store was stopped because {why}; check the disk")]
    Stopped {
        /// The file.
        path: String,
        /// What happened.
        why: String,
    },
}

impl KvError {
    /// Whether there was only no room: nothing was changed, and later there may be some.
    pub fn is_full_disk(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }
}
