//! The counter of inode numbers.
//!
//! Invariant: no number is given out twice, even if power is lost (rule P13). A number is given out only below the
//! limit, and a checkpoint has made the limit durable before.

use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_types::Ino;

/// Inode numbers in one range. A node leaves out at least as many as the other node may have given out.
const RANGE: u64 = 1 << 24;

/// The ranges of inode numbers in which a node goes on after it has left numbers out. Each range has 2²⁴ numbers, and the even
/// and the odd ones take turns. The two nodes of a datastore have different ones: both may leave numbers out, one after the
/// other, before they meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InoRanges {
    /// The ranges that begin at an even multiple of 2²⁴.
    #[default]
    Even,
    /// The ranges that begin at an odd multiple of 2²⁴.
    Odd,
}

impl InoRanges {
    /// Returns the first number of one of these ranges: at least a range of numbers from `below` on, and `further` more ranges
    /// of this node, are left out.
    const fn after(self, below: u64, further: u16) -> u64 {
        let first = below.saturating_add(RANGE).div_ceil(RANGE);
        let parity = match self {
            Self::Even => 0,
            Self::Odd => 1,
        };
        let ranges = first + (first + parity) % 2 + 2 * further as u64;
        ranges.saturating_mul(RANGE)
    }
}

/// The next inode number, and the durable limit of numbers.
pub struct InoNumbers {
    next: AtomicU64,
    limit: AtomicU64,
}

impl InoNumbers {
    /// A counter that starts at the limit of the last checkpoint: any number below may have been given out.
    pub(super) const fn new(limit: u64) -> Self {
        Self {
            next: AtomicU64::new(limit),
            limit: AtomicU64::new(limit),
        }
    }

    /// Takes the next number. The caller uses the number only once [`Self::limit`] is above it.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Every number that was given out here, or came from the other node, is below this.
    pub fn below(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The durable limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    /// A checkpoint has made a limit durable.
    pub fn raise_limit(&self, limit: u64) {
        self.limit.fetch_max(limit, Ordering::Release);
    }

    /// The other node has given out numbers below `below`: this node gives none of them out.
    pub fn skip_below(&self, below: u64) {
        self.next.fetch_max(below, Ordering::Relaxed);
    }

    /// The other node may have given out the next 2²⁴ numbers, or those in its own ranges: this node goes on in `ranges`.
    ///
    /// The copy in which this node has gone on before may be lost with its disk. So `further`, the number of own ranges that are
    /// left out besides, is drawn at random: this node hardly gives out a number of the lost copy.
    pub fn leave_out(&self, ranges: InoRanges, further: u16) {
        let after = |below| Some(ranges.after(below, further));
        let updated = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        debug_assert!(updated.is_ok(), "the update always has a value");
    }

    /// The other node has given out `ino`: this node does not give out the number again.
    pub fn skip(&self, ino: Ino) {
        self.skip_below(ino.next().get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first numbers that a node gives out each time that it has left numbers out.
    fn firsts(from: u64, ranges: InoRanges, further: &[u16]) -> Vec<u64> {
        let numbers = InoNumbers::new(from);
        let leave_out = |further: &u16| {
            numbers.leave_out(ranges, *further);
            numbers.below()
        };
        further.iter().map(leave_out).collect()
    }

    #[test]
    fn two_nodes_that_leave_numbers_out_go_on_in_different_ranges() {
        for from in [2, RANGE - 1, RANGE, RANGE + 1, 7 * RANGE + 5] {
            let even = firsts(from, InoRanges::Even, &[0, 0, 7, u16::MAX]);
            // The other node has heard of a few more numbers.
            let odd = firsts(from + 1000, InoRanges::Odd, &[0, 3, 0, u16::MAX]);
            for (range, parity) in [(&even, 0), (&odd, 1)] {
                assert!(
                    range
                        .iter()
                        .all(|first| first % RANGE == 0 && first / RANGE % 2 == parity)
                );
                assert!(range.iter().all(|first| *first >= from + RANGE));
                assert!(range.is_sorted_by(|one, next| one + RANGE <= *next));
            }
        }
    }

    #[test]
    fn a_node_does_not_go_on_in_a_range_of_its_lost_copy() {
        // A command that is repeated leaves numbers out each time.
        let lost = firsts(7, InoRanges::Odd, &[5000, 600, 70]);
        // The other node has not met this one since, and makes a file.
        let other = firsts(7, InoRanges::Even, &[8000]);
        let with_new_disk = firsts(other[0] + 1, InoRanges::Odd, &[300, 20, 1]);
        assert!(with_new_disk.iter().all(|first| !lost.contains(first)));
    }

    #[test]
    fn numbers_are_left_out_up_to_the_end() {
        for further in [0, u16::MAX] {
            let numbers = InoNumbers::new(u64::MAX - 1);
            numbers.leave_out(InoRanges::Odd, further);
            assert_eq!(numbers.below(), u64::MAX);
        }
    }
}
