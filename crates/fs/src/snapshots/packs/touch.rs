//! A touch: blocks of one chunk of a file that were kept together, before their first change since a snapshot.
//!
//! A chunk is 64 KiB of a file: 16 blocks of 4 KiB.

use lockstep_types::Ino;
use lockstep_types::limits::BLOCK_BYTES;
use serde::{Deserialize, Serialize};

/// Blocks of a chunk.
pub const CHUNK_BLOCKS: u32 = u16::BITS;
/// Bytes of a chunk.
pub const CHUNK_BYTES: u64 = CHUNK_BLOCKS as u64 * BLOCK_BYTES as u64;

/// The first number of the packs with blocks that have arrived from the other node.
pub const ARRIVED_FROM: u64 = 1 << 63;

/// Some blocks of one chunk, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks(u16);

impl Blocks {
    /// No block.
    pub const NONE: Self = Self(0);
    /// All blocks of a chunk.
    pub const ALL: Self = Self(u16::MAX);

    /// The blocks with numbers from `from` up to but not including `to`; a chunk has no further ones than [`CHUNK_BLOCKS`].
    pub const fn range(from: u32, to: u32) -> Self {
        Self(below(to) & !below(from))
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether a block is one of these.
    pub const fn has(self, block: u32) -> bool {
        block < CHUNK_BLOCKS && self.0 & 1 << block != 0
    }

    /// The number of blocks.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether all of `other` are among these.
    pub const fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// The blocks of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those that are in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The numbers of the blocks, in order.
    pub fn numbers(self) -> impl Iterator<Item = u32> {
        (0..CHUNK_BLOCKS).filter(move |block| self.has(*block))
    }

    /// The place of a block among these.
    const fn index_of(self, block: u32) -> Option<usize> {
        if !self.has(block) {
            return None;
        }
        Some((self.0 & ((1 << block) - 1)).count_ones() as usize)
    }
}

/// The bits of the blocks before `end`.
const fn below(end: u32) -> u16 {
    if end >= CHUNK_BLOCKS {
        u16::MAX
    } else {
        (1 << end) - 1
    }
}

/// A place in a pack: the first of the kept blocks of a touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PackPlace {
    /// The number of the pack.
    pub pack: u64,
    /// The block within the pack.
    pub block: u32,
}

/// Kept blocks of one chunk, and where they lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// The kept blocks.
    pub kept: Blocks,
    /// Those of them that have other bytes than zeros. Only these take space in the pack, one behind the other.
    pub dense: Blocks,
    /// Where the first dense block lies.
    pub place: PackPlace,
    /// The sum of each dense block, with the key of the pack.
    pub sums: Vec<u64>,
}

/// Where the bytes of a kept block lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptBlock {
    /// In no place: the block has zeros.
    Zeros,
    /// In a pack, with their sum.
    Dense(PackPlace, u64),
}

impl Touch {
    /// The bytes of a block, if the touch has kept the block.
    pub fn find(&self, block: u32) -> Option<KeptBlock> {
        if !self.kept.has(block) {
            return None;
        }
        let Some(index) = self.dense.index_of(block) else {
            return Some(KeptBlock::Zeros);
        };
        let place = PackPlace {
            block: self.place.block.saturating_add(u32::try_from(index).ok()?),
            ..self.place
        };
        Some(KeptBlock::Dense(place, *self.sums.get(index)?))
    }
}

/// A chunk of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileChunk {
    /// The file.
    pub ino: Ino,
    /// The number of the chunk: its first byte is this number times [`CHUNK_BYTES`].
    pub number: u64,
}

impl FileChunk {
    /// Those blocks of the chunk that begin before byte `end` of the file.
    pub fn blocks_before(self, end: u64) -> Blocks {
        let bytes = end.saturating_sub(self.number.saturating_mul(CHUNK_BYTES));
        let blocks = bytes.div_ceil(BLOCK_BYTES as u64);
        Blocks::range(0, u32::try_from(blocks).unwrap_or(CHUNK_BLOCKS))
    }
}

/// Blocks that are to be kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTouch {
    /// The chunk.
    pub chunk: FileChunk,
    /// The blocks.
    pub kept: Blocks,
    /// Those that have other bytes than zeros.
    pub dense: Blocks,
    /// The bytes of these, one block behind the other.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

impl NewTouch {
    /// The touch of these blocks of a chunk, in order, each of [`BLOCK_BYTES`]. Blocks of zeros have no bytes in the touch.
    pub fn of<'a>(chunk: FileChunk, blocks: impl IntoIterator<Item = (u32, &'a [u8])>) -> Self {
        let (mut kept, mut dense, mut bytes) = (Blocks::NONE, Blocks::NONE, Vec::new());
        for (block, content) in blocks {
            let this = Blocks::range(block, block + 1);
            kept = kept.with(this);
            if content.iter().any(|byte| *byte != 0) {
                dense = dense.with(this);
                bytes.extend_from_slice(content);
            }
        }
        Self {
            chunk,
            kept,
            dense,
            bytes,
        }
    }

    /// Whether the bytes are those of the dense blocks, and these are kept ones.
    pub fn is_sound(&self) -> bool {
        self.kept.covers(self.dense)
            && self.bytes.len() == self.dense.count() as usize * BLOCK_BYTES
    }

    /// The bytes of a dense block; none of any other block.
    pub fn bytes_of(&self, block: u32) -> Option<&[u8]> {
        let (blocks, _) = self.bytes.as_chunks::<BLOCK_BYTES>();
        blocks
            .get(self.dense.index_of(block)?)
            .map(<[u8; _]>::as_slice)
    }

    /// The part of the touch without some blocks.
    #[must_use]
    pub fn without(&self, blocks: Blocks) -> Self {
        let left = self.kept.without(blocks).numbers();
        let zeros = [0; BLOCK_BYTES];
        let left = left.map(|block| (block, self.bytes_of(block).unwrap_or(&zeros)));
        Self::of(self.chunk, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_finds_dense_blocks_one_behind_the_other() {
        let blocks = |numbers: &[u32]| {
            let each = numbers.iter().map(|block| Blocks::range(*block, block + 1));
            each.fold(Blocks::NONE, Blocks::with)
        };
        let touch = Touch {
            kept: Blocks::range(2, 16),
            dense: blocks(&[3, 7, 15]),
            place: PackPlace { pack: 4, block: 90 },
            sums: vec![10, 11, 12],
        };
        let dense = |block, sum| Some(KeptBlock::Dense(PackPlace { pack: 4, block }, sum));
        assert_eq!(touch.find(1), None);
        assert_eq!(touch.find(2), Some(KeptBlock::Zeros));
        assert_eq!(touch.find(3), dense(90, 10));
        assert_eq!(touch.find(7), dense(91, 11));
        assert_eq!(touch.find(15), dense(92, 12));
        assert_eq!(touch.find(16), None);
        assert_eq!(blocks(&[3, 7]).numbers().collect::<Vec<_>>(), [3, 7]);
        assert_eq!(Blocks::range(0, 16), Blocks::ALL);
        assert_eq!(Blocks::range(5, 5), Blocks::NONE);
        assert!(
            Blocks::ALL
                .without(blocks(&[3]))
                .covers(Blocks::range(4, 16))
        );
    }
}
