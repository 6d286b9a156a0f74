//! The region marks of one table: the parts of files (64 KiB) that may differ, in memory and in the table.
//!
//! A mark is *noted* when its bytes are about to change. A resync *opens* the noted marks, and closes each part that it has made
//! equal. The table has the parts that are noted or open: a process that starts finds both as noted.
//!
//! A full table makes marks coarser: all marks of a file become one, "everything from a part on", and if each file has one mark
//! only, all files from a number on count as marked. Coarse marks cost a comparison, and no change is ever unmarked.
//!
//! Invariants:
//! - The table gets a mark before the memory has it, and loses a mark after the memory. So a part that memory calls noted is in
//!   the table, and [`RegionNotes::cover`] needs no lock of the owner.
//! - A slot is overwritten with a coarser mark before other slots are freed for it.
//!
//! Locks: the caller holds the lock of the table's owner, except in [`RegionNotes::cover`]; then the lock of one stripe.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Ino, limits};
use parking_lot::Mutex;

use super::changes::{ChangedContent, ChangedRegions, PART_BYTES};
use super::form::{FoundSlot, Mark, Slot};
use super::table::MarkTable;

/// Parts of a region.
pub(super) const PARTS: u64 = 16;
/// Bytes of a region.
const REGION_BYTES: u64 = PARTS * PART_BYTES;
/// A change of more regions is marked as everything from its first part on.
const REGIONS_MAX: u64 = 1024;
/// Locks for threads that look at marks at the same time.
const STRIPES: usize = 16;
/// No file is marked by its number alone.
const NO_FILE: u64 = u64::MAX;

/// The parts of one region, by their bits.
#[derive(Clone, Copy, Default)]
struct RegionParts {
    noted: u16,
    open: u16,
    slot: usize,
}

/// Everything of a file from a part on.
#[derive(Clone, Copy, Default)]
struct Cut {
    noted: Option<u64>,
    open: Option<u64>,
    slot: usize,
}

/// The marks of one file.
#[derive(Default)]
struct FileMarks {
    regions: BTreeMap<u32, RegionParts>,
    cut: Option<Cut>,
}

type Stripe = HashMap<Ino, FileMarks>;

/// The marked parts in memory, for threads that must not wait for the lock of the delta.
pub(super) struct RegionNotes {
    stripes: [Mutex<Stripe>; STRIPES],
    /// Every file from this number on is noted.
    from_file: AtomicU64,
}

/// See the head of this file.
pub(super) struct RegionMarks {
    table: Arc<MarkTable>,
    notes: Arc<RegionNotes>,
    /// Free slots; the last one is taken next.
    free: Vec<usize>,
    /// Slots from this number on were never used.
    used_below: usize,
}

/// The parts of a change.
pub(super) enum MarkedParts {
    /// In few regions: the first part, and the first one behind.
    Run(Range<u64>),
    /// From this part on.
    From(u64),
}

impl MarkedParts {
    pub fn of(bytes: &Range<u64>) -> Self {
        let first = bytes.start / PART_BYTES;
        let is_long = bytes.end - bytes.start > REGIONS_MAX * REGION_BYTES;
        if is_long || bytes.end > limits::FILE_BYTES_MAX {
            Self::From(first)
        } else {
            Self::Run(first..bytes.end.div_ceil(PART_BYTES))
        }
    }
}

/// The regions of a run of parts, each with the bits of its parts.
pub(super) fn regions_of(parts: &Range<u64>) -> impl Iterator<Item = (u32, u16)> + use<> {
    let Range { start, end } = *parts;
    (start / PARTS..end.div_ceil(PARTS)).filter_map(move |region| {
        let first = start.max(region * PARTS) % PARTS;
        let behind = end.min((region + 1) * PARTS) - region * PARTS;
        let bits = (first..behind).fold(0, |bits, part| bits | 1 << part);
        Some((u32::try_from(region).ok()?, bits))
    })
}

