//! The words of the lock manager: an operation, a range of blocks, and the ways in which a key is locked.

use lockstep_types::limits::BLOCK_BYTES;

/// Identity of an operation for the lock manager and the core, as long as the operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// The way in which a key is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Alone: for a metadata operation on the key.
    Exclusive,
    /// Together with other operations that do not change the key: for an operation that needs the key to stay.
    Shared,
    /// As shared, and the blocks of the range together with other readers.
    Read(BlockRange),
    /// As shared, and the blocks of the range alone.
    Write(BlockRange),
}

/// A range of bytes widened to whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl BlockRange {
    /// The blocks that bytes `offset..offset + length` touch.
    pub fn new(offset: u64, length: u64) -> Self {
        let block = BLOCK_BYTES as u64;
        Self {
            start: offset / block * block,
            end: offset
                .saturating_add(length)
                .div_ceil(block)
                .saturating_mul(block),
        }
    }

    /// Number of bits of the length in bytes.
    pub(super) const fn length_bits(self) -> u32 {
        u64::BITS - self.end.saturating_sub(self.start).leading_zeros()
    }

    pub(super) const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl LockMode {
    pub(super) const fn conflicts(self, other: Self) -> bool {
        match (self, other) {
            (Self::Exclusive, _) | (_, Self::Exclusive) => true,
            (Self::Write(a), Self::Read(b) | Self::Write(b)) | (Self::Read(a), Self::Write(b)) => {
                a.overlaps(b)
            }
            _ => false,
        }
    }
}
