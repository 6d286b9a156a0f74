//! The words of a secondary that its copy is not complete.
//!
//! A primary may serve alone by such a word (rule R1). The copy of the secondary becomes complete by the mark of a resync, which
//! may wait for the disk while the connection of the resync is lost and the nodes meet again. So the words are counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the words.
#[derive(Default)]
pub(super) struct Words(AtomicU64);

/// A number of words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WordCount(u64);

/// The greeting of a primary's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Greeted {
    /// The words so far.
    pub words: WordCount,
    /// Each operation of the primary is durable.
    pub is_durable: bool,
}

impl Words {
    /// Notes that this node gives its word from now on.
    pub fn speak(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// The words so far.
    pub fn count(&self) -> WordCount {
        WordCount(self.0.load(Ordering::Acquire))
    }
}
