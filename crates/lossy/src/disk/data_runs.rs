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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each sequence of five changes of four pages.
    #[test]
    fn runs_are_those_of_the_pages() {
        for changes in 0..8_u64.pow(5) {
            let mut runs = DataRuns::default();
            let mut pages = BTreeSet::new();
            for step in 0..5 {
                let change = changes / 8_u64.pow(step) % 8;
                let (page, has_bytes) = (change / 2, change % 2 == 1);
                runs.set(page, has_bytes);
                if has_bytes {
                    pages.insert(page);
                } else {
                    pages.remove(&page);
                }
            }
            for from in 0..4 {
                let found = |wanted| (from..5).find(|page| pages.contains(page) == wanted);
                assert_eq!(runs.next_data(from), found(true), "{pages:?}, {runs:?}");
                assert_eq!(
                    Some(runs.next_hole(from)),
                    found(false),
                    "{pages:?}, {runs:?}"
                );
            }
        }
    }
}
