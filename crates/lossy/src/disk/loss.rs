//! The choice of unsynced changes that survive a power loss.

use crate::random::Random;

/// The surviving changes. Each choice keeps or loses content by pages of 4 KiB, and lengths and names
/// separately. No rename survives halfway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// Only synced changes.
    Nothing,
    /// All changes, except the changes that a failed sync gave up.
    Everything,
    /// All changes up to this number, in the order in which they were made.
    Until(u64),
    /// A random choice. About `percent` of 100 things keep their last state. Each other thing gets any of its
    /// states since its last sync.
    Mixed {
        /// From 0 to 100.
        percent: u8,
    },
}

/// Shares of a mixed loss. If a single change is lost or survives, other faults are found than with halves.
const PERCENTS: [u8; 6] = [2, 10, 30, 50, 90, 98];

impl Survivors {
    /// Chooses survivors at random, among changes with numbers from `first` to `last`.
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

    /// Whether the change with this number survives, if the number decides.
    pub(super) fn reach(self, number: u64) -> bool {
        match self {
            Self::Nothing | Self::Mixed { .. } => false,
            Self::Everything => true,
            Self::Until(limit) => number <= limit,
        }
    }

    /// Whether the change with this number survives.
    pub(super) fn keep(self, number: u64, random: &mut Random) -> bool {
        match self {
            Self::Mixed { percent } => random.percent(percent.into()),
            _ => self.reach(number),
        }
    }
}
