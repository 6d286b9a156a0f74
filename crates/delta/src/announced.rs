//! The regions that the primary has announced to the secondary, as far as the primary knows (rule P26). The primary asks before
//! it changes bytes of a file.
//!
//! A region counts for the interval that was open when the announcement was posted: the secondary has a mark for the whole region in
//! that interval or in a later one, and keeps the mark until a barrier of that interval is complete. *The creation of a file announces
//! all regions of the file* in the same way, as the secondary marks all of a new file.
//!
//! Invariants: an entry comes from an answer over the standing connection, and from nothing else. An answer "no" costs the time of
//! a message; a wrong answer "yes" may cost data. So an entry may be left out at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use lockstep_types::id::Ino;
use lockstep_types::mutants::{Mutant, is_active};
use serde::{Deserialize, Serialize};

use crate::interval::Interval;

/// Bytes of a region.
pub const REGION_BYTES: u64 = 1 << 20;
/// The most entries, regions and new files, in memory of about 12 MiB. A region for which no entry is left counts as not announced.
pub const ENTRIES_MAX: usize = 1 << 18;

/// Regions of a file that follow each other, by their numbers. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileRegions(RangeInclusive<u64>);

impl FileRegions {
    /// The regions that some bytes touch; without a byte, the region of the offset.
    pub const fn of_bytes(offset: u64, length: u64) -> Self {
        let last = offset.saturating_add(length.saturating_sub(1));
        Self(offset / REGION_BYTES..=last / REGION_BYTES)
    }

    /// One region, by its number.
    pub const fn of_region(number: u64) -> Self {
        Self(number..=number)
    }

    /// These regions and as many behind them: a stream announces ahead.
    #[must_use]
    pub const fn with_ahead(&self, ahead: u64) -> Self {
        Self(*self.0.start()..=self.0.end().saturating_add(ahead))
    }

    /// The numbers of the regions.
    pub fn numbers(&self) -> RangeInclusive<u64> {
        self.0.clone()
    }
}

/// Regions of a file that follow each other, as an announcement names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionRun {
    /// The file.
    pub ino: Ino,
    /// The number of the first region.
    pub first: u64,
    /// How many regions.
    pub count: u32,
}

/// The announced regions of one interval.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OfInterval {
    interval: Interval,
    /// Each region, and whether it was asked for since.
    regions: BTreeMap<(Ino, u64), bool>,
    /// The files all of whose regions count.
    new_files: BTreeSet<Ino>,
}

impl OfInterval {
    const fn of(interval: Interval) -> Self {
        Self {
            interval,
            regions: BTreeMap::new(),
            new_files: BTreeSet::new(),
        }
    }

    fn len(&self) -> usize {
        self.regions.len() + self.new_files.len()
    }

    /// Whether each of these regions has an entry. Notes that they are in use.
    fn use_entries(&mut self, ino: Ino, regions: &FileRegions) -> bool {
        regions.numbers().all(|region| {
            let used = self.regions.get_mut(&(ino, region));
            used.is_some_and(|used| {
                *used = true;
                true
            })
        })
    }

    /// Makes entries for regions that have none, as many as there is room for.
    fn add(&mut self, ino: Ino, regions: &FileRegions, room: usize, is_used: bool) {
        let known = &self.regions;
        let new = regions.numbers().map(|region| (ino, region));
        let new = new.filter(|region| !known.contains_key(region));
        let new: Vec<_> = new.take(room).collect();
        self.regions
            .extend(new.into_iter().map(|region| (region, is_used)));
    }
}

/// The regions that the secondary is known to have, by interval.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AnnouncedRegions {
    /// At most two, in the order of their numbers.
    intervals: Vec<OfInterval>,
    entries_max: usize,
}

impl AnnouncedRegions {
    /// A connection begins: nothing is known.
    pub const fn new(entries_max: usize) -> Self {
        Self {
            intervals: Vec::new(),
            entries_max,
        }
    }

    /// Whether the secondary has each of these regions in an interval. If not, a change of them waits for an announcement. Notes that
    /// the regions are in use.
    pub fn holds(&mut self, interval: Interval, ino: Ino, regions: &FileRegions) -> bool {
        let room = self.room();
        let forever = is_active(Mutant::NewFileUnannouncedForever)
            && self.intervals.iter().any(|it| it.new_files.contains(&ino));
        let mut known = self.intervals.iter_mut();
        let Some(known) = known.find(|it| it.interval == interval) else {
            return forever;
        };
        if known.use_entries(ino, regions) {
            return true;
        }
        if !known.new_files.contains(&ino) {
            return forever;
        }
        known.add(ino, regions, room, true);
        true
    }

