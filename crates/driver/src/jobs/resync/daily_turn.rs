//! The turn of the fast comparison of the day.

use std::time::Duration;

use parking_lot::Mutex;

use crate::host::single_job::SingleJob;

/// Time from the beginning of a session to its first comparison: the start of a node has other work.
const FIRST_AFTER: Duration = Duration::from_secs(60 * 60);
/// Time between two comparisons.
const EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// See the head of this file.
pub(super) struct DailyCheck {
    pub job: SingleJob,
    /// The moment of the next comparison, by the host's clock.
    due: Mutex<Duration>,
}

impl DailyCheck {
    /// Of a session that begins at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            job: SingleJob::default(),
            due: Mutex::new(now + FIRST_AFTER),
        }
    }

    /// Whether a comparison is due. The next one then is a day later.
    pub fn take_turn(&self, now: Duration) -> bool {
        let mut due = self.due.lock();
        let is_due = now >= *due;
        if is_due {
            *due = now + EVERY;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_has_one_comparison() {
        let start = Duration::from_secs(5);
        let daily = DailyCheck::new(start);
        assert!(!daily.take_turn(start));
        assert!(daily.take_turn(start + FIRST_AFTER));
        assert!(!daily.take_turn(start + FIRST_AFTER));
        assert!(!daily.take_turn(start + EVERY));
        assert!(daily.take_turn(start + FIRST_AFTER + EVERY));
    }
}
