//! The sum of a file.

use crate::block::BlockSum;
use crate::key::SumKey;

/// The sum of a file: Σ weight(number) · (sum of the block), modulo 2^128.
///
/// For a random weight of each block, two files whose block sums differ have the same file sum once in 2^127 at most, and
/// never if they differ in one block only, since weights are odd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSum(u128);

impl FileSum {
    /// The sum of a file without content, or with zeros only.
    pub const ZEROS: Self = Self(0);

    /// The sum of a file with these blocks, each with its number. Blocks that are missing are zeros.
    pub fn of(key: &SumKey, blocks: impl IntoIterator<Item = (u64, BlockSum)>) -> Self {
        let mut sum = Self::ZEROS;
        for (number, block) in blocks {
            sum.replace(key, number, BlockSum::ZEROS, block);
        }
        sum
    }

    /// Puts the sum `new` in the place of the sum `old` of one block.
    pub fn replace(&mut self, key: &SumKey, number: u64, old: BlockSum, new: BlockSum) {
        let change = u128::from(new.get()).wrapping_sub(u128::from(old.get()));
        let weighed = key.weight(number).wrapping_mul(change);
        self.0 = self.0.wrapping_add(weighed);
    }

    /// The sixteen bytes of the sum.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// The sum with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::SumSecret;

    #[test]
    fn blocks_count_with_their_numbers() {
        let key = SumKey::new(&SumSecret::new([1; 32]));
        let of = |blocks: &[(u64, u64)]| {
            let blocks = blocks.iter();
            FileSum::of(&key, blocks.map(|&(number, sum)| (number, sum.into())))
        };
        assert_eq!(of(&[]), FileSum::ZEROS);
        assert_eq!(of(&[(3, 0), (1 << 50, 0)]), FileSum::ZEROS);
        assert_ne!(of(&[(0, 5), (1, 6)]), of(&[(0, 6), (1, 5)]));
        assert_ne!(of(&[(0, 5)]), of(&[(1, 5)]));
        assert_eq!(of(&[(0, 5), (1, 6)]), of(&[(1, 6), (0, 5)]));
        let sum = of(&[(0, 5), (1, 6)]);
        assert_eq!(FileSum::from_bytes(sum.to_bytes()), sum);
    }

    #[test]
    fn a_change_of_one_block_is_never_missed() {
        let key = SumKey::new(&SumSecret::new([2; 32]));
        for number in 0..1000 {
            for bit in 0..64 {
                let mut sum = FileSum::ZEROS;
                sum.replace(&key, number, BlockSum::ZEROS, (1 << bit).into());
                assert_ne!(sum, FileSum::ZEROS, "block {number}, bit {bit}");
            }
        }
    }
}