/// Adds the bytes of the parts of a region that these bits name.
pub(super) fn add_parts(content: &mut ChangedRegions, region: u32, bits: u16) {
    let first = u64::from(region) * PARTS;
    for part in (0..PARTS).filter(|part| bits >> part & 1 == 1) {
        let start = (first + part) * PART_BYTES;
        content.insert(&(start..start + PART_BYTES));
    }
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

impl Cut {
    fn slot_of(&self, ino: Ino) -> Option<Slot> {
        let mark = Mark::From(least(self.noted, self.open)?);
        Some(Slot { ino, mark })
    }
}

impl RegionParts {
    const fn slot_of(&self, ino: Ino, region: u32) -> Slot {
        let mark = Mark::Region(region, self.noted | self.open);
        Slot { ino, mark }
    }
}

impl FileMarks {
    fn count(&self) -> usize {
        self.regions.len() + usize::from(self.cut.is_some())
    }

    fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        let regions = self.regions.values().map(|parts| parts.slot);
        regions.chain(self.cut.map(|cut| cut.slot))
    }

    /// The first part that the bits name in any region.
    fn first_part(&self, bits: impl Fn(&RegionParts) -> u16) -> Option<u64> {
        let mut regions = self.regions.iter();
        regions.find_map(|(region, parts)| {
            let bits = bits(parts);
            (bits != 0).then(|| u64::from(*region) * PARTS + u64::from(bits.trailing_zeros()))
        })
    }

    fn has_noted(&self, parts: &MarkedParts) -> bool {
        let cut = self.cut.and_then(|cut| cut.noted).unwrap_or(u64::MAX);
        match parts {
            MarkedParts::From(first) => cut <= *first,
            MarkedParts::Run(run) if cut <= run.start => true,
            MarkedParts::Run(run) => regions_of(run).all(|(region, bits)| {
                let noted = self.regions.get(&region).map_or(0, |parts| parts.noted);
                noted & bits == bits
            }),
        }
    }

    /// Adds the noted bytes.
    fn add_noted(&self, content: &mut ChangedRegions) {
        for (region, parts) in &self.regions {
            add_parts(content, *region, parts.noted);
        }
        if let Some(first) = self.cut.and_then(|cut| cut.noted) {
            content.insert(&(first.saturating_mul(PART_BYTES)..u64::MAX));
        }
    }

    /// The noted and the open bytes.
    fn runs(&self) -> Vec<Range<u64>> {
        let mut content = ChangedRegions::default();
        for (region, parts) in &self.regions {
            add_parts(&mut content, *region, parts.noted | parts.open);
        }
        let cut = self.cut.and_then(|cut| least(cut.noted, cut.open));
        if let Some(first) = cut {
            content.insert(&(first.saturating_mul(PART_BYTES)..u64::MAX));
        }
        content.iter().collect()
    }

    fn open_noted(&mut self) {
        for parts in self.regions.values_mut() {
            parts.open |= std::mem::take(&mut parts.noted);
        }
        if let Some(cut) = &mut self.cut {
            cut.open = least(cut.open, cut.noted.take());
        }
    }
}

impl Default for RegionNotes {
    fn default() -> Self {
        Self {
            stripes: Default::default(),
            from_file: AtomicU64::new(NO_FILE),
        }
    }
}

impl RegionNotes {
    fn stripe(&self, ino: Ino) -> &Mutex<Stripe> {
        let number = usize::try_from(ino.get() % STRIPES as u64).unwrap_or(0);
        self.stripes.get(number).unwrap_or(&self.stripes[0])
    }

    /// Whether these bytes are noted, and in the table.
    pub fn cover(&self, ino: Ino, bytes: &Range<u64>) -> bool {
        if self.is_noted_by_number(ino) {
            return true;
        }
        let stripe = self.stripe(ino).lock();
        let file = stripe.get(&ino);
        file.is_some_and(|file| file.has_noted(&MarkedParts::of(bytes)))
    }

    /// The marked bytes of a file.
    pub fn runs_of(&self, ino: Ino) -> Vec<Range<u64>> {
        if self.is_noted_by_number(ino) {
            return std::iter::once(0..u64::MAX).collect();
        }
        let stripe = self.stripe(ino).lock();
        stripe.get(&ino).map(FileMarks::runs).unwrap_or_default()
    }

