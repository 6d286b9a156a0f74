//! Noted changes: keys of records, and parts of files.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use lockstep_types::{Ino, Osn};

use crate::namespace::keys;
use crate::namespace::plan::{ContentEffect, Plan};

/// Bytes are noted in parts of this size, which start at multiples of it.
pub const PART_BYTES: u64 = 64 << 10;
/// Most keys of records of a delta; more become "all records".
pub const RECORDS_MAX: usize = 64 << 10;
/// Most runs of parts in memory, over all files; more become "all content".
pub const RUNS_MAX: usize = 256 << 10;

/// Runs of changed parts of one file, apart from each other: start and end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedRegions(BTreeMap<u64, u64>);

impl ChangedRegions {
    /// Adds the parts that the bytes lie in.
    pub fn insert(&mut self, bytes: &Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        let mut start = bytes.start / PART_BYTES * PART_BYTES;
        let end = bytes.end.checked_next_multiple_of(PART_BYTES);
        let mut end = end.unwrap_or(u64::MAX);
        // Runs that meet become one.
        while let Some((&from, &to)) = self.0.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.0.remove(&from);
            start = start.min(from);
            end = end.max(to);
        }
        self.0.insert(start, end);
    }

    /// Takes bytes out.
    pub(super) fn remove(&mut self, bytes: &Range<u64>) {
        while let Some((&from, &to)) = self.0.range(..bytes.end).next_back() {
            if to <= bytes.start {
                break;
            }
            self.0.remove(&from);
            if to > bytes.end {
                self.0.insert(bytes.end, to);
            }
            if from < bytes.start {
                self.0.insert(from, bytes.start);
                break;
            }
        }
    }

    /// The first changed bytes at or after `offset`.
    pub fn next(&self, offset: u64) -> Option<Range<u64>> {
        let before = self.0.range(..=offset).next_back();
        if let Some((_, &end)) = before.filter(|(_, end)| **end > offset) {
            return Some(offset..end);
        }
        let (&start, &end) = self.0.range(offset..).next()?;
        Some(start..end)
    }

    /// The runs, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    /// The number of runs.
    pub fn runs(&self) -> usize {
        self.0.len()
    }
}

/// The changed bytes of files.
pub type ChangedContent = BTreeMap<Ino, ChangedRegions>;

/// The changes of operations that a follower notes. Too many become coarser.
#[derive(Default)]
pub(super) struct Changes {
    pub records: BTreeSet<Vec<u8>>,
    pub content: ChangedContent,
    runs: usize,
    /// There were too many records: any may have changed.
    pub all_records: bool,
    /// There were too many runs: the content of any file may have changed.
    pub all_content: bool,
    /// The highest operation among them.
    pub last: Option<Osn>,
}

impl Changes {
    pub fn note_bytes(&mut self, ino: Ino, bytes: &Range<u64>) {
        let regions = self.content.entry(ino).or_default();
        let before = regions.runs();
        regions.insert(bytes);
        self.runs = self.runs + regions.runs() - before;
    }

    pub fn note(&mut self, osn: Osn, plan: &Plan) {
        self.records.extend(replicated_keys(plan).cloned());
        if let Some(effect) = plan.content {
            self.note_bytes(effect.ino(), &bytes_of(effect));
        }
        self.last = self.last.max(Some(osn));
        self.limit();
    }

    pub fn join(&mut self, mut other: Self) {
        self.records.append(&mut other.records);
        for (ino, regions) in other.content {
            for run in regions.iter() {
                self.note_bytes(ino, &run);
            }
        }
        self.last = self.last.max(other.last);
        self.all_records |= other.all_records;
        self.all_content |= other.all_content;
        self.limit();
    }

    fn limit(&mut self) {
        self.all_records |= self.records.len() > RECORDS_MAX;
        self.all_content |= self.runs + self.content.len() > RUNS_MAX;
        if self.all_records {
            self.records.clear();
        }
        if self.all_content {
            self.content.clear();
            self.runs = 0;
        }
    }
}

/// The keys of the records that a plan changes, of those that both copies have.
pub(super) fn replicated_keys(plan: &Plan) -> impl Iterator<Item = &Vec<u8>> {
    let keys = plan.batch.iter().map(|(key, _)| key);
    keys.filter(|key| keys::is_replicated(key))
}

/// The bytes that the content part of a plan changes.
pub(super) fn changed_bytes(plan: &Plan) -> Option<(Ino, Range<u64>)> {
    let effect = plan.content?;
    Some((effect.ino(), bytes_of(effect)))
}

/// The bytes that the content part of an operation changes. The bytes beyond a new size are cut off, and may be written
/// again.
fn bytes_of(effect: ContentEffect) -> Range<u64> {
    match effect {
        ContentEffect::Resize(_, size) => size..u64::MAX,
        ContentEffect::Allocate(_, _, offset, length) => offset..offset.saturating_add(length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: u64 = PART_BYTES;

    fn runs(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut regions = ChangedRegions::default();
        for &(start, end) in ranges {
            regions.insert(&(start..end));
        }
        regions.0.into_iter().collect()
    }

    #[test]
    fn regions_that_meet_become_one_run() {
        let (first, third) = ((0, 1), (2 * REGION, 2 * REGION + 1));
        assert_eq!(runs(&[(1, 2), (5, 6)]), [(0, REGION)]);
        assert_eq!(runs(&[(0, 0)]), []);
        let apart = [(0, REGION), (2 * REGION, 3 * REGION)];
        assert_eq!(runs(&[first, third]), apart);
        let second = (REGION, REGION + 1);
        assert_eq!(runs(&[first, third, second]), [(0, 3 * REGION)]);
        assert_eq!(runs(&[third, first, (5, u64::MAX)]), [(0, u64::MAX)]);
        let over_a_border = (7 * REGION - 1, 7 * REGION + 1);
        assert_eq!(runs(&[over_a_border]), [(6 * REGION, 8 * REGION)]);
    }

    #[test]
    fn the_next_changed_bytes_begin_at_the_offset_or_later() {
        let mut regions = ChangedRegions::default();
        regions.insert(&(REGION..2 * REGION));
        assert_eq!(regions.next(0), Some(REGION..2 * REGION));
        assert_eq!(regions.next(REGION + 5), Some(REGION + 5..2 * REGION));
        assert_eq!(regions.next(2 * REGION), None);
    }

    #[test]
    fn compared_bytes_are_taken_out_of_their_runs() {
        let mut regions = ChangedRegions(BTreeMap::from([(0, 10), (20, 30), (40, u64::MAX)]));
        regions.remove(&(5..25));
        assert_eq!(
            regions.0,
            BTreeMap::from([(0, 5), (25, 30), (40, u64::MAX)])
        );
        regions.remove(&(50..60));
        let left = [(0, 5), (25, 30), (40, 50), (60, u64::MAX)];
        assert_eq!(regions.0, BTreeMap::from(left));
        regions.remove(&(0..5));
        regions.remove(&(10..20));
        regions.remove(&(25..u64::MAX));
        assert_eq!(regions.0, BTreeMap::new());
    }
}
