//! The scrub: a comparison of both disks with the sums of their nodes, in the background, with a repair of all blocks that can be healed.
//!
//! A primary in sync runs it, as often as `scrub_every` says. It works at most a tenth of the time, keeps to the limits of a
//! resync, and holds the locks of a batch of files or of a piece of a file at most. Its place outlives the process
//! ([`ScrubRecord`]), by the number of the next inode.
//!
//! Invariants: one pass runs at a time. A pass that is not over has proved nothing.

use std::sync::Arc;
use std::time::Duration;

use lockstep_repl::core::LockSet;
use lockstep_resync::{LockClaim, Locks, PeerError, ResyncError};
use lockstep_types::{Ino, Timestamp};
use lockstep_verify::own_sums::StoreSums;
use lockstep_verify::{DeepCopy, Report};
use parking_lot::Mutex;

use super::scrub_record::{ScrubPass, ScrubRecord};
use super::{CoreLocks, ResyncJobs};
use crate::replication::remote::RemotePeer;
use crate::report::ScrubStatus;

/// Time between two notes of the place.
const NOTE_EVERY: Duration = Duration::from_secs(10);
/// The scrub pauses this many times as long as it has worked.
const PAUSE_FACTOR: u32 = 9;
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Time without a look after a look that found nothing due, or after a failure.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The locks of the core, for work at a tenth of the time.
struct ScrubLocks<'a> {
    locks: CoreLocks<'a>,
    /// The end of the last pause.
    worked_since: Mutex<Duration>,
}

impl ScrubLocks<'_> {
    fn is_over(&self) -> bool {
        !self.locks.peer.is_standing()
    }
}

impl Locks for ScrubLocks<'_> {
    fn with_locks(
        &self,
        locks: LockSet,
        body: &mut dyn FnMut() -> Result<(), ResyncError>,
    ) -> Result<(), ResyncError> {
        self.locks.with_locks(locks, body)
    }

    fn claim(&self, locks: LockSet) -> Result<Box<dyn LockClaim + '_>, ResyncError> {
        self.locks.claim(locks)
    }

    fn pause(&self, time: Duration) {
        self.locks.engine.sleep_unless(time, || self.is_over());
    }

    /// Each piece of work is followed by a pause.
    fn is_turn(&self) -> bool {
        false
    }

    fn wait_for_turn(&self) {
        let host = &self.locks.engine.host;
        let worked = host.since(*self.worked_since.lock());
        self.pause((worked * PAUSE_FACTOR).min(PAUSE_MAX));
        self.locks.wait_for_turn();
        *self.worked_since.lock() = host.now();
    }

    fn note_read(&self, bytes: u64) {
        self.locks.note_read(bytes);
    }
}

impl ResyncJobs {
    /// Begins or goes on with a scrub on another thread, if it is due. Costs little: each tick asks.
    pub fn look_at_scrub(self: &Arc<Self>) {
        let engine = &self.engine;
        let policies = &engine.config.current().policies;
        let Some(every) = policies.scrub_every.seconds() else {
            return;
        };
        let now = engine.host.now();
        let rests = now < *self.own_checks.scrub.rests_until.lock();
        if rests || !self.replication.state().is_in_sync() {
            return;
        }
        self.own_checks.scrub.rest(now + LOOK_EVERY);
        let Some(run) = self.own_checks.scrub.job.begin() else {
            return;
        };
        let jobs = Arc::clone(self);
        self.replication.spawn(move || {
            jobs.scrub_if_due(every);
            drop(run);
        });
    }

    /// The work of the scrub, and the result of its last pass; `None` if there is none.
    pub fn scrub_status(&self) -> Option<ScrubStatus> {
        let policies = &self.engine.config.current().policies;
        policies.scrub_every.seconds()?;
        let record = self.own_checks.scrub.record.lock();
        Some(record.as_ref().map(ScrubRecord::status).unwrap_or_default())
    }

