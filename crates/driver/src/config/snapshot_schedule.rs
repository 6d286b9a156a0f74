//! How many snapshots the schedule of a datastore keeps.

use super::settings::{self, NumberSetting};

/// See the head of this file. A class of which the schedule keeps none is off; if all are, the schedule makes and deletes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotSchedule {
    /// Number of hours of which the first snapshot is kept. Bounds [`settings::SCHEDULED_COUNT`], as of all counts.
    pub hourly: u16,
    /// Number of days.
    pub daily: u16,
    /// Number of weeks, from Monday on.
    pub weekly: u16,
    /// Number of months.
    pub monthly: u16,
}

impl SnapshotSchedule {
    /// Most snapshots that all counts together name: half of all, so that the user has as many.
    pub const SUM_MAX: usize = lockstep_types::limits::SNAPSHOTS_MAX / 2;

    /// Whether the schedule makes and deletes no snapshot.
    pub fn is_off(self) -> bool {
        self == Self::default()
    }

    /// All counts, with their keys.
    pub const fn counts(self) -> [(&'static str, u16); 4] {
        [
            ("hourly", self.hourly),
            ("daily", self.daily),
            ("weekly", self.weekly),
            ("monthly", self.monthly),
        ]
    }

    /// The count with a key, to be set.
    pub fn count_mut(&mut self, key: &str) -> Option<&mut u16> {
        Some(match key {
            "hourly" => &mut self.hourly,
            "daily" => &mut self.daily,
            "weekly" => &mut self.weekly,
            "monthly" => &mut self.monthly,
            _ => return None,
        })
    }

    /// The sum of all counts.
    pub fn sum(self) -> usize {
        self.counts()
            .map(|(_, count)| usize::from(count))
            .iter()
            .sum()
    }

    /// The bounds of each count.
    pub const fn bounds() -> &'static NumberSetting {
        &settings::SCHEDULED_COUNT
    }
}
