//! The secondary's side of the connection: verify, log, execute, acknowledge.
//!
//! Frames are taken one after another by one thread, so metadata operations are executed in the
//! order in which the primary sent them. What waits for a disk flush is answered by another thread, and
//! what must wait for a checkpoint is done by one: this one never waits for either.

use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::store::Applied;
use lockstep_fs::{OpError, Store};
use lockstep_link::{FrameRef, ReceiveFrames, SendFrames};
use lockstep_paw_saw::InFlightEntry;
use lockstep_repl::core::{ConnectionId, Event};
use lockstep_repl::message::{
    Envelope, Hello, Message, PROTOCOL_VERSION, Request, Response, Welcome, WriteMessage,
};
use lockstep_repl::state::Trigger;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::Role;
use lockstep_types::{Errno, MetaOp, Osn};

use super::host::{Reading, promise};
use super::{Datastore, Link, Thread};

/// How often it is looked whether the flushes of an earlier connection are over.
const FLUSHED_LOOK: Duration = Duration::from_millis(5);

impl Datastore {
    /// Serves a primary that has introduced itself, until the connection is lost.
    pub fn follow(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        mut receiver: Box<dyn ReceiveFrames>,
        hello: &Hello,
        envelope: &Envelope,
    ) {
        // One connection at a time (rule P9). A primary that connects anew has given its old one up.
        self.drop_link("the primary has connected anew");
        let Some(_alone) = self.serving.enter_as_newest(&*self.host) else {
            // The primary has given this one up, too, while the one before was still being ended.
            return;
        };
        // What an earlier connection asked for is done before this one begins.
        self.finish_ordered();
        if self.is_stopping() {
            return;
        }
        if let Some(reason) = self.poisoned_because() {
            tell_poisoned(&**sender, envelope, &reason);
            return;
        }
        let connection = self.next_connection();
        if let Err(reason) = self.welcome(&**sender, connection, hello, envelope) {
            self.set_obstacle(&reason);
            refuse(&**sender, envelope, &reason);
            return;
        }
        self.forget_obstacles();
        *self.link.write() = Some(Link::new(sender.clone(), connection, Vec::new()));
        if self.is_stopping() {
            // It may not have seen this connection when it closed the one there was.
            self.drop_link("this node is stopping");
        }
        let reason = self.read_orders(sender, &mut *receiver);
        sender.shutdown(&reason);
        {
            let mut link = self.link.write();
            if link.as_ref().is_some_and(|link| link.id == connection) {
                *link = None;
            }
        }
        if !self.is_stopping() {
            self.set_reason(&reason);
        }
        self.drive(Thread::MayWait, Event::Happened(Trigger::LinkLost));
    }

    /// Waits until all that the courier and the threads that flush were given before is done.
    fn finish_ordered(&self) {
        let (done, wait) = promise::<()>(&*self.host);
        self.host.in_order(Box::new(move || drop(done)));
        // The end of the promise is the news, also when the courier takes no more.
        let _ended = wait.get();
        while self.owed.is_flushing() && !self.is_stopping() {
            self.host.sleep(FLUSHED_LOOK);
        }
    }

    /// Answers the greeting, or says why not.
    fn welcome(
        self: &Arc<Self>,
        sender: &dyn SendFrames,
        connection: ConnectionId,
        hello: &Hello,
        envelope: &Envelope,
    ) -> Result<(), String> {
        if self.config.role != Role::Secondary {
            return Err(
                "both nodes are configured as primary of this datastore: make one the secondary"
                    .to_owned(),
            );
        }
        self.check_introduction(envelope, hello.version)?;
        self.check_store(hello)?;
        self.role
            .follow(hello.store)
            .map_err(|error| error.to_string())?;
        // What is said to be committed here may be answered as durable there (rules P8, P11).
        let synced = if hello.durable {
            self.store.sync_all_applied()
        } else {
            self.store.sync_all_logged()
        };
        synced.map_err(|error| error.to_string())?;
        let own = self.is_in_sync_with(hello);
        let welcome = Welcome {
            version: PROTOCOL_VERSION,
            in_sync: own,
            applied: self.store.applied(),
            waiting: self.saw.entries(),
            room: self.room_lately(),
        };
        self.answer(sender, Message::Welcome(welcome));
        let up = Event::LinkUp {
            connection,
            in_sync: own && hello.in_sync,
            peer_applied: Osn::ZERO,
        };
        self.drive(Thread::MayWait, up);
        Ok(())
    }

