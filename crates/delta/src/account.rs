//! The words of a node about its marks, for the source of a resync: the account at the greeting, and the marks themselves in pages.

use serde::{Deserialize, Serialize};

use crate::coverage::MarkCoverage;
use crate::difference::{CopyAccount, CopyDifference};
use crate::interval::{BarrierName, Interval};

/// The barriers and the marks of a node, as the node tells them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkAccount {
    /// The barriers that the node knows by name, [`BarrierName::KNOWN_MAX`] at most. None if the node has changed anything without a mark
    /// since.
    pub known: Vec<BarrierName>,
    /// The node has the marks of each interval after this one; `None` if it has those of none.
    pub covered_after: Option<Interval>,
    /// The node has served alone since the last of these barriers: only its own marks name these changes.
    pub served_alone: bool,
}

impl MarkAccount {
    /// Whether this node has the marks of each interval after a barrier that it knows.
    pub fn covers(&self, base: BarrierName) -> bool {
        let reaches = self
            .covered_after
            .is_some_and(|after| after <= base.through);
        reaches && self.known.contains(&base)
    }

    /// The oldest barrier since which this node has all marks.
    pub fn oldest_covered(&self) -> Option<BarrierName> {
        let known = self.known.iter().copied();
        known.filter(|name| self.covers(*name)).min()
    }

    /// The youngest barrier that both nodes know by name, and since which one of them has the marks of each interval.
    pub fn base_with(&self, peer: &Self) -> Option<BarrierName> {
        match CopyDifference::between(&self.of_copy(), &peer.of_copy()) {
            CopyDifference::Since(name) => Some(name),
            CopyDifference::Rest | CopyDifference::Everything => None,
        }
    }

    fn of_copy(&self) -> CopyAccount {
        let covered = self.covered_after.map(MarkCoverage::since);
        CopyAccount {
            known: self.known.clone(),
            coverage: covered.unwrap_or(MarkCoverage::after_power_loss(None)),
            boundary: None,
        }
    }
}

/// The base of a resync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncBase {
    /// The barrier.
    pub name: BarrierName,
    /// The other node has marks since then that the source of the resync lacks.
    pub needs_marks: bool,
}

/// A part of the marks of a node since a barrier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkPage {
    /// All files with numbers from this one on are marked.
    pub files_from: Option<u64>,
    /// All records are marked.
    pub all_records: bool,
    /// Marked bytes: the number of the inode, the first byte, and the first one beyond.
    pub bytes: Vec<(u64, u64, u64)>,
    /// The keys of marked records.
    pub keys: Vec<Vec<u8>>,
    /// How many marks are in the pages up to this one; `None` if no page follows.
    pub next: Option<u64>,
}

impl MarkPage {
    /// Most marks in a page: the page fits into the header of a frame.
    pub const MARKS_MAX: usize = 256;
    /// Most pages that a node reads. A larger account is taken for "everything".
    pub const PAGES_MAX: usize = 1024;
}
