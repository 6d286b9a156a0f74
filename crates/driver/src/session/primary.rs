//! The session of a primary: its parts, and the loop that executes the core's effects with them.
//!
//! Every thread that brings an event (a request of the kernel, a frame of the secondary, the end of a flush, a tick)
//! holds the core's lock while the core decides, and then executes the effects itself. It hands an operation to another
//! thread only where it would have to wait.
//!
//! Lock order: sequencer, core, operations in flight or connection. No lock is held across a send, except the
//! sequencer. The holder of the sequencer waits for nothing but this node's disk.

mod submit;

use std::collections::VecDeque;
use std::sync::Arc;

use lockstep_paw_saw::InFlightTable;
use lockstep_repl::core::{Core, Effect, Effects, Event, OpId};
use lockstep_repl::message::Message;
use lockstep_repl::state::{ServiceMode, State, Trigger};
use lockstep_roles::SessionEvent;
use lockstep_sums::SummedBytes;
use lockstep_types::{Errno, Osn};
use parking_lot::Mutex;

use crate::durable::tables::{add_writes_to_delta, ranges_of};
use crate::engine::Engine;
use crate::host::ThreadKind;
use crate::jobs::resync::ResyncJobs;
use crate::jobs::sync_mark::{self, MarkedCopy};
use crate::ops::announcements::Announcements;
use crate::ops::berths::Berths;
use crate::ops::checked_reads::CheckedReads;
use crate::ops::content::{CallerWrite, ContentOps, WriteWaits};
use crate::ops::locks::InternalLocks;
use crate::ops::meta_pipeline::MetaPipeline;
use crate::ops::paw::PawEntries;
use crate::ops::pending::{PendingOp, PendingOps};
use crate::ops::space::SpaceCheck;
use crate::ops::spill::SpillBuffer;
use crate::ops::write_backpressure::WriteBackpressure;
use crate::peer::connection::Delivery;
use crate::peer::requests::PendingRequests;
use crate::replication::{CoreDriver, Replication};
use crate::service_gate::VisibilityHold;
use crate::session::memory_return::MemoryReturn;
use crate::session::usage::SessionUsage;

/// See the head of this file.
pub(crate) struct PrimarySession {
    pub engine: Arc<Engine>,
    pub replication: Arc<Replication>,
    pub pending: Arc<PendingOps>,
    pub content: Arc<ContentOps>,
    pub pipeline: Arc<MetaPipeline>,
    pub spill: Arc<SpillBuffer>,
    memory: MemoryReturn,
    pub space: Arc<SpaceCheck>,
    pub backpressure: WriteBackpressure,
    pub requests: Arc<PendingRequests>,
    pub jobs: Arc<ResyncJobs>,
    /// Any byte here may be one that the other node lacks, until that node counts no more (rule P12).
    visibility_hold: Mutex<Option<VisibilityHold>>,
}

impl PrimarySession {
    /// A session that begins with `core`, and with the table of writes in flight of the store.
    pub fn new(engine: &Arc<Engine>, core: Core, first_osn: Osn, paw: InFlightTable) -> Arc<Self> {
        Arc::new_cyclic(|session: &std::sync::Weak<Self>| {
            let engine = Arc::clone(engine);
            let driver = session.clone();
            let replication = Replication::begin(&engine, core, first_osn, driver);
            let pending = Arc::new(PendingOps::new(engine.unknown_outcome()));
            let berths = Arc::new(Berths::of(engine.config.current().fuse_threads));
            let spill = Arc::new(SpillBuffer::new(
                Arc::clone(engine.store.backing()),
                Arc::clone(&engine.host),
                engine.host.spill_limits(),
                Arc::clone(&engine.wakes.tick_work),
            ));
            let requests = Arc::new(PendingRequests::default());
            let announcements = Arc::new(Announcements::new(&engine, &replication));
            let content = Arc::new(ContentOps::new(
                Arc::clone(&engine),
                Arc::clone(&replication),
                Arc::clone(&pending),
                PawEntries::new(paw, first_osn),
                WriteWaits::of(&berths, &announcements),
                Arc::clone(&spill),
                CheckedReads::if_wanted(&engine, &replication, &requests),
            ));
            let space = Arc::new(SpaceCheck::new(
                Arc::clone(&engine),
                Arc::clone(&replication),
                Arc::clone(&requests),
            ));
            Self {
                pipeline: Arc::new(MetaPipeline::new(
                    Arc::clone(&engine),
                    Arc::clone(&replication),
                    Arc::clone(&pending),
                    Arc::clone(&berths),
                    Arc::clone(&announcements),
                )),
                jobs: Arc::new(ResyncJobs::new(
                    Arc::clone(&engine),
                    Arc::clone(&replication),
                    Arc::clone(&requests),
                    InternalLocks::new(Arc::clone(&replication), Arc::clone(&pending)),
                    Arc::clone(&content),
                    announcements,
                )),
                backpressure: WriteBackpressure::new(
                    Arc::clone(&engine),
                    Arc::clone(&replication),
                    Arc::clone(&berths),
                    Arc::clone(&spill),
                    Arc::clone(&space),
                ),
                engine,
                replication,
                pending,
                content,
                spill,
                memory: MemoryReturn::default(),
                space,
                requests,
                visibility_hold: Mutex::default(),
            }
        })
    }

