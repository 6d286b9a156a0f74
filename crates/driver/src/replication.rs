//! The replication of a datastore in one session: the core, its generation, and the connection with the peer.
//!
//! All parts of the session share the replication; the replication reaches the session through [`CoreDriver`] only, and does
//! not keep the session alive.
//!
//! Invariant: a message of the core's protocol carries the watermark of the core: [`Replication`] sends it. A message outside the
//! core's protocol, such as a greeting, carries none.

mod activity;
pub(crate) mod greeting;
pub(crate) mod remote;
pub(crate) mod role_exchange;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockstep_link::SendFrames;
use lockstep_repl::core::{ConnectionId, Core, Effect, Effects, Event};
use lockstep_repl::message::{Envelope, Message};
use lockstep_repl::state::{RefusedTrigger, State, Trigger};
use lockstep_sums::SummedBytes;
use lockstep_types::{Generation, Osn, StateVersion, SyncId};
use parking_lot::Mutex;

use crate::engine::Engine;
use crate::host::{Job, ThreadKind};
use crate::peer::connection::{ActiveConnection, Delivery, PeerConnection, deliver};
use activity::{Activity, Working};

/// Steps the core and executes its effects: the session of a role.
pub(crate) trait CoreDriver: Send + Sync {
    /// Lets the core decide on an event. The caller holds the core's lock. Nothing is executed yet.
    fn step_locked(&self, core: &mut Core, event: Event) -> Effects;

    /// Executes effects, and the effects of the events that follow from them.
    fn run_effects(&self, thread: ThreadKind, effects: Effects);

    /// Executes an effect that the reader has handed to another thread.
    fn execute_deferred(&self, effect: Effect);
}

/// See the head of this file.
pub(crate) struct Replication {
    pub engine: Arc<Engine>,
    pub core: Mutex<Core>,
    /// The first number that this replication gives out.
    pub first_osn: Osn,
    pub peer: PeerConnection,
    activity: Arc<Activity>,
    driver: Weak<dyn CoreDriver>,
}

