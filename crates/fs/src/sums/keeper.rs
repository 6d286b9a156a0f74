//! [`SumKeeper`]: keeps the sums of a store while its bytes change. See the head of [`sums`](super).
//!
//! A change has three steps: [`SumKeeper::carry_out`] finds out what the new sums will be, notes the blocks, makes the change,
//! and stores the sums. A block that is written in part is read before, unless its sum is void or that of zeros.
//!
//! Callers keep two changes of one block apart (`content/before_change.rs`). Changes of different blocks of a file may run at
//! once: each adds its part to the file sum, under the lock of the stripe.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_sums::{BlockOffset, BlockSpan, BlockSum, FileSum, SumKey, SumSecret};
use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{BootId, Ino};
use parking_lot::{Mutex, RwLock};

use super::change::{BLOCK, NewBytes, block_number, blocks_of, read_block};
use super::changing::{ChangingBlocks, ChangingTable, EntryNumber};
use super::era::EraRecord;
use super::file_sums::{FileSums, SumPlace};
use super::repair::repair;
use super::slot::{BlockState, SumEra};
use super::sum_files::SumFiles;
use crate::error::StoreError;

const STRIPES: usize = 64;
/// Files of a stripe whose sums stay in memory. Each may have a descriptor.
const STRIPE_FILES_MAX: usize = 16;
/// Blocks whose sums a failed change makes void one by one. Of more, the whole file is void.
const VOID_EACH_MAX: usize = 4096;

/// The last run of the store, and this one.
#[derive(Clone, Copy, Debug)]
pub struct LastRun {
    /// The run of the machine of this start.
    pub boot: BootId,
    /// The run of the machine in which the store was in use; `None` after a clean shutdown.
    pub last_boot: Option<BootId>,
    /// How often the store was opened before.
    pub epoch: u32,
}

/// The sum of a file, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptSum {
    /// The sum of the known blocks.
    pub known: FileSum,
    /// Number of blocks whose sum is void.
    pub void_blocks: u32,
}

impl KeptSum {
    /// The sum of the file; `None` if the sum of a block is void.
    pub fn whole(self) -> Option<FileSum> {
        (self.void_blocks == 0).then_some(self.known)
    }
}

/// What happened to sums since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SumTotals {
    /// Blocks whose bytes did not fit their sum when they were written in part.
    pub mismatches: u64,
    /// Removed files whose sum was not that of their blocks.
    pub left_sums: u64,
    /// Changes after which all sums of their file were void: the disk was full, or failed.
    pub given_up: u64,
}

/// The sums of a store.
pub struct SumKeeper {
    files: SumFiles,
    /// `None` as long as the store has no secret, and in a store opened for reading only.
    era: RwLock<Option<KeptEra>>,
    last_run: LastRun,
    stripes: Vec<Mutex<Stripe>>,
    totals: [AtomicU64; 3],
}

/// An era, and the secret of its sums.
struct KeptEra {
    record: EraRecord,
    key: SumKey,
    changing: ChangingTable,
    /// The sums of this era say nothing any more.
    is_over: AtomicBool,
}

/// The sums of some files, in memory.
#[derive(Default)]
struct Stripe(HashMap<Ino, FileSums>);

/// A change that is noted.
struct Begun {
    entry: EntryNumber,
    /// The states of the blocks that are written, from the first one on; of zeros, those of the blocks cut in part.
    states: Vec<(u32, BlockState)>,
}

/// Begin and end.
impl SumKeeper {
    /// The keeper of a store that is opened for reading only: it keeps nothing, and every sum is void.
    pub fn idle(backing: Arc<dyn Backing>, last_run: LastRun) -> Self {
        Self {
            files: SumFiles::new(backing),
            era: RwLock::new(None),
            last_run,
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            totals: Default::default(),
        }
    }

