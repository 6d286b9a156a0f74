//! The fast comparison of both nodes before a planned failover.
//!
//! Programs go on meanwhile. It takes at most [`LIMIT`]: an operator must be able to leave a server soon, and a comparison that is
//! not over by then says nothing.

use std::time::Duration;

use lockstep_repl::core::LockSet;
use lockstep_resync::{JobProgress, LockClaim, Locks, ResyncError};
use lockstep_verify::own_sums::StoreSums;
use lockstep_verify::{DeepCopy, Report};

use super::{CoreLocks, ResyncJobs};
use crate::report::CommandFailure;

/// The longest time of the comparison.
const LIMIT: Duration = Duration::from_secs(5);

/// The locks of the core, until the time is over.
struct LocksUntil<'a> {
    locks: CoreLocks<'a>,
    until: Duration,
}

impl LocksUntil<'_> {
    fn check_time(&self) -> Result<(), ResyncError> {
        if self.locks.engine.host.now() < self.until {
            return Ok(());
        }
        let why = "the time is over".to_owned();
        Err(ResyncError::Stopped { why })
    }
}

impl Locks for LocksUntil<'_> {
    fn with_locks(
        &self,
        locks: LockSet,
        body: &mut dyn FnMut() -> Result<(), ResyncError>,
    ) -> Result<(), ResyncError> {
        self.check_time()?;
        self.locks.with_locks(locks, body)
    }

    fn claim(&self, locks: LockSet) -> Result<Box<dyn LockClaim + '_>, ResyncError> {
        self.check_time()?;
        self.locks.claim(locks)
    }

    fn pause(&self, time: Duration) {
        self.locks.pause(time);
    }
}

impl ResyncJobs {
    /// Compares both nodes by their sums, if they are in sync.
    ///
    /// # Errors
    /// If the copies differ: programs would find other data on the other node.
    pub fn check_before_failover(&self) -> Result<(), CommandFailure> {
        let datastore = self.engine.name();
        let through = self.done_through();
        match self.compare_in_time() {
            None => Ok(()),
            Some(Err(error)) => {
                tracing::info!(datastore, %error, "no comparison of both nodes before the failover");
                Ok(())
            }
            Some(Ok(report)) => {
                let time = self.engine.host.time_of_day();
                self.engine.notes.note_comparison(&report, time);
                if report.is_identical() {
                    self.engine.notes.note_proved(through.to_string(), time);
                    return Ok(());
                }
                Err(differ(datastore, &report))
            }
        }
    }

    /// `None`: the nodes are not in sync, and the failover itself says so.
    fn compare_in_time(&self) -> Option<Result<Report, ResyncError>> {
        let peer = self.peer_in_sync().ok()?;
        let store = &self.engine.store;
        let locks = LocksUntil {
            locks: self.core_locks(&peer),
            until: self.engine.host.now() + LIMIT,
        };
        let sums = &StoreSums::of(store);
        let copy = DeepCopy { store, sums };
        let progress = JobProgress::default();
        let compared = lockstep_verify::compare_fast(copy, &peer, &locks, &progress);
        Some(compared)
    }
}

fn differ(datastore: &str, report: &Report) -> CommandFailure {
    let first = report.differences.first().map(ToString::to_string);
    CommandFailure {
        cause: format!(
            "the copies of both nodes differ in {} places, and programs would find other data there: {}",
            report.total,
            first.unwrap_or_default()
        ),
        cure: format!(
            "run `lockstep verify {datastore} --deep`, see \"verify says DIFFERENT\" in docs/operations/disks.md, and try again; \
             to leave this server all the same, stop this node, then run `lockstep promote {datastore}` on the other one"
        ),
    }
}