impl Replication {
    /// The replication of the session `driver`, which is being built.
    pub fn begin(
        engine: &Arc<Engine>,
        core: Core,
        first_osn: Osn,
        driver: Weak<dyn CoreDriver>,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(engine),
            core: Mutex::new(core),
            first_osn,
            peer: PeerConnection::new(Arc::clone(&engine.wakes.changes)),
            activity: Arc::default(),
            driver,
        })
    }

    /// State of the datastore on this node.
    pub fn state(&self) -> State {
        self.core.lock().state()
    }

    /// Generation of every number and message of this replication.
    pub const fn generation(&self) -> Generation {
        self.first_osn.generation
    }

    /// Number of changes of the state so far, in all terms.
    pub fn state_version(&self) -> StateVersion {
        StateVersion(self.engine.state_version.load(Ordering::Acquire))
    }

    /// Begins work of this thread for the replication; `None` if the replication is over.
    pub fn begin_work(&self) -> Option<Working> {
        self.activity.begin()
    }

    /// Whether another replication has begun, or the datastore is being stopped.
    pub fn is_over(&self) -> bool {
        self.activity.is_over() || self.engine.is_stopping()
    }

    /// Ends the replication: no more work begins, and the connection is closed.
    pub fn end(&self, reason: &str) {
        self.activity.end();
        self.engine.wakes.changes.raise();
        self.peer.close(reason);
    }

    /// Waits until no thread works for the replication.
    pub fn wait_until_idle(&self) {
        self.activity.wait_until_idle(&*self.engine.host);
    }

    /// State, and whether there is a connection with the peer.
    pub fn state_and_connected(&self) -> (State, bool) {
        let is_connected = self.peer.is_connected();
        (self.state(), is_connected)
    }

    /// Waits while the secondary marks its copy complete, at most for `limit`. This node is in sync by its own mark before.
    pub fn wait_for_mark(&self, limit: Duration) {
        let is_due = || {
            let (state, is_connected) = self.state_and_connected();
            state == State::Synced && is_connected && !self.peer.is_complete()
        };
        let until = self.engine.host.now() + limit;
        self.engine
            .wait_until(Some(until), || self.is_over() || !is_due());
    }

    /// Gives an event to the core and executes the effects on this thread, as far as its kind allows.
    pub fn handle_event(&self, thread: ThreadKind, event: Event) {
        if let Some(driver) = self.driver.upgrade() {
            let effects = driver.step_locked(&mut self.core.lock(), event);
            driver.run_effects(thread, effects);
        }
    }

    /// The same unless the connection is gone. The connection is removed before the core learns of its loss, so no event
    /// of a lost connection follows the loss (rule P9).
    pub fn handle_event_on(&self, connection: ConnectionId, event: Event) {
        let Some(driver) = self.driver.upgrade() else {
            return;
        };
        let effects = {
            let mut core = self.core.lock();
            if self.peer.get(connection).is_none() {
                return;
            }
            driver.step_locked(&mut core, event)
        };
        driver.run_effects(ThreadKind::MayWait, effects);
    }

    /// Gives an event to the core now and has another thread execute the effects.
    pub fn handle_event_later(&self, event: Event) {
        let Some(driver) = self.driver.upgrade() else {
            return;
        };
        let effects = driver.step_locked(&mut self.core.lock(), event);
        let job = move || driver.run_effects(ThreadKind::MayWait, effects);
        self.spawn(job);
    }

    /// Has the worker pool do a job. The job keeps the session alive, so its events reach the core.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.engine.host.spawn(self.keeping_session(job));
    }

    /// Has the courier thread do a job, in the same way.
    pub fn spawn_ordered(&self, job: impl FnOnce() + Send + 'static) {
        self.engine.host.spawn_ordered(self.keeping_session(job));
    }

    /// The job, unless the replication is over when its turn comes.
    fn keeping_session(&self, job: impl FnOnce() + Send + 'static) -> Job {
        let session = self.driver.upgrade();
        let activity = Arc::clone(&self.activity);
        Box::new(move || {
            if let Some(_working) = activity.begin() {
                job();
            }
            drop(session);
        })
    }

    /// Executes effects of an event that the caller gave to the core.
    pub fn run_effects(&self, thread: ThreadKind, effects: Effects) {
        if let Some(driver) = self.driver.upgrade() {
            driver.run_effects(thread, effects);
        }
    }

    /// Executes an effect that the reader has handed to this thread.
    pub fn execute_deferred(&self, effect: Effect) {
        if let Some(driver) = self.driver.upgrade() {
            driver.execute_deferred(effect);
        }
    }

    /// Lets the core decide on an event; the caller executes the effects.
    pub fn step_core(&self, event: Event) -> Effects {
        let driver = self.driver.upgrade();
        driver.map_or_else(Effects::new, |driver| {
            driver.step_locked(&mut self.core.lock(), event)
        })
    }

    /// Has another thread give a trigger to the core; `reason` is shown by `status`.
    pub fn spawn_trigger(self: &Arc<Self>, trigger: Trigger, reason: &str) {
        self.engine.notes.set_reason(reason);
        let replication = Arc::clone(self);
        self.spawn(move || replication.handle_event(ThreadKind::MayWait, Event::Trigger(trigger)));
    }

    /// A message of this datastore and generation.
    pub fn envelope(&self, done_below: Osn, message: Message) -> Envelope {
        Envelope {
            datastore: self.engine.store.uuid(),
            generation: self.generation(),
            done_below,
            message,
        }
    }

    /// Sends a message of the core's protocol over a connection, unless that is gone; returns whether the
    /// message was handed over. The reader of the connection sees a failure.
    pub fn send(
        &self,
        connection: ConnectionId,
        message: Message,
        payload: SummedBytes<'_>,
        delivery: Delivery<'_>,
    ) -> bool {
        let found = self.peer.get(connection);
        found.is_some_and(|found| self.send_on(&found, message, payload, delivery))
    }

    /// The same over the connection of the moment, if there is one.
    pub fn send_current(&self, message: Message) {
        if let Some(connection) = self.peer.current() {
            self.send(
                connection.id,
                message,
                SummedBytes::default(),
                Delivery::Post,
            );
        }
    }

    /// Sends a message of the core's protocol over a connection that may be gone.
    pub fn send_on(
        &self,
        connection: &ActiveConnection,
        message: Message,
        payload: SummedBytes<'_>,
        delivery: Delivery<'_>,
    ) -> bool {
        let done_below = self.core.lock().note_sent(&message);
        if changes_peer(&message) {
            self.engine.disk.count.note_sent();
        }
        let envelope = self.envelope(done_below, message);
        let is_deferred = matches!(delivery, Delivery::Coalesce(_));
        let is_delivered = connection.deliver(&envelope, payload, delivery);
        // The next tick sends a write that was left in the queue.
        if is_deferred {
            self.engine.wakes.tick_work.note();
        }
        is_delivered
    }

    /// Sends a message outside the core's protocol, such as a greeting or an answer of a secondary.
    pub fn reply(&self, sender: &dyn SendFrames, message: Message, delivery: Delivery<'_>) -> bool {
        if is_counted(&message) {
            self.engine.disk.count.note_answered_now();
        }
        deliver(
            sender,
            &self.envelope(Osn::ZERO, message),
            SummedBytes::default(),
            delivery,
        )
    }

    /// Sends an answer to an operation that came in the sync `sync`, which may be over (rule P17).
    pub fn reply_in(
        &self,
        sync: Option<SyncId>,
        sender: &dyn SendFrames,
        message: Message,
        delivery: Delivery<'_>,
    ) -> bool {
        if is_counted(&message) {
            self.engine.disk.count.note_answered(sync);
        }
        deliver(
            sender,
            &self.envelope(Osn::ZERO, message),
            SummedBytes::default(),
            delivery,
        )
    }

    /// Ends the connection because the core's state says so.
    pub fn close_connection(&self) {
        self.peer.close(if self.engine.poison.has_failed() {
            "the disk of this node has failed"
        } else {
            "the peer is out of sync"
        });
    }

    /// The core has handled an event. A sign of life without effects leaves nothing to do.
    pub fn note_event(&self, is_sign_of_life: bool, effects: &Effects) {
        if !is_sign_of_life || !effects.is_empty() {
            self.engine.wakes.tick_work.note();
        }
    }

    /// The core has entered a state: counts, remembers and logs the change.
    pub fn note_state(&self, state: State) {
        self.engine.state_version.fetch_add(1, Ordering::AcqRel);
        self.engine.notes.note_state(state, self.engine.host.now());
        if state.is_in_sync() {
            self.peer.note_in_sync();
        }
        self.engine.wakes.changes.raise();
    }

    /// The core has refused an event. After a fault the connection ends, so that the nodes greet each other and
    /// compare their states again.
    pub fn note_refused(&self, refused: RefusedTrigger) {
        let datastore = self.engine.name();
        if refused.why.is_fault() {
            tracing::error!(datastore, %refused, "a fault of lockstep: please report it");
            self.peer.close(&format!("a fault of lockstep: {refused}"));
        } else {
            tracing::debug!(datastore, %refused, "dropped");
        }
    }
}

/// Whether the message is an operation, or a request that changes the peer's copy in a resync (rule P17).
const fn changes_peer(message: &Message) -> bool {
    match message {
        Message::Write(_) | Message::Meta { .. } => true,
        Message::Request { request, .. } => request.is_of_resync(),
        _ => false,
    }
}

/// Whether the message answers an operation that this node has done (rule P17).
const fn is_counted(message: &Message) -> bool {
    matches!(
        message,
        Message::WriteAck { failed: None, .. }
            | Message::MetaAck {
                outcome: Ok(()),
                ..
            }
    )
}