    fn is_noted_by_number(&self, ino: Ino) -> bool {
        ino.get() >= self.from_file.load(Ordering::Acquire)
    }

    fn clear(&self) {
        self.from_file.store(NO_FILE, Ordering::Release);
        for stripe in &self.stripes {
            stripe.lock().clear();
        }
    }
}

/// Begin and end.
impl RegionMarks {
    pub fn new(table: Arc<MarkTable>) -> Self {
        Self {
            notes: Arc::default(),
            free: (0..table.slots()).rev().collect(),
            used_below: 0,
            table,
        }
    }

    pub const fn notes(&self) -> &Arc<RegionNotes> {
        &self.notes
    }

    /// Takes over the slots that the last process has left, as noted. Returns false if a slot cannot be read: then any content
    /// may differ.
    pub fn take(&mut self, slots: &[(usize, FoundSlot)]) -> bool {
        let mut is_whole = true;
        let mut is_free = vec![true; self.table.slots()];
        for (number, found) in slots {
            if let Some(free) = is_free.get_mut(*number) {
                *free = false;
            }
            self.used_below = self.used_below.max(number + 1);
            match found {
                FoundSlot::Used(slot) => self.take_slot(*number, *slot),
                FoundSlot::Broken | FoundSlot::Free => is_whole = false,
            }
        }
        self.free
            .retain(|number| is_free.get(*number) == Some(&true));
        is_whole
    }

    /// Frees slots that cannot be read. The header says that all content may differ.
    pub fn free_broken(&mut self, slots: &[(usize, FoundSlot)]) {
        for (number, found) in slots {
            if *found == FoundSlot::Broken {
                self.free_slot(*number);
            }
        }
    }

    fn take_slot(&self, number: usize, slot: Slot) {
        let mut stripe = self.notes.stripe(slot.ino).lock();
        let file = stripe.entry(slot.ino).or_default();
        match slot.mark {
            Mark::Region(region, bits) => {
                let parts = file.regions.entry(region).or_default();
                parts.noted |= bits;
                parts.slot = number;
            }
            Mark::From(part) => {
                let cut = file.cut.get_or_insert_default();
                cut.noted = least(cut.noted, Some(part));
                cut.slot = number;
            }
        }
    }

    /// Drops all marks. Returns the number of slots that may be in use in the table.
    pub fn clear(&mut self) -> usize {
        self.notes.clear();
        if self.used_below > 0 {
            self.free = (0..self.table.slots()).rev().collect();
        }
        std::mem::take(&mut self.used_below)
    }
}

/// Notes.
impl RegionMarks {
    /// Notes bytes that are about to change. Returns false if the table has no room for the mark, and none can be made: then the
    /// caller notes files by their numbers.
    #[must_use]
    pub fn note(&mut self, ino: Ino, bytes: &Range<u64>) -> bool {
        if bytes.is_empty() || self.notes.cover(ino, bytes) {
            return true;
        }
        match MarkedParts::of(bytes) {
            MarkedParts::From(first) => self.add_cut(ino, Some(first), None),
            MarkedParts::Run(run) => regions_of(&run).all(|(region, bits)| {
                let noted = RegionParts {
                    noted: bits,
                    ..RegionParts::default()
                };
                self.add_parts(ino, region, noted)
            }),
        }
    }

    /// Opens all of a file, which a resync begins to compare. Returns false like [`Self::note`].
    #[must_use]
    pub fn open_file(&mut self, ino: Ino) -> bool {
        self.add_cut(ino, None, Some(0))
    }

    /// Notes every file from this number on, and frees the slots of these files. The table says so already.
    pub fn note_files_from(&mut self, number: u64) {
        self.notes.from_file.fetch_min(number, Ordering::AcqRel);
        let notes = Arc::clone(&self.notes);
        for stripe in &notes.stripes {
            stripe.lock().retain(|ino, file| {
                let stays = ino.get() < number;
                if !stays {
                    file.slots().for_each(|slot| self.free_slot(slot));
                }
                stays
            });
        }
    }

