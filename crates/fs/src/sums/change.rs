//! A change of bytes, as the blocks of a file see it.

use std::io;
use std::ops::Range;

use lockstep_sums::{BlockSpan, SummedBytes};
use lockstep_types::Ino;
use lockstep_types::backing::BackingFile;
use lockstep_types::limits::BLOCK_BYTES;

use crate::error::StoreError;

pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;

/// The bytes that a change puts in place.
#[derive(Clone, Copy, Debug)]
pub enum NewBytes<'a> {
    /// These bytes.
    Data {
        /// The place of the first byte.
        offset: u64,
        /// The bytes, with the sums of their blocks if these are known.
        data: SummedBytes<'a>,
    },
    /// Zeros, or nothing. An end of `u64::MAX` stands for everything from the first byte on.
    Zeros {
        /// The first byte.
        from: u64,
        /// The end of the bytes.
        to: u64,
    },
    /// The bytes stay. The file may grow by zeros.
    Same,
}

impl NewBytes<'_> {
    /// The bytes that change.
    pub(super) fn range(&self) -> Range<u64> {
        match *self {
            Self::Data { offset, data } => offset..offset.saturating_add(data.len() as u64),
            Self::Zeros { from, to } => from..to,
            Self::Same => 0..0,
        }
    }

    /// All blocks that change.
    pub(super) fn blocks(&self) -> Range<u32> {
        let span = BlockSpan::of(&self.range());
        let first = span.head.or(span.tail).unwrap_or(span.whole.start);
        let end = span.tail.map_or(span.whole.end, |tail| tail + 1);
        let end = span.head.map_or(end, |head| end.max(head + 1));
        block_number(first.min(span.whole.start))..block_number(end)
    }

    /// Lays the part of the new bytes that falls into a block over its old bytes.
    pub(super) fn lay_over(&self, block: u32, bytes: &mut [u8; BLOCK_BYTES]) {
        let range = self.range();
        let start = u64::from(block) * BLOCK;
        let first = range.start.max(start);
        let end = range.end.min(start + BLOCK);
        if first >= end {
            return;
        }
        let at = |place: u64, from: u64| usize::try_from(place - from).unwrap_or(BLOCK_BYTES);
        let Some(target) = bytes.get_mut(at(first, start)..at(end, start)) else {
            return;
        };
        match *self {
            Self::Data { offset, data } => {
                let data = data.bytes().get(at(first, offset)..at(end, offset));
                target.copy_from_slice(data.unwrap_or_default());
            }
            Self::Zeros { .. } | Self::Same => target.fill(0),
        }
    }
}

/// The number of a block. A file has fewer than 2^32 blocks, so the greatest number stands for no block.
pub(super) fn block_number(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Number of blocks of a file of this length.
pub(super) fn blocks_of(length: u64) -> u32 {
    block_number(length.div_ceil(BLOCK))
}

/// The bytes of a block; zeros behind the end of the content.
pub(super) fn read_block(content: &dyn BackingFile, block: u32) -> io::Result<[u8; BLOCK_BYTES]> {
    let mut bytes = [0; BLOCK_BYTES];
    content.read_at(u64::from(block) * BLOCK, &mut bytes)?;
    Ok(bytes)
}

/// The length of a content file.
pub(super) fn length_of(content: &dyn BackingFile, ino: Ino) -> Result<u64, StoreError> {
    let stat = content.stat().map_err(StoreError::content("stat", ino))?;
    Ok(stat.length)
}
