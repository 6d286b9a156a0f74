//! Questions about sums, and bytes that are known to be right.
//!
//! The caller keeps every change of the bytes away about which it asks, or which it says to be right.

use std::ops::Range;

use lockstep_sums::{BlockOffset, BlockSum, FileSum};
use lockstep_types::Ino;
use lockstep_types::backing::BackingFile;
use lockstep_types::limits::BLOCK_BYTES;

use super::change::{BLOCK, block_number, blocks_of, length_of};
use super::changing::ChangingBlocks;
use super::keeper::{KeptEra, SumKeeper};
use super::slot::BlockState;
use crate::error::StoreError;

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
        let Some(entry) = era.changing.note(&changing, &era.key) else {
            return Ok(());
        };
        let stored = sums.put(place, first, &states);
        era.changing.remove(entry);
        stored
    }
}
