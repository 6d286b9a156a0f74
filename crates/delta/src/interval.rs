//! The number of an interval, and the names of barriers.
//!
//! Invariants: the primary gives out the numbers, and each session begins above every number that either node has heard of. So a
//! number that an intact node knows never comes again for another interval. A name is never drawn twice.

use serde::{Deserialize, Serialize};

/// The number of an interval: the time between two barriers. Each write, each metadata operation and each request of a recovery
/// or a resync names the interval to which it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Interval(u64);

impl Interval {
    /// The interval before any other, to which nothing belongs.
    pub const ZERO: Self = Self(0);

    /// The interval with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The following interval. Saturates at `u64::MAX`, which a barrier every millisecond does not reach in 500 million years.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The last byte of the number, by which a message names the interval.
    pub const fn to_byte(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// The interval that a message names: the number with this last byte that is nearest to `near`, the youngest interval that
    /// the receiver knows. Right if both are less than 128 intervals apart.
    #[must_use]
    pub const fn from_byte(byte: u8, near: Self) -> Self {
        let ahead = byte.wrapping_sub(near.to_byte());
        if ahead < 128 {
            return Self(near.0.saturating_add(ahead as u64));
        }
        let behind = near.to_byte().wrapping_sub(byte) as u64;
        Self(near.0.saturating_sub(behind))
    }
}

/// The name of a barrier: the interval that the barrier ends, and sixteen random bytes. Two histories may count to the same
/// number, and only one of them has the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BarrierName {
    /// The youngest interval of which everything is stable.
    pub through: Interval,
    /// Random bytes, drawn for this barrier.
    pub nonce: [u8; 16],
}

impl BarrierName {
    /// Most names that a node knows at once: two on stable storage, and two in memory.
    pub const KNOWN_MAX: usize = 4;
}

/// The barriers that a node notes on stable storage. An attempt that only one node has reached never takes the place of the
/// barrier that both nodes have: the other node may not have heard of the attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BarrierNames {
    /// The last barrier that both nodes have reached, as far as this node knew when it noted `reached`.
    pub complete: Option<BarrierName>,
    /// The last barrier that this node has reached.
    pub reached: Option<BarrierName>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_names_the_nearest_interval() {
        for near in [0, 5, 127, 128, 255, 256, 300, 70_000] {
            for distance in -127_i64..=127 {
                let Some(number) = i64::checked_add(near, distance).filter(|it| *it >= 0) else {
                    continue;
                };
                let number = Interval::new(number.unsigned_abs());
                let near = Interval::new(near.unsigned_abs());
                assert_eq!(Interval::from_byte(number.to_byte(), near), number);
            }
        }
    }

    #[test]
    fn the_last_interval_is_followed_by_itself() {
        let last = Interval::new(u64::MAX);
        assert_eq!(last.next(), last);
        assert_eq!(Interval::from_byte(7, last).to_byte(), last.to_byte());
    }
}