    /// Slots in use.
    pub fn used(&self) -> usize {
        self.table.slots() - self.free.len()
    }

    /// Calls `each` with all bytes that are noted or open, but for files that are noted by their numbers.
    pub fn each(&self, mut each: impl FnMut(Ino, &Range<u64>)) {
        for stripe in &self.notes.stripes {
            // A copy: `each` may wait for a disk, and threads that look at marks must not.
            // By number, so that each run of the same calls is the same.
            let runs: BTreeMap<Ino, Vec<Range<u64>>> = {
                let stripe = stripe.lock();
                let files = stripe.iter();
                files.map(|(ino, file)| (*ino, file.runs())).collect()
            };
            for (ino, runs) in runs {
                for run in &runs {
                    each(ino, run);
                }
            }
        }
    }

    /// The number from which on files are to be noted by their numbers, so that a part of the slots is free.
    pub fn number_to_free(&self) -> u64 {
        let mut files: Vec<u64> = Vec::new();
        for stripe in &self.notes.stripes {
            files.extend(stripe.lock().keys().map(|ino| ino.get()));
        }
        files.sort_unstable();
        let kept = files.len() * 3 / 4;
        files.get(kept).copied().unwrap_or(1)
    }

    fn add_parts(&mut self, ino: Ino, region: u32, more: RegionParts) -> bool {
        let notes = Arc::clone(&self.notes);
        loop {
            if notes.is_noted_by_number(ino) {
                return true;
            }
            let mut stripe = notes.stripe(ino).lock();
            let file = stripe.entry(ino).or_default();
            let known = file.regions.get(&region).copied();
            let slot = known.map(|parts| parts.slot).or_else(|| self.free.pop());
            if let Some(slot) = slot {
                let old = known.unwrap_or_default();
                let parts = RegionParts {
                    noted: old.noted | more.noted,
                    open: old.open | more.open,
                    slot,
                };
                self.put(slot, parts.slot_of(ino, region));
                file.regions.insert(region, parts);
                return true;
            }
            drop(stripe);
            if is_active(Mutant::FullTableForgets) {
                return true;
            }
            if !self.make_room() {
                return false;
            }
        }
    }

    fn add_cut(&mut self, ino: Ino, noted: Option<u64>, open: Option<u64>) -> bool {
        let table = Arc::clone(&self.notes);
        loop {
            if table.is_noted_by_number(ino) {
                return true;
            }
            let mut stripe = table.stripe(ino).lock();
            let file = stripe.entry(ino).or_default();
            let slot = file.cut.map(|cut| cut.slot).or_else(|| self.free.pop());
            if let Some(slot) = slot {
                let old = file.cut.unwrap_or_default();
                let cut = Cut {
                    noted: least(old.noted, noted),
                    open: least(old.open, open),
                    slot,
                };
                if let Some(mark) = cut.slot_of(ino) {
                    self.put(slot, mark);
                }
                file.cut = Some(cut);
                return true;
            }
            drop(stripe);
            if !self.make_room() {
                return false;
            }
        }
    }

    fn put(&mut self, number: usize, slot: Slot) {
        self.used_below = self.used_below.max(number + 1);
        self.table.store_slot(number, slot);
    }

    fn free_slot(&mut self, number: usize) {
        self.table.clear_slot(number);
        self.free.push(number);
    }

    /// Makes the marks of the files with the most of them coarser, until an eighth of the slots is free. Returns false if no slot
    /// is free then.
    fn make_room(&mut self) -> bool {
        let mut files: Vec<(usize, Ino)> = Vec::new();
        for stripe in &self.notes.stripes {
            let stripe = stripe.lock();
            let counts = stripe.iter().map(|(ino, file)| (file.count(), *ino));
            files.extend(counts.filter(|(count, _)| *count > 1));
        }
        files.sort_unstable_by(|one, other| other.cmp(one));
        for (_, ino) in files {
            if self.free.len() >= self.table.slots().div_ceil(8) {
                break;
            }
            self.coarsen(ino);
        }
        !self.free.is_empty()
    }

