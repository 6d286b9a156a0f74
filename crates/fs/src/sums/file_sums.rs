//! The sums of one file: how they are read, and how they change.
//!
//! A change writes the entries of further blocks first, and then the slot. An error leaves both in any state: the caller makes
//! the file void ([`FileSums`] is dropped), by one write over the slot.
//!
//! While only further blocks change, the slot of a file in memory is left *behind*: it says that file sum and number of void blocks are
//! to be made anew. So such a change costs one write. [`FileSums::settle`] stores both.
//!
//! Invariant: file sum and number of void blocks are those of the entries; on the disk, unless the slot is behind.

use std::ops::Range;
use std::sync::Arc;

use lockstep_sums::{BlockSum, FileSum, SumKey};
use lockstep_types::Ino;
use lockstep_types::backing::BackingFile;
use smallvec::{SmallVec, smallvec};

use super::slot::{BlockState, SLOT_BLOCKS, SumEra, SumSlot, entry_of, state_of, storable};
use super::sum_files::SumFiles;
use crate::error::StoreError;
use crate::paths::block_sums_path;

const ENTRY: u64 = 8;
/// Entries that are read at once.
const CHUNK: u32 = 4096;

/// Entries of one change that need no memory of their own: those of 256 KiB.
pub(super) const CHANGE_BLOCKS: usize = 64;

/// The bytes of the entries of one change.
type EntryBytes = SmallVec<[u8; CHANGE_BLOCKS * 8]>;

/// The files and the key of the sums.
#[derive(Clone, Copy)]
pub(super) struct SumPlace<'a> {
    pub files: &'a SumFiles,
    pub key: &'a SumKey,
    pub era: SumEra,
}

/// Looks at a run of blocks of a file.
type EachRun<'a> = dyn FnMut(&mut FileSums, Range<u32>) -> Result<(), StoreError> + 'a;

/// The file with the sums of further blocks.
enum FurtherSums {
    NotLooked,
    Missing,
    Open(Arc<dyn BackingFile>),
}

/// See the head of this file.
pub(super) struct FileSums {
    ino: Ino,
    slot: SumSlot,
    further: FurtherSums,
}

/// Begin and end.
impl FileSums {
    /// The sums of a file; `None` if the file has none in this era.
    pub fn load(place: SumPlace<'_>, ino: Ino) -> Result<Option<Self>, StoreError> {
        let bytes = place.files.read_slot(ino)?;
        let Some(slot) = SumSlot::decode(&bytes, place.key, ino, place.era) else {
            return Ok(None);
        };
        let mut sums = Self {
            ino,
            slot,
            further: FurtherSums::NotLooked,
        };
        if sums.slot.is_behind {
            (sums.slot.sum, sums.slot.void_blocks) = sums.totals(place)?;
            sums.slot.is_behind = false;
            sums.store_slot(place)?;
        }
        Ok(Some(sums))
    }

    /// Has the next [`Self::load`] make file sum and number of void blocks anew.
    pub fn mark_behind(place: SumPlace<'_>, ino: Ino) -> Result<(), StoreError> {
        let bytes = place.files.read_slot(ino)?;
        let Some(mut slot) = SumSlot::decode(&bytes, place.key, ino, place.era) else {
            return Ok(());
        };
        slot.is_behind = true;
        let bytes = slot.encode(place.key, ino);
        place.files.write_slot(ino, &bytes)
    }

    /// The sums of a file with so many blocks, of which nothing is known. Sums of an earlier era are gone.
    pub fn begin(place: SumPlace<'_>, ino: Ino, blocks: u32) -> Result<Self, StoreError> {
        let mut sums = Self {
            ino,
            slot: SumSlot::unknown(place.era, blocks),
            further: FurtherSums::NotLooked,
        };
        if let Some(further) = sums.further(place)? {
            let cut = further.set_len(0);
            cut.map_err(StoreError::disk_at("cut", block_sums_path, ino))?;
        }
        sums.store_slot(place)?;
        Ok(sums)
    }

