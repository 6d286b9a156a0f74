//! What of the changes that no sync covered survives a power loss.

use crate::random::Random;

/// Which changes survive. Whatever is chosen, content is kept or lost by pages of 4 KiB, lengths and
/// names one by one, and a rename never halfway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// Only what was synced.
    Nothing,
    /// All, except what a failed sync has left behind.
    Everything,
    /// All changes up to one, by their numbers in the order they were made, and none after it.
    Until(u64),
    /// Any. So many in a hundred things are found as they were last; the others in any state that
    /// they had since they were synced.
    Mixed {
        /// From 0 to 100.
        percent: u8,
    },
}

/// Shares of a mixed loss: that a single change is lost, or survives, finds other faults than halves.
const PERCENTS: [u8; 6] = [2, 10, 30, 50, 90, 98];

impl Survivors {
    /// Any survivors, of changes that have numbers from `first` to `last`.
    pub(super) fn choose(random: &mut Random, first: u64, last: u64) -> Self {
        match random.below(100) {
            0..10 => Self::Nothing,
            10..20 => Self::Everything,
            20..45 => Self::Until(first + random.below(last.saturating_sub(first) + 1)),
            _ => Self::Mixed {
                percent: *random.pick(&PERCENTS),
            },
        }
    }

    /// Whether a change of that number survives, where that is a matter of numbers.
    pub(super) fn reach(self, number: u64) -> bool {
        match self {
            Self::Nothing | Self::Mixed { .. } => false,
            Self::Everything => true,
            Self::Until(limit) => number <= limit,
        }
    }

    /// Whether a change of that number survives.
    pub(super) fn keep(self, number: u64, random: &mut Random) -> bool {
        match self {
            Self::Mixed { percent } => random.percent(percent.into()),
            _ => self.reach(number),
        }
    }
}
