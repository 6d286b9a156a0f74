//! The one hash of Lockstep: BLAKE3, truncated.
//!
//! Each 4 KiB block is hashed once; the same value checks the wire and is compared between nodes.

use serde::{Deserialize, Serialize};

use crate::limits::BLOCK_BYTES;

/// Hash of one block (4 KiB, or the shorter piece at either end of a range): the first 16 bytes of
/// its BLAKE3. 128 bits: no chance collision among any number of blocks that can exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockHash(pub [u8; 16]);

impl BlockHash {
    /// The hash of `block`.
    pub fn of(block: &[u8]) -> Self {
        Self(truncate(blake3::hash(block)))
    }
}

/// Hash over a whole message or record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FrameHash(pub [u8; 16]);

impl FrameHash {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(truncate(blake3::hash(bytes)))
    }
}

fn truncate(hash: blake3::Hash) -> [u8; 16] {
    let [first, ..] = hash.as_bytes().as_chunks::<16>().0 else {
        unreachable!("a BLAKE3 hash has 32 bytes")
    };
    *first
}

/// The hash of each block that the range starting at file offset `offset` touches: pieces are cut
/// at block boundaries of the file, so the first and the last may be short.
pub fn block_hashes(offset: u64, data: &[u8]) -> impl Iterator<Item = BlockHash> + '_ {
    block_pieces(offset, data).map(BlockHash::of)
}

/// Cuts `data`, which lies at file offset `offset`, at the block boundaries of the file.
pub fn block_pieces(offset: u64, data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let into_block = usize::try_from(offset % BLOCK_BYTES as u64).unwrap_or(0);
    let head = if into_block == 0 {
        0
    } else {
        (BLOCK_BYTES - into_block).min(data.len())
    };
    let (first, rest) = data.split_at(head);
    std::iter::once(first)
        .filter(|piece| !piece.is_empty())
        .chain(rest.chunks(BLOCK_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_at_file_blocks() {
        let data = vec![7u8; 9000];
        let lengths: Vec<_> = block_pieces(4000, &data).map(<[u8]>::len).collect();
        assert_eq!(lengths, [96, 4096, 4096, 712]);
        let lengths: Vec<_> = block_pieces(8192, &data).map(<[u8]>::len).collect();
        assert_eq!(lengths, [4096, 4096, 808]);
        assert_eq!(block_pieces(10, &[]).count(), 0);
    }
}