    /// A store is not carried over what may be the better one: the disk of either node may just not be
    /// mounted (rule P17). Only an operator knows.
    fn check_store(&self, hello: &Hello) -> Result<(), String> {
        // There is nothing here to lose.
        if self.store.applied() == Osn::ZERO {
            return Ok(());
        }
        let own = self.role.state();
        // It was made by a version that gave no names, and was not there when the primary got its.
        let is_nameless = own.store.is_none() && hello.sync.is_some();
        // Whatever clients have made in it meanwhile: what is here came from a primary that had noted first
        // that it carries its namespace over.
        let (what, cure) = if !hello.carried_over {
            (
                "the primary's store is new, but the secondary's holds a datastore",
                "mount the disk that the primary's store was on",
            )
        } else if is_nameless || own.store.is_some_and(|store| store != hello.store) {
            (
                "the secondary's store is a copy of another store than the primary has now",
                "mount the disks that belong together",
            )
        } else if own.sync.is_some_and(|sync| sync.is_unknown_to(hello.sync)) {
            (
                "the primary's store is an older copy of the one that the secondary's was made from",
                "put the newer one back",
            )
        } else {
            return Ok(());
        };
        Err(format!(
            "{what}: {cure}, or, if the datastore is to begin anew with what the primary has, stop the \
             secondary's node and move the secondary's store ({}) away",
            self.config.store.display()
        ))
    }

    /// Whether the mark of this copy says that it is in sync, of the sync that the primary's is about
    /// (rule P17): in its place another copy may have been in sync since.
    fn is_in_sync_with(&self, hello: &Hello) -> bool {
        let own = self.role.state();
        let is_same = own.sync.is_some() && own.sync == hello.sync;
        own.in_sync && (is_same || is_active(Mutant::TrustOldCopy))
    }

