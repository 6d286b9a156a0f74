//! Which of two copies of a block is wrong: the decision, without IO.
//!
//! Each node has compared the bytes of its disk with its own sum of the block. The decision takes these two answers, and
//! whether bytes and sums are equal on both nodes (docs/protocol/sums.md).
//!
//! Invariants:
//! - A copy is called wrong only if its bytes do not fit its own sum, the bytes of the other copy fit theirs, and both sums
//!   are equal.
//! - A sum is called wrong only if both copies have the same bytes, and the sum of the other node fits them.
//! - A void sum calls nothing wrong.

use lockstep_types::mutants::{Mutant, is_active};
use serde::Serialize;

use crate::side::Side;

/// The answer of the sum of a node about the bytes on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumFit {
    /// The bytes are those of the sum.
    Fits,
    /// The bytes are others.
    Misfits,
    /// The sum says nothing.
    Void,
}

/// The answers of both nodes about a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEvidence {
    /// The answer of this node's sum.
    pub here: SumFit,
    /// The answer of the peer's sum.
    pub there: SumFit,
    /// Whether both disks have the same bytes.
    pub equal_bytes: bool,
    /// Whether both nodes have the same sum. Without meaning if a sum is void.
    pub equal_sums: bool,
}

/// The decision about a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockVerdict {
    /// Both copies are right.
    Sound,
    /// The copies are equal, and no sum vouches for them.
    Unproved,
    /// The copies are equal and fit the other node's sum. The sum of this side says nothing.
    VoidSum(Side),
    /// The disk of this side has other bytes than those that were put in place. The other copy is right.
    WrongBytes(Side),
    /// The copies are equal and fit the other node's sum, but not the sum of this side.
    WrongSum(Side),
    /// The copies differ, and each fits its sum.
    CopiesDiffer,
    /// A copy does not fit its sum, and the other one is not known to be right.
    NoneKnownRight,
    /// The copies differ, or one does not fit its sum, and a void sum leaves the right one unknown.
    UnknownByVoid,
}

impl BlockEvidence {
    /// Decides which copy, or which sum, is wrong.
    pub fn verdict(self) -> BlockVerdict {
        match (self.here, self.there) {
            (SumFit::Fits, SumFit::Fits) => match (self.equal_bytes, self.equal_sums) {
                (true, true) => BlockVerdict::Sound,
                _ => BlockVerdict::CopiesDiffer,
            },
            (SumFit::Misfits, SumFit::Fits) => self.misfit_on(Side::Here),
            (SumFit::Fits, SumFit::Misfits) => self.misfit_on(Side::There),
            (SumFit::Misfits, SumFit::Misfits) => BlockVerdict::NoneKnownRight,
            _ if !self.equal_bytes && !is_active(Mutant::AdoptUncompared) => {
                BlockVerdict::UnknownByVoid
            }
            (SumFit::Void, SumFit::Fits) => BlockVerdict::VoidSum(Side::Here),
            (SumFit::Fits, SumFit::Void) => BlockVerdict::VoidSum(Side::There),
            (SumFit::Void, SumFit::Void) => BlockVerdict::Unproved,
            (SumFit::Void, SumFit::Misfits) | (SumFit::Misfits, SumFit::Void) => {
                BlockVerdict::UnknownByVoid
            }
        }
    }

    /// The bytes of `side` do not fit its sum, and those of the other side fit theirs.
    fn misfit_on(self, side: Side) -> BlockVerdict {
        match (self.equal_bytes, self.equal_sums) {
            (false, true) if is_active(Mutant::RepairFromBad) => {
                BlockVerdict::WrongBytes(side.other())
            }
            (false, true) => BlockVerdict::WrongBytes(side),
            (true, false) => BlockVerdict::WrongSum(side),
            // Another sum may be that of other bytes. And equal bytes cannot both fit and not fit the same sum: a disk has
            // returned different bytes for two reads.
            (false, false) if is_active(Mutant::RepairOtherSum) => BlockVerdict::WrongBytes(side),
            (false, false) | (true, true) => BlockVerdict::NoneKnownRight,
        }
    }
}

