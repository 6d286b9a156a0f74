//! The regions in the trace, in memory (rule P28): which slots a change needs, and which of them are on stable storage.
//!
//! Each slot belongs to a *batch*, the slots that one sync puts on stable storage. A change needs the batches of all of its regions.
//!
//! A region of a change is marked as a whole. A stream gets the regions ahead of it, so that one sync is enough for many of them. A
//! file with many regions gets one mark of everything from a part on.
//!
//! Locks: the caller holds that of the trace.

use std::collections::BTreeMap;
use std::ops::Range;

use lockstep_types::Ino;

use super::changes::{ChangedRegions, PART_BYTES};
use super::form::{Mark, Slot};
use super::region_marks::{MarkedParts, PARTS, add_parts, regions_of};

/// Regions ahead of a stream.
const AHEAD: u32 = 16;
/// A file with more regions gets one mark.
const REGIONS_MAX: usize = 4096;
/// All parts of a region.
const WHOLE: u16 = u16::MAX;

/// A region in the trace: its parts, and its batch.
#[derive(Clone, Copy)]
struct TracedRegion {
    parts: u16,
    batch: u64,
}

/// The marks of one file.
#[derive(Default)]
struct TracedFile {
    regions: BTreeMap<u32, TracedRegion>,
    /// Everything from a part on, and its batch.
    cut: Option<(u64, u64)>,
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct TracedPlaces {
    files: BTreeMap<Ino, TracedFile>,
}

/// The slots that a change needs.
#[derive(Default)]
pub(super) struct NeededSlots {
    /// Slots that the trace lacks.
    pub new: Vec<Slot>,
    /// The last batch of those that the trace has.
    pub batch: u64,
}

impl TracedFile {
    /// Whether the trace has these parts of a region.
    fn has(&self, region: u32, parts: u16) -> Option<u64> {
        let found = self.regions.get(&region);
        if let Some(found) = found.filter(|found| found.parts & parts == parts) {
            return Some(found.batch);
        }
        let first = u64::from(region) * PARTS + u64::from(parts.trailing_zeros());
        let cut = self.cut.filter(|(from, _)| *from <= first);
        cut.map(|(_, batch)| batch)
    }

    fn put(&mut self, ino: Ino, mark: Mark, batch: u64) -> Slot {
        match mark {
            Mark::Region(region, parts) => {
                self.regions.insert(region, TracedRegion { parts, batch });
            }
            Mark::From(part) => {
                self.regions.clear();
                self.cut = Some((part, batch));
            }
        }
        Slot { ino, mark }
    }

    /// Marks everything from a part on, and from the first mark of the file on.
    fn cut(&mut self, ino: Ino, part: u64, batch: u64) -> Slot {
        let first = self.regions.keys().next();
        let first = first.map(|region| u64::from(*region) * PARTS);
        let cut = self.cut.map(|(from, _)| from);
        let part = first.into_iter().chain(cut).fold(part, u64::min);
        self.put(ino, Mark::From(part), batch)
    }

    /// Marks the region, if the trace lacks these parts of it. `all`: as a whole.
    fn need(&mut self, ino: Ino, (region, parts): (u32, u16), all: u16, batch: u64) -> NeededSlots {
        if let Some(batch) = self.has(region, parts) {
            return NeededSlots {
                new: Vec::new(),
                batch,
            };
        }
        let known = self.regions.get(&region).map_or(0, |found| found.parts);
        let new = vec![self.put(ino, Mark::Region(region, known | parts | all), batch)];
        NeededSlots { new, batch }
    }
}

impl NeededSlots {
    fn add(&mut self, other: Self) {
        self.new.extend(other.new);
        self.batch = self.batch.max(other.batch);
    }
}

impl TracedPlaces {
    /// The slots for a change of these bytes that is about to be made. New ones are of this batch.
    pub fn change(&mut self, ino: Ino, bytes: &Range<u64>, batch: u64) -> NeededSlots {
        let file = self.files.entry(ino).or_default();
        let mut needed = file.mark(ino, bytes, WHOLE, batch);
        if let Some(last) = needed.new.last().copied() {
            needed.new.extend(file.ahead(last, batch));
            if file.regions.len() > REGIONS_MAX {
                needed.new = vec![file.cut(ino, u64::MAX, batch)];
            }
        }
        needed
    }

    /// The slots for bytes that may differ already.
    pub fn add(&mut self, ino: Ino, bytes: &Range<u64>, batch: u64) -> Vec<Slot> {
        self.files
            .entry(ino)
            .or_default()
            .mark(ino, bytes, 0, batch)
            .new
    }

    /// Takes over a slot that is on stable storage.
    pub fn take(&mut self, slot: Slot) {
        let file = self.files.entry(slot.ino).or_default();
        match slot.mark {
            Mark::Region(region, parts) => {
                let found = file.regions.entry(region);
                found.or_insert(TracedRegion { parts: 0, batch: 0 }).parts |= parts;
            }
            Mark::From(part) => {
                let cut = file.cut.map_or(part, |(from, _)| from.min(part));
                file.cut = Some((cut, 0));
            }
        }
    }
}

impl TracedFile {
    fn mark(&mut self, ino: Ino, bytes: &Range<u64>, all: u16, batch: u64) -> NeededSlots {
        let mut needed = NeededSlots::default();
        if bytes.is_empty() {
            return needed;
        }
        match MarkedParts::of(bytes) {
            MarkedParts::From(part) => {
                let known = self.cut.filter(|(from, _)| *from <= part);
                needed.batch = known.map_or(batch, |(_, batch)| batch);
                if known.is_none() {
                    self.cut = Some((part, batch));
                    let mark = Mark::From(part);
                    needed.new.push(Slot { ino, mark });
                }
            }
            MarkedParts::Run(run) => {
                for region in regions_of(&run) {
                    needed.add(self.need(ino, region, all, batch));
                }
            }
        }
        needed
    }

