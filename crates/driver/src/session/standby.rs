//! The session of a secondary: serves a primary, and executes, logs and acknowledges its operations.
//!
//! One thread, the reader, takes one frame after the other, so metadata operations are executed in the order in which the
//! primary sent them. The reader never waits for a disk flush or a checkpoint: the worker pool answers an operation that
//! waits for a flush, and the courier thread or the pool executes an operation that waits for a checkpoint.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockstep_fs::store::Applied;
use lockstep_fs::{OpError, Store};
use lockstep_link::{FrameRef, LinkError, ReceiveFrames, SendFrames};
use lockstep_paw_saw::{Full, InFlightTable};
use lockstep_repl::core::{Core, Effect, Effects, Event};
use lockstep_repl::message::{Envelope, Hello, Message, MessageError, Request, WriteMessage};
use lockstep_repl::state::Trigger;
use lockstep_types::backing::Room;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, MetaOp, Osn};
use thiserror::Error;

use crate::durable::tables::entry_of;
use crate::engine::Engine;
use crate::host::exclusive::{Exclusive, ExclusiveGuard};
use crate::host::oneshot::promise;
use crate::host::signal::wait_until;
use crate::host::{Reading, ThreadKind};
use crate::jobs::sync_mark::{self, OnFailure};
use crate::ops::spill::SpillLoad;
use crate::peer::connection::Delivery;
use crate::peer::reply_permits::{ReplyPermits, TooMany};
use crate::replication::greeting::{refuse, refuse_poisoned};
use crate::replication::{CoreDriver, Replication};
use crate::session::copy_base::CopyBase;
use crate::session::responder::Responder;
use crate::session::silence::PeerSilence;
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
    permits: ReplyPermits,
    /// Held by the reader of the one connection.
    active: Exclusive,
    /// Another session is about to begin: no connection is served any more.
    is_retiring: AtomicBool,
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
            Self {
                engine: Arc::clone(engine),
                responder: Responder::new(Arc::clone(&replication), Arc::clone(&base)),
                base,
                replication,
                saw,
                permits: ReplyPermits::default(),
                active: Exclusive::default(),
                is_retiring: AtomicBool::new(false),
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
        self.engine.notes.forget_obstacles();
        self.replication
            .peer
            .open(connection, Arc::clone(sender), Vec::new(), None);
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

    /// Notes the parts of a message that do not depend on its kind.
    fn note_arrival(&self, envelope: &Envelope) {
        // The ack of the ack (rules P3, P7).
        if !is_active(Mutant::KeepSawEntry) {
            self.saw.remove_below(envelope.done_below);
        }
        // An operation may make a checkpoint due.
        if !matches!(envelope.message, Message::Ping { .. } | Message::Alive) {
            self.engine.wakes.tick_work.note();
        }
    }

    /// Executes one frame.
    fn handle_frame(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        frame: &FrameRef<'_>,
    ) -> Result<(), ConnectionEnd> {
        let envelope = Envelope::decode(frame.header)?;
        let store = &self.engine.store;
        if envelope.datastore != store.uuid()
            || envelope.generation != self.replication.generation()
        {
            return Err(ConnectionEnd::OtherDatastore);
        }
        self.note_arrival(&envelope);
        match envelope.message {
            Message::Write(write) if self.may_write_now(&write, frame.payload.len()) => {
                self.handle_write(sender, &write, frame.payload)
            }
            Message::Write(write) => self.handle_write_later(sender, write, frame.payload.to_vec()),
            Message::Meta {
                op,
                previous,
                durable,
            } => {
                store.delta().note_done_below(envelope.done_below);
                let is_due = !self.permits.has_metadata()
                    && !store.is_checkpoint_due(&op)
                    && !store.lost_found().is_preserving();
                if is_due {
                    self.handle_meta(sender, &op, previous, durable, Store::commit_at_once)
                } else {
                    self.handle_meta_later(sender, op, previous, durable)
                }
            }
            Message::Sync { id, ino } => {
                let sync = move |store: &Store| store.sync_file(ino, true);
                self.answer_later(sender, sync, move |failed| Message::SyncAck { id, failed })
            }
            Message::Ping { disk_silent_ms } => {
                store.delta().note_done_below(envelope.done_below);
                self.engine.disk.watch.note_peer(disk_silent_ms);
                // Before the answer, which gives the primary a lease (rule R7).
                self.engine.role.promise.give(&*self.engine.host);
                let pong = Message::Pong {
                    room: self.room(),
                    disk_silent_ms: self.engine.disk.watch.silent_ms(),
                };
                self.answer(&**sender, pong);
                Ok(())
            }
            Message::Alive => {
                self.answer(&**sender, Message::Alive);
                Ok(())
            }
            Message::Request { id, request } => {
                self.handle_request(sender, id, request, frame.payload.to_vec())
            }
            other => Err(ConnectionEnd::NotForSecondary(Box::new(other))),
        }
    }

    /// Whether a write needs no other work on the disk first.
    fn may_write_now(&self, write: &WriteMessage, length: usize) -> bool {
        let store = &self.engine.store;
        let keeps = store
            .lost_found()
            .preserves(write.ino, write.offset, length as u64);
        store.has_room_for_writes(write.ino) && !keeps
    }

    /// Has the worker pool write, because a checkpoint must first free a slot for the file, or old bytes are to be kept;
    /// the reader goes on. The write stays in flight on the primary, so no later operation touches its blocks (rule P4).
    fn handle_write_later(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        write: WriteMessage,
        data: Vec<u8>,
    ) -> Result<(), ConnectionEnd> {
        let permit = self.permits.write()?;
        let (session, sender) = (Arc::clone(self), Arc::clone(sender));
        self.replication.spawn(move || {
            let handled = session.handle_write(&sender, &write, &data);
            end_or_flush(&*sender, handled);
            drop(permit);
        });
        Ok(())
    }

    /// Has the courier thread execute a metadata operation, and later ones behind it in their order (rule P2), because a
    /// checkpoint comes first; the reader goes on.
    fn handle_meta_later(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        op: MetaOp,
        previous: Osn,
        durable: bool,
    ) -> Result<(), ConnectionEnd> {
        let permit = self.permits.metadata()?;
        let (session, sender) = (Arc::clone(self), Arc::clone(sender));
        self.replication.spawn_ordered(move || {
            let handled = session.handle_meta(&sender, &op, previous, durable, Store::commit);
            end_or_flush(&*sender, handled);
            drop(permit);
        });
        Ok(())
    }

    fn handle_write(
        &self,
        sender: &Arc<dyn SendFrames>,
        write: &WriteMessage,
        data: &[u8],
    ) -> Result<(), ConnectionEnd> {
        // Before the first byte is written (rule P7). The sums were checked on arrival (rule P14).
        if !is_active(Mutant::NoSawEntry) {
            // The watermark removes the entry, not its slot.
            let _slot = self.saw.insert(entry_of(write, data.len()))?;
        }
        let (osn, ino) = (write.osn, write.ino);
        let store = &self.engine.store;
        let written = store.write(ino, write.offset, data, osn, write.time);
        match written {
            Ok(()) if write.durable && !is_active(Mutant::NoRemoteSync) => {
                let sync = move |store: &Store| store.sync_file(ino, false);
                return self.answer_later(sender, sync, move |failed| Message::WriteAck {
                    osn,
                    failed,
                });
            }
            written => {
                let failed = written.err();
                let failed = failed.map(|error| self.engine.log_and_errno(&error));
                let failed = failed.filter(|_| !is_active(Mutant::HideFailure));
                self.answer(&**sender, Message::WriteAck { osn, failed });
            }
        }
        Ok(())
    }

    /// Waits for the disk in the worker pool, then answers. Such a flush may outlive the session: it changes nothing, and its
    /// answer goes to a connection that is closed by then.
    fn answer_later(
        &self,
        sender: &Arc<dyn SendFrames>,
        wait: impl FnOnce(&Store) -> Result<(), OpError> + Send + 'static,
        message: impl FnOnce(Option<Errno>) -> Message + Send + 'static,
    ) -> Result<(), ConnectionEnd> {
        let permit = self.permits.flush()?;
        let (replication, sender) = (Arc::clone(&self.replication), Arc::clone(sender));
        let sync = self.engine.disk.count.count().of;
        self.engine.host.spawn(Box::new(move || {
            let failed = wait(&replication.engine.store).err();
            let failed = failed.map(|error| replication.engine.log_and_errno(&error));
            replication.reply_in(sync, &*sender, message(failed), Delivery::Queue);
            let _flushed = sender.flush_nowait();
            drop(permit);
        }));
        Ok(())
    }

    /// Commits and executes a metadata operation, once (paper, section 5.2).
    fn handle_meta(
        &self,
        sender: &Arc<dyn SendFrames>,
        op: &MetaOp,
        previous: Osn,
        durable: bool,
        commit: impl FnOnce(&Store, &MetaOp) -> Result<Applied, OpError>,
    ) -> Result<(), ConnectionEnd> {
        let osn = op.osn;
        let applied = self.engine.store.applied();
        if osn <= applied && !is_active(Mutant::RepeatMetadata) {
            // Executed before (rule P5), perhaps not durable yet (rule P11).
            let outcome = Ok(());
            if durable {
                let sync = |store: &Store| Ok(store.sync_all_applied()?);
                return self.answer_later(sender, sync, move |failed| Message::MetaAck {
                    osn,
                    outcome: failed.map_or(outcome, Err),
                });
            }
            self.answer(&**sender, Message::MetaAck { osn, outcome });
            return Ok(());
        }
        // One order (rule P2).
        if previous != applied
            && !is_active(Mutant::MetadataOutOfOrder)
            && !is_active(Mutant::RepeatMetadata)
        {
            return Err(ConnectionEnd::OutOfOrder {
                osn,
                previous,
                applied,
            });
        }
        match commit(&self.engine.store, op) {
            Ok(outcome) if durable => {
                let sync = move |store: &Store| Ok(store.sync_applied(&outcome)?);
                return self.answer_later(sender, sync, move |failed| Message::MetaAck {
                    osn,
                    outcome: failed.map_or(Ok(()), Err),
                });
            }
            committed => {
                let outcome = committed.map(|_| ());
                let outcome = outcome.map_err(|error| self.engine.log_and_errno(&error));
                self.answer(&**sender, Message::MetaAck { osn, outcome });
            }
        }
        Ok(())
    }

    /// Has the courier thread respond to a request, in the order of the requests.
    fn handle_request(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        id: u64,
        request: Request,
        payload: Vec<u8>,
    ) -> Result<(), ConnectionEnd> {
        let permit = self.permits.request()?;
        let (session, sender) = (Arc::clone(self), Arc::clone(sender));
        self.replication.spawn_ordered(move || {
            let response = session.responder.response(&request, &payload);
            session.answer(&*sender, Message::Response { id, response });
            let _flushed = sender.flush_nowait();
            drop(permit);
        });
        Ok(())
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
                sync_mark::spawn(&self.replication, in_sync, OnFailure::Drop, || ());
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

/// The end of an operation on another thread than the reader: an error ends the connection, an answer leaves.
fn end_or_flush(sender: &dyn SendFrames, handled: Result<(), ConnectionEnd>) {
    match handled {
        Ok(()) => drop(sender.flush_nowait()),
        Err(end) => sender.shutdown(&end.to_string()),
    }
}
