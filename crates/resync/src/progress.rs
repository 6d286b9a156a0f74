//! Progress of a resync or a comparison, for status.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A number that only grows; other threads read it at any time.
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

/// Progress of one job. The totals are the numbers at the start of the job.
#[derive(Debug, Default)]
pub struct JobProgress {
    /// Number of inodes; a resync of content counts regular files only.
    pub inodes_total: Counter,
    /// Finished inodes.
    pub inodes_done: Counter,
    /// Bytes of content, holes included.
    pub bytes_total: Counter,
    /// Compared bytes of content, holes included.
    pub bytes_done: Counter,
    /// Bytes of content that differed and were sent.
    pub bytes_sent: Counter,
    /// The job is for all content, and not only for the changes.
    is_whole: AtomicBool,
    /// Number of times that the totals were set.
    starts: Counter,
}

impl JobProgress {
    /// Starts over with new totals, for all content.
    pub fn start(&self, inodes: u64, bytes: u64) {
        self.start_with(inodes, bytes, true);
    }

    /// Starts over with new totals, for content that has changed.
    pub(crate) fn start_changed(&self, inodes: u64, bytes: u64) {
        self.start_with(inodes, bytes, false);
    }

    /// Goes on after an interruption, with these inodes and bytes left.
    pub(crate) fn go_on(&self, inodes: u64, bytes: u64) {
        self.inodes_total.set(self.inodes_done.get() + inodes);
        self.bytes_total
            .set(self.bytes_done.get().saturating_add(bytes));
        self.starts.add(1);
    }

    /// The number of times that the totals were set. A job that has begun, and has not set them, has no totals yet.
    pub fn starts(&self) -> u64 {
        self.starts.get()
    }

    /// Whether the job is for all content.
    pub fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }

    fn start_with(&self, inodes: u64, bytes: u64, is_whole: bool) {
        self.is_whole.store(is_whole, Ordering::Relaxed);
        self.inodes_total.set(inodes);
        self.inodes_done.set(0);
        self.bytes_total.set(bytes);
        self.bytes_done.set(0);
        self.bytes_sent.set(0);
        self.starts.add(1);
    }
}
