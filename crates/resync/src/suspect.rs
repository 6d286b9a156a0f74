//! The files whose content may differ, with how far a resync has got in each of them.

use std::collections::VecDeque;
use std::ops::Range;

use lockstep_fs::store::ChangedRegions;
use lockstep_types::Ino;

/// A different file of at most this length is sent without a comparison of its blocks: another
/// request would take longer. A file of which the secondary has nothing is sent without one, too.
pub(crate) const UNCOMPARED_BYTES_MAX: u64 = 64 << 10;

/// A file whose content may differ.
pub(crate) struct Suspect {
    pub ino: Ino,
    /// Size of the file when the secondary took over size and times.
    pub size: u64,
    /// The content was hashed as a whole and does differ.
    pub certain: bool,
    /// The secondary had no data of the file.
    pub was_empty: bool,
    /// The bytes before this offset are equal, or are being made equal.
    pub next: u64,
    /// The bytes that may differ; `None`: all.
    pub changed: Option<ChangedRegions>,
}

/// The files of which more is to be sent.
#[derive(Default)]
pub(crate) struct LaterFiles {
    pub suspects: VecDeque<Suspect>,
    /// Files with reserved space, which is sent once their content is equal.
    pub reserved: VecDeque<Ino>,
}

impl Suspect {
    /// The next bytes that may differ; `None` when the rest is equal.
    pub fn next_changed(&self) -> Option<Range<u64>> {
        self.changed_from(self.next)
    }

    fn changed_from(&self, offset: u64) -> Option<Range<u64>> {
        let rest = offset..self.size;
        let run = match &self.changed {
            Some(changed) => changed.next(offset)?,
            None => rest.clone(),
        };
        let run = run.start..run.end.min(rest.end);
        Some(run).filter(|run| !run.is_empty())
    }

    /// The next runs of bytes that may differ: not more than `bytes_max` bytes, in at most `runs_max` runs. Empty when the rest is equal.
    pub fn next_runs(&self, bytes_max: u64, runs_max: usize) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let (mut bytes, mut at) = (0, self.next);
        while bytes < bytes_max
            && runs.len() < runs_max
            && let Some(run) = self.changed_from(at)
        {
            let run = run.start..run.end.min(run.start + (bytes_max - bytes));
            bytes += run.end - run.start;
            at = run.end;
            runs.push(run);
        }
        runs
    }

    /// Whether the file is sent without a comparison of its blocks.
    pub const fn is_uncompared(&self) -> bool {
        self.was_empty || self.goes_whole()
    }

    /// Whether the bytes go in one request, its zeros among them.
    pub const fn goes_whole(&self) -> bool {
        self.certain && self.size <= UNCOMPARED_BYTES_MAX
    }
}
