//! Bytes with the sums of their pieces: so the link and the store hash each byte once.
//!
//! Bytes of a file are cut at the borders of its blocks. [`PieceSums`] has the sum of each piece, for one key and one place of the
//! first byte in its block. [`SummedBytes`] are bytes that may have their sums with them.
//!
//! Invariants:
//! - The sums of [`SummedBytes`] are those of its bytes. Only [`PieceSums::with`] puts both together, and hashes the bytes again in
//!   a build with assertions.
//! - Sums are given out only to a caller with the same secret, for the place at which the bytes were cut.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use lockstep_types::limits::BLOCK_BYTES;
use smallvec::SmallVec;

use crate::block::{BlockOffset, pieces};
use crate::key::SumKey;

/// The sum of a piece, little endian: the form that is hashed again for the sum of a frame.
pub type SumBytes = [u8; 8];

/// Sums that need no memory of their own: those of 256 KiB.
const INLINE: usize = 64;

/// The sums of the pieces of some bytes.
#[derive(Clone)]
pub struct PieceSums {
    key: Arc<SumKey>,
    start: BlockOffset,
    length: usize,
    sums: SmallVec<[SumBytes; INLINE]>,
}

impl PieceSums {
    /// The sums of bytes whose first one has the place `start` in its block.
    pub fn of(key: &Arc<SumKey>, start: BlockOffset, bytes: &[u8]) -> Self {
        PieceHasher::new(key, start).finish(bytes)
    }

    /// The sums of the pieces, in order.
    pub fn sums(&self) -> &[SumBytes] {
        &self.sums
    }

    /// The bytes of which these are the sums.
    ///
    /// # Panics
    /// If the bytes have another length; with assertions, also if they have other sums.
    pub fn with<'a>(&'a self, bytes: &'a [u8]) -> SummedBytes<'a> {
        assert_eq!(
            self.length,
            bytes.len(),
            "the sums are those of other bytes"
        );
        debug_assert!(
            Self::of(&self.key, self.start, bytes).sums == self.sums,
            "the sums are those of other bytes"
        );
        SummedBytes {
            bytes,
            sums: Some(self),
        }
    }
}

impl fmt::Debug for PieceSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PieceSums({} of {} bytes)", self.sums.len(), self.length)
    }
}

/// Makes the sums of the pieces of bytes that are not there as a whole yet. Each byte is hashed once.
pub struct PieceHasher(PieceSums);

impl PieceHasher {
    /// A hasher of bytes whose first one has the place `start` in its block.
    pub fn new(key: &Arc<SumKey>, start: BlockOffset) -> Self {
        Self(PieceSums {
            key: Arc::clone(key),
            start,
            length: 0,
            sums: SmallVec::new(),
        })
    }

    /// Hashes the pieces that have arrived as a whole. `arrived` begins with the first byte.
    pub fn advance(&mut self, arrived: &[u8]) {
        let before = usize::from(self.0.start.get());
        let end = (before + arrived.len()) / BLOCK_BYTES * BLOCK_BYTES;
        if let Some(more @ [_, ..]) = arrived.get(self.0.length..end.saturating_sub(before)) {
            self.add(more);
        }
    }

    /// The sums of all bytes.
    pub fn finish(mut self, bytes: &[u8]) -> PieceSums {
        self.add(bytes.get(self.0.length..).unwrap_or_default());
        self.0
    }

    /// Adds the next bytes. They begin at the border of a block, unless they are the first ones.
    fn add(&mut self, bytes: &[u8]) {
        let PieceSums {
            key,
            start,
            length,
            sums,
        } = &mut self.0;
        let start = match *length {
            0 => *start,
            _ => BlockOffset::START,
        };
        sums.extend(pieces(start, bytes).map(|piece| key.piece(piece).to_le_bytes()));
        *length += bytes.len();
    }
}

/// Bytes of a file, with the sums of their pieces if these are known.
#[derive(Clone, Copy, Debug, Default)]
pub struct SummedBytes<'a> {
    bytes: &'a [u8],
    sums: Option<&'a PieceSums>,
}

impl<'a> SummedBytes<'a> {
    /// Bytes whose sums are not known.
    pub const fn without(bytes: &'a [u8]) -> Self {
        Self { bytes, sums: None }
    }

    /// The bytes.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The sums of the pieces with this key, if the first byte has the place `start` in its block; `None` if they are not
    /// known.
    pub fn sums(&self, key: &SumKey, start: BlockOffset) -> Option<&'a [SumBytes]> {
        let known = self.sums?;
        (known.start == start && known.key.is_of_secret_of(key)).then_some(&*known.sums)
    }
}

impl<'a> From<&'a [u8]> for SummedBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::without(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for SummedBytes<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::without(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for SummedBytes<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::without(bytes)
    }
}

impl Deref for SummedBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::SumSecret;

    fn key(byte: u8) -> Arc<SumKey> {
        Arc::new(SumKey::new(&SumSecret::new([byte; 32])))
    }

    #[test]
    fn bytes_in_steps_have_the_sums_of_the_whole() {
        let (key, bytes) = (key(1), vec![7; 300_000]);
        for (offset, step) in [(0, 1000), (512, 1 << 16), (4095, 5000), (1, bytes.len())] {
            let start = BlockOffset::of(offset);
            let mut hasher = PieceHasher::new(&key, start);
            for end in (0..bytes.len()).step_by(step) {
                hasher.advance(&bytes[..end]);
            }
            let whole = PieceSums::of(&key, start, &bytes);
            assert_eq!(hasher.finish(&bytes).sums(), whole.sums(), "{offset}");
        }
    }

    #[test]
    fn sums_are_given_out_for_their_secret_and_place_only() {
        let bytes = [3; BLOCK_BYTES + 10];
        let start = BlockOffset::of(100);
        let sums = PieceSums::of(&key(1), start, &bytes);
        let summed = sums.with(&bytes);
        assert_eq!(summed.sums(&key(1), start), Some(sums.sums()));
        assert_eq!(summed.sums(&key(2), start), None);
        assert_eq!(summed.sums(&key(1), BlockOffset::START), None);
        assert_eq!(SummedBytes::from(&bytes).sums(&key(1), start), None);
    }

    #[test]
    #[should_panic(expected = "those of other bytes")]
    fn sums_are_not_put_to_other_bytes() {
        let sums = PieceSums::of(&key(1), BlockOffset::START, &[3; 5000]);
        let _summed = sums.with(&[3; 4999]);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "those of other bytes")]
    fn assertions_find_other_bytes_of_the_same_length() {
        let sums = PieceSums::of(&key(1), BlockOffset::START, &[3; 5000]);
        let _summed = sums.with(&[4; 5000]);
    }
}
