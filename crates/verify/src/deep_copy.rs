//! The copy of one node, as a deep comparison reads and repairs it: on the primary by itself, on the secondary by the requests of
//! the primary.
//!
//! The caller holds the locks of the blocks, on both nodes: no operation changes them meanwhile.
//!
//! Invariants:
//! - A block is overwritten only if its bytes do not fit its sum, and the new bytes fit that sum. The
//!   node that is changed checks this itself: bytes that fit are never replaced, and bytes that do not fit are never put in place.
//! - A sum is made anew only of bytes that the disk has returned, and whose hash is that of the other node's bytes.
//! - The old bytes are kept aside before they are overwritten, as far as the folder has room.

use std::io;

use lockstep_fs::view::disk_view::DiskView;
use lockstep_fs::{OpError, Store, StoreView};
use lockstep_repl::checked::BlockWord;
use lockstep_sums::BlockSum;
use lockstep_types::limits::{BLOCK_BYTES, FILE_BYTES_MAX, WRITE_BYTES_MAX};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Hash128, Ino};
use thiserror::Error;

use crate::attribution::SumFit;
use crate::kept_blocks::{self, BlockVersion};
use crate::own_sums::{OwnSums, fit};

/// The size of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most blocks that are inspected or repaired at once.
pub const RUN_BLOCKS_MAX: usize = WRITE_BYTES_MAX / BLOCK_BYTES;
/// Most blocks whose bytes are in one answer: the header of a frame has them.
pub const READ_BLOCKS_MAX: usize = 16;

/// The reason why blocks were not repaired. For an operator.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say the same")]
pub enum RepairError {
    #[error(transparent)]
    Store(#[from] OpError),
    #[error("the old bytes could not be kept aside: {0}")]
    Keep(#[source] io::Error),
    #[error("block {block} of the file fits its sum now, or its sum says nothing")]
    NotWrong { block: u64 },
    #[error("the other node has other bytes for block {block} now, or they do not fit its sum")]
    NotRight { block: u64 },
    #[error(
        "block {block} does not fit its sum after it was written: the disk returns other bytes again"
    )]
    ReadBack { block: u64 },
    #[error("{count} blocks at byte {offset} are in no file, or too many")]
    Outside { offset: u64, count: usize },
}

impl From<lockstep_fs::StoreError> for RepairError {
    fn from(error: lockstep_fs::StoreError) -> Self {
        Self::Store(error.into())
    }
}

/// See the head of this file.
#[derive(Clone, Copy)]
pub struct DeepCopy<'a> {
    /// The store.
    pub store: &'a Store,
    /// Its sums.
    pub sums: &'a dyn OwnSums,
}

/// A block on the disk.
struct OwnBlock {
    number: u64,
    bytes: Vec<u8>,
    /// The sum that the node keeps.
    sum: Option<BlockSum>,
    /// The answer of that sum about the bytes.
    fit: SumFit,
}

