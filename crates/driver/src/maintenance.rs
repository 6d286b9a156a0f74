//! Periodic work: ticks for the core, signs of life for the peer, checkpoints, the removal of the content of freed
//! inodes, the limits of the trash, and the work for snapshots: new ones, deleted ones, and those of the schedule.
//!
//! A tick comes when it is due: when the core has something to do at a moment, when a sign of life or work on the store is due, and
//! soon after anything has happened (`engine/tick_work.rs`). While nothing happens, this thread sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_fs::store::TraceAccess;
use lockstep_repl::state::State;

use crate::engine::Engine;
use crate::host::signal::wait_until;
use crate::jobs::change_readers::ReaderService;
use crate::jobs::snapshot_arrivals::SnapshotArrivals;
use crate::jobs::snapshot_hooks::HookedSnapshots;
use crate::jobs::snapshot_relief::SnapshotRelief;
use crate::jobs::snapshot_scheduler::SnapshotScheduler;
use crate::jobs::snapshots::SnapshotUpkeep;
use crate::jobs::store_place;
use crate::jobs::trash::TrashKeeper;
use crate::replication::Replication;
use crate::session::Session;

/// The shortest time between two ticks.
const TICK: Duration = Duration::from_millis(50);
/// Time between two removals of the content of freed inodes, and of the directories that are empty then.
const GARBAGE: Duration = Duration::from_secs(2);
/// Time between two checkpoints while nothing forces one.
const CHECKPOINT: Duration = Duration::from_secs(20);

/// See the head of this file.
pub(crate) struct Maintenance {
    /// A thread removes garbage or makes a checkpoint.
    is_tidying: Arc<AtomicBool>,
    snapshots: SnapshotUpkeep,
    hooks: Arc<HookedSnapshots>,
    schedule: SnapshotScheduler,
    relief: SnapshotRelief,
    arrivals: SnapshotArrivals,
    trash: TrashKeeper,
    /// Time of the last tick, in milliseconds of the host's clock.
    ticked_ms: AtomicU64,
}

/// The work for the store that is due and may take long.
#[derive(Clone, Copy)]
struct Due {
    garbage: bool,
    checkpoint: bool,
    state: State,
}

/// The moments at which periodic work was last begun.
#[derive(Clone, Copy)]
struct Rounds {
    beaten: Duration,
    collected: Duration,
    checkpointed: Duration,
}

impl Rounds {
    const fn begin(now: Duration) -> Self {
        Self {
            beaten: now,
            collected: now,
            checkpointed: now,
        }
    }

    /// The moment at which work for the store is due.
    fn next_tidying(self) -> Duration {
        (self.collected + GARBAGE).min(self.checkpointed + CHECKPOINT)
    }
}

impl Maintenance {
    /// Of a datastore that is opened at `now_ms` of the host's clock.
    pub fn new(now_ms: u64) -> Self {
        let hooks = Arc::<HookedSnapshots>::default();
        Self {
            is_tidying: Arc::default(),
            snapshots: SnapshotUpkeep::default(),
            schedule: SnapshotScheduler::new(Arc::clone(&hooks)),
            hooks,
            relief: SnapshotRelief::default(),
            arrivals: SnapshotArrivals::default(),
            trash: TrashKeeper::default(),
            ticked_ms: AtomicU64::new(now_ms),
        }
    }

    /// The turns of snapshots that are made between commands of the operator.
    pub fn hooks(&self) -> &HookedSnapshots {
        &self.hooks
    }

    /// Runs until the datastore is stopped.
    pub fn run(&self, engine: &Arc<Engine>, present: &dyn Fn() -> Session) {
        let host = &engine.host;
        let mut rounds = Rounds::begin(host.now());
        while self.wait(engine, self.next_tick(engine, &present(), rounds)) {
            engine.wakes.tick_work.begin_tick();
            self.ticked_ms.store(engine.now_ms(), Ordering::Release);
            let session = present();
            session.notice_failed_disk();
            session.tick();
            if host.now() >= rounds.beaten + engine.config.current().beat() {
                rounds.beaten = host.now();
                session.beat();
            }
            if !engine.poison.has_failed() {
                session.look_at_room();
                self.tidy(engine, &session, &mut rounds);
            }
        }
    }

    /// Waits until a tick is due, or there may be work for one. Returns `false` once the datastore is stopped.
    fn wait(&self, engine: &Engine, due: Option<Duration>) -> bool {
        let work = &engine.wakes.tick_work;
        let signals = [&*engine.wakes.changes, &work.noted];
        wait_until(&*engine.host, &signals, due, || {
            engine.is_stopping() || work.is_noted()
        });
        // Much work makes few ticks.
        let ticked = Duration::from_millis(self.ticked_ms.load(Ordering::Acquire));
        engine.wait_until(Some(ticked + TICK), || false);
        !engine.is_stopping()
    }

    /// The moment at which the next tick is due if nothing happens until then; `None` if nothing is due any more.
    fn next_tick(&self, engine: &Engine, session: &Session, rounds: Rounds) -> Option<Duration> {
        let core = session
            .replication()
            .core
            .lock()
            .pause_ends()
            .next_tick_ms();
        let regular = if matches!(session, Session::Primary(_)) {
            // A beat does what else is due.
            Some(rounds.beaten + engine.config.current().beat())
        } else if engine.poison.has_failed() {
            None
        } else if self.is_tidying.load(Ordering::Acquire) {
            Some(engine.host.now() + GARBAGE)
        } else {
            Some(rounds.next_tidying())
        };
        let all = [core.map(Duration::from_millis), regular];
        all.into_iter().flatten().min()
    }