    /// The sums of a store, as the last process has left them. Ends their era if power was lost, and makes the sums anew whose
    /// blocks were changing when the last process was killed: so nothing may have changed the store yet.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn open(backing: Arc<dyn Backing>, last_run: LastRun) -> Result<Self, StoreError> {
        let keeper = Self::idle(backing, last_run);
        let record = EraRecord::read(keeper.files.backing())?;
        if let Some(record) = record {
            let era = keeper.open_era(record);
            *keeper.era.write() = keeper.or_without(era)?;
        }
        Ok(keeper)
    }

    fn open_era(&self, mut record: EraRecord) -> Result<KeptEra, StoreError> {
        let backing = self.files.backing();
        let (changing, left) = ChangingTable::open(backing)?;
        let LastRun {
            boot, last_boot, ..
        } = self.last_run;
        let is_other = |last: Option<BootId>| last.is_some_and(|last| last != boot);
        let is_lost = is_other(last_boot) || is_other(record.boot);
        let was_killed = record.boot == Some(boot);
        let is_over = left.is_era_over || (is_lost && !is_active(Mutant::VoidForgotten));
        if is_over {
            record.era = self.next_era(Some(record.era));
        }
        if is_over || !was_killed {
            record.boot = Some(boot);
            record.change += 1;
            record.store(backing)?;
        }
        let era = KeptEra::new(record, changing);
        if was_killed && !is_over {
            repair(era.place(&self.files), &left.changes)?;
        }
        era.changing.clear();
        Ok(era)
    }

    /// Goes without sums if the disk has no room for their tables. Without the file of the era, the next process begins another.
    fn or_without(&self, era: Result<KeptEra, StoreError>) -> Result<Option<KeptEra>, StoreError> {
        match era {
            Err(error) if error.is_full_disk() => {
                tracing::warn!(%error, "the store keeps no sums of its content: the disk is full");
                EraRecord::remove(self.files.backing())?;
                Ok(None)
            }
            era => era.map(Some),
        }
    }

    /// A number that no era had before.
    fn next_era(&self, last: Option<SumEra>) -> SumEra {
        let of_opening = (u64::from(self.last_run.epoch) + 1) << 16;
        SumEra(of_opening.max(last.map_or(0, |SumEra(number)| number + 1)))
    }

    /// The secret, if the store has one.
    pub fn secret(&self) -> Option<SumSecret> {
        let era = self.era.read();
        era.as_ref().map(|era| era.record.secret())
    }

    /// Takes a secret. Another one makes all sums void.
    ///
    /// # Errors
    /// If the disk fails, or is full: the store then keeps no sums.
    pub fn take_secret(&self, secret: &SumSecret) -> Result<(), StoreError> {
        let mut era = self.era.write();
        if era
            .as_ref()
            .is_some_and(|era| era.record.secret() == *secret)
        {
            return Ok(());
        }
        let last = era.as_ref().map(|era| &era.record);
        let record = EraRecord {
            change: last.map_or(1, |last| last.change + 1),
            era: self.next_era(last.map(|last| last.era)),
            secret: *secret.as_bytes(),
            boot: Some(self.last_run.boot),
        };
        if let Some(last) = era.take() {
            last.end();
        }
        self.forget();
        let (changing, _) = ChangingTable::open(self.files.backing())?;
        record.store(self.files.backing())?;
        changing.clear();
        *era = Some(KeptEra::new(record, changing));
        Ok(())
    }

    /// Puts all sums on stable storage, and notes that the next run of the machine may trust them. `is_clean`: no killed process
    /// of this run of the machine may have left sums that are not there yet.
    pub fn close(&self, is_clean: bool) {
        let mut era = self.era.write();
        let Some(kept) = &mut *era else { return };
        if !is_clean || kept.is_over() {
            return;
        }
        let synced = self.files.sync(false);
        let mut record = kept.record.clone();
        record.boot = None;
        record.change += 1;
        let stored = synced.and_then(|()| record.store(self.files.backing()));
        match stored {
            Ok(()) => kept.record = record,
            Err(error) => {
                tracing::warn!(%error, "the sums of content do not outlive this run of the machine");
                kept.end();
            }
        }
    }

    /// What happened to sums since the store was opened.
    pub fn totals(&self) -> SumTotals {
        let [mismatches, left_sums, given_up] = &self.totals;
        SumTotals {
            mismatches: mismatches.load(Ordering::Relaxed),
            left_sums: left_sums.load(Ordering::Relaxed),
            given_up: given_up.load(Ordering::Relaxed),
        }
    }

    fn count(&self, number: usize) {
        if let Some(total) = self.totals.get(number) {
            total.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn forget(&self) {
        for stripe in &self.stripes {
            stripe.lock().0.clear();
        }
    }

    #[allow(clippy::indexing_slicing)] // the remainder is below the length
    fn stripe(&self, ino: Ino) -> &Mutex<Stripe> {
        &self.stripes[usize::try_from(ino.get() % STRIPES as u64).unwrap_or(0)]
    }
}

const MISMATCHES: usize = 0;
const LEFT_SUMS: usize = 1;
const GIVEN_UP: usize = 2;

impl KeptEra {
    fn new(record: EraRecord, changing: ChangingTable) -> Self {
        Self {
            key: SumKey::new(&record.secret()),
            record,
            changing,
            is_over: AtomicBool::new(false),
        }
    }

    fn place<'a>(&'a self, files: &'a SumFiles) -> SumPlace<'a> {
        SumPlace {
            files,
            key: &self.key,
            era: self.record.era,
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// No sum of this era counts any more.
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.changing.end_era();
    }
}

impl Stripe {
    /// The sums of a file, if it has any in this era.
    fn get(&mut self, place: SumPlace<'_>, ino: Ino) -> Result<Option<&mut FileSums>, StoreError> {
        if !self.0.contains_key(&ino) {
            let Some(sums) = FileSums::load(place, ino)? else {
                return Ok(None);
            };
            self.insert(ino, sums);
        }
        Ok(self.0.get_mut(&ino))
    }

    /// The sums of a file. If it has none in this era, all its present blocks are void.
    fn get_or_begin(
        &mut self,
        place: SumPlace<'_>,
        ino: Ino,
        content: &dyn BackingFile,
    ) -> Result<&mut FileSums, StoreError> {
        if self.get(place, ino)?.is_none() {
            let sums = FileSums::begin(place, ino, blocks_of(length_of(content, ino)?))?;
            self.insert(ino, sums);
        }
        match self.0.get_mut(&ino) {
            Some(sums) => Ok(sums),
            None => unreachable!("the sums were put there under the lock"),
        }
    }

    fn insert(&mut self, ino: Ino, sums: FileSums) {
        if self.0.len() >= STRIPE_FILES_MAX {
            self.0.clear();
        }
        self.0.insert(ino, sums);
    }
}

fn length_of(content: &dyn BackingFile, ino: Ino) -> Result<u64, StoreError> {
    let stat = content.stat().map_err(StoreError::content("stat", ino))?;
    Ok(stat.length)
}

/// Changes.
impl SumKeeper {
    /// Makes a change of the bytes of a file by `make`, and changes the sums with it. Only `make` fails.
    pub fn carry_out(
        &self,
        ino: Ino,
        new: &NewBytes<'_>,
        content: &dyn BackingFile,
        make: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let era = self.era.read();
        let Some(era) = era.as_ref().filter(|era| !era.is_over()) else {
            return make();
        };
        let begun = self.begin(era, ino, new, content).unwrap_or_else(|error| {
            self.give_up(era, ino, &error);
            None
        });
        let made = make();
        if let Some(Begun { entry, states }) = begun {
            let stored = match &made {
                Ok(()) => self.store(era, ino, new, &states),
                Err(_) => self.void(era, ino, new, content),
            };
            if let Err(error) = stored {
                self.give_up(era, ino, &error);
            }
            era.changing.remove(entry);
        }
        made
    }

    /// Notes the blocks of a change, and makes their new sums. `None` if the bytes stay.
    fn begin(
        &self,
        era: &KeptEra,
        ino: Ino,
        new: &NewBytes<'_>,
        content: &dyn BackingFile,
    ) -> Result<Option<Begun>, StoreError> {
        let place = era.place(&self.files);
        let blocks = new.blocks();
        let partial: Vec<u32> = BlockSpan::of(&new.range())
            .partial()
            .map(block_number)
            .collect();
        let mut olds = Vec::with_capacity(2);
        {
            let mut stripe = self.stripe(ino).lock();
            let sums = stripe.get_or_begin(place, ino, content)?;
            for block in partial {
                let state = sums.states(place, &(block..block + 1))?;
                olds.push((block, state.first().copied().flatten()));
            }
        }
        if blocks.is_empty() {
            return Ok(None);
        }
        let changing = ChangingBlocks {
            ino,
            blocks: blocks.clone(),
            makes_zeros: matches!(new, NewBytes::Zeros { .. }),
        };
        let Some(entry) = era.changing.note(&changing) else {
            // Without a note no sum of the file may stand through the change.
            self.count(GIVEN_UP);
            self.void_file(era, ino)?;
            return Ok(None);
        };
        let edges = PartialBlocks {
            keeper: self,
            era,
            ino,
            new,
            content,
        };
        let mut edges = olds
            .iter()
            .map(|(block, old)| (*block, edges.state(*block, *old)));
        let states = match *new {
            NewBytes::Data { offset, data } => written(era, (offset, data), content, &mut edges),
            NewBytes::Zeros { .. } | NewBytes::Same => edges.collect(),
        };
        Ok(Some(Begun { entry, states }))
    }

    /// Stores the sums of a change that was made.
    fn store(
        &self,
        era: &KeptEra,
        ino: Ino,
        new: &NewBytes<'_>,
        states: &[(u32, BlockState)],
    ) -> Result<(), StoreError> {
        let place = era.place(&self.files);
        let mut stripe = self.stripe(ino).lock();
        let Some(sums) = stripe.get(place, ino)? else {
            return Ok(());
        };
        if let NewBytes::Zeros { .. } = new {
            let whole = BlockSpan::of(&new.range()).whole;
            let whole = block_number(whole.start)..block_number(whole.end);
            if !whole.is_empty() {
                sums.zero(place, &whole)?;
            }
            return states
                .iter()
                .try_for_each(|(block, state)| sums.put(place, *block, &[*state]));
        }
        let Some((first, _)) = states.first() else {
            return Ok(());
        };
        let states: Vec<BlockState> = states.iter().map(|(_, state)| *state).collect();
        sums.put(place, *first, &states)
    }

    /// The change has failed: nothing is known of its blocks.
    fn void(
        &self,
        era: &KeptEra,
        ino: Ino,
        new: &NewBytes<'_>,
        content: &dyn BackingFile,
    ) -> Result<(), StoreError> {
        let place = era.place(&self.files);
        let blocks = new.blocks();
        // Behind the content are no bytes.
        let end = blocks_of(length_of(content, ino)?);
        let (void, cut) = (
            blocks.start..blocks.end.min(end),
            end.max(blocks.start)..blocks.end,
        );
        if void.len() > VOID_EACH_MAX {
            return self.void_file(era, ino);
        }
        let mut stripe = self.stripe(ino).lock();
        let Some(sums) = stripe.get(place, ino)? else {
            return Ok(());
        };
        if !void.is_empty() {
            sums.put(place, void.start, &vec![None; void.len()])?;
        }
        if !cut.is_empty() {
            sums.zero(place, &cut)?;
        }
        Ok(())
    }

    /// Makes all sums of a file void, as they cannot be kept.
    fn give_up(&self, era: &KeptEra, ino: Ino, error: &StoreError) {
        self.count(GIVEN_UP);
        tracing::warn!(%ino, %error, "the sums of a file are void");
        if let Err(error) = self.void_file(era, ino) {
            tracing::error!(%ino, %error, "the sums of all files are void");
            era.end();
        }
    }

    fn void_file(&self, era: &KeptEra, ino: Ino) -> Result<(), StoreError> {
        let mut stripe = self.stripe(ino).lock();
        stripe.0.remove(&ino);
        era.place(&self.files).files.clear_slot(ino)
    }

    /// The content of a freed inode is about to be removed: its sums go first. A content of the same number begins without.
    pub fn removed(&self, ino: Ino) {
        let era = self.era.read();
        let Some(era) = era.as_ref().filter(|era| !era.is_over()) else {
            return;
        };
        let mut stripe = self.stripe(ino).lock();
        stripe.0.remove(&ino);
        match FileSums::remove(era.place(&self.files), ino) {
            Ok(true) => {}
            Ok(false) => {
                self.count(LEFT_SUMS);
                tracing::error!(%ino, "the sum of a removed file was not that of its blocks");
            }
            Err(error) => {
                drop(stripe);
                self.give_up(era, ino, &error);
            }
        }
    }
}

/// Questions, and bytes that are known to be right. The caller keeps every change of the bytes away.
impl SumKeeper {
    /// The sum of a file whose content has this length.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn file(&self, ino: Ino, length: u64) -> Result<KeptSum, StoreError> {
        let unknown = KeptSum {
            known: FileSum::ZEROS,
            void_blocks: blocks_of(length),
        };
        let era = self.era.read();
        let Some(era) = era.as_ref().filter(|era| !era.is_over()) else {
            return Ok(unknown);
        };
        let mut stripe = self.stripe(ino).lock();
        let sums = stripe.get(era.place(&self.files), ino)?;
        Ok(sums.map_or(unknown, |sums| {
            let (known, void_blocks) = sums.sum();
            KeptSum { known, void_blocks }
        }))
    }

    /// The sums of blocks of a file whose content has this length; `None` for a void sum.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn blocks(
        &self,
        ino: Ino,
        blocks: Range<u64>,
        length: u64,
    ) -> Result<Vec<Option<BlockSum>>, StoreError> {
        let blocks = block_number(blocks.start)..block_number(blocks.end);
        let end = blocks_of(length);
        let era = self.era.read();
        if let Some(era) = era.as_ref().filter(|era| !era.is_over()) {
            let place = era.place(&self.files);
            let mut stripe = self.stripe(ino).lock();
            if let Some(sums) = stripe.get(place, ino)? {
                return sums.states(place, &blocks);
            }
        }
        let unknown = |block| (block >= end).then_some(BlockSum::ZEROS);
        Ok(blocks.map(unknown).collect())
    }

    /// These bytes of the content are right: the sums of the blocks that they cover are theirs. Without `all`, of the void
    /// blocks only. The last block of the content may be covered in part.
    ///
    /// # Errors
    /// If the disk fails, or is full: the sums are then void.
    pub fn set_right(
        &self,
        ino: Ino,
        right: (u64, &[u8]),
        content: &dyn BackingFile,
        all: bool,
    ) -> Result<(), StoreError> {
        let (offset, bytes) = right;
        let era = self.era.read();
        let Some(era) = era.as_ref().filter(|era| !era.is_over()) else {
            return Ok(());
        };
        let is_end = length_of(content, ino)? <= offset.saturating_add(bytes.len() as u64);
        let start = BlockOffset::of(offset);
        let skipped = bytes.get(start.bytes_to_border()..).unwrap_or_default();
        let first = block_number(offset.div_ceil(BLOCK));
        let whole = skipped
            .chunks(BLOCK_BYTES)
            .filter(|piece| is_end || piece.len() == BLOCK_BYTES);
        let states: Vec<BlockState> = whole.map(|piece| Some(era.key.block(piece))).collect();
        let stored = self.store_right(era, ino, (first, states), content, all);
        stored.inspect_err(|error| self.give_up(era, ino, error))
    }

    fn store_right(
        &self,
        era: &KeptEra,
        ino: Ino,
        (first, mut states): (u32, Vec<BlockState>),
        content: &dyn BackingFile,
        all: bool,
    ) -> Result<(), StoreError> {
        let place = era.place(&self.files);
        let count = u32::try_from(states.len()).unwrap_or(u32::MAX);
        let blocks = first..first.saturating_add(count);
        let mut stripe = self.stripe(ino).lock();
        let sums = stripe.get_or_begin(place, ino, content)?;
        let old = sums.states(place, &blocks)?;
        if !all {
            if old.iter().all(Option::is_some) {
                return Ok(());
            }
            for (state, old) in states.iter_mut().zip(old) {
                *state = old.or(*state);
            }
        }
        let changing = ChangingBlocks {
            ino,
            blocks,
            makes_zeros: false,
        };
        let Some(entry) = era.changing.note(&changing) else {
            return Ok(());
        };
        let stored = sums.put(place, first, &states);
        era.changing.remove(entry);
        stored
    }
}