    /// Stores file sum and number of void blocks.
    pub fn settle(&mut self, place: SumPlace<'_>) -> Result<(), StoreError> {
        if !self.slot.is_behind {
            return Ok(());
        }
        self.slot.is_behind = false;
        self.store_slot(place)
    }
}

/// Questions.
impl FileSums {
    /// The sum of the known blocks, and the number of void blocks.
    pub const fn sum(&self) -> (FileSum, u32) {
        (self.slot.sum, self.slot.void_blocks)
    }

    /// The states of blocks.
    pub fn states(
        &mut self,
        place: SumPlace<'_>,
        blocks: &Range<u32>,
    ) -> Result<Vec<BlockState>, StoreError> {
        let entries = self.entries(place, blocks)?;
        let numbered = blocks.clone().zip(entries);
        Ok(numbered
            .map(|(block, entry)| state_of(entry, self.slot.is_in_void(block)))
            .collect())
    }

    /// The state of one block.
    pub fn state(&mut self, place: SumPlace<'_>, block: u32) -> Result<BlockState, StoreError> {
        let is_in_void = self.slot.is_in_void(block);
        if block < SLOT_BLOCKS {
            return Ok(state_of(self.slot_entry(block), is_in_void));
        }
        let bytes = self.further_entries(place, block, 1)?;
        let entry = bytes.first_chunk().copied().unwrap_or_default();
        Ok(state_of(u64::from_le_bytes(entry), is_in_void))
    }

    /// Calls `each` with each run of blocks that may have sums other than that of zeros: up to 4096 at once.
    pub fn each_run(
        &mut self,
        place: SumPlace<'_>,
        blocks: &Range<u32>,
        each: &mut EachRun<'_>,
    ) -> Result<(), StoreError> {
        let end = blocks.end.min(self.entries_end(place)?);
        let mut at = blocks.start;
        while at < end {
            let next = self.next_entry(place, at, end)?;
            let run = next..end.min(next.saturating_add(CHUNK));
            at = run.end;
            if !run.is_empty() {
                each(self, run)?;
            }
        }
        Ok(())
    }

    /// Whether file sum and number of void blocks are those of the entries.
    pub fn is_sum_of_blocks(&mut self, place: SumPlace<'_>) -> Result<bool, StoreError> {
        Ok(self.totals(place)? == self.sum())
    }

    /// File sum and number of void blocks, by the entries.
    fn totals(&mut self, place: SumPlace<'_>) -> Result<(FileSum, u32), StoreError> {
        let void = self.slot.void.clone();
        let (mut sum, mut void_blocks) = (FileSum::ZEROS, void.len());
        self.each_run(place, &(0..u32::MAX), &mut |sums, run| {
            let entries = sums.entries(place, &run)?;
            for (block, entry) in run.zip(entries).filter(|(_, entry)| *entry != 0) {
                let is_in_void = void.contains(&block);
                let state = state_of(entry, is_in_void);
                void_blocks += usize::from(state.is_none());
                void_blocks -= usize::from(is_in_void);
                sum.replace(
                    place.key,
                    block.into(),
                    BlockSum::ZEROS,
                    state.unwrap_or_default(),
                );
            }
            Ok(())
        })?;
        Ok((sum, u32::try_from(void_blocks).unwrap_or(u32::MAX)))
    }
}

/// Changes.
impl FileSums {
    /// Gives the blocks from `first` on these states.
    pub fn put(
        &mut self,
        place: SumPlace<'_>,
        first: u32,
        states: &[BlockState],
    ) -> Result<(), StoreError> {
        let blocks = run_of(first, states.len());
        let all_known = states.iter().all(|state| storable(*state).is_some());
        let void = if all_known {
            self.slot.void_without(&blocks)
        } else {
            self.slot.void.clone()
        };
        let is_further = first >= SLOT_BLOCKS && void == self.slot.void;
        if is_further && !self.slot.is_behind {
            self.slot.is_behind = true;
            self.store_slot(place)?;
        }
        let is_changed = self.put_with(place, first, states, &void)? || void != self.slot.void;
        if is_changed && !is_further {
            self.slot.void = void;
            self.store_slot(place)?;
        }
        Ok(())
    }