    /// Begins the work for the store that is due.
    fn tidy(&self, engine: &Arc<Engine>, session: &Session, rounds: &mut Rounds) {
        let now = engine.host.now();
        let garbage = now >= rounds.collected + GARBAGE;
        self.look_at_snapshots(engine, session, garbage);
        let due = Due {
            garbage,
            state: session.replication().state(),
            checkpoint: engine.store.needs_checkpoint() || now >= rounds.checkpointed + CHECKPOINT,
        };
        if (due.garbage || due.checkpoint) && self.spawn_tidying(engine, due) {
            if due.garbage {
                rounds.collected = now;
            }
            if due.checkpoint {
                rounds.checkpointed = now;
            }
        }
    }

    /// Begins the work for snapshots and for the trash, every two seconds, and at once while changes of clients wait for room.
    fn look_at_snapshots(&self, engine: &Arc<Engine>, session: &Session, is_due: bool) {
        let primary = match session {
            Session::Primary(primary) => Some(primary),
            Session::Undecided(_) | Session::Secondary(_) => None,
        };
        let is_waited_for = primary.is_some_and(|it| it.space.waits_for_relief());
        if !is_due && !is_waited_for {
            return;
        }
        self.snapshots.begin(engine);
        let Some(primary) = primary else {
            return;
        };
        let (pipeline, space) = (&primary.pipeline, &primary.space);
        self.trash.look(engine, pipeline, space, is_due);
        self.relief.look(engine, pipeline, space);
        if is_due {
            let state = primary.replication.state();
            self.schedule.look(engine, pipeline, space, state);
            self.arrivals.look(engine, &primary.jobs, pipeline, space);
        }
    }

    /// Time since the last tick.
    pub fn since_tick(&self, engine: &Engine) -> Duration {
        let ticked = self.ticked_ms.load(Ordering::Acquire);
        Duration::from_millis(engine.now_ms().saturating_sub(ticked))
    }

    /// Begins the due work on another thread, unless such work is still running; returns whether it began. One thread
    /// does all of it, so that neither part keeps the other away. This thread does none: while it waited for the disk, the
    /// peer would not hear of this node, and a pause would not end.
    fn spawn_tidying(&self, engine: &Arc<Engine>, due: Due) -> bool {
        if self.is_tidying.swap(true, Ordering::AcqRel) {
            return false;
        }
        let (engine, is_tidying) = (Arc::clone(engine), Arc::clone(&self.is_tidying));
        let host = Arc::clone(&engine.host);
        host.spawn(Box::new(move || {
            if due.garbage {
                match due.state {
                    // The moment is noted.
                    State::SecondarySynced => note_contact(&engine),
                    // The changes of a node that serves alone outlive a loss of power (P28).
                    State::OutOfSync => begin_trace(engine.name(), TraceAccess::of(&engine.store)),
                    _ => {}
                }
                store_place::look(&engine);
                remove_garbage(&engine);
            }
            if due.checkpoint {
                checkpoint(&engine);
            }
            is_tidying.store(false, Ordering::Release);
        }));
        true
    }
}

/// Has the worker pool put everything on stable storage, after this node has become the primary alone. Operations that the
/// other node has acknowledged may be in the memory of this machine only, and the other copy does not count any more.
pub(crate) fn sync_soon(replication: &Replication) {
    let engine = Arc::clone(&replication.engine);
    replication.spawn(move || {
        if let Err(error) = engine.store.sync_everything() {
            tracing::error!(datastore = engine.name(), %error, "the copy of the new primary is not synced");
        }
    });
}

fn note_contact(engine: &Engine) {
    if let Err(error) = engine.notes.contact.note(engine.host.time_of_day()) {
        tracing::debug!(datastore = engine.name(), %error, "the moment of the last sync is not noted");
    }
}

/// A change alone costs a sync for each region from now on, once.
fn begin_trace(datastore: &str, trace: TraceAccess<'_>) {
    match trace.begin() {
        Ok(false) => {}
        Ok(true) => {
            tracing::info!(
                datastore,
                "the changes of this node alone are known after a loss of power, too"
            );
        }
        Err(error) if error.is_full_disk() => {
            tracing::debug!(datastore, %error, "no trace of the changes of this node alone");
        }
        Err(error) => {
            tracing::error!(datastore, %error, "no trace of the changes of this node alone");
        }
    }
}

fn remove_garbage(engine: &Engine) {
    let datastore = engine.name();
    if let Err(error) = engine.store.collect_garbage() {
        tracing::warn!(datastore, %error, "content of a freed inode stays");
    }
    if let Err(error) = engine.store.remove_empty_directories() {
        // Nothing is lost, and the next removal tries again.
        tracing::debug!(datastore, %error, "an empty directory stays");
    }
    ReaderService::of(engine).expire();
    // Space that is free now belongs to the reserve first.
    if let Err(error) = engine.disk.reserve.fill() {
        tracing::debug!(datastore, %error, "the reserve is not filled");
    }
}

fn checkpoint(engine: &Engine) {
    if let Err(error) = engine.store.checkpoint() {
        tracing::error!(datastore = engine.name(), %error, "checkpoint failed");
    }
}