    /// Makes one mark of all marks of a file.
    fn coarsen(&mut self, ino: Ino) {
        let notes = Arc::clone(&self.notes);
        let mut stripe = notes.stripe(ino).lock();
        let Some(file) = stripe.get_mut(&ino) else {
            return;
        };
        let Some(slot) = file.slots().last() else {
            return;
        };
        let old = file.cut.unwrap_or_default();
        let cut = Cut {
            noted: least(old.noted, file.first_part(|parts| parts.noted)),
            open: least(old.open, file.first_part(|parts| parts.open)),
            slot,
        };
        let Some(mark) = cut.slot_of(ino) else {
            return;
        };
        self.put(slot, mark);
        let freed = std::mem::take(&mut file.regions);
        file.cut = Some(cut);
        for parts in freed.values().filter(|parts| parts.slot != slot) {
            self.free_slot(parts.slot);
        }
    }
}

/// A resync.
impl RegionMarks {
    /// Opens every noted part, and returns the bytes.
    pub fn open_noted(&self) -> ChangedContent {
        let mut content = ChangedContent::new();
        for stripe in &self.notes.stripes {
            for (ino, file) in &mut *stripe.lock() {
                let mut regions = ChangedRegions::default();
                file.add_noted(&mut regions);
                if regions.next(0).is_some() {
                    content.insert(*ino, regions);
                }
                file.open_noted();
            }
        }
        self.notes.from_file.store(NO_FILE, Ordering::Release);
        content
    }

    /// The open bytes of a file among `bytes` are these.
    pub fn set_open(&mut self, ino: Ino, bytes: &Range<u64>, left: &ChangedRegions) {
        let notes = Arc::clone(&self.notes);
        let mut stripe = notes.stripe(ino).lock();
        let Some(file) = stripe.get_mut(&ino) else {
            return;
        };
        self.close_regions(ino, file, bytes, left);
        if let Some(cut) = &mut file.cut
            && let Some(first) = cut.open
        {
            let next = left.next(first.saturating_mul(PART_BYTES));
            cut.open = next.map(|run| run.start / PART_BYTES);
            match cut.slot_of(ino) {
                Some(mark) if cut.open != Some(first) => self.put(cut.slot, mark),
                Some(_) => {}
                None => {
                    self.free_slot(cut.slot);
                    file.cut = None;
                }
            }
        }
        if file.count() == 0 {
            stripe.remove(&ino);
        }
    }

    fn close_regions(
        &mut self,
        ino: Ino,
        file: &mut FileMarks,
        bytes: &Range<u64>,
        left: &ChangedRegions,
    ) {
        let region_of = |offset: u64| u32::try_from(offset / REGION_BYTES).unwrap_or(u32::MAX);
        let among = region_of(bytes.start)..=region_of(bytes.end);
        let mut freed = Vec::new();
        for (region, parts) in file.regions.range_mut(among) {
            let open = parts.open & open_parts(*region, left);
            if open == parts.open {
                continue;
            }
            parts.open = open;
            if parts.noted | open == 0 {
                freed.push((*region, parts.slot));
            } else {
                self.put(parts.slot, parts.slot_of(ino, *region));
            }
        }
        for (region, slot) in freed {
            file.regions.remove(&region);
            self.free_slot(slot);
        }
    }
}

/// The parts of a region that have any of these bytes.
fn open_parts(region: u32, left: &ChangedRegions) -> u16 {
    let (mut at, mut bits) = (u64::from(region) * REGION_BYTES, 0);
    let end = at + REGION_BYTES;
    while let Some(run) = left.next(at).filter(|run| run.start < end) {
        let parts = run.start / PART_BYTES..run.end.min(end).div_ceil(PART_BYTES);
        bits |= regions_of(&parts).fold(0, |bits, (_, more)| bits | more);
        at = run.end;
    }
    bits
}