    /// All these blocks have only zeros. In the middle of a long void range, some stay void.
    pub fn zero(&mut self, place: SumPlace<'_>, blocks: &Range<u32>) -> Result<(), StoreError> {
        let void = self.slot.void_without(blocks);
        let end = blocks.end.min(self.entries_end(place)?);
        let mut at = blocks.start;
        while at < end {
            let next = self.next_entry(place, at, end)?;
            if next - at > CHUNK {
                let within = |range: &Range<u32>| {
                    let overlap = range.start.max(at)..range.end.min(next);
                    u32::try_from(overlap.len()).unwrap_or_default()
                };
                let known = within(&self.slot.void) - within(&void);
                self.slot.void_blocks = self.slot.void_blocks.saturating_sub(known);
                at = next;
                continue;
            }
            let count = (end - at).min(CHUNK);
            let zeros = vec![Some(BlockSum::ZEROS); usize::try_from(count).unwrap_or(0)];
            self.put_with(place, at, &zeros, &void)?;
            at += count;
        }
        if blocks.end == u32::MAX
            && let Some(further) = self.further(place)?
        {
            let cut = further.set_len(offset_of(blocks.start));
            cut.map_err(StoreError::disk_at("cut", block_sums_path, self.ino))?;
        }
        self.slot.void = void;
        self.store_slot(place)
    }

    /// Changes the entries of blocks, for the void range that the slot gets next. Returns whether any entry changed.
    fn put_with(
        &mut self,
        place: SumPlace<'_>,
        first: u32,
        states: &[BlockState],
        void: &Range<u32>,
    ) -> Result<bool, StoreError> {
        let number = usize::try_from(first).unwrap_or(usize::MAX);
        let of_slot = self.slot.entries.len().saturating_sub(number);
        let (within, further) = states.split_at(of_slot.min(states.len()));
        let mut is_changed = false;
        for (block, state) in (first..=u32::MAX).zip(within) {
            let old = self.slot_entry(block);
            let new = self.exchange(place, (block, old), *state, void);
            if let Some(entry) = self.slot.entries.get_mut(block as usize) {
                *entry = new;
            }
            is_changed |= new != old;
        }
        if further.is_empty() {
            return Ok(is_changed);
        }
        let of_further = self.put_further(place, first.max(SLOT_BLOCKS), further, void)?;
        Ok(of_further || is_changed)
    }

    /// Changes the entries of further blocks, as [`Self::put_with`] does.
    fn put_further(
        &mut self,
        place: SumPlace<'_>,
        first: u32,
        states: &[BlockState],
        void: &Range<u32>,
    ) -> Result<bool, StoreError> {
        let mut bytes = self.further_entries(place, first, states.len())?;
        let mut is_changed = false;
        let entries = bytes.as_chunks_mut::<8>().0.iter_mut();
        for ((block, entry), state) in (first..=u32::MAX).zip(entries).zip(states) {
            let old = u64::from_le_bytes(*entry);
            let new = self.exchange(place, (block, old), *state, void);
            *entry = new.to_le_bytes();
            is_changed |= new != old;
        }
        if !is_changed {
            return Ok(false);
        }
        let ino = self.ino;
        if self.further(place)?.is_none() {
            self.further = FurtherSums::Open(place.files.create(ino)?);
        }
        if let Some(file) = self.further(place)? {
            let written = file.write_at(offset_of(first), &bytes);
            written.map_err(StoreError::disk_at("write", block_sums_path, ino))?;
        }
        Ok(true)
    }

    /// Puts the state of a block into the file sum and the number of void blocks. Returns its entry.
    fn exchange(
        &mut self,
        place: SumPlace<'_>,
        (block, old): (u32, u64),
        state: BlockState,
        void: &Range<u32>,
    ) -> u64 {
        let was = state_of(old, self.slot.is_in_void(block));
        let state = storable(state);
        let (from, to) = (was.unwrap_or_default(), state.unwrap_or_default());
        self.slot.sum.replace(place.key, block.into(), from, to);
        let void_blocks = self.slot.void_blocks + u32::from(state.is_none());
        self.slot.void_blocks = void_blocks.saturating_sub(u32::from(was.is_none()));
        entry_of(state, void.contains(&block))
    }
}

