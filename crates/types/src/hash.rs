//! The one hash of Lockstep: BLAKE3, truncated.
//!
//! Blocks are compared between the nodes by it, messages and records are verified by it.

use serde::{Deserialize, Serialize};

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
        blake3::hash(bytes).into()
    }
}

impl From<blake3::Hash> for FrameHash {
    fn from(hash: blake3::Hash) -> Self {
        Self(truncate(hash))
    }
}

fn truncate(hash: blake3::Hash) -> [u8; 16] {
    let [first, ..] = hash.as_bytes().as_chunks::<16>().0 else {
        unreachable!("a BLAKE3 hash has 32 bytes")
    };
    *first
}
