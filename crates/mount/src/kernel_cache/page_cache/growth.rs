//! How much longer than the kernel knows a file may be.
//!
//! The thread of a program takes the new size up some time after the answer to its write, and an answer with the old size may
//! be on its way to another thread. So the kernel may show a smaller size for a while.
//!
//! This file knows the changes that are over. The changes under way are in `changes.rs`. It does no input or
//! output.

use std::time::{Duration, Instant};

/// Within so long after the answer to a write, the thread of the program gives the kernel the size that the write has made.
const SETTLING: Duration = Duration::from_secs(1);

/// The sizes that the kernel may not know of one file.
#[derive(Debug, Default)]
pub(super) struct FileGrowth {
    /// The kernel shows no program a smaller size than this.
    shown_size: u64,
    /// Writes have made the file at least so long. A write that ends before this does not make the file longer.
    written_to: u64,
    /// The highest end of the changes that are over and may have made the file longer.
    grown_to: u64,
    /// The time of the last such end.
    grown_at: Option<Instant>,
}

impl FileGrowth {
    /// Of a file that an earlier process has served: it may have made the file longer.
    pub fn unknown() -> Self {
        Self {
            grown_to: u64::MAX,
            ..Self::default()
        }
    }

    /// Whether the file may be shorter than `end`.
    pub fn is_beyond(&self, end: u64) -> bool {
        end > self.shown_size.max(self.written_to)
    }

    /// Notes that a change is over that may have made the file so long.
    pub fn note_end(&mut self, grown_to: u64) {
        self.grown_to = self.grown_to.max(grown_to);
        self.grown_at = Some(Instant::now());
    }

    /// Notes that a write has made the file so long, and that nothing has cut the file since.
    pub fn note_written(&mut self, end: u64) {
        self.written_to = self.written_to.max(end);
    }

    /// Notes that the kernel shows no smaller size from now on.
    pub fn show(&mut self, end: u64) {
        self.shown_size = self.shown_size.max(end);
    }

    /// Forgets which sizes the file has had, and which the kernel shows.
    pub fn forget_sizes(&mut self) {
        (self.shown_size, self.written_to) = (0, 0);
    }

    /// Whether the thread of a program may not have taken up the size of a change that is over.
    pub fn is_settling(&self) -> bool {
        self.grown_at.is_some_and(|at| at.elapsed() < SETTLING)
    }

    /// Lets the time pass in which programs take up the sizes of the changes that are over.
    #[cfg(test)]
    pub fn settle(&mut self) {
        self.grown_at = None;
    }

    /// Whether the kernel may show a smaller size than `end`. `running`: the highest end of the changes that are under way and
    /// may make the file longer.
    pub fn hides(&self, end: u64, running: Option<u64>) -> bool {
        let grown_to = running.unwrap_or(0).max(self.grown_to);
        self.shown_size < end && self.shown_size < grown_to
    }
}
