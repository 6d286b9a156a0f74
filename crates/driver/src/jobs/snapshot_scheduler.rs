//! The snapshots of the schedule, which the primary makes and deletes by itself: the work behind the decisions of `snapshot_schedule.rs`.
//!
//! A look every two seconds finds what is due, and another thread does it. A snapshot that is refused, for instance while a resync runs, is tried again
//! shortly, also one for which there is no room. One of the user is never touched, and one with a hold is not deleted.

use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::store::SnapshotAccess;
use lockstep_repl::state::State;
use lockstep_types::{Errno, MetaRequest, SnapshotId, SnapshotKind, SnapshotName};
use parking_lot::Mutex;

use super::snapshot_hooks::{HookedSnapshots, NotMade};
use super::snapshot_schedule::{self, Period, ScheduledSnapshot};
use super::snapshots::may_begin;
use crate::engine::Engine;
use crate::host::single_job::SingleJob;
use crate::ops::meta_pipeline::MetaPipeline;
use crate::ops::own_operation::carry_out;
use crate::ops::space::SpaceCheck;

/// Time from a refusal to the next attempt.
const RETRY: Duration = Duration::from_secs(10);
/// The same after a failure of a command of the operator, which freezes programs each time.
const HOOK_RETRY: Duration = Duration::from_secs(300);

/// See the head of this file.
#[derive(Default)]
pub(crate) struct SnapshotScheduler {
    job: SingleJob,
    progress: Arc<Mutex<ScheduleProgress>>,
    hooks: Arc<HookedSnapshots>,
}

/// The memory of a node that serves about its looks.
#[derive(Default)]
struct ScheduleProgress {
    /// The last period of which a snapshot was seen or made. If an operator deletes or renames that snapshot, the period gets no other one.
    covered: Option<Period>,
    /// Nothing is tried before this moment of the host's clock.
    rests_until: Duration,
    /// The period of which a refusal was logged.
    refused: Option<Period>,
}

impl ScheduleProgress {
    /// Notes that the snapshot of a period is not made yet.
    fn refused(&mut self, engine: &Engine, period: Period, why: &NotMade) {
        let rest = match why {
            NotMade::Refused(_) => RETRY,
            NotMade::Before(_) => HOOK_RETRY,
        };
        self.rests_until = engine.host.now() + rest;
        if self.refused != Some(period) && !engine.is_stopping() {
            self.refused = Some(period);
            let datastore = engine.name();
            tracing::warn!(
                datastore,
                %why,
                "the snapshot of the schedule is not made yet: another attempt follows every {} s",
                rest.as_secs()
            );
        }
    }
}

/// The work that is due.
struct ScheduledWork {
    /// The present period has no snapshot.
    period: Option<Period>,
    outdated: Vec<SnapshotId>,
}

impl SnapshotScheduler {
    /// A schedule whose snapshots take turns with those of the operator.
    pub fn new(hooks: Arc<HookedSnapshots>) -> Self {
        Self {
            hooks,
            ..Self::default()
        }
    }

    /// Begins what the schedule asks for on another thread, if there is anything and none runs.
    pub fn look(
        &self,
        engine: &Arc<Engine>,
        pipeline: &Arc<MetaPipeline>,
        space: &SpaceCheck,
        state: State,
    ) {
        if engine.config.current().policies.snapshots.is_off()
            || engine.host.now() < self.progress.lock().rests_until
            || !may_begin(state)
        {
            return;
        }
        let mut due = self.due(engine);
        if let Some(work) = &mut due
            && let Some(period) = work.period
            && space.is_low()
        {
            // Those that are there give way to programs just now.
            let why = NotMade::Refused(Errno::NoSpace);
            self.progress.lock().refused(engine, period, &why);
            work.period = None;
        }
        let Some((due, run)) = due.and_then(|due| Some((due, self.job.begin()?))) else {
            return;
        };
        let round = ScheduleRound {
            engine: Arc::clone(engine),
            pipeline: Arc::clone(pipeline),
            progress: Arc::clone(&self.progress),
            hooks: Arc::clone(&self.hooks),
        };
        engine.host.spawn(Box::new(move || {
            round.carry_out(due);
            drop(run);
        }));
    }

    fn due(&self, engine: &Engine) -> Option<ScheduledWork> {
        let schedule = engine.config.current().policies.snapshots;
        let now = engine.host.time_of_day().secs;
        let all = scheduled(SnapshotAccess::of(&engine.store));
        let period = snapshot_schedule::present_period(schedule, now)?;
        let mut progress = self.progress.lock();
        if snapshot_schedule::has_one(&all, period) {
            progress.covered = Some(period);
        }
        let due = ScheduledWork {
            period: (progress.covered != Some(period)).then_some(period),
            outdated: snapshot_schedule::outdated(schedule, now, &all),
        };
        (due.period.is_some() || !due.outdated.is_empty()).then_some(due)
    }
}

/// The snapshots of the schedule that are there. One whose name has no moment does not count: the schedule gives each one such a name.
fn scheduled(snapshots: SnapshotAccess<'_>) -> Vec<ScheduledSnapshot> {
    let all = snapshots.all();
    let taken = all.iter().filter(|(id, record)| record.is_taken(**id));
    let scheduled = taken.filter(|(_, record)| record.kind == SnapshotKind::Scheduled);
    let with_moment = scheduled.filter_map(|(id, record)| {
        Some(ScheduledSnapshot {
            id: *id,
            secs: snapshot_schedule::moment_of(&record.name)?,
            is_held: !record.holds.is_empty(),
        })
    });
    with_moment.collect()
}

/// One round of work, on its own thread.
struct ScheduleRound {
    engine: Arc<Engine>,
    pipeline: Arc<MetaPipeline>,
    progress: Arc<Mutex<ScheduleProgress>>,
    hooks: Arc<HookedSnapshots>,
}

impl ScheduleRound {
    fn carry_out(&self, due: ScheduledWork) {
        if let Some(period) = due.period {
            match self.make() {
                Ok(()) => self.progress.lock().covered = Some(period),
                Err(why) => self.progress.lock().refused(&self.engine, period, &why),
            }
        }
        for id in due.outdated {
            let request = MetaRequest::SnapshotDelete { id };
            if let Err(errno) = carry_out(request, &self.engine, &self.pipeline) {
                // An operator has deleted the snapshot meanwhile, or holds it; otherwise a later look tries again.
                let datastore = self.engine.name();
                tracing::debug!(datastore, %id, %errno, "a snapshot of the schedule stays");
                if self.engine.is_stopping() {
                    return;
                }
            }
        }
    }

    /// Makes a snapshot of this moment, under its name.
    fn make(&self) -> Result<(), NotMade> {
        let now = self.engine.host.time_of_day().secs;
        let name: Option<SnapshotName> = snapshot_schedule::name_of(now);
        let name = name.ok_or(NotMade::Refused(Errno::Range))?;
        self.hooks.scheduled(&self.engine, &self.pipeline, name)
    }
}