    /// The secondary has answered an announcement of this interval.
    pub fn add(&mut self, interval: Interval, ino: Ino, regions: &FileRegions) {
        let room = self.room();
        if let Some(known) = self.of(interval) {
            known.add(ino, regions, room, false);
        }
    }

    /// The secondary has made a file, in an operation that was sent over the standing connection when this interval was open.
    pub fn add_new_file(&mut self, interval: Interval, ino: Ino) {
        let has_room = self.room() > 0;
        if let Some(known) = self.of(interval).filter(|_| has_room) {
            known.new_files.insert(ino);
        }
    }

    /// The regions of an interval that were in use, in order, `max` at most: they are announced for the next interval before it is
    /// opened, so that their writes never wait.
    pub fn in_use(&self, interval: Interval, max: usize) -> Vec<(Ino, u64)> {
        let known = self.intervals.iter().find(|it| it.interval == interval);
        let regions = known.into_iter().flat_map(|it| &it.regions);
        let used = regions.filter(|(_, used)| **used);
        used.map(|(region, _)| *region).take(max).collect()
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
            self.intervals.insert(position, OfInterval::of(interval));
            if self.intervals.len() > 2 {
                self.intervals.remove(0);
                return self.intervals.get_mut(position - 1);
            }
        }
        self.intervals.get_mut(position)
    }

    /// A barrier is complete: the secondary may drop its marks up to here at any moment.
    pub fn forget_through(&mut self, through: Interval) {
        let keeps = is_active(Mutant::NewFileUnannouncedForever);
        self.intervals.retain(|it| it.interval > through || keeps);
    }

    /// The connection is lost: the secondary may lose its marks with its power.
    pub fn forget_all(&mut self) {
        self.intervals.clear();
    }

    /// The entries in memory.
    pub fn len(&self) -> usize {
        self.intervals.iter().map(OfInterval::len).sum()
    }

    fn room(&self) -> usize {
        self.entries_max.saturating_sub(self.len())
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Interval = Interval::new(1);
    const TWO: Interval = Interval::new(2);

    fn regions(first: u64, count: u64) -> FileRegions {
        FileRegions::of_bytes(first * REGION_BYTES, count * REGION_BYTES)
    }

    #[test]
    fn regions_of_bytes_are_all_that_they_touch() {
        let numbers = |offset, length| FileRegions::of_bytes(offset, length).numbers();
        assert_eq!(numbers(0, 0), 0..=0);
        assert_eq!(numbers(0, REGION_BYTES), 0..=0);
        assert_eq!(numbers(REGION_BYTES - 1, 2), 0..=1);
        assert_eq!(numbers(u64::MAX, u64::MAX).count(), 1);
        assert_eq!(regions(2, 1).with_ahead(3).numbers(), 2..=5);
    }

    #[test]
    fn an_announcement_counts_for_its_regions_its_file_and_its_interval() {
        let other = Ino::ROOT.next();
        let mut known = AnnouncedRegions::new(10);
        assert!(!known.holds(ONE, Ino::ROOT, &regions(0, 1)));
        known.add(ONE, Ino::ROOT, &regions(2, 3));
        assert!(known.holds(ONE, Ino::ROOT, &regions(3, 2)));
        assert!(!known.holds(ONE, Ino::ROOT, &regions(3, 3)));
        assert!(!known.holds(ONE, Ino::ROOT, &regions(1, 2)));
        assert!(!known.holds(ONE, other, &regions(3, 1)));
        assert!(!known.holds(TWO, Ino::ROOT, &regions(3, 1)));
        known.add(TWO, Ino::ROOT, &regions(3, 1));
        known.forget_through(ONE);
        assert!(!known.holds(ONE, Ino::ROOT, &regions(3, 1)));
        assert!(known.holds(TWO, Ino::ROOT, &regions(3, 1)));
        known.forget_all();
        assert!(known.is_empty());
    }

    #[test]
    fn regions_in_use_are_those_that_were_asked_for() {
        let mut known = AnnouncedRegions::new(10);
        known.add(ONE, Ino::ROOT, &regions(0, 5));
        assert_eq!(known.in_use(ONE, 10), []);
        assert!(known.holds(ONE, Ino::ROOT, &regions(1, 2)));
        assert_eq!(known.in_use(ONE, 10), [(Ino::ROOT, 1), (Ino::ROOT, 2)]);
        assert_eq!(known.in_use(ONE, 1), [(Ino::ROOT, 1)]);
        assert_eq!(known.in_use(TWO, 10), []);
        // An answer that comes twice keeps the use.
        known.add(ONE, Ino::ROOT, &regions(1, 1));
        assert_eq!(known.in_use(ONE, 1), [(Ino::ROOT, 1)]);
    }

    /// The cost of random writes of 8 KiB over a file of 1 GiB: one announcement for each region, once, and none in later intervals.
    #[test]
    fn random_writes_pay_one_round_trip_for_each_region() {
        let mut known = AnnouncedRegions::new(ENTRIES_MAX);
        let mut random = 1_u64;
        let mut trips = [0; 3];
        for (number, trips) in (1..).zip(&mut trips) {
            let interval = Interval::new(number);
            for _ in 0..100_000 {
                // Knuth's generator.
                random = random.wrapping_mul(6_364_136_223_846_793_005);
                random = random.wrapping_add(1_442_695_040_888_963_407);
                let offset = (random >> 34) / 8192 * 8192;
                let regions = FileRegions::of_bytes(offset, 8192);
                if !known.holds(interval, Ino::ROOT, &regions) {
                    *trips += 1;
                    known.add(interval, Ino::ROOT, &regions);
                    assert!(known.holds(interval, Ino::ROOT, &regions));
                }
            }
            for (ino, region) in known.in_use(interval, ENTRIES_MAX) {
                known.add(interval.next(), ino, &FileRegions::of_region(region));
            }
        }
        assert_eq!(trips, [1024, 0, 0]);
    }

    #[test]
    fn a_new_file_counts_as_a_whole_for_its_interval() {
        let file = Ino::ROOT.next();
        let mut known = AnnouncedRegions::new(10);
        known.add_new_file(ONE, file);
        assert!(known.holds(ONE, file, &regions(0, 1)));
        assert!(known.holds(ONE, file, &regions(5, 2)));
        assert!(!known.holds(ONE, Ino::ROOT, &regions(0, 1)));
        // Its regions are announced for the next interval, and the others are cold then.
        assert_eq!(known.in_use(ONE, 10), [(file, 0), (file, 5), (file, 6)]);
        known.add(TWO, file, &regions(0, 1));
        assert!(known.holds(TWO, file, &regions(0, 1)));
        assert!(!known.holds(TWO, file, &regions(5, 1)));
        assert!(known.holds(ONE, file, &regions(7, 1)));
        known.forget_through(ONE);
        assert!(!known.holds(ONE, file, &regions(0, 1)));
        assert!(!known.holds(TWO, file, &regions(7, 1)));
        known.add_new_file(TWO, file);
        known.forget_all();
        assert!(!known.holds(TWO, file, &regions(0, 1)) && known.is_empty());
    }

    #[test]
    fn new_files_take_room() {
        let numbers: Vec<Ino> = (10..14).filter_map(Ino::new).collect();
        let mut known = AnnouncedRegions::new(3);
        for file in &numbers {
            known.add_new_file(ONE, *file);
        }
        assert_eq!(known.len(), 3);
        let held = numbers
            .iter()
            .map(|it| known.holds(ONE, *it, &regions(0, 9)));
        assert_eq!(held.collect::<Vec<_>>(), [true, true, true, false]);
        assert_eq!(known.len(), 3, "their regions in use find no room");
    }

    #[test]
    fn a_full_table_knows_no_more() {
        let mut known = AnnouncedRegions::new(2);
        known.add(ONE, Ino::ROOT, &regions(0, 3));
        assert_eq!(known.len(), 2);
        assert!(known.holds(ONE, Ino::ROOT, &regions(0, 2)));
        assert!(!known.holds(ONE, Ino::ROOT, &regions(2, 1)));
    }

    #[test]
    fn two_intervals_are_known_and_no_older_one() {
        let mut known = AnnouncedRegions::new(10);
        for number in [2, 3, 4, 1] {
            known.add(Interval::new(number), Ino::ROOT, &regions(0, 1));
        }
        let holds =
            [1, 2, 3, 4].map(|it| known.holds(Interval::new(it), Ino::ROOT, &regions(0, 1)));
        assert_eq!(holds, [false, false, true, true]);
    }
}
