//! The runs of pages with bytes, so that the search for data or for a hole in a long file takes no walk over its pages.
//!
//! Invariant: no two runs touch.

use std::collections::BTreeMap;

/// Runs of page numbers: the first one of each, and the first one beyond.
#[derive(Clone, Debug, Default)]
pub(super) struct DataRuns {
    ends: BTreeMap<u64, u64>,
}

impl DataRuns {
    /// Whether a page gets or loses its bytes.
    pub(super) fn set(&mut self, number: u64, has_bytes: bool) {
        let run = self.of(number);
        match (run, has_bytes) {
            (None, true) => self.insert(number),
            (Some((start, end)), false) => self.cut(start, end, number),
            _ => {}
        }
    }

    fn insert(&mut self, number: u64) {
        let end = self.ends.remove(&(number + 1)).unwrap_or(number + 1);
        let before = number.checked_sub(1).and_then(|before| self.of(before));
        let start = before.map_or(number, |(start, _)| start);
        self.ends.insert(start, end);
    }

    fn cut(&mut self, start: u64, end: u64, number: u64) {
        self.ends.remove(&start);
        if start < number {
            self.ends.insert(start, number);
        }
        if number + 1 < end {
            self.ends.insert(number + 1, end);
        }
    }

    /// The run of a page with bytes.
    fn of(&self, number: u64) -> Option<(u64, u64)> {
        let (start, end) = self.ends.range(..=number).next_back()?;
        (number < *end).then_some((*start, *end))
    }

    /// The first page from here on with bytes.
    pub(super) fn next_data(&self, number: u64) -> Option<u64> {
        let later = || self.ends.range(number..).next().map(|(start, _)| *start);
        self.of(number).map(|_| number).or_else(later)
    }

    /// The first page from here on without bytes.
    pub(super) fn next_hole(&self, number: u64) -> u64 {
        self.of(number).map_or(number, |(_, end)| end)
    }
}
