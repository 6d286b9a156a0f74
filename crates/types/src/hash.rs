//! The hash of Lockstep: BLAKE3, truncated to 128 bits.
//!
//! The nodes compare the hashes of blocks, files, records and whole inodes. The hash also verifies messages and
//! data on the disk.

use serde::{Deserialize, Serialize};

/// The first 16 bytes of a BLAKE3 hash. 128 bits exclude a chance collision among all blocks that can exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hash128(pub [u8; 16]);

impl Hash128 {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        blake3::hash(bytes).into()
    }
}

impl From<blake3::Hash> for Hash128 {
    fn from(hash: blake3::Hash) -> Self {
        let [first, ..] = hash.as_bytes().as_chunks::<16>().0 else {
            unreachable!("a BLAKE3 hash has 32 bytes")
        };
        Self(*first)
    }
}