    /// The regions ahead of a stream: the region before the new one was marked before.
    fn ahead(&mut self, last: Slot, batch: u64) -> Vec<Slot> {
        let Mark::Region(region, _) = last.mark else {
            return Vec::new();
        };
        let before = region.checked_sub(1).and_then(|it| self.regions.get(&it));
        if before.is_none() {
            return Vec::new();
        }
        let further = region.saturating_add(1)..=region.saturating_add(AHEAD);
        let further = further.filter(|it| *it != u32::MAX);
        let lacking: Vec<u32> = further
            .filter(|it| self.has(*it, WHOLE).is_none())
            .collect();
        let put = |it| self.put(last.ino, Mark::Region(it, WHOLE), batch);
        lacking.into_iter().map(put).collect()
    }
}

/// The bytes of a mark.
pub(super) fn bytes_of(mark: Mark) -> Vec<Range<u64>> {
    let mut content = ChangedRegions::default();
    match mark {
        Mark::Region(region, parts) => add_parts(&mut content, region, parts),
        Mark::From(part) => content.insert(&(part.saturating_mul(PART_BYTES)..u64::MAX)),
    }
    content.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: u64 = PARTS * PART_BYTES;

    fn ino() -> Ino {
        Ino::ROOT
    }

    fn change(places: &mut TracedPlaces, offset: u64, length: u64, batch: u64) -> (usize, u64) {
        let needed = places.change(ino(), &(offset..offset + length), batch);
        (needed.new.len(), needed.batch)
    }

    #[test]
    fn a_region_needs_one_slot_and_its_batch() {
        let mut places = TracedPlaces::default();
        assert_eq!(change(&mut places, 5 * REGION + 7, 9, 3), (1, 3));
        assert_eq!(change(&mut places, 6 * REGION - 9, 9, 4), (0, 3));
        assert_eq!(change(&mut places, 6 * REGION - 9, 0, 4), (0, 0));
    }

    #[test]
    fn parts_that_were_marked_before_are_enough_and_others_are_not() {
        let mut places = TracedPlaces::default();
        assert_eq!(places.add(ino(), &(0..1), 1).len(), 1);
        assert_eq!(change(&mut places, 0, 9, 2), (0, 1));
        assert_eq!(change(&mut places, PART_BYTES, 9, 2), (1, 2));
        assert_eq!(change(&mut places, 2 * PART_BYTES, 9, 3), (0, 2));
    }

    #[test]
    fn a_stream_gets_the_regions_ahead() {
        let mut places = TracedPlaces::default();
        assert_eq!(change(&mut places, 0, REGION, 1).0, 1);
        let ahead = usize::try_from(AHEAD).unwrap();
        assert_eq!(change(&mut places, REGION, REGION, 2), (1 + ahead, 2));
        assert_eq!(change(&mut places, 17 * REGION, REGION, 3), (0, 2));
        assert_eq!(change(&mut places, 18 * REGION, REGION, 4), (1 + ahead, 4));
    }

    #[test]
    fn many_regions_become_one_mark_of_all_behind() {
        let mut places = TracedPlaces::default();
        for region in (10..).step_by(2).take(REGIONS_MAX + 1) {
            change(&mut places, region * REGION, 1, region);
        }
        let (slots, batch) = change(&mut places, 11 * REGION, 1, 90_000);
        assert_eq!(slots, 0);
        assert_eq!(batch, 10 + 2 * REGIONS_MAX as u64, "that of the cut");
        assert_eq!(change(&mut places, 9 * REGION, 1, 90_000), (1, 90_000));
        assert_eq!(places.files[&ino()].cut.unwrap().0, 10 * PARTS);
    }

    #[test]
    fn a_cut_has_all_behind_and_nothing_before() {
        let mut places = TracedPlaces::default();
        let cut = places.change(ino(), &(5 * REGION..u64::MAX), 1);
        assert_eq!(cut.new.len(), 1);
        assert_eq!(change(&mut places, 9 * REGION, 1, 2), (0, 1));
        assert_eq!(change(&mut places, 4 * REGION, 1, 2), (1, 2));
        let earlier = places.change(ino(), &(2 * REGION..u64::MAX), 3);
        assert_eq!((earlier.new.len(), earlier.batch), (1, 3));
        assert_eq!(change(&mut places, 9 * REGION, 1, 4), (0, 3));
    }

    #[test]
    fn the_bytes_of_a_mark_are_those_of_its_parts() {
        let bounds = |mark| bytes_of(mark).into_iter().map(|run| (run.start, run.end));
        let region: Vec<_> = bounds(Mark::Region(1, 0b101)).collect();
        let second = REGION + 2 * PART_BYTES;
        assert_eq!(
            region,
            [(REGION, REGION + PART_BYTES), (second, second + PART_BYTES)]
        );
        let rest: Vec<_> = bounds(Mark::From(3)).collect();
        assert_eq!(rest, [(3 * PART_BYTES, u64::MAX)]);
    }
}
