//! The times of files, and lengths of time as numbers.
//!
//! The primary reads its wall clock once per operation and sends the value with the operation, so both nodes store
//! the same time. Wall clocks may jump: only the times of files may depend on a [`Timestamp`].

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::time::OffsetDateTime;
use ::time::format_description::well_known::Rfc3339;
use serde::{Deserialize, Serialize};

/// A length of time in whole milliseconds, at most [`u64::MAX`].
pub fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// Nanoseconds in a second.
const NANOS_PER_SEC: u32 = 1_000_000_000;

/// A time with a resolution of one nanosecond, before or after the epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Whole seconds since the epoch; negative before it.
    pub secs: i64,
    /// Nanoseconds to add to `secs`: 0 to 999,999,999.
    pub nanos: u32,
}

/// Shows `secs`, a point, and the nine digits of `nanos`. `nanos` counts up before the epoch, too.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.secs, self.nanos)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self {
                secs: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                nanos: after.subsec_nanos(),
            },
            Err(error) => Self::before_epoch(error.duration()),
        }
    }
}

impl Timestamp {
    /// The time in UTC for people, in whole seconds, such as `2025-11-20T21:46:00Z`. A time that has no such form, before the year 0 or
    /// after 9999, is shown as a number of seconds.
    pub fn utc(self) -> String {
        let moment = OffsetDateTime::from_unix_timestamp(self.secs).ok();
        let text = moment.and_then(|moment| moment.format(&Rfc3339).ok());
        text.unwrap_or_else(|| format!("{} s after 1970", self.secs))
    }

    fn before_epoch(before: Duration) -> Self {
        let secs = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
        match before.subsec_nanos() {
            0 => Self {
                secs: -secs,
                nanos: 0,
            },
            nanos => Self {
                secs: -secs - 1,
                nanos: NANOS_PER_SEC - nanos,
            },
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let whole = Duration::from_secs(time.secs.unsigned_abs());
        let base = if time.secs >= 0 {
            UNIX_EPOCH.checked_add(whole)
        } else {
            UNIX_EPOCH.checked_sub(whole)
        };
        base.and_then(|base| base.checked_add(Duration::from_nanos(u64::from(time.nanos))))
            .unwrap_or(UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_shown_with_all_its_digits() {
        let shown = |secs, nanos| Timestamp { secs, nanos }.to_string();
        assert_eq!(shown(1_700_000_000, 5), "1700000000.000000005");
        assert_eq!(shown(-3, 999_999_999), "-3.999999999");
    }

    #[test]
    fn is_shown_in_utc_as_far_as_the_form_goes() {
        let shown = |secs| Timestamp { secs, nanos: 7 }.utc();
        assert_eq!(shown(1_763_675_160), "2025-11-20T21:46:00Z");
        assert_eq!(shown(0), "1970-01-01T00:00:00Z");
        assert_eq!(shown(i64::MAX), "9223372036854775807 s after 1970");
    }

    #[test]
    fn round_trips_on_both_sides_of_the_epoch() {
        for (secs, nanos) in [(0, 0), (5, 7), (-1, 999_999_999), (-3, 0), (1 << 33, 1)] {
            let time = Timestamp { secs, nanos };
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }
}
