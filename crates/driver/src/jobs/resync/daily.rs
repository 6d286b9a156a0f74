//! The fast comparison of both nodes once a day: by the sums of their files, beside the clients.
//!
//! It changes nothing. Its result is that of `lockstep verify --fast`, for `status` and the log.

use std::sync::Arc;

use lockstep_repl::state::State;

use super::ResyncJobs;
use crate::report::VerifyMode;

impl ResyncJobs {
    /// Begins the comparison of the day on another thread, if it is due and the nodes are in sync. Costs little: each tick asks.
    pub fn look_at_daily_check(self: &Arc<Self>, state: State) {
        let now = self.engine.host.now();
        if !state.is_in_sync() || !self.own_checks.daily.take_turn(now) {
            return;
        }
        let Some(run) = self.own_checks.daily.job.begin() else {
            return;
        };
        let jobs = Arc::clone(self);
        self.replication.spawn(move || {
            jobs.check_of_day();
            drop(run);
        });
    }

    fn check_of_day(&self) {
        let datastore = self.engine.name();
        match self.compare_and_note(VerifyMode::Sums, &mut |_| ()) {
            Ok(report) => {
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
