//! A bound on the log lines about failed calls of the store: a program may repeat a failing call without end.

use std::time::Duration;

use parking_lot::Mutex;

/// Most lines in one period.
const LINES_MAX: u32 = 10;
/// The period.
const PERIOD: Duration = Duration::from_secs(60);

/// The failures of one store.
#[derive(Default)]
pub(crate) struct FailureLog(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    /// The begin of the period.
    since: Duration,
    /// Lines in the period so far.
    logged: u32,
    /// Failures without a line since the last line.
    left_out: u64,
}

impl FailureLog {
    /// Whether a failure at `now` gets a line. Returns the number of failures before that got none.
    pub fn is_due(&self, now: Duration) -> Option<u64> {
        let mut log = self.0.lock();
        if log.logged == 0 || now.saturating_sub(log.since) >= PERIOD {
            log.since = now;
            log.logged = 0;
        }
        if log.logged == LINES_MAX {
            log.left_out += 1;
            return None;
        }
        log.logged += 1;
        Some(std::mem::take(&mut log.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_few_lines_and_the_next_one_tells_how_many_are_missing() {
        let log = FailureLog::default();
        let begin = Duration::from_secs(1000);
        let due = (0..1000)
            .filter_map(|_| log.is_due(begin))
            .collect::<Vec<_>>();
        assert_eq!(due, [0; LINES_MAX as usize]);
        assert_eq!(log.is_due(begin + PERIOD / 2), None);
        assert_eq!(log.is_due(begin + PERIOD), Some(1000 - 10 + 1));
        assert_eq!(log.is_due(begin + PERIOD), Some(0));
    }
}