    /// Gives an event to the core and executes the effects.
    pub fn handle_event(&self, thread: ThreadKind, event: Event) {
        let effects = self.step_locked(&mut self.replication.core.lock(), event);
        self.run_effects(thread, effects);
    }

    /// Executes effects, and the effects of the events that follow. `caller`: the write of the calling thread.
    fn run_effects_with(
        &self,
        thread: ThreadKind,
        effects: Effects,
        caller: Option<CallerWrite<'_>>,
    ) {
        let Some(_working) = self.replication.begin_work() else {
            return;
        };
        let mut queue: VecDeque<Effect> = effects.into_iter().collect();
        while let Some(effect) = queue.pop_front() {
            self.engine.host.step();
            if let Some(event) = self.execute_effect(thread, effect, caller) {
                let effects = self.step_locked(&mut self.replication.core.lock(), event);
                queue.extend(effects);
            }
        }
    }

    /// Executes one effect. Returns the event that follows at once, if there is one.
    fn execute_effect(
        &self,
        thread: ThreadKind,
        effect: Effect,
        caller: Option<CallerWrite<'_>>,
    ) -> Option<Event> {
        if thread == ThreadKind::Reader && self.defer(effect) {
            return None;
        }
        match effect {
            Effect::Execute { op, osn } => return self.content.execute(thread, op, osn, caller),
            Effect::SendWrite {
                op,
                osn,
                connection,
            } => return self.content.send_write(op, osn, connection, caller),
            Effect::ResendWrite {
                op,
                osn,
                connection,
            } => self.content.resend_write(op, osn, connection),
            Effect::SendSync { op } => self.content.send_sync(op),
            Effect::Prepare { op } => return self.pipeline.prepare_on(thread, op),
            Effect::Sequenced { op, osn, mirrored } => {
                return self.pipeline.begin(op, osn, mirrored);
            }
            Effect::ResendMeta { osn } => self.pipeline.resend(osn),
            Effect::Commit { .. } => self.pipeline.commit(thread),
            Effect::Finish { op, result } => self.finish(op, result),
            Effect::Mark { in_sync } => self.spawn_mark(in_sync),
            Effect::NoteOverdue => self.note_overdue(),
            Effect::AwaitSteadyLink { losses, wait_ms } => {
                self.engine.notes.set_reason(&unsteady(losses, wait_ms));
            }
            Effect::DropLink => self.replication.close_connection(),
            Effect::Transfer(transfer, connection) => self.jobs.begin(connection, transfer),
            Effect::Entered(state) => self.note_state(state),
            Effect::Refused(refused) => self.replication.note_refused(refused),
        }
        None
    }

    /// Hands an effect that may wait, for a disk or for the sequencer, from the reader to another thread: an effect with
    /// an order to the courier thread, another one to the worker pool. The PAW entry of a write is made at once, because
    /// this node's part of the write is not deferred with the message. Returns whether the effect was handed over.
    fn defer(&self, effect: Effect) -> bool {
        if let Effect::SendWrite { op, osn, .. } = effect {
            self.content.enter_write(op, osn);
        }
        let is_ordered = match effect {
            Effect::SendWrite { .. }
            | Effect::ResendWrite { .. }
            | Effect::SendSync { .. }
            | Effect::Prepare { .. }
            | Effect::ResendMeta { .. } => true,
            Effect::Execute { op, .. } if self.pending.may_wait_for_disk(op) => false,
            _ => return false,
        };
        let replication = Arc::clone(&self.replication);
        let job = move || replication.execute_deferred(effect);
        if is_ordered {
            self.replication.spawn_ordered(job);
        } else {
            self.replication.spawn(job);
        }
        true
    }