/// Entries.
impl FileSums {
    /// The file with the sums of further blocks, if there is one.
    fn further(
        &mut self,
        place: SumPlace<'_>,
    ) -> Result<Option<&Arc<dyn BackingFile>>, StoreError> {
        if matches!(self.further, FurtherSums::NotLooked) {
            self.further = match place.files.open(self.ino)? {
                Some(file) => FurtherSums::Open(file),
                None => FurtherSums::Missing,
            };
        }
        Ok(match &self.further {
            FurtherSums::Open(file) => Some(file),
            FurtherSums::NotLooked | FurtherSums::Missing => None,
        })
    }

    /// No block from here on has an entry but zero.
    fn entries_end(&mut self, place: SumPlace<'_>) -> Result<u32, StoreError> {
        let ino = self.ino;
        let length = match self.further(place)? {
            Some(file) => file
                .stat()
                .map_err(StoreError::disk_at("stat", block_sums_path, ino))?,
            None => return Ok(self.slot.void.end.max(SLOT_BLOCKS)),
        };
        let further = u32::try_from(length.length.div_ceil(ENTRY)).unwrap_or(u32::MAX);
        Ok(SLOT_BLOCKS.saturating_add(further).max(self.slot.void.end))
    }

    /// The first block from `at` on that may have an entry other than zero; `end` if there is none before.
    fn next_entry(&mut self, place: SumPlace<'_>, at: u32, end: u32) -> Result<u32, StoreError> {
        if at < SLOT_BLOCKS {
            return Ok(at);
        }
        let ino = self.ino;
        let Some(further) = self.further(place)? else {
            return Ok(end);
        };
        let found = further.seek_data(offset_of(at));
        let found = found.map_err(StoreError::disk_at(
            "look for data in",
            block_sums_path,
            ino,
        ))?;
        let block = found.map_or(u64::from(end), |data| data / ENTRY + u64::from(SLOT_BLOCKS));
        Ok(u32::try_from(block).unwrap_or(end).clamp(at, end))
    }

    /// The entries of these blocks.
    fn entries(
        &mut self,
        place: SumPlace<'_>,
        blocks: &Range<u32>,
    ) -> Result<Vec<u64>, StoreError> {
        let within = blocks.clone().take_while(|block| *block < SLOT_BLOCKS);
        let mut entries: Vec<u64> = within.map(|block| self.slot_entry(block)).collect();
        let missing = blocks.len() - entries.len();
        if missing == 0 {
            return Ok(entries);
        }
        let bytes = self.further_entries(place, blocks.start.max(SLOT_BLOCKS), missing)?;
        let words = bytes.as_chunks::<8>().0.iter();
        entries.extend(words.map(|word| u64::from_le_bytes(*word)));
        Ok(entries)
    }

    /// The bytes of the entries of so many further blocks.
    fn further_entries(
        &mut self,
        place: SumPlace<'_>,
        first: u32,
        count: usize,
    ) -> Result<EntryBytes, StoreError> {
        let ino = self.ino;
        let mut bytes: EntryBytes = smallvec![0; count * 8];
        if let Some(further) = self.further(place)? {
            let read = further.read_at(offset_of(first), &mut bytes);
            read.map_err(StoreError::disk_at("read", block_sums_path, ino))?;
        }
        Ok(bytes)
    }

    fn slot_entry(&self, block: u32) -> u64 {
        let number = usize::try_from(block).unwrap_or(usize::MAX);
        self.slot.entries.get(number).copied().unwrap_or_default()
    }

    fn store_slot(&self, place: SumPlace<'_>) -> Result<(), StoreError> {
        let bytes = self.slot.encode(place.key, self.ino);
        place.files.write_slot(self.ino, &bytes)
    }
}

/// The place of the entry of a further block.
fn offset_of(block: u32) -> u64 {
    u64::from(block.saturating_sub(SLOT_BLOCKS)) * ENTRY
}

fn run_of(first: u32, count: usize) -> Range<u32> {
    first..first.saturating_add(u32::try_from(count).unwrap_or(u32::MAX))
}