/// The new states of blocks that are written.
fn written(
    era: &KeptEra,
    (offset, data): (u64, &[u8]),
    content: &dyn BackingFile,
    edges: &mut dyn Iterator<Item = (u32, BlockState)>,
) -> Vec<(u32, BlockState)> {
    let pieces = lockstep_sums::pieces(BlockOffset::of(offset), data);
    let blocks = block_number(offset / BLOCK)..u32::MAX;
    let of_piece = |(block, piece): (u32, &[u8])| {
        if piece.len() < BLOCK_BYTES {
            return edges.next().unwrap_or((block, None));
        }
        if is_active(Mutant::SumOfOldBlock) {
            let old = read_block(content, block).unwrap_or([0; BLOCK_BYTES]);
            return (block, Some(era.key.block(&old)));
        }
        (block, Some(BlockSum::from(era.key.piece(piece))))
    };
    blocks.zip(pieces).map(of_piece).collect()
}

/// The blocks that a change writes in part.
struct PartialBlocks<'a> {
    keeper: &'a SumKeeper,
    era: &'a KeptEra,
    ino: Ino,
    new: &'a NewBytes<'a>,
    content: &'a dyn BackingFile,
}

impl PartialBlocks<'_> {
    /// The state of a block after the change, whose state before is `old`.
    fn state(&self, block: u32, old: BlockState) -> BlockState {
        if is_active(Mutant::SumNotRecomputed) {
            return old;
        }
        let mut bytes = match old {
            Some(sum) => self.known_bytes(block, sum)?,
            None if self.covers_content(block) => [0; BLOCK_BYTES],
            None => return None,
        };
        self.new.lay_over(block, &mut bytes);
        Some(self.era.key.block(&bytes))
    }

    /// The bytes of a block before the change; `None` if they are not those of the sum.
    fn known_bytes(&self, block: u32, sum: BlockSum) -> Option<[u8; BLOCK_BYTES]> {
        if sum.is_zeros() {
            return Some([0; BLOCK_BYTES]);
        }
        let bytes = read_block(self.content, block).ok()?;
        let fits = self.era.key.block(&bytes) == sum;
        if !fits {
            self.keeper.count(MISMATCHES);
            let ino = self.ino;
            tracing::error!(%ino, block, "the bytes of a block do not fit their sum");
        }
        fits.then_some(bytes)
    }

    /// Whether the change writes all bytes that the file has in a block.
    fn covers_content(&self, block: u32) -> bool {
        let bytes = self.new.range();
        let starts_before = bytes.start <= u64::from(block) * BLOCK;
        starts_before
            && matches!(self.new, NewBytes::Data { .. })
            && length_of(self.content, self.ino).is_ok_and(|length| length <= bytes.end)
    }
}
