//! The frames of the primary: the reader executes each one, or hands it to a thread that may wait.

use std::sync::Arc;

use lockstep_delta::BarrierEvent;
use lockstep_delta::announced::REGION_BYTES;
use lockstep_fs::store::Applied;
use lockstep_fs::{OpError, Store};
use lockstep_link::{FrameRef, SendFrames};
use lockstep_repl::message::{BarrierMessage, Envelope, Message, RegionRun, Request, WriteMessage};
use lockstep_sums::SummedBytes;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, MetaOp, Osn};

use super::{ConnectionEnd, StandbySession};
use crate::durable::tables::entry_of;
use crate::peer::connection::Delivery;

impl StandbySession {
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
    pub(super) fn handle_frame(
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
                    && !store.replica().may_keep_for(&op.request);
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
            Message::Ping {
                disk_silent_ms,
                resync,
            } => {
                *self.told_resync.lock() = resync;
                store.delta().note_done_below(envelope.done_below);
                self.answer_ping(&**sender, disk_silent_ms);
                Ok(())
            }
            Message::Alive => {
                self.answer(&**sender, Message::Alive);
                Ok(())
            }
            Message::Barrier(_) | Message::Turn(_) | Message::Announce { .. } => {
                self.handle_interval(&**sender, envelope.message);
                Ok(())
            }
            Message::Request { id, request } => {
                self.handle_request(sender, id, request, frame.payload.to_vec())
            }
            other => Err(ConnectionEnd::NotForSecondary(Box::new(other))),
        }
    }

    /// Takes a word about intervals and their marks (rules P26, P27).
    fn handle_interval(&self, sender: &dyn SendFrames, message: Message) {
        let store = &self.engine.store;
        match message {
            Message::Barrier(message) => self.receive_barrier(message),
            Message::Turn(to) => {
                let _none = store.barriers().handle(BarrierEvent::Turned { to });
            }
            // On this thread, as the marks of a write: behind a flush that hangs, the primary's writes would wait.
            Message::Announce { id, runs } => {
                mark_regions(store, &runs);
                self.answer(sender, Message::Announced { id });
            }
            _ => {}
        }
    }

    fn answer_ping(&self, sender: &dyn SendFrames, disk_silent_ms: u64) {
        self.engine.disk.watch.note_peer(disk_silent_ms);
        // Before the answer, which gives the primary a lease (rule R7).
        self.engine.role.promise.give(&*self.engine.host);
        let pong = Message::Pong {
            room: self.room(),
            disk_silent_ms: self.engine.disk.watch.silent_ms(),
        };
        self.answer(sender, pong);
    }

    /// Another copy may lack what the primary takes for done on both nodes.
    fn receive_barrier(&self, message: BarrierMessage) {
        if self.responder.may_reach_barrier() {
            self.barriers.receive(message);
        }
    }

    /// Whether a write needs no other work on the disk first.
    fn may_write_now(&self, write: &WriteMessage, length: usize) -> bool {
        let store = &self.engine.store;
        let keeps = store
            .replica()
            .may_keep(write.ino, write.offset, length as u64);
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
            let handled = session.handle_write(&sender, &write, (&data).into());
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
        data: SummedBytes<'_>,
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
            let Some(response) = session.responder.response(&request, &payload) else {
                sender.shutdown("this node has said since that its copy is not complete");
                return;
            };
            if response.is_ok() && request.is_of_resync() {
                session.engine.disk.count.note_answered_now();
            }
            session.answer(&*sender, Message::Response { id, response });
            let _flushed = sender.flush_nowait();
            drop(permit);
        });
        Ok(())
    }
}

/// Marks the regions in which the primary is about to write: this copy may never get the bytes, and the primary may keep them over a
/// loss of its power (rule P26).
fn mark_regions(store: &Store, runs: &[RegionRun]) {
    if is_active(Mutant::AnnouncedUnmarked) {
        return;
    }
    for run in runs {
        let offset = run.first.saturating_mul(REGION_BYTES);
        let length = u64::from(run.count).saturating_mul(REGION_BYTES);
        store.barriers().mark_write(run.ino, offset, length);
    }
}

/// The end of an operation on another thread than the reader: an error ends the connection, an answer leaves.
fn end_or_flush(sender: &dyn SendFrames, handled: Result<(), ConnectionEnd>) {
    match handled {
        Ok(()) => drop(sender.flush_nowait()),
        Err(end) => sender.shutdown(&end.to_string()),
    }
}
