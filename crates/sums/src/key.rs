//! The secret of a datastore, and the functions with that secret.
//!
//! The secret is for accidents only. It keeps a program that writes through Lockstep from choosing two blocks with the same
//! sum, as long as the program has not learned the secret. XXH3 is no MAC: a program that sees sums may find the secret.

use std::fmt;

use lockstep_types::limits::BLOCK_BYTES;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::block::BlockSum;

/// Bytes of the secret of XXH3: its default length, for which the function has been tested most.
const EXPANDED_BYTES: usize = 192;

/// Separates the bytes derived here from all others that anything derives from the same secret.
const CONTEXT: &str = "lockstep 2026-11-29 sums of blocks and files";

/// Bytes whose sum tells a secret from another one.
const PROBE: &[u8] = b"the secret of the sums";

/// The secret of the sums.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumSecret([u8; 32]);

impl SumSecret {
    /// The secret with these bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes of the secret, for the disk and for the other node only.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A log must not have the secret.
impl fmt::Debug for SumSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SumSecret(…)")
    }
}

/// Everything that is derived from a secret.
pub struct SumKey {
    secret: [u8; EXPANDED_BYTES],
    /// The hash of a block of zeros.
    zeros: u64,
    weights: [u64; 2],
}

impl SumKey {
    /// The key of a secret. Takes a microsecond: make one for all sums.
    pub fn new(SumSecret(secret): &SumSecret) -> Self {
        let mut derived = blake3::Hasher::new_derive_key(CONTEXT)
            .update(secret)
            .finalize_xof();
        let (mut secret, mut words) = ([0; EXPANDED_BYTES], [[0; 8]; 2]);
        derived.fill(&mut secret);
        derived.fill(words.as_flattened_mut());
        let mut key = Self {
            secret,
            zeros: 0,
            weights: words.map(u64::from_le_bytes),
        };
        key.zeros = key.piece(&[0; BLOCK_BYTES]);
        key
    }

    /// The sum of a piece of bytes within one block. The sum of a whole block is that of [`Self::block`]. The sum of a shorter
    /// piece depends on its length, and is the sum of no block.
    pub fn piece(&self, bytes: &[u8]) -> u64 {
        let Ok(hash) = XxHash3_64::oneshot_with_secret(&self.secret, bytes) else {
            unreachable!("the secret is longer than the least length")
        };
        hash ^ self.zeros
    }

    /// Tells the secret from another one. Says nothing else about the secret.
    pub fn probe(&self) -> u64 {
        self.piece(PROBE)
    }

    /// The sum of a block that begins with these bytes, at most [`BLOCK_BYTES`]. The rest of the block is zeros.
    pub fn block(&self, bytes: &[u8]) -> BlockSum {
        let mut block = [0; BLOCK_BYTES];
        BlockSum::from(match block.get_mut(..bytes.len()) {
            Some(start) if bytes.len() < BLOCK_BYTES => {
                start.copy_from_slice(bytes);
                self.piece(&block)
            }
            _ => self.piece(bytes),
        })
    }

    /// Whether both keys are of one secret.
    pub fn is_of_secret_of(&self, other: &Self) -> bool {
        self.weights == other.weights && self.zeros == other.zeros
    }

    /// The weight of the block with this number. It is odd, so that no factor but zero makes the product zero.
    pub(crate) const fn weight(&self, number: u64) -> u128 {
        let [low, high] = self.weights;
        let (low, high) = (scatter(number ^ low), scatter(number ^ high));
        ((high as u128) << 64) | (low | 1) as u128
    }
}

/// Says neither the secret nor anything derived from it.
impl fmt::Debug for SumKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SumKey(…)")
    }
}

/// The last step of `SplitMix64`: one to one, and each bit of the input changes half the bits of the output.
const fn scatter(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SumKey {
        SumKey::new(&SumSecret::new([byte; 32]))
    }

    #[test]
    fn zeros_have_the_sum_zero_whatever_the_secret() {
        for byte in 0..4 {
            for length in [0, 1, 100, BLOCK_BYTES] {
                assert!(key(byte).block(&vec![0; length]).is_zeros(), "{length}");
            }
        }
    }

    #[test]
    fn a_block_is_filled_up_with_zeros() {
        let (key, mut block) = (key(1), [0; BLOCK_BYTES]);
        for length in [1, 17, 129, 241, BLOCK_BYTES - 1] {
            block[..length].fill(7);
            assert_eq!(key.block(&block[..length]), key.block(&block), "{length}");
            assert_ne!(key.block(&block[..length]), key.block(&block[..length - 1]));
        }
        assert_eq!(BlockSum::from(key.piece(&block)), key.block(&block));
    }

    #[test]
    fn sums_and_weights_differ_with_the_secret() {
        let block = [5; BLOCK_BYTES];
        assert_ne!(key(1).block(&block), key(2).block(&block));
        assert_ne!(key(1).weight(0), key(2).weight(0));
        assert_ne!(key(1).weight(0), key(1).weight(1));
    }

    /// Sums lie on disks and cross the wire: another program must make the same ones.
    #[test]
    fn sums_are_those_of_every_version() {
        let key = key(1);
        let block: Vec<u8> = (0..=u8::MAX).cycle().take(BLOCK_BYTES).collect();
        let made = (key.piece(&block), key.piece(b"piece"), key.weight(1 << 40));
        let known = (
            17_493_596_592_881_658_700,
            14_620_862_621_855_786_598,
            325_186_010_370_875_173_257_971_744_605_896_882_929,
        );
        assert_eq!(made, known);
    }

    #[test]
    fn a_log_has_no_secret() {
        let secret = SumSecret::new([9; 32]);
        assert_eq!(format!("{secret:?} {:?}", key(9)), "SumSecret(…) SumKey(…)");
    }
}