    /// Sends without ever waiting for the primary to read: the reader of this connection flushes.
    fn answer(&self, sender: &dyn SendFrames, message: Message) {
        let envelope = self.envelope(Osn::ZERO, message);
        let sent = match envelope.encode() {
            Ok(header) => sender.enqueue(&header, &[]).map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = sent {
            sender.shutdown(&error);
        }
    }

    fn read_orders(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        receiver: &mut dyn ReceiveFrames,
    ) -> String {
        let limit = self.config.peer_timeout;
        if let Err(error) = receiver.set_timeout(Some(limit / 4)) {
            return error.to_string();
        }
        let _reading = Reading::on(&*self.host);
        let mut heard = self.host.now();
        loop {
            let next = if self.expects_more() {
                receiver.recv_spinning()
            } else {
                receiver.recv()
            };
            match next {
                Ok(frame) => {
                    heard = self.host.now();
                    if let Err(reason) = self.obey(sender, &frame) {
                        return reason;
                    }
                }
                // A frame that is arriving is a sign of life. The primary gets one, too: it may hear nothing
                // else before that frame is whole.
                Err(error) if error.is_timed_out() && error.is_slow() => {
                    heard = self.host.now();
                    self.answer(&**sender, Message::Alive);
                }
                Err(error) if error.is_timed_out() && self.host.since(heard) < limit => {}
                Err(error) if error.is_timed_out() => {
                    return format!("the primary has been silent for {} ms", limit.as_millis());
                }
                Err(error) => return error.to_string(),
            }
        }
    }

    /// Whether the primary is likely to send at once: it has several writes under way, of which none waits
    /// for the disk here.
    fn expects_more(&self) -> bool {
        self.saw.len() > 1 && !self.owed.is_flushing()
    }

    /// Does what a frame says. An error ends the connection.
    fn obey(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        frame: &FrameRef<'_>,
    ) -> Result<(), String> {
        let envelope = Envelope::decode(frame.header).map_err(|error| error.to_string())?;
        if envelope.datastore != self.store.uuid() || envelope.generation != self.generation() {
            return Err("a message of another datastore or generation".to_owned());
        }
        // The ack of the ack (rules P3, P7).
        if !is_active(Mutant::KeepSawEntry) {
            self.saw.remove_below(envelope.done_below);
        }
        match envelope.message {
            Message::Write(write) if self.store.has_room_for_writes(write.ino) => {
                self.obey_write(sender, &write, frame.payload)
            }
            Message::Write(write) => self.obey_write_later(sender, write, frame.payload.to_vec()),
            Message::Meta {
                op,
                previous,
                durable,
            } => {
                let is_due = !self.owed.has_metadata() && !self.store.is_log_filling();
                if is_due {
                    self.obey_meta(sender, &op, previous, durable, Store::commit_at_once)
                } else {
                    self.obey_meta_later(sender, op, previous, durable)
                }
            }
            Message::Sync { id, ino } => {
                let sync = move |datastore: &Self| datastore.store.sync_file(ino, true);
                self.answer_later(sender, sync, move |failed| Message::SyncAck { id, failed })
            }
            Message::Ping => {
                let room = self.room_lately();
                self.answer(&**sender, Message::Pong { room });
                Ok(())
            }
            Message::Alive => {
                self.answer(&**sender, Message::Alive);
                Ok(())
            }
            Message::Request { id, request } => {
                self.obey_request(sender, id, request, frame.payload.to_vec())
            }
            other => Err(format!(
                "the primary sent {other:?}, which only a secondary may send"
            )),
        }
    }

    /// Has the pool write where a checkpoint must first free a slot for the file: the reader reads on. It is in
    /// flight on the primary all the while, so nothing that is done meanwhile touches what it does (P4).
    fn obey_write_later(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        write: WriteMessage,
        data: Vec<u8>,
    ) -> Result<(), String> {
        let debt = self.owed.flush()?;
        let (datastore, sender) = (Arc::clone(self), Arc::clone(sender));
        self.host.spawn(Box::new(move || {
            let obeyed = datastore.obey_write(&sender, &write, &data);
            end_or_flush(&*sender, obeyed);
            drop(debt);
        }));
        Ok(())
    }

    /// Has the courier do a metadata operation, and those behind it, where the log must first be cut: in
    /// their order (P2), while the reader reads on.
    fn obey_meta_later(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        op: MetaOp,
        previous: Osn,
        durable: bool,
    ) -> Result<(), String> {
        let debt = self.owed.metadata()?;
        let (datastore, sender) = (Arc::clone(self), Arc::clone(sender));
        self.host.in_order(Box::new(move || {
            let obeyed = datastore.obey_meta(&sender, &op, previous, durable, Store::commit);
            end_or_flush(&*sender, obeyed);
            drop(debt);
        }));
        Ok(())
    }

    fn obey_write(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        write: &WriteMessage,
        data: &[u8],
    ) -> Result<(), String> {
        let entry = InFlightEntry {
            ino: write.ino,
            osn: write.osn,
            offset: write.offset,
            length: u32::try_from(data.len()).unwrap_or(u32::MAX),
        };
        // Before the first byte (rule P7); the sums were checked on arrival (rule P14).
        if !is_active(Mutant::NoSawEntry) {
            // Removed by the watermark, not by its place.
            let _slot = self.saw.insert(entry).map_err(|error| error.to_string())?;
        }
        let written = self
            .store
            .write(write.ino, write.offset, data, write.osn, write.time);
        let (osn, ino) = (write.osn, write.ino);
        match written {
            Ok(()) if write.durable && !is_active(Mutant::NoRemoteSync) => {
                let sync = move |datastore: &Self| datastore.store.sync_file(ino, false);
                return self.answer_later(sender, sync, move |failed| Message::WriteAck {
                    osn,
                    failed,
                });
            }
            written => {
                let failed = written.err().map(|error| self.told(&error));
                let failed = failed.filter(|_| !is_active(Mutant::HideFailure));
                self.answer(&**sender, Message::WriteAck { osn, failed });
            }
        }
        Ok(())
    }

    /// Waits for the disk on another thread, then answers. An error ends the connection.
    fn answer_later(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        wait: impl FnOnce(&Self) -> Result<(), OpError> + Send + 'static,
        message: impl FnOnce(Option<Errno>) -> Message + Send + 'static,
    ) -> Result<(), String> {
        let debt = self.owed.flush()?;
        let (datastore, sender) = (Arc::clone(self), sender.clone());
        self.host.spawn(Box::new(move || {
            let failed = wait(&datastore).err().map(|error| datastore.told(&error));
            datastore.answer(&*sender, message(failed));
            let _flushed = sender.flush_nowait();
            drop(debt);
        }));
        Ok(())
    }

    /// Commits and executes a metadata operation, once (paper, section 5.2).
    fn obey_meta(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        op: &MetaOp,
        previous: Osn,
        durable: bool,
        commit: impl FnOnce(&Store, &MetaOp) -> Result<Applied, OpError>,
    ) -> Result<(), String> {
        let osn = op.osn;
        let applied = self.store.applied();
        if osn <= applied && !is_active(Mutant::RepeatMetadata) {
            // Done before (rule P5); durable perhaps not yet (rule P11).
            let outcome = Ok(());
            if durable {
                let sync = |datastore: &Self| Ok(datastore.store.sync_all_applied()?);
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
            return Err(format!(
                "operation {osn} came after {previous}, but this node has got to {applied}"
            ));
        }
        match commit(&self.store, op) {
            Ok(outcome) if durable => {
                let sync = move |datastore: &Self| Ok(datastore.store.sync_applied(&outcome)?);
                return self.answer_later(sender, sync, move |failed| Message::MetaAck {
                    osn,
                    outcome: failed.map_or(Ok(()), Err),
                });
            }
            committed => {
                let outcome = committed.map(|_| ()).map_err(|error| self.told(&error));
                self.answer(&**sender, Message::MetaAck { osn, outcome });
            }
        }
        Ok(())
    }

    /// Answers a question; in the order in which they were asked. An error ends the connection.
    fn obey_request(
        self: &Arc<Self>,
        sender: &Arc<dyn SendFrames>,
        id: u64,
        request: Request,
        payload: Vec<u8>,
    ) -> Result<(), String> {
        let debt = self.owed.question()?;
        let (datastore, sender) = (Arc::clone(self), sender.clone());
        self.host.in_order(Box::new(move || {
            let response = datastore.response(&request, &payload);
            datastore.answer(&*sender, Message::Response { id, response });
            let _flushed = sender.flush_nowait();
            drop(debt);
        }));
        Ok(())
    }

    pub(super) fn response(
        self: &Arc<Self>,
        request: &Request,
        payload: &[u8],
    ) -> Result<Response, String> {
        if let Some(reason) = self.poisoned_because() {
            return Err(reason);
        }
        match request {
            Request::RecoveryDone { below } => {
                self.saw.remove_below(*below);
                self.drive(Thread::MayWait, Event::Happened(Trigger::Recovered));
                Ok(Response::Done)
            }
            Request::InSync => {
                if self.role.state().in_sync {
                    return Err("it was told to be in sync, which it is".to_owned());
                }
                // What the resync brought is in the cache of the system; what it stands for may be
                // durable on the primary (rule P10).
                if !is_active(Mutant::MarkBeforeSync) {
                    self.store
                        .sync_everything()
                        .map_err(|error| error.to_string())?;
                }
                self.role.mark(true).map_err(|error| error.to_string())?;
                self.drive(Thread::MayWait, Event::Happened(Trigger::MarkedInSync));
                Ok(Response::Done)
            }
            Request::BeginResync { sync } => {
                // Before anything is changed (rules P10, P17).
                if !is_active(Mutant::ResyncUnmarked) {
                    let marked = self.role.take_over(*sync);
                    marked.map_err(|error| error.to_string())?;
                }
                self.saw.clear();
                self.drive(Thread::MayWait, Event::Happened(Trigger::MarkedOutOfSync));
                lockstep_resync::answer(&self.store, request, payload)
            }
            Request::Digests { .. } | Request::Inspect { .. } | Request::Records { .. } => {
                lockstep_verify::answer(&self.store, request)
            }
            Request::Room => {
                let room = self.room_for_peer();
                room.map(Response::Room).map_err(|error| error.to_string())
            }
            // Of a transfer that should be over: this copy counts as in sync (rule P10).
            _ if is_of_resync(request) && self.role.state().in_sync => {
                Err("it was asked to change a copy that is in sync, outside a resync".to_owned())
            }
            _ => lockstep_resync::answer(&self.store, request, payload),
        }
    }
}

/// Whether a request is for a copy that is being resynced, which begins with [`Request::BeginResync`].
const fn is_of_resync(request: &Request) -> bool {
    matches!(
        request,
        Request::ImageChunk
            | Request::ImageChanges
            | Request::SettleImage
            | Request::EndImage { .. }
            | Request::SettleFiles { .. }
            | Request::WriteBlocks { .. }
            | Request::Reserve { .. }
            | Request::CompareHole { punch: true, .. }
    )
}

/// After what another thread than the reader has done: an error ends the connection, and an answer leaves.
fn end_or_flush(sender: &dyn SendFrames, obeyed: Result<(), String>) {
    match obeyed {
        Ok(()) => drop(sender.flush_nowait()),
        Err(reason) => sender.shutdown(&reason),
    }
}

/// Tells a peer why it is not wanted.
pub fn refuse(sender: &dyn SendFrames, greeting: &Envelope, reason: &str) {
    // Whoever refuses knows whether that is news.
    tracing::debug!(datastore = %greeting.datastore, reason, "peer refused");
    let reason = reason.to_owned();
    answer_greeting(sender, greeting, Message::Refuse { reason });
}

/// Tells a primary that there is no use in this copy (P16).
fn tell_poisoned(sender: &dyn SendFrames, greeting: &Envelope, reason: &str) {
    let reason = reason.to_owned();
    answer_greeting(sender, greeting, Message::Poisoned { reason });
}

fn answer_greeting(sender: &dyn SendFrames, greeting: &Envelope, message: Message) {
    let envelope = Envelope {
        datastore: greeting.datastore,
        generation: greeting.generation,
        done_below: Osn::ZERO,
        message,
    };
    if let Ok(header) = envelope.encode() {
        // The peer may be gone; then it does not need to know.
        let _sent = sender.send(&header, &[]);
    }
}