    /// Answers the client of an operation.
    fn finish(&self, op: OpId, result: Result<(), Errno>) {
        match self.pending.remove(op) {
            Some(PendingOp::Read(read)) => (read.done)(result.map(|()| &[][..])),
            Some(PendingOp::Sync(sync)) => self.content.finish_sync(sync, result),
            Some(PendingOp::Write(write)) => self.content.finish_write(write, result),
            Some(PendingOp::Meta(meta)) => self.pipeline.finish(meta, result),
            Some(PendingOp::Locks(_)) | None => {}
        }
    }

    /// Has the courier thread make a mark, and report it to the core.
    fn spawn_mark(&self, in_sync: bool) {
        let (content, pipeline) = (Arc::clone(&self.content), Arc::clone(&self.pipeline));
        let engine = Arc::clone(&self.engine);
        sync_mark::spawn(&self.replication, in_sync, MarkedCopy::Peer, move || {
            // No operation is finished alone before the mark: each write that is on one node only has its entry.
            add_writes_to_delta(&engine.store, ranges_of(&content.paw.entries()));
            // Operations that could not be applied here have not happened, and the operations behind them continue
            // (rules P6, P15).
            content.paw.release_uncompared();
            pipeline.release_stuck();
        });
    }

    fn note_overdue(&self) {
        let limit = self.engine.config.current().answer_limit.as_millis();
        self.engine.notes.set_reason(&format!(
            "the secondary is connected, but has not answered an operation for {limit} ms: its disk \
             may hang"
        ));
    }

    fn note_state(&self, state: State) {
        self.replication.note_state(state);
        self.jobs.barriers.announcements.release();
        if state.service_mode() != ServiceMode::Wait
            && let Some(hold) = self.visibility_hold.lock().take()
        {
            // Operations that are committed now are there before a client looks.
            self.pipeline.commit(ThreadKind::Client);
            drop(hold);
        }
        if state == State::Synced {
            self.space.ask_peer_later();
        }
    }

    /// Frees the inodes that were gathered since the last tick.
    pub fn reap_gathered(&self) {
        self.pipeline.reap_gathered(self.space.has_ample_room());
    }

    /// Asks the secondary for a sign of life, or gives one while the last `Ping` is unanswered. Behind much data on a
    /// slow network, several answers would come at once, and would not say how long the secondary has had an operation
    /// (rule P15). A round trip may take longer than either node may be silent.
    pub fn ping(&self) {
        let Some(connection) = self.replication.peer.current() else {
            return;
        };
        let message = if connection.begin_ping(self.engine.host.now()) {
            Message::Alive
        } else {
            self.space.note_ping();
            let disk_silent_ms = self.engine.disk.watch.silent_ms();
            let resync = self.jobs.status(self.replication.state());
            Message::Ping {
                disk_silent_ms,
                resync,
            }
        };
        self.replication.send(
            connection.id,
            message,
            SummedBytes::default(),
            Delivery::Post,
        );
    }

    /// The secondary has answered the last `Ping`: it does not take over for a time (rule R7).
    pub fn note_pong(&self) {
        let pinged = self.replication.peer.note_pong();
        if let (Some(pinged), Some(times)) = (pinged, self.engine.config.current().failover()) {
            let (gate, host) = (&self.engine.gate, &*self.engine.host);
            gate.extend_lease(host, pinged + times.lease());
        }
    }

    /// Gives back the space that waiting writes have taken: the file once it is unused, memory once few operations are
    /// in flight, because the allocator keeps some of it.
    pub fn give_memory_back(&self) {
        if let Some(file) = self.spill.unused_file() {
            self.engine.host.spawn(Box::new(move || drop(file)));
        }
        let operations = || self.replication.core.lock().in_flight().submitted;
        if self.memory.is_due(self.spill.kept(), operations) {
            self.spill.take_kept();
            let engine = Arc::clone(&self.engine);
            let job = move || engine.host.give_memory_back();
            self.replication.spawn(job);
        }
    }

