//! How far a resync or a comparison is, for status.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows, read by others at any time.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Starts over at `value`.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How far it is. The totals are those at the start.
#[derive(Debug, Default)]
pub struct Progress {
    /// Inodes there are; a resync of content counts regular files only.
    pub inodes_total: Counter,
    /// Inodes done.
    pub inodes_done: Counter,
    /// Bytes of content there are, holes included.
    pub bytes_total: Counter,
    /// Bytes of content compared, holes included.
    pub bytes_done: Counter,
    /// Bytes of content sent because they differed.
    pub bytes_sent: Counter,
}
