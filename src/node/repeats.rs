//! Warnings that come again and again are logged ever more rarely.
//!
//! Invariant: what is kept is bounded, however many different warnings strangers bring about.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Before the same warning is logged a second time; then twice as long each time.
const FIRST: Duration = Duration::from_secs(60);
/// The longest time between two.
const LONGEST: Duration = Duration::from_secs(3600);
/// Most warnings that are told apart.
const KEPT_MAX: usize = 64;

/// Which warnings were logged, and when.
#[derive(Default)]
pub(super) struct Repeats(Mutex<HashMap<String, Repeat>>);

struct Repeat {
    logged: Instant,
    wait: Duration,
    /// How often it came since then.
    unsaid: u64,
}

impl Repeats {
    /// Whether a warning is to be logged now: how often it came unsaid since it was logged last.
    pub(super) fn is_due(&self, warning: &str, now: Instant) -> Option<u64> {
        let mut kept = self.0.lock();
        if let Some(repeat) = kept.get_mut(warning) {
            if now.saturating_duration_since(repeat.logged) < repeat.wait {
                repeat.unsaid += 1;
                return None;
            }
            repeat.logged = now;
            repeat.wait = (repeat.wait * 2).min(LONGEST);
            return Some(std::mem::take(&mut repeat.unsaid));
        }
        if kept.len() >= KEPT_MAX {
            let oldest = kept.iter().min_by_key(|(_, repeat)| repeat.logged);
            if let Some(oldest) = oldest.map(|(warning, _)| warning.clone()) {
                kept.remove(&oldest);
            }
        }
        let repeat = Repeat {
            logged: now,
            wait: FIRST,
            unsaid: 0,
        };
        kept.insert(warning.to_owned(), repeat);
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The secondary of a primary with a wrong fingerprint logged 300 lines a minute.
    #[test]
    fn the_same_warning_comes_ever_more_rarely() {
        let repeats = Repeats::default();
        let start = Instant::now();
        let mut logged = 0;
        let mut told = 0;
        for tries in 0..24 * 3600 * 5 {
            let now = start + Duration::from_millis(200) * tries;
            if let Some(unsaid) = repeats.is_due("wrong fingerprint", now) {
                logged += 1;
                told += unsaid + 1;
            }
        }
        assert!((20..40).contains(&logged), "{logged} lines in a day");
        assert!(told > 400_000, "{told}");
        assert_eq!(repeats.is_due("another", start), Some(0));
    }

    #[test]
    fn strangers_take_no_memory_without_limit() {
        let repeats = Repeats::default();
        for number in 0..1000 {
            let due = repeats.is_due(&number.to_string(), Instant::now());
            assert_eq!(due, Some(0));
        }
        assert_eq!(repeats.0.lock().len(), KEPT_MAX);
    }
}