    /// The numbers of this moment.
    pub fn usage(&self) -> SessionUsage {
        SessionUsage {
            in_flight: self.content.paw.len(),
            pending: self.pending.len(),
            kept: self.spill.load(),
            oldest_metadata: self.pending.oldest_metadata(self.engine.host.now()),
        }
    }

    /// Begins the delta of a primary without its secondary, unless the next session has begun its own. In memory: the disk may hang.
    fn begin_delta(&self) {
        if let Some(_working) = self.replication.begin_work() {
            let delta = self.engine.store.delta();
            delta.begin_alone(self.replication.generation());
        }
    }

    /// Ends the delta, unless the next session has begun its own. In memory. `are_equal`: the copies are equal now. Otherwise they may
    /// differ in anything.
    fn end_delta(&self, are_equal: bool) {
        let Some(_working) = self.replication.begin_work() else {
            return;
        };
        let delta = self.engine.store.delta();
        if are_equal {
            delta.end_equal();
        } else {
            delta.end();
        }
    }

    /// Ends all waiting of threads for the peer, for locks and for room.
    fn end_waiting(&self) {
        self.requests.abandon();
        self.pending.abandon_locks();
        self.spill.room.close();
    }

    /// Ends all waiting, and the jobs of the host.
    pub fn stop(&self) {
        self.end_waiting();
        self.engine.host.stop();
        self.space.abandon_applicants();
    }

    /// Ends the session for another one. Operations that are in flight end without an outcome.
    pub fn retire(&self, reason: &str) {
        self.replication.end(reason);
        self.end_waiting();
        self.replication.wait_until_idle();
        self.space.abandon_applicants();
        self.pending.abandon();
    }
}

impl CoreDriver for PrimarySession {
    /// Size and times of finished writes become visible before another operation can get their locks.
    fn step_locked(&self, core: &mut Core, event: Event) -> Effects {
        let mut effects = Effects::new();
        if shows_difference(&event) {
            self.end_delta(false);
        }
        let is_sign_of_life = event.is_sign_of_life();
        core.handle(self.engine.now_ms(), event, &mut effects);
        self.replication.note_event(is_sign_of_life, &effects);
        // An operation may have come that lets this node ask the witness at once.
        if core.waits_for_stopped_peer() {
            self.engine.wakes.changes.raise();
        }
        for effect in &effects {
            if let Effect::Entered(state) = effect {
                self.jobs.barriers.entered(*state);
            }
            match effect {
                // Acknowledgements wait from now on.
                Effect::Entered(State::Paused) => {
                    self.begin_delta();
                }
                Effect::Finish { op, result: Ok(()) } => {
                    self.pending.publish_write(*op, &self.engine.store);
                }
                Effect::Commit { osn, op } => self.pipeline.queue(*osn, *op),
                // Here, because the secondary hears of that only later: it may become complete then.
                Effect::Entered(State::Synced) => {
                    self.end_delta(true);
                    self.engine.role.note_session(SessionEvent::EntersSync);
                }
                // The secondary has begun to follow a resync, so its own record says that it is not complete.
                Effect::Entered(State::EnteringSync) => {
                    let generation = self.replication.generation();
                    let follows = SessionEvent::SecondaryFollows(generation);
                    self.engine.role.note_session(follows);
                }
                _ => {}
            }
        }
        effects
    }

    fn run_effects(&self, thread: ThreadKind, effects: Effects) {
        self.run_effects_with(thread, effects, None);
    }

    fn execute_deferred(&self, effect: Effect) {
        let Some(_working) = self.replication.begin_work() else {
            return;
        };
        if let Some(event) = self.execute_effect(ThreadKind::MayWait, effect, None) {
            self.handle_event(ThreadKind::MayWait, event);
        }
    }
}

/// Why a primary does not take the secondary back yet (rule P23).
fn unsteady(losses: u32, wait_ms: u64) -> String {
    let seconds = wait_ms.div_ceil(1000);
    format!(
        "the connection was lost {losses} times, and programs waited each time: the secondary is brought up to date once the \
         connection has stood for {seconds} s"
    )
}

/// Whether the secondary could not do what this node has done: its copy may differ in anything.
const fn shows_difference(event: &Event) -> bool {
    matches!(
        event,
        Event::Trigger(Trigger::PeerFailed)
            | Event::WriteAcked(_, Some(_))
            | Event::MetaAcked(_, Err(_))
            | Event::SyncAcked(_, Some(_))
    )
}
