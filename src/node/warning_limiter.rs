//! A rate limit for repeated warnings: the pause between two log lines of the same warning doubles each time.
//!
//! Invariant: the table of warnings is bounded, however many different warnings unauthenticated peers cause.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Pause before the same warning is logged a second time. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Most warnings in the table.
const WARNINGS_MAX: usize = 64;

/// The logged warnings, by their text.
#[derive(Default)]
pub(super) struct WarningLimiter(Mutex<HashMap<String, LoggedWarning>>);

struct LoggedWarning {
    logged: Instant,
    pause: Duration,
    /// Repetitions since then that were not logged.
    suppressed: u64,
}

impl WarningLimiter {
    /// Returns `Some` if the warning is to be logged now, with the number of suppressed repetitions since its last
    /// log line.
    pub(super) fn is_due(&self, warning: &str, now: Instant) -> Option<u64> {
        let mut kept = self.0.lock();
        if let Some(known) = kept.get_mut(warning) {
            if now.saturating_duration_since(known.logged) < known.pause {
                known.suppressed += 1;
                return None;
            }
            known.logged = now;
            known.pause = (known.pause * 2).min(LONGEST_PAUSE);
            return Some(std::mem::take(&mut known.suppressed));
        }
        if kept.len() >= WARNINGS_MAX {
            let oldest = kept.iter().min_by_key(|(_, known)| known.logged);
            if let Some(oldest) = oldest.map(|(warning, _)| warning.clone()) {
                kept.remove(&oldest);
            }
        }
        let known = LoggedWarning {
            logged: now,
            pause: FIRST_PAUSE,
            suppressed: 0,
        };
        kept.insert(warning.to_owned(), known);
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The secondary of a primary with a wrong fingerprint logged 300 lines a minute.
    #[test]
    fn the_same_warning_is_logged_less_and_less_often() {
        let limiter = WarningLimiter::default();
        let start = Instant::now();
        let mut logged = 0;
        let mut counted = 0;
        for tries in 0..24 * 3600 * 5 {
            let now = start + Duration::from_millis(200) * tries;
            if let Some(suppressed) = limiter.is_due("wrong fingerprint", now) {
                logged += 1;
                counted += suppressed + 1;
            }
        }
        assert!((20..40).contains(&logged), "{logged} lines in a day");
        assert!(counted > 400_000, "{counted}");
        assert_eq!(limiter.is_due("another", start), Some(0));
    }

    #[test]
    fn different_warnings_take_bounded_memory() {
        let limiter = WarningLimiter::default();
        for number in 0..1000 {
            let due = limiter.is_due(&number.to_string(), Instant::now());
            assert_eq!(due, Some(0));
        }
        assert_eq!(limiter.0.lock().len(), WARNINGS_MAX);
    }
}
