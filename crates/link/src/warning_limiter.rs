//! A rate limit for repeated warnings: the pause between two log lines of the same warning doubles each time.
//!
//! Invariants: the table of warnings is bounded, however many different warnings unauthenticated peers cause. At most
//! [`WARNINGS_MAX`] lines are logged within [`FIRST_PAUSE`].

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
#[derive(Debug, Default)]
pub struct WarningLimiter(Mutex<LoggedWarnings>);

#[derive(Debug, Default)]
struct LoggedWarnings {
    by_text: HashMap<String, LoggedWarning>,
    /// Warnings that found no place in the table, and were not logged.
    others: u64,
}

#[derive(Debug)]
struct LoggedWarning {
    logged: Instant,
    pause: Duration,
    /// Repetitions since then that were not logged.
    suppressed: u64,
}

/// A warning that is to be logged now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueWarning {
    /// Suppressed repetitions since the last log line of this warning.
    pub repeated: u64,
    /// Suppressed warnings that found no place in the table, since the last log line of any warning.
    pub others: u64,
}

impl WarningLimiter {
    /// Returns `Some` if the warning is to be logged now.
    pub fn is_due(&self, warning: &str, now: Instant) -> Option<DueWarning> {
        let mut logged = self.0.lock();
        let repeated = if let Some(known) = logged.by_text.get_mut(warning) {
            known.repeat(now)?
        } else if logged.make_room(now) {
            let new = LoggedWarning::new(now);
            logged.by_text.insert(warning.to_owned(), new);
            0
        } else {
            logged.others += 1;
            return None;
        };
        let others = std::mem::take(&mut logged.others);
        Some(DueWarning { repeated, others })
    }
}

impl LoggedWarnings {
    /// Whether the table has room for another warning. The warning that was logged first makes room, but not within the
    /// first pause.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.by_text.len() < WARNINGS_MAX {
            return true;
        }
        let oldest = self.by_text.iter().min_by_key(|(_, known)| known.logged);
        let Some((oldest, known)) = oldest.map(|(text, known)| (text.clone(), known)) else {
            return true;
        };
        let is_over = now.saturating_duration_since(known.logged) >= FIRST_PAUSE;
        if is_over {
            self.by_text.remove(&oldest);
        }
        is_over
    }
}

impl LoggedWarning {
    const fn new(logged: Instant) -> Self {
        Self {
            logged,
            pause: FIRST_PAUSE,
            suppressed: 0,
        }
    }

    /// Notes a repetition. Returns the number of suppressed ones if this one is to be logged.
    fn repeat(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.logged) < self.pause {
            self.suppressed += 1;
            return None;
        }
        self.logged = now;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Some(std::mem::take(&mut self.suppressed))
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
            if let Some(due) = limiter.is_due("wrong fingerprint", now) {
                logged += 1;
                counted += due.repeated + 1;
            }
        }
        assert!((20..40).contains(&logged), "{logged} lines in a day");
        assert!(counted > 400_000, "{counted}");
        assert_eq!(
            limiter.is_due("another", start),
            Some(DueWarning::default())
        );
    }

    #[test]
    fn different_warnings_take_bounded_memory_and_a_bounded_log() {
        let limiter = WarningLimiter::default();
        let start = Instant::now();
        let is_due = |number: usize| limiter.is_due(&number.to_string(), start);
        let logged = (0..1000).filter(|number| is_due(*number).is_some()).count();
        assert_eq!(logged, WARNINGS_MAX);
        let later = limiter.is_due("later", start + FIRST_PAUSE).unwrap();
        assert_eq!((later.repeated, later.others), (0, 1000 - 64));
        assert_eq!(limiter.0.lock().by_text.len(), WARNINGS_MAX);
    }
}
