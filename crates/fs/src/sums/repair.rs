//! The sums of the blocks that were changing when the process was killed: made from the bytes, before anything else changes them.
//!
//! A kill takes no byte, and the bytes of a change under way are those that this node has put in place. So the bytes say what
//! the sum of a known block is. A void sum stays void: the change may have written a part of the block.

use std::io::ErrorKind;
use std::ops::Range;

use lockstep_sums::BlockSum;
use lockstep_types::backing::BackingFile;

use super::change::read_block;
use super::changing::ChangingBlocks;
use super::file_sums::{FileSums, SumPlace};
use super::slot::BlockState;
use crate::error::StoreError;
use crate::paths::content_path;

/// Blocks of one change that are read: of more, all sums of the file are void.
const READ_BLOCKS_MAX: u32 = 64 << 10;

/// Makes the sums of these blocks anew, and file sums with them.
///
/// # Errors
/// If the disk fails.
pub(super) fn repair(place: SumPlace<'_>, changes: &[ChangingBlocks]) -> Result<(), StoreError> {
    for change in changes {
        match repair_change(place, change) {
            // Without room for a sum, the sums of the file are void.
            Err(error) if error.is_full_disk() => place.files.clear_slot(change.ino)?,
            repaired => repaired?,
        }
    }
    Ok(())
}

fn repair_change(place: SumPlace<'_>, change: &ChangingBlocks) -> Result<(), StoreError> {
    let ino = change.ino;
    // File sum and entries may be of different moments.
    FileSums::mark_behind(place, ino)?;
    let Some(mut sums) = FileSums::load(place, ino)? else {
        return Ok(());
    };
    let path = content_path(ino);
    let content = match place.files.backing().open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        opened => Some(opened.map_err(StoreError::disk("open", path))?),
    };
    let mut blocks = BlocksToRead {
        content: content.as_deref(),
        change,
        left: READ_BLOCKS_MAX,
    };
    if change.makes_zeros {
        sums.each_run(place, &change.blocks, &mut |sums, run| {
            blocks.repair(place, sums, &run)
        })?;
    } else {
        blocks.repair(place, &mut sums, &change.blocks)?;
    }
    if blocks.left == 0 {
        tracing::warn!(%ino, "the sums of the file are void: a long change was stopped");
        return place.files.clear_slot(ino);
    }
    Ok(())
}

struct BlocksToRead<'a> {
    content: Option<&'a dyn BackingFile>,
    change: &'a ChangingBlocks,
    /// Blocks that may still be read.
    left: u32,
}

impl BlocksToRead<'_> {
    fn repair(
        &mut self,
        place: SumPlace<'_>,
        sums: &mut FileSums,
        run: &Range<u32>,
    ) -> Result<(), StoreError> {
        let mut states = Vec::with_capacity(run.len());
        for (block, old) in run.clone().zip(sums.states(place, run)?) {
            states.push(self.state(place, block, old)?);
        }
        sums.put(place, run.start, &states)
    }

    fn state(
        &mut self,
        place: SumPlace<'_>,
        block: u32,
        old: BlockState,
    ) -> Result<BlockState, StoreError> {
        let Some(content) = self.content else {
            return Ok(Some(BlockSum::ZEROS));
        };
        // A block of zeros that was to become zeros has changed no byte.
        let stays = old.is_none_or(|sum| self.change.makes_zeros && sum.is_zeros());
        if stays || self.left == 0 {
            return Ok(old);
        }
        self.left -= 1;
        let bytes = read_block(content, block);
        let bytes = bytes.map_err(StoreError::content("read", self.change.ino))?;
        Ok(Some(place.key.block(&bytes)))
    }
}
