//! The session of a secondary: serves a primary, and executes, logs and acknowledges its operations.
//!
//! One thread, the reader, takes one frame after the other, so metadata operations are executed in the order in which the
//! primary sent them. The reader never waits for a disk flush or a checkpoint: the worker pool answers an operation that
//! waits for a flush, and the courier thread or the pool executes an operation that waits for a checkpoint.

mod frames;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockstep_link::{LinkError, ReceiveFrames, SendFrames};
use lockstep_paw_saw::{Full, InFlightTable};
use lockstep_repl::core::{Core, Effect, Effects, Event};
use lockstep_repl::message::{Envelope, Hello, Message, MessageError};
use lockstep_repl::state::{State, Trigger};
use lockstep_types::backing::Room;
use lockstep_types::{Osn, ResyncStatus};
use parking_lot::Mutex;
use thiserror::Error;

use crate::engine::Engine;
use crate::host::exclusive::{Exclusive, ExclusiveGuard};
use crate::host::oneshot::promise;
use crate::host::signal::wait_until;
use crate::host::{Reading, ThreadKind};
use crate::jobs::barriers::Barriers;
use crate::jobs::sync_mark::{self, MarkedCopy};
use crate::ops::announcements::Announcements;
use crate::ops::spill::SpillLoad;
use crate::peer::connection::{Delivery, PeerCopy};
use crate::peer::reply_permits::{ReplyPermits, TooMany};
use crate::replication::greeting::{refuse, refuse_poisoned};
use crate::replication::{CoreDriver, Replication};
use crate::session::copy_base::CopyBase;
use crate::session::responder::Responder;
use crate::session::silence::PeerSilence;
use crate::session::sum_secret;
use crate::session::usage::SessionUsage;

/// The longest wait of a node that stops for its primary to close the connection.
const FAREWELL_MAX: Duration = Duration::from_millis(500);