impl DeepCopy<'_> {
    /// Tells the secret of the sums from another one.
    pub fn secret(self) -> u64 {
        self.sums.key().probe()
    }

    /// The bytes of whole blocks on the disk; zeros beyond the end of the file.
    ///
    /// # Errors
    /// If they cannot be read, or are too many.
    pub fn read(self, ino: Ino, offset: u64, count: usize) -> Result<Vec<u8>, RepairError> {
        let end = offset.checked_add(count as u64 * BLOCK);
        let is_inside = end.is_some_and(|end| end <= FILE_BYTES_MAX.next_multiple_of(BLOCK));
        if count > RUN_BLOCKS_MAX || !is_inside || !offset.is_multiple_of(BLOCK) {
            return Err(RepairError::Outside { offset, count });
        }
        let mut bytes = vec![0; count * BLOCK_BYTES];
        DiskView(&self.store.tree()).read_raw(ino, offset, &mut bytes)?;
        Ok(bytes)
    }

    /// The hashes and sums of blocks. To a node with another secret its sums say nothing.
    ///
    /// # Errors
    /// If they cannot be read, or are too many.
    pub fn inspect(
        self,
        ino: Ino,
        offset: u64,
        count: usize,
        secret: u64,
    ) -> Result<Vec<BlockWord>, RepairError> {
        let knows_secret = secret == self.secret();
        let blocks = self.blocks(ino, offset, count)?.into_iter();
        let word = |block: OwnBlock| BlockWord {
            bytes: Hash128::of(&block.bytes),
            sum: block.sum.filter(|_| knows_secret).map(BlockSum::get),
            fits: block.fit == SumFit::Fits,
        };
        Ok(blocks.map(word).collect())
    }

    fn blocks(self, ino: Ino, offset: u64, count: usize) -> Result<Vec<OwnBlock>, RepairError> {
        let key = self.sums.key();
        let bytes = self.read(ino, offset, count)?;
        let first = offset / BLOCK;
        let sums = self.sums.blocks(ino, first, count as u64);
        let sums = sums.unwrap_or_default().into_iter();
        let sums = sums.chain(std::iter::repeat(None));
        let blocks = bytes.chunks(BLOCK_BYTES).zip(sums).zip(first..);
        let block = |((bytes, sum), number): ((&[u8], _), _)| OwnBlock {
            number,
            bytes: bytes.to_vec(),
            sum,
            fit: fit(sum, key.block(bytes)),
        };
        Ok(blocks.map(block).collect())
    }

    /// Overwrites blocks that do not fit their sums with the bytes of the other node, which fit them: kept aside, written,
    /// synced, and read back from the disk. Returns whether the old and the new bytes are kept aside.
    ///
    /// The bytes are written through memory, so that a program gets them from then on, also if memory had others before.
    ///
    /// # Errors
    /// If a block fits its sum, or the new bytes do not, nothing is changed.
    pub fn heal(self, ino: Ino, offset: u64, right: &[u8]) -> Result<bool, RepairError> {
        let count = right.len().div_ceil(BLOCK_BYTES);
        let ours = self.blocks(ino, offset, count)?;
        self.check_heals(&ours, right)?;
        let wrong: Vec<u8> = ours
            .iter()
            .flat_map(|block| &block.bytes)
            .copied()
            .collect();
        let versions = [(BlockVersion::Wrong, &*wrong), (BlockVersion::Right, right)];
        let backing = &**self.store.backing();
        let kept = kept_blocks::keep(backing, ino, offset, &versions).map_err(RepairError::Keep)?;
        self.put(ino, offset, right)?;
        self.check_healed(ino, offset, count)?;
        Ok(kept)
    }

    fn check_heals(self, ours: &[OwnBlock], right: &[u8]) -> Result<(), RepairError> {
        let key = self.sums.key();
        let trusts = is_active(Mutant::RepairFromBad) || is_active(Mutant::RepairOtherSum);
        for (block, right) in ours.iter().zip(right.chunks(BLOCK_BYTES)) {
            let number = block.number;
            if block.fit != SumFit::Misfits && !trusts {
                return Err(RepairError::NotWrong { block: number });
            }
            if fit(block.sum, key.block(right)) != SumFit::Fits && !trusts {
                return Err(RepairError::NotRight { block: number });
            }
        }
        Ok(())
    }

    /// Writes the bytes up to the end of the file, and syncs them.
    fn put(self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), RepairError> {
        let size = self
            .store
            .tree()
            .file_times(ino)?
            .map_or(0, |times| times.size);
        let inside = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(inside) = bytes
            .get(..inside.min(bytes.len()))
            .filter(|rest| !rest.is_empty())
        else {
            let block = offset / BLOCK;
            return Err(RepairError::NotWrong { block });
        };
        let replica = self.store.replica();
        if is_active(Mutant::HealAsWrite) {
            replica.put_blocks(ino, offset, inside)?;
            return Ok(self.store.sync_file(ino, false)?);
        }
        Ok(replica.heal_blocks(ino, offset, inside)?)
    }

    /// Reads the disk back.
    fn check_healed(self, ino: Ino, offset: u64, count: usize) -> Result<(), RepairError> {
        let now = self.blocks(ino, offset, count)?;
        let wrong = now.iter().find(|block| block.fit != SumFit::Fits);
        wrong.map_or(Ok(()), |block| {
            let block = block.number;
            Err(RepairError::ReadBack { block })
        })
    }

    /// The numbers of the blocks that do not fit their sums, of bytes that a program is to get: from `offset` on, which is a multiple of
    /// the size of a block, up to the end of a block or of the file. A sum that says nothing, or cannot be read, is no reason.
    pub fn misfits(self, ino: Ino, offset: u64, bytes: &[u8]) -> Vec<u64> {
        let key = self.sums.key();
        let (first, blocks) = (offset / BLOCK, bytes.chunks(BLOCK_BYTES));
        let sums = self.sums.blocks(ino, first, blocks.len() as u64);
        let sums = sums.unwrap_or_default();
        let all = (first..).zip(blocks).zip(sums);
        let wrong = all.filter(|((_, bytes), sum)| {
            sum.is_some_and(|sum| fit(Some(sum), key.block(bytes)) == SumFit::Misfits)
        });
        wrong.map(|((number, _), _)| number).collect()
    }

    /// Puts a block of the disk that fits its sum into memory, which may have other bytes. Returns whether the disk has such a
    /// block.
    ///
    /// # Errors
    /// If the block cannot be read or written.
    pub fn refresh(self, ino: Ino, block: u64) -> Result<bool, RepairError> {
        let offset = block.saturating_mul(BLOCK);
        let ours = self.blocks(ino, offset, 1)?;
        let Some(right) = ours.first().filter(|block| block.fit == SumFit::Fits) else {
            return Ok(false);
        };
        self.put(ino, offset, &right.bytes)?;
        self.check_healed(ino, offset, 1)?;
        Ok(true)
    }

    /// Makes sums anew of blocks that have these hashes on the other node.
    ///
    /// # Errors
    /// If a block has other bytes here, its sum and those behind stay as they are.
    pub fn remake(self, ino: Ino, offset: u64, hashes: &[Hash128]) -> Result<(), RepairError> {
        let ours = self.blocks(ino, offset, hashes.len())?;
        for (block, theirs) in ours.iter().zip(hashes) {
            if Hash128::of(&block.bytes) != *theirs && !is_active(Mutant::RemakeUncompared) {
                let block = block.number;
                return Err(RepairError::NotRight { block });
            }
            if block.fit != SumFit::Fits {
                self.adopt(ino, block)?;
            }
        }
        Ok(())
    }

    fn adopt(self, ino: Ino, block: &OwnBlock) -> Result<(), RepairError> {
        let at = block.number * BLOCK;
        let size = self
            .store
            .tree()
            .file_times(ino)?
            .map_or(0, |times| times.size);
        let inside = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX);
        let bytes = block.bytes.get(..inside).unwrap_or(&block.bytes);
        Ok(self.sums.set_right(ino, at, bytes)?)
    }

    /// Keeps blocks aside as they are. Returns whether the folder has all of them.
    ///
    /// # Errors
    /// If the disk does not take them.
    pub fn keep(self, ino: Ino, offset: u64, count: usize) -> Result<bool, RepairError> {
        let bytes = self.read(ino, offset, count)?;
        let backing = &**self.store.backing();
        let version = [(BlockVersion::Undecided, &*bytes)];
        kept_blocks::keep(backing, ino, offset, &version).map_err(RepairError::Keep)
    }
}
