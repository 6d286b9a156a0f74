//! The sum of a block, and the cut of bytes at the borders of blocks.

use std::iter;

use lockstep_types::limits::BLOCK_BYTES;

/// The sum of one block. Zero if the block has only zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSum(u64);

impl BlockSum {
    /// The sum of a block of zeros, and of a block that the file does not have.
    pub const ZEROS: Self = Self(0);

    /// Whether the block has only zeros. For other blocks the answer is wrong once in 2^64.
    pub const fn is_zeros(self) -> bool {
        self.0 == 0
    }

    /// The sum with these bytes, little endian.
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }

    /// The sum as a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for BlockSum {
    fn from(sum: u64) -> Self {
        Self(sum)
    }
}

/// The place of a byte within its block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockOffset(u16);

impl BlockOffset {
    /// The first byte of a block.
    pub const START: Self = Self(0);

    /// The place of the byte at `offset` of a file.
    pub fn of(offset: u64) -> Self {
        let within = offset % BLOCK_BYTES as u64;
        Self(u16::try_from(within).unwrap_or_default())
    }

    /// The place as a number, below [`BLOCK_BYTES`].
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The place with this number; `None` from [`BLOCK_BYTES`] on.
    pub fn new(place: u32) -> Option<Self> {
        let place = u16::try_from(place).ok()?;
        (usize::from(place) < BLOCK_BYTES).then_some(Self(place))
    }

    /// Number of bytes from here to the next block that begins; zero for the first byte of a block.
    pub fn bytes_to_border(self) -> usize {
        (BLOCK_BYTES - usize::from(self.0)) % BLOCK_BYTES
    }
}

/// The pieces of `bytes` in each block of the file, if the first byte has the place `start` in its block. All but the first
/// and the last piece are whole blocks.
pub fn pieces(start: BlockOffset, bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (head, rest) = bytes.split_at(start.bytes_to_border().min(bytes.len()));
    iter::once(head)
        .filter(|head| !head.is_empty())
        .chain(rest.chunks(BLOCK_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_at_the_borders_of_blocks() {
        let bytes = vec![1; 2 * BLOCK_BYTES + 10];
        let lengths = |offset| -> Vec<usize> {
            let pieces = pieces(BlockOffset::of(offset), &bytes);
            pieces.map(<[u8]>::len).collect()
        };
        assert_eq!(lengths(0), [4096, 4096, 10]);
        assert_eq!(lengths(4096), [4096, 4096, 10]);
        assert_eq!(lengths(4095), [1, 4096, 4096, 9]);
        assert_eq!(lengths(4086 + (1 << 40)), [10, 4096, 4096]);
        assert_eq!(pieces(BlockOffset::of(5), &[]).count(), 0);
        let short: Vec<_> = pieces(BlockOffset::of(5), &[1, 2]).collect();
        assert_eq!(short, [[1, 2]]);
    }

    #[test]
    fn a_place_lies_within_a_block() {
        assert_eq!(BlockOffset::new(4095), Some(BlockOffset::of(u64::MAX)));
        assert_eq!(BlockOffset::new(4096), None);
        assert_eq!(BlockOffset::new(u32::MAX), None);
    }
}
