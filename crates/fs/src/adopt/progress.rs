//! The progress of an adoption, and the watcher that hears of the progress.

use std::ops::ControlFlow;

use super::error::{AdoptError, NotAdopted};

/// The part of an adoption that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The names are read, and nothing is changed.
    Listing,
    /// The content is taken.
    Taking,
    /// The names of moved files are removed from the directory.
    Emptying,
    /// Everything goes to stable storage.
    Finishing,
}

/// How far an adoption is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptionProgress {
    /// The part that is under way.
    pub phase: Phase,
    /// Regular files so far.
    pub files: u64,
    /// Bytes of their data so far; holes are none.
    pub bytes: u64,
    /// All regular files that are known.
    pub files_total: u64,
    /// All bytes of data that are known.
    pub bytes_total: u64,
}

/// Hears of the progress of an adoption.
pub trait AdoptWatcher {
    /// Is called before each step. A break stops the adoption, as a kill of the process would; the same call goes on later.
    fn progress(&mut self, progress: &AdoptionProgress) -> ControlFlow<()>;

    /// Is called for each name that cannot be adopted, or was not.
    fn report(&mut self, not_adopted: &NotAdopted);
}

/// A watcher, and the number of its reports.
pub(super) struct CountedWatcher<'a> {
    watcher: &'a mut dyn AdoptWatcher,
    reports: u64,
}

impl<'a> CountedWatcher<'a> {
    pub fn new(watcher: &'a mut dyn AdoptWatcher) -> Self {
        Self {
            watcher,
            reports: 0,
        }
    }

    /// Number of reports.
    pub const fn reports(&self) -> u64 {
        self.reports
    }

    pub fn progress(&mut self, progress: &AdoptionProgress) -> Result<(), AdoptError> {
        match self.watcher.progress(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(AdoptError::Stopped),
        }
    }

    pub fn report(&mut self, not_adopted: &NotAdopted) {
        self.reports += 1;
        self.watcher.report(not_adopted);
    }
}
