//! The fast comparison of both nodes once a day: by the sums of their files, beside the clients.
//!
//! It changes nothing. Its result is that of `lockstep verify --fast`, for `status` and the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_repl::state::State;
use parking_lot::Mutex;

use super::ResyncJobs;
use crate::report::VerifyMode;

/// Time from the beginning of a session to its first comparison: the start of a node has other work.
const FIRST_AFTER: Duration = Duration::from_secs(60 * 60);
/// Time between two comparisons.
const EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// See the head of this file.
pub(super) struct DailyCheck {
    is_running: AtomicBool,
    /// The moment of the next comparison, by the host's clock.
    due: Mutex<Duration>,
}

impl DailyCheck {
    /// Of a session that begins at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            is_running: AtomicBool::new(false),
            due: Mutex::new(now + FIRST_AFTER),
        }
    }

    /// Whether a comparison is due. The next one then is a day later.
    fn take_turn(&self, now: Duration) -> bool {
        let mut due = self.due.lock();
        let is_due = now >= *due;
        if is_due {
            *due = now + EVERY;
        }
        is_due
    }
}

impl ResyncJobs {
    /// Begins the comparison of the day on another thread, if it is due and the nodes are in sync. Costs little: each tick asks.
    pub fn look_at_daily_check(self: &Arc<Self>, state: State) {
        let now = self.engine.host.now();
        if !state.is_in_sync() || !self.daily.take_turn(now) {
            return;
        }
        if self.daily.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let jobs = Arc::clone(self);
        self.replication.spawn(move || {
            jobs.check_of_day();
            jobs.daily.is_running.store(false, Ordering::Release);
        });
    }

    fn check_of_day(&self) {
        let datastore = self.engine.name();
        match self.compare(VerifyMode::Sums, &mut |_| ()) {
            Ok((report, through)) => {
                let time = self.engine.host.time_of_day();
                self.engine.notes.note_comparison(&report, time);
                if report.is_identical() {
                    self.engine.notes.note_proved(through.to_string(), time);
                }
                let (inodes, differences) = (report.inodes, report.total);
                tracing::info!(
                    datastore,
                    inodes,
                    differences,
                    "the comparison of the day has ended"
                );
            }
            Err(failure) => {
                let cause = failure.cause;
                tracing::info!(
                    datastore,
                    cause,
                    "the comparison of the day has ended early"
                );
            }
        }
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
