//! The region marks that the other node is known to have. The primary asks for them before it changes a part of a file.
//!
//! Invariants: an entry comes from an answer over the standing connection to a message of that interval, and from nothing else.
//! An answer "no" costs the time of a message; a wrong answer "yes" may cost data. So an entry may be left out at any moment.

use std::collections::BTreeMap;

use lockstep_types::id::Ino;

use crate::interval::Interval;
use crate::parts::FileParts;

/// The most entries, in memory of about 6 MiB. Parts for which no entry is left count as unmarked.
pub const ENTRIES_MAX: usize = 1 << 18;

/// Entries of one interval: 16 parts each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OfInterval {
    interval: Interval,
    regions: BTreeMap<(Ino, u64), u16>,
}

/// The marks that the other node has, by interval.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerMarks {
    /// At most two, in the order of their numbers.
    intervals: Vec<OfInterval>,
    entries_max: usize,
}

impl PeerMarks {
    /// A connection begins: nothing is known.
    pub const fn new(entries_max: usize) -> Self {
        Self {
            intervals: Vec::new(),
            entries_max,
        }
    }

    /// Whether the other node has a mark of this interval for each of these parts. If not, a change of them is *deferred*.
    pub fn holds(&self, interval: Interval, ino: Ino, parts: &FileParts) -> bool {
        let known = self.intervals.iter().find(|it| it.interval == interval);
        parts.regions().all(|(region, wanted)| {
            let known = known.and_then(|it| it.regions.get(&(ino, region)));
            known.is_some_and(|known| known & wanted == wanted)
        })
    }

    /// The other node has answered a message of this interval that marks these parts.
    pub fn add(&mut self, interval: Interval, ino: Ino, parts: &FileParts) {
        let mut room = self.entries_max.saturating_sub(self.len());
        let Some(known) = self.of(interval) else {
            return;
        };
        for (region, marked) in parts.regions() {
            match known.regions.get_mut(&(ino, region)) {
                Some(known) => *known |= marked,
                None if room > 0 => {
                    known.regions.insert((ino, region), marked);
                    room -= 1;
                }
                None => return,
            }
        }
    }

    /// The entries of an interval. An older interval than two others has none: no operation of it is left.
    fn of(&mut self, interval: Interval) -> Option<&mut OfInterval> {
        let position = self.intervals.partition_point(|it| it.interval < interval);
        if self
            .intervals
            .get(position)
            .is_none_or(|it| it.interval != interval)
        {
            if self.intervals.len() == 2 && position == 0 {
                return None;
            }
            let regions = BTreeMap::new();
            self.intervals
                .insert(position, OfInterval { interval, regions });
            if self.intervals.len() > 2 {
                self.intervals.remove(0);
                return self.intervals.get_mut(position - 1);
            }
        }
        self.intervals.get_mut(position)
    }

    /// A barrier is complete: the other node may drop its marks up to here at any moment.
    pub fn forget_through(&mut self, through: Interval) {
        self.intervals.retain(|it| it.interval > through);
    }

    /// The connection is lost: the other node may lose its marks with its power.
    pub fn forget_all(&mut self) {
        self.intervals.clear();
    }

    /// The entries in memory.
    pub fn len(&self) -> usize {
        self.intervals.iter().map(|it| it.regions.len()).sum()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::PART_BYTES;

    const ONE: Interval = Interval::new(1);
    const TWO: Interval = Interval::new(2);

    fn bytes(first: u64, count: u64) -> FileParts {
        FileParts::of_bytes(first * PART_BYTES, count * PART_BYTES)
    }

    #[test]
    fn a_mark_counts_for_its_parts_its_file_and_its_interval() {
        let other = Ino::ROOT.next();
        let mut marks = PeerMarks::new(10);
        assert!(!marks.holds(ONE, Ino::ROOT, &bytes(0, 1)));
        marks.add(ONE, Ino::ROOT, &bytes(14, 4));
        assert!(marks.holds(ONE, Ino::ROOT, &bytes(15, 2)));
        assert!(!marks.holds(ONE, Ino::ROOT, &bytes(15, 4)));
        assert!(!marks.holds(ONE, Ino::ROOT, &bytes(13, 2)));
        assert!(!marks.holds(ONE, other, &bytes(15, 2)));
        assert!(!marks.holds(TWO, Ino::ROOT, &bytes(15, 2)));
        marks.add(TWO, Ino::ROOT, &bytes(15, 1));
        marks.forget_through(ONE);
        assert!(!marks.holds(ONE, Ino::ROOT, &bytes(15, 1)));
        assert!(marks.holds(TWO, Ino::ROOT, &bytes(15, 1)));
        marks.forget_all();
        assert!(marks.is_empty());
    }

    #[test]
    fn a_full_table_defers() {
        let mut marks = PeerMarks::new(2);
        marks.add(ONE, Ino::ROOT, &bytes(0, 48));
        assert_eq!(marks.len(), 2);
        assert!(marks.holds(ONE, Ino::ROOT, &bytes(0, 32)));
        assert!(!marks.holds(ONE, Ino::ROOT, &bytes(32, 1)));
        // A known region takes further parts.
        marks.forget_all();
        marks.add(ONE, Ino::ROOT, &bytes(0, 1));
        marks.add(ONE, Ino::ROOT, &bytes(16, 1));
        marks.add(ONE, Ino::ROOT, &bytes(1, 1));
        assert!(marks.holds(ONE, Ino::ROOT, &bytes(0, 2)));
    }

    #[test]
    fn two_intervals_are_known_and_no_older_one() {
        let mut marks = PeerMarks::new(10);
        for number in [2, 3, 4, 1] {
            marks.add(Interval::new(number), Ino::ROOT, &bytes(0, 1));
        }
        let known = [1, 2, 3, 4].map(|it| marks.holds(Interval::new(it), Ino::ROOT, &bytes(0, 1)));
        assert_eq!(known, [false, false, true, true]);
    }
}
