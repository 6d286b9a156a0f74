//! The comparison of both nodes by their sums before a planned failover.
//!
//! Programs go on meanwhile. An operator must be able to leave a server soon, also if the other node is slow or silent: the comparison
//! takes [`LIMIT`] at most, also if it waits for a lock or for the disk, and one that is not over by then proves nothing. So it runs on another thread,
//! which ends by itself, by the limits of its answers, or with the session.

use std::sync::Arc;
use std::time::Duration;

use lockstep_repl::core::LockSet;
use lockstep_resync::{JobProgress, LockClaim, Locks, PeerError, ResyncError};
use lockstep_types::Osn;
use lockstep_verify::own_sums::StoreSums;
use lockstep_verify::{DeepCopy, Report};

use super::{CoreLocks, ResyncJobs, stopped};
use crate::host::oneshot::{PromiseOutcome, promise};
use crate::replication::remote::AnswerLimits;
use crate::report::CommandFailure;

/// The longest time of the comparison.
const LIMIT: Duration = Duration::from_secs(3);
/// The longest time for one answer: locks of clients are held meanwhile.
const ANSWER_LIMIT: Duration = Duration::from_millis(800);

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
        Err(late())
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
    /// Compares both nodes by their sums, if they are in sync. Returns why the copies are not proved to be the same, if they are not.
    ///
    /// # Errors
    /// If the copies differ, unless `accepts_differences`: programs would find other data on the other node.
    pub fn check_before_failover(
        self: &Arc<Self>,
        accepts_differences: bool,
    ) -> Result<Option<String>, CommandFailure> {
        let datastore = self.engine.name();
        let host = &*self.engine.host;
        let until = host.now() + LIMIT;
        let (told, outcome) = promise(host);
        let jobs = Arc::clone(self);
        self.replication
            .spawn(move || told.keep(jobs.compare_until(until)));
        let (report, through) = match outcome.get_until(host, until) {
            // The failover says that the nodes are not in sync.
            PromiseOutcome::Fulfilled(None) => return Ok(None),
            PromiseOutcome::Fulfilled(Some(Ok(compared))) => compared,
            PromiseOutcome::Fulfilled(Some(Err(error))) => {
                return Ok(Some(self.unproved_for(&error)));
            }
            PromiseOutcome::Never => {
                return Ok(Some(self.unproved_for(&stopped("the session ends"))));
            }
            PromiseOutcome::Late => return Ok(Some(self.unproved_for(&late()))),
        };
        self.note_compared(&report, through);
        if report.is_identical() {
            return Ok(None);
        }
        if accepts_differences {
            return Ok(Some(differences(&report)));
        }
        Err(refusal(datastore, &report))
    }

    /// `None`: the nodes are not in sync.
    fn compare_until(&self, until: Duration) -> Option<Result<(Report, Osn), ResyncError>> {
        let peer = self.peer_in_sync().ok()?;
        let peer = peer.within(AnswerLimits {
            until,
            each: ANSWER_LIMIT,
        });
        let through = self.done_through();
        let store = &self.engine.store;
        let locks = LocksUntil {
            locks: self.core_locks(&peer),
            until,
        };
        let sums = &StoreSums::of(store);
        let copy = DeepCopy { store, sums };
        let progress = JobProgress::default();
        let compared = lockstep_verify::compare_fast(copy, &peer, &locks, &progress);
        Some(compared.map(|report| (report, through)))
    }

    /// The reason for which nothing is proved, for the operator and the log.
    fn unproved_for(&self, error: &ResyncError) -> String {
        let datastore = self.engine.name();
        let reason = match error {
            ResyncError::Peer(PeerError::Late { .. }) => format!(
                "the comparison of both nodes was not over in time: {} s, and {} ms for one answer",
                LIMIT.as_secs(),
                ANSWER_LIMIT.as_millis()
            ),
            error => error.to_string(),
        };
        tracing::warn!(
            datastore,
            reason,
            "the failover goes on, and the copies are not proved to be the same"
        );
        reason
    }
}

fn late() -> ResyncError {
    let what = "compare everything";
    PeerError::Late { what }.into()
}

fn differences(report: &Report) -> String {
    let first = report.differences.first().map(ToString::to_string);
    format!(
        "the copies of both nodes differ in {} places: {}",
        report.total,
        first.unwrap_or_default()
    )
}

fn refusal(datastore: &str, report: &Report) -> CommandFailure {
    CommandFailure {
        cause: format!(
            "{}; programs would find other data there",
            differences(report)
        ),
        cure: format!(
            "run `lockstep verify {datastore} --deep`, see \"verify says DIFFERENT\" in docs/operations/disks.md, and try again; \
             to leave this server all the same, run `lockstep failover {datastore} --despite-differences`"
        ),
    }
}