/// Why a connection with the primary ends.
#[derive(Debug, Error)]
enum ConnectionEnd {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error(transparent)]
    TableFull(#[from] Full),
    #[error(transparent)]
    TooMany(#[from] TooMany),
    #[error("the primary has been silent for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("a message of another datastore or generation")]
    OtherDatastore,
    #[error("operation {osn} came after {previous}, but this node has got to {applied}")]
    OutOfOrder {
        osn: Osn,
        previous: Osn,
        applied: Osn,
    },
    #[error("the primary sent {0:?}, which only a secondary may send")]
    NotForSecondary(Box<Message>),
}

/// See the head of this file.
pub(crate) struct StandbySession {
    pub engine: Arc<Engine>,
    pub replication: Arc<Replication>,
    /// Writes that wait for the primary.
    saw: Arc<InFlightTable>,
    pub(super) base: Arc<CopyBase>,
    pub responder: Responder,
    pub barriers: Arc<Barriers>,
    permits: ReplyPermits,
    /// Held by the reader of the one connection.
    active: Exclusive,
    /// Another session is about to begin: no connection is served any more.
    is_retiring: AtomicBool,
    /// The progress of the resync that this copy gets, by the last word of the primary over the connection.
    told_resync: Mutex<Option<ResyncStatus>>,
}

impl StandbySession {
    /// A session that begins with `core`, and with the tables of writes in flight of the store. `paw`: the own writes of a
    /// deposed primary.
    pub fn new(
        engine: &Arc<Engine>,
        core: Core,
        first_osn: Osn,
        saw: InFlightTable,
        paw: Option<InFlightTable>,
    ) -> Arc<Self> {
        let saw = Arc::new(saw);
        let generation = engine.role_file.state().base();
        let base = Arc::new(CopyBase::new(generation, Arc::clone(&saw), paw));
        Arc::new_cyclic(|session: &Weak<Self>| {
            let driver = session.clone();
            let replication = Replication::begin(engine, core, first_osn, driver);
            let announcements = Arc::new(Announcements::new(engine, &replication));
            let barriers = Barriers::begin(engine, &replication, announcements);
            Self {
                engine: Arc::clone(engine),
                responder: Responder::new(
                    Arc::clone(&replication),
                    Arc::clone(&base),
                    Arc::clone(&barriers),
                ),
                barriers,
                base,
                replication,
                saw,
                permits: ReplyPermits::default(),
                active: Exclusive::default(),
                is_retiring: AtomicBool::new(false),
                told_resync: Mutex::default(),
            }
        })
    }

    /// Serves a primary that has sent its greeting, until the connection is lost.
    pub fn serve_primary(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        mut receiver: Box<dyn ReceiveFrames>,
        hello: &Hello,
        envelope: &Envelope,
    ) {
        // One connection at a time (rule P9). A primary that connects again has given its old connection up.
        self.replication
            .peer
            .close("the primary has connected anew");
        let Some(_active) = self.active.acquire_latest(&*self.engine.host) else {
            // The primary has given this connection up, too, while the earlier one was still being ended.
            return;
        };
        // The requests of an earlier connection are done before this connection begins.
        self.wait_for_earlier_jobs();
        if self.is_ending() {
            return;
        }
        if let Some(reason) = self.engine.failure_reason() {
            refuse_poisoned(&**sender, envelope, &reason);
            return;
        }
        let connection = self.replication.peer.next_id();
        self.responder.begin(hello.durable);
        if let Err(error) = self.welcome(&**sender, connection, hello, envelope) {
            let reason = error.to_string();
            self.engine.notes.set_obstacle(&reason);
            refuse(&**sender, envelope, &reason);
            return;
        }
        sum_secret::use_for_frames(hello, |key| receiver.use_sum_key(key));
        self.engine.notes.forget_obstacles();
        self.replication
            .peer
            .open(connection, Arc::clone(sender), PeerCopy::default());
        if self.is_ending() {
            // The end may have closed the connection before this one was there.
            self.replication
                .peer
                .close("this node stops, or has another role now");
        }
        let Err(end) = self.read_loop(sender, &mut *receiver);
        let reason = end.to_string();
        sender.shutdown(&reason);
        self.replication.peer.remove(connection);
        *self.told_resync.lock() = None;
        if !self.is_ending() {
            self.engine.notes.set_reason(&reason);
        }
        self.happened(Trigger::LinkLost);
    }

    /// Whether no primary is connected and the disk is sound.
    pub fn waits_for_primary(&self) -> bool {
        !self.replication.peer.is_connected() && !self.engine.poison.has_failed()
    }

    fn happened(&self, trigger: Trigger) {
        let event = Event::Trigger(trigger);
        self.replication.handle_event(ThreadKind::MayWait, event);
    }

    /// Waits until the jobs of the courier thread, the writes on other threads and the flushes are done.
    fn wait_for_earlier_jobs(&self) {
        self.wait_for_changes();
        self.wait_for_permits(|permits| !permits.is_flushing());
    }

    /// Waits until a condition holds that depends on the permits, or the datastore is stopped.
    fn wait_for_permits(&self, is_met: impl Fn(&ReplyPermits) -> bool) {
        let Self {
            engine, permits, ..
        } = self;
        let signals = [&*permits.all_back, &*engine.wakes.changes];
        wait_until(&*engine.host, &signals, None, || {
            is_met(permits) || engine.is_stopping()
        });
    }

    /// Waits until everything is done that changes the copy. A flush changes nothing, and may take seconds.
    fn wait_for_changes(&self) {
        let (done, wait) = promise::<()>(&*self.engine.host);
        self.engine.host.spawn_ordered(Box::new(move || drop(done)));
        // The promise ends without a value, also if the courier thread takes no more jobs.
        let _ended = wait.get();
        self.wait_for_permits(|permits| !permits.has_writes());
    }

    /// Room on this node's disk, as far as known.
    pub(super) fn room(&self) -> Room {
        self.engine.store.capacity().room().unwrap_or(Room::NONE)
    }

    /// Answers the primary, without waiting for the primary to read: the reader of the connection flushes.
    pub(super) fn answer(&self, sender: &dyn SendFrames, message: Message) {
        self.replication.reply(sender, message, Delivery::Queue);
    }

    /// Reads and executes frames until the connection ends.
    fn read_loop(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        receiver: &mut dyn ReceiveFrames,
    ) -> Result<Infallible, ConnectionEnd> {
        let mut silence = PeerSilence::begin(&self.engine, receiver)?;
        let _reading = Reading::on(&*self.engine.host);
        loop {
            let next = if self.expects_more() {
                receiver.recv_spinning()
            } else {
                receiver.recv()
            };
            match next {
                Ok(frame) => {
                    silence.end();
                    self.handle_frame(sender, &frame)?;
                }
                // A frame that is arriving is a sign of life. The primary gets one, too: it may hear nothing else
                // before the frame is whole.
                Err(error) if error.is_timed_out() && error.is_slow() => {
                    silence.end();
                    self.answer(&**sender, Message::Alive);
                }
                Err(error) if error.is_timed_out() => {
                    if let Some(limit) = silence.look(receiver)? {
                        return Err(ConnectionEnd::Silent(limit));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the primary is likely to send at once: several of its writes are in flight, and none waits for the disk
    /// here.
    fn expects_more(&self) -> bool {
        self.saw.len() > 1 && !self.permits.is_flushing() && !self.permits.has_writes()
    }

    /// Ends the session for another one, when its jobs are done.
    pub fn retire(&self, reason: &str) {
        self.is_retiring.store(true, Ordering::Release);
        self.replication.peer.close(reason);
        // No connection is served any more, and none begins.
        drop(self.wait_until_idle());
        self.wait_for_changes();
        self.replication.end(reason);
        self.replication.wait_until_idle();
    }

    /// Tells the primary that this node stops, so that no client waits for this node (rule R1). The primary closes the
    /// connection: an end of this node's side may take the message with it. A primary that does not read loses nothing but
    /// time.
    pub fn say_that_it_stops(&self) {
        let (host, peer) = (&self.engine.host, &self.replication.peer);
        let Some(connection) = peer.current() else {
            return;
        };
        let until = host.now() + FAREWELL_MAX;
        self.replication
            .reply(&*connection.sender, Message::Stopping, Delivery::Post);
        // The datastore is being stopped, so the wait is one for the peer alone.
        let is_closed = || peer.get(connection.id).is_none();
        self.engine
            .wakes
            .changes
            .wait_until(&**host, Some(until), is_closed);
    }

    /// Whether the session is over, or about to be.
    fn is_ending(&self) -> bool {
        self.is_retiring.load(Ordering::Acquire) || self.replication.is_over()
    }

    /// Waits until no connection is served. None is served before the guard is dropped.
    pub fn wait_until_idle(&self) -> ExclusiveGuard<'_> {
        self.active.acquire(&*self.engine.host)
    }

    /// The progress of the resync that this copy gets, as far as the primary has told it.
    pub fn told_resync(&self, state: State) -> Option<ResyncStatus> {
        let is_resynced = matches!(
            state,
            State::SecondaryResyncing | State::SecondaryCatchingUp
        );
        self.told_resync.lock().filter(|_| is_resynced)
    }

    /// The numbers of this moment.
    pub fn usage(&self) -> SessionUsage {
        SessionUsage {
            in_flight: self.saw.len(),
            pending: 0,
            kept: SpillLoad::default(),
            oldest_metadata: None,
        }
    }

    fn execute_effect(&self, effect: Effect) {
        match effect {
            Effect::Mark { in_sync } => {
                let own = MarkedCopy::Own(self.base.generation());
                sync_mark::spawn(&self.replication, in_sync, own, || ());
            }
            Effect::DropLink => self.replication.close_connection(),
            Effect::Entered(state) => self.replication.note_state(state),
            Effect::Refused(refused) => self.replication.note_refused(refused),
            other => {
                debug_assert!(false, "the core of a secondary orders {other:?}");
            }
        }
    }
}

impl CoreDriver for StandbySession {
    fn step_locked(&self, core: &mut Core, event: Event) -> Effects {
        let mut effects = Effects::new();
        let is_sign_of_life = event.is_sign_of_life();
        core.handle(self.engine.now_ms(), event, &mut effects);
        self.replication.note_event(is_sign_of_life, &effects);
        effects
    }

    fn run_effects(&self, _thread: ThreadKind, effects: Effects) {
        let Some(_working) = self.replication.begin_work() else {
            return;
        };
        for effect in effects {
            self.engine.host.step();
            self.execute_effect(effect);
        }
    }

    fn execute_deferred(&self, effect: Effect) {
        self.execute_effect(effect);
    }
}