    fn scrub_if_due(&self, every: i64) {
        let backing = self.engine.store.backing();
        let now = self.engine.host.time_of_day().secs;
        let mut record = self.own_checks.scrub.record.lock().take();
        let record = record.get_or_insert_with(|| ScrubRecord::load(backing.as_ref()));
        if record.waits_since == 0 || record.waits_since > now {
            record.waits_since = now;
            self.note_scrub(record);
        }
        if let Some((pass, ended)) = record.last.as_ref().filter(|(pass, _)| pass.is_good()) {
            let (secs, nanos) = (*ended, 0);
            let ended = Timestamp { secs, nanos };
            self.engine.notes.begin_proved(pass.through.clone(), ended);
        }
        *self.own_checks.scrub.record.lock() = Some(record.clone());
        if !record.is_due(every, now) {
            return;
        }
        let Ok(peer) = self.peer_in_sync() else {
            return;
        };
        if let Err(error) = self.scrub(&peer, record) {
            let is_over = matches!(
                error,
                ResyncError::Peer(PeerError::Lost) | ResyncError::Stopped { .. }
            );
            if !is_over {
                let datastore = self.engine.name();
                tracing::warn!(datastore, %error, "the scrub has ended early, and tries again");
            }
        }
        self.note_scrub(record);
    }

    /// Goes on with the pass of the record, or begins one, to its end.
    fn scrub(&self, peer: &RemotePeer, record: &mut ScrubRecord) -> Result<(), ResyncError> {
        let store = &self.engine.store;
        let sums = &StoreSums::of(store);
        let copy = DeepCopy { store, sums };
        let host = &self.engine.host;
        let locks = ScrubLocks {
            locks: self.core_locks(peer),
            worked_since: Mutex::new(host.now()),
        };
        if record.pass.is_none() {
            record.pass = Some((self.begin_pass(), Ino::ROOT.get()));
        }
        let mut noted = host.now();
        while let Some((pass, next)) = &mut record.pass {
            if !peer.is_standing() || !self.is_scrub_wanted() {
                return Ok(());
            }
            let compared = lockstep_verify::compare_deep_from(copy, peer, &locks, true, *next);
            let (report, after) = compared?;
            pass.add(&report);
            self.tell_scrubbed(&report);
            if let Some(after) = after {
                *next = after;
            } else {
                self.end_pass(record);
            }
            *self.own_checks.scrub.record.lock() = Some(record.clone());
            if host.since(noted) >= NOTE_EVERY {
                noted = host.now();
                self.note_scrub(record);
            }
        }
        Ok(())
    }

    fn is_scrub_wanted(&self) -> bool {
        let policies = &self.engine.config.current().policies;
        policies.scrub_every.seconds().is_some() && self.replication.state().is_in_sync()
    }

    fn begin_pass(&self) -> ScrubPass {
        let (datastore, through) = (self.engine.name(), self.done_through());
        tracing::info!(datastore, "a scrub begins");
        ScrubPass {
            began: self.engine.host.time_of_day().secs,
            through: through.to_string(),
            ..ScrubPass::default()
        }
    }

    fn end_pass(&self, record: &mut ScrubRecord) {
        let Some((pass, _)) = record.pass.take() else {
            return;
        };
        let (datastore, now) = (self.engine.name(), self.engine.host.time_of_day());
        let ScrubPass {
            inodes,
            bytes,
            differences,
            healed,
            ..
        } = pass;
        tracing::info!(
            datastore,
            inodes,
            bytes,
            differences,
            healed,
            "a scrub has ended"
        );
        if pass.is_good() {
            self.engine.notes.note_proved(pass.through.clone(), now);
        }
        record.waits_since = pass.began;
        record.last = Some((pass, now.secs));
        self.note_scrub(record);
    }

    /// Writes the record. Without it, a later process scrubs some files again.
    fn note_scrub(&self, record: &ScrubRecord) {
        *self.own_checks.scrub.record.lock() = Some(record.clone());
        if let Err(error) = record.store(self.engine.store.backing().as_ref()) {
            let datastore = self.engine.name();
            tracing::warn!(datastore, %error, "the place of the scrub is not noted");
        }
    }

    /// Differences that stay are shown by `status` at once.
    fn tell_scrubbed(&self, report: &Report) {
        let datastore = self.engine.name();
        for found in &report.differences {
            tracing::error!(datastore, %found, "the scrub has found a difference");
        }
        if !report.is_identical() {
            let time = self.engine.host.time_of_day();
            self.engine.notes.note_comparison(report, time);
        }
    }
}