impl BlockVerdict {
    /// Whether nothing of the block is wrong, as far as the nodes can tell.
    pub const fn is_good(self) -> bool {
        matches!(self, Self::Sound | Self::Unproved | Self::VoidSum(_))
    }

    /// Whether void sums of the block are made of its bytes: both disks have the same ones, and no sum contradicts.
    pub const fn adopts(self) -> bool {
        matches!(self, Self::Unproved | Self::VoidSum(_))
    }

    /// Whether both versions of the block are kept aside, because no copy is known to be right.
    pub const fn is_undecided(self) -> bool {
        matches!(
            self,
            Self::CopiesDiffer | Self::NoneKnownRight | Self::UnknownByVoid
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FITS: [SumFit; 3] = [SumFit::Fits, SumFit::Misfits, SumFit::Void];

    /// A copy of a block: the bytes on the disk and the sum, each as the number of the content that it is of.
    #[derive(Clone, Copy, Debug)]
    struct CopyOfBlock {
        bytes: u8,
        sum: Option<u8>,
    }

    impl CopyOfBlock {
        fn fit(self) -> SumFit {
            match self.sum {
                None => SumFit::Void,
                Some(sum) if sum == self.bytes => SumFit::Fits,
                Some(_) => SumFit::Misfits,
            }
        }

        /// Every copy that has one of three contents, and a sum of one of them or none.
        fn all() -> Vec<Self> {
            let sums = [None, Some(0), Some(1), Some(2)];
            let of = |bytes| sums.map(|sum| Self { bytes, sum });
            (0..3).flat_map(of).collect()
        }
    }

    fn evidence(here: CopyOfBlock, there: CopyOfBlock) -> BlockEvidence {
        BlockEvidence {
            here: here.fit(),
            there: there.fit(),
            equal_bytes: here.bytes == there.bytes,
            equal_sums: here.sum == there.sum,
        }
    }

    fn every_evidence() -> impl Iterator<Item = BlockEvidence> {
        let pairs = FITS
            .iter()
            .flat_map(|here| FITS.iter().map(move |there| (*here, *there)));
        pairs.flat_map(|(here, there)| {
            [(false, false), (false, true), (true, false), (true, true)].map(
                |(equal_bytes, equal_sums)| BlockEvidence {
                    here,
                    there,
                    equal_bytes,
                    equal_sums,
                },
            )
        })
    }

    /// The promise: each copy and each sum that is called wrong has a witness of its own.
    #[test]
    fn a_copy_is_called_wrong_only_by_a_witness_of_its_own() {
        let mut wrong = 0;
        for found in every_evidence() {
            let of = |side| match side {
                Side::Here => found.here,
                Side::There => found.there,
            };
            match found.verdict() {
                BlockVerdict::WrongBytes(side) => {
                    wrong += 1;
                    assert_eq!(of(side), SumFit::Misfits, "{found:?}");
                    assert_eq!(of(side.other()), SumFit::Fits, "{found:?}");
                    assert!(found.equal_sums && !found.equal_bytes, "{found:?}");
                }
                BlockVerdict::WrongSum(side) => {
                    wrong += 1;
                    assert_eq!(of(side), SumFit::Misfits, "{found:?}");
                    assert_eq!(of(side.other()), SumFit::Fits, "{found:?}");
                    assert!(found.equal_bytes, "{found:?}");
                }
                BlockVerdict::VoidSum(side) => {
                    assert_eq!(of(side), SumFit::Void, "{found:?}");
                    assert_eq!(of(side.other()), SumFit::Fits, "{found:?}");
                    assert!(found.equal_bytes, "{found:?}");
                }
                BlockVerdict::Sound => {
                    assert_eq!([found.here, found.there], [SumFit::Fits; 2], "{found:?}");
                    assert!(found.equal_bytes && found.equal_sums, "{found:?}");
                }
                _ => {}
            }
        }
        assert_eq!(wrong, 4, "each side, by its bytes and by its sum");
    }

    /// A void sum is made of bytes that both disks have, and never against the word of another sum.
    #[test]
    fn a_void_sum_is_made_of_equal_bytes_without_a_misfit() {
        for found in every_evidence() {
            let fits = [found.here, found.there];
            let may = found.equal_bytes
                && fits.contains(&SumFit::Void)
                && !fits.contains(&SumFit::Misfits);
            assert_eq!(found.verdict().adopts(), may, "{found:?}");
        }
    }

    #[test]
    fn both_sides_are_treated_alike() {
        let turned = |verdict| match verdict {
            BlockVerdict::WrongBytes(side) => BlockVerdict::WrongBytes(side.other()),
            BlockVerdict::WrongSum(side) => BlockVerdict::WrongSum(side.other()),
            BlockVerdict::VoidSum(side) => BlockVerdict::VoidSum(side.other()),
            other => other,
        };
        for found in every_evidence() {
            let swapped = BlockEvidence {
                here: found.there,
                there: found.here,
                ..found
            };
            assert_eq!(swapped.verdict(), turned(found.verdict()), "{found:?}");
        }
    }

    /// Over all copies with three contents: no repair that follows from a verdict makes a copy worse.
    #[test]
    fn a_verdict_never_spreads_other_bytes_than_those_of_the_sum() {
        for here in CopyOfBlock::all() {
            for there in CopyOfBlock::all() {
                let verdict = evidence(here, there).verdict();
                let of = |side| match side {
                    Side::Here => (here, there),
                    Side::There => (there, here),
                };
                match verdict {
                    BlockVerdict::WrongBytes(side) => {
                        let (wrong, right) = of(side);
                        assert_eq!(wrong.sum, Some(right.bytes));
                        assert_ne!(wrong.bytes, right.bytes);
                    }
                    BlockVerdict::WrongSum(side) | BlockVerdict::VoidSum(side) => {
                        let (wrong, right) = of(side);
                        assert_eq!(right.sum, Some(wrong.bytes));
                        assert_ne!(wrong.sum, right.sum);
                    }
                    BlockVerdict::Sound | BlockVerdict::Unproved => {
                        assert_eq!(here.bytes, there.bytes);
                    }
                    BlockVerdict::CopiesDiffer
                    | BlockVerdict::NoneKnownRight
                    | BlockVerdict::UnknownByVoid => {}
                }
            }
        }
    }

    /// The table of docs/protocol/sums.md, line by line.
    #[test]
    fn the_table_of_the_specification() {
        let of = |here, there, equal_bytes, equal_sums| {
            let found = BlockEvidence {
                here,
                there,
                equal_bytes,
                equal_sums,
            };
            found.verdict()
        };
        let [fits, misfits, void] = FITS;
        assert_eq!(of(fits, fits, true, true), BlockVerdict::Sound);
        let wrong = BlockVerdict::WrongBytes(Side::Here);
        assert_eq!(of(misfits, fits, false, true), wrong);
        assert_eq!(
            of(misfits, fits, true, false),
            BlockVerdict::WrongSum(Side::Here)
        );
        assert_eq!(of(fits, fits, false, false), BlockVerdict::CopiesDiffer);
        for (bytes, sums) in [(true, true), (true, false), (false, true), (false, false)] {
            assert_eq!(
                of(misfits, misfits, bytes, sums),
                BlockVerdict::NoneKnownRight
            );
        }
        for other in FITS {
            assert_eq!(of(void, other, false, false), BlockVerdict::UnknownByVoid);
        }
        assert_eq!(of(void, misfits, true, false), BlockVerdict::UnknownByVoid);
        assert_eq!(
            of(void, fits, true, false),
            BlockVerdict::VoidSum(Side::Here)
        );
        assert_eq!(of(void, void, true, true), BlockVerdict::Unproved);
        assert_eq!(
            of(misfits, fits, false, false),
            BlockVerdict::NoneKnownRight
        );
    }
}
