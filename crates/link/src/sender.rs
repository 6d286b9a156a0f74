//! The sending half: many threads, one socket, no thread of its own.
//!
//! Flat combining. Whoever finds the socket free holds it: it writes its own frame straight from
//! the caller's memory, a large one piece by piece as it hashes it, then whatever others queued
//! meanwhile, until nothing is queued. Whoever finds it held copies its frame into the queue and
//! returns at once, so under load many frames leave in one system call and no thread is woken for it.
//! A queue at its bound makes senders wait: that is the back-pressure of a peer that does not read.
//!
//! Threads that must never wait for the peer (the one that reads from it above all) use
//! [`Sender::send_nowait`]: what they queue leaves with whoever sends next, by
//! [`Sender::flush`], or when the [`crate::Receiver`] is about to wait. One frame at a time may be left in
//! the queue on purpose, for the next to take along ([`Sender::leave`]).
//!
//! Invariants: frames are sealed and queued under one lock and written by one holder at a time, so
//! they leave in the order of sealing; the holder gives the socket back only with an empty queue,
//! or (without waiting) with a full socket, and then sees to it that somebody waits for room; nobody holds the lock across a system call.

use std::mem;
use std::sync::Arc;

use lockstep_types::Hash128;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::LinkError;
use crate::frame::{FrameError, Sealer};
use crate::socket;
use crate::sums::{Hashing, PayloadHash, PayloadSums};
use crate::wire::Wire;

/// Bytes queued at which [`Sender::send`] waits.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;

/// Bytes queued at which [`Sender::send_nowait`] refuses: room above the other bound, so that the
/// frames that free memory at the peer are not kept out by those that fill it.
pub const NOWAIT_QUEUE_BYTES_MAX: usize = 2 * QUEUE_BYTES_MAX;

/// A payload is hashed, encrypted and sent in pieces of this: the peer takes in one while the next
/// is made.
const PIECE_BYTES: usize = 128 << 10;

/// Memory of an emptied queue above this is given back.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// The sending half of a connection, for any number of threads. Frames of one thread arrive in the
/// order it sent them. The connection is closed when the last clone is dropped.
#[derive(Clone)]
pub struct Sender(Arc<Owned>);

/// Closes the connection when the last [`Sender`] goes.
struct Owned(Arc<Outgoing>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.close("the sender was dropped");
    }
}

impl Sender {
    pub(crate) fn new(outgoing: Arc<Outgoing>) -> Self {
        Self(Arc::new(Owned(outgoing)))
    }

    /// Sends a frame, or leaves it with the thread that is sending; waits while the peer does not
    /// read and [`QUEUE_BYTES_MAX`] are queued. `Ok` says nothing about arrival.
    ///
    /// # Errors
    /// [`LinkError::Unsendable`] outside the bounds of [`crate::frame`]; else the connection is lost.
    pub fn send(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.outgoing().send(header, payload)
    }

    /// Queues a frame without ever waiting for the peer. It leaves with the next one who sends,
    /// flushes, or waits in [`crate::Receiver::recv`].
    ///
    /// # Errors
    /// [`LinkError::QueueFull`] when [`NOWAIT_QUEUE_BYTES_MAX`] are queued; else as [`Sender::send`].
    pub fn send_nowait(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.outgoing().send_nowait(header, payload)
    }

    /// Leaves a frame in the queue, where it is the only one; else sends it and all that is queued, as
    /// [`Sender::send`]. True when it was left: it goes with the next one who sends, flushes, or begins to
    /// wait in [`crate::Receiver::recv`], and the caller must know that somebody will.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn leave(&self, header: &[u8], payload: &[u8]) -> Result<bool, LinkError> {
        self.outgoing().leave(header, payload)
    }

    /// Sends what is queued, or leaves it with the thread that is sending. May wait for the peer.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn flush(&self) -> Result<(), LinkError> {
        self.outgoing().flush()
    }

    /// Sends what is queued, also by others meanwhile, as far as the socket takes it without waiting. False
    /// when some of it is still queued: the caller then sees to it that somebody calls [`Sender::flush`].
    ///
    /// # Errors
    /// The connection is lost.
    pub fn flush_nowait(&self) -> Result<bool, LinkError> {
        self.outgoing().flush_nowait()
    }

    /// Bytes that wait to be handed to the socket; for status and metrics.
    pub fn queued_bytes(&self) -> usize {
        self.outgoing().outbox.lock().waiting_bytes()
    }

    /// Closes the connection at once, both ways; whoever waits on it returns with an error that
    /// gives `reason`.
    pub fn shutdown(&self, reason: &str) {
        self.outgoing().close(reason);
    }

    fn outgoing(&self) -> &Outgoing {
        let Owned(outgoing) = &*self.0;
        outgoing
    }
}

/// What the halves share for sending.
pub(crate) struct Outgoing {
    wire: Arc<Wire>,
    hashing: Hashing,
    outbox: Mutex<Outbox>,
    /// Told when the queue was taken, the socket was given back, or the connection was closed.
    room: Condvar,
}

struct Outbox {
    sealer: Sealer,
    /// Whole sealed frames.
    queued: Vec<u8>,
    /// What the last holder left or the next one may use.
    batch: Batch,
    /// Whether a thread holds the socket.
    held: bool,
}

/// What the holder of the socket works with; its memory is reused.
#[derive(Default)]
struct Batch {
    /// Bytes for the socket as they are, which a holder could not write without waiting.
    stuck: Vec<u8>,
    /// How many of `stuck` are written.
    written: usize,
    /// Whole sealed frames, to be sent after `stuck`.
    frames: Vec<u8>,
    /// Memory for ciphertext.
    scratch: Vec<u8>,
}

impl Batch {
    fn left(&self) -> &[u8] {
        self.stuck.get(self.written..).unwrap_or_default()
    }

    /// Keeps a peer that reads slowly, but never all, from making `stuck` grow for ever.
    fn forget_written(&mut self) {
        if self.written >= self.stuck.len() / 2 {
            self.stuck.drain(..self.written);
            self.written = 0;
        }
    }

    fn empty(&mut self) {
        self.written = 0;
        for memory in [&mut self.stuck, &mut self.frames, &mut self.scratch] {
            memory.clear();
            memory.shrink_to(KEPT_BYTES_MAX);
        }
    }
}

/// A payload that leaves from the caller's memory, and what makes its sum.
struct Body<'a> {
    payload: &'a [u8],
    sums: PayloadSums,
}

impl Outbox {
    /// Queues a frame; `hash` is that of its payload, if it has one.
    fn append(
        &mut self,
        header: &[u8],
        payload: &[u8],
        hash: Option<&PayloadHash>,
    ) -> Result<(), FrameError> {
        let sums = self.sealer.seal(&mut self.queued, header, payload.len())?;
        if let Some(hash) = hash {
            self.queued.extend_from_slice(payload);
            self.queued.extend_from_slice(&sums.sum(hash).0);
        }
        Ok(())
    }

    /// Whether something is being sent, or waits for that.
    fn is_in_use(&self) -> bool {
        self.held || !self.is_idle()
    }

    fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.batch.left().is_empty()
    }

    fn waiting_bytes(&self) -> usize {
        self.queued.len() + self.batch.left().len()
    }

    /// Makes the caller the holder of the socket and gives it all that is queued.
    fn take(&mut self) -> Batch {
        self.held = true;
        let mut batch = mem::take(&mut self.batch);
        mem::swap(&mut batch.frames, &mut self.queued);
        batch
    }
}

impl Outgoing {
    pub(crate) fn new(wire: Arc<Wire>, sealer: Sealer) -> Self {
        Self {
            wire,
            hashing: sealer.hashing(),
            outbox: Mutex::new(Outbox {
                sealer,
                queued: Vec::new(),
                batch: Batch::default(),
                held: false,
            }),
            room: Condvar::new(),
        }
    }

    pub(crate) fn close(&self, reason: &str) {
        self.wire.close(reason.to_owned());
        // Under the lock, or a sender between its check and its wait would miss the news.
        let _outbox = self.outbox.lock();
        self.room.notify_all();
    }

    fn send(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        let mut hash = None;
        let mut outbox = self.outbox.lock();
        loop {
            self.wire.check_open()?;
            if !outbox.held {
                let sealed = {
                    let Outbox { sealer, queued, .. } = &mut *outbox;
                    sealer.seal(queued, header, payload.len())
                };
                let sums = sealed.map_err(|source| self.unsendable(source))?;
                return self.send_as_holder(outbox, Some(Body { payload, sums }));
            }
            if outbox.queued.len() >= QUEUE_BYTES_MAX {
                self.room.wait(&mut outbox);
            } else if payload.is_empty() || hash.is_some() {
                let appended = outbox.append(header, payload, hash.as_ref());
                return appended.map_err(|source| self.unsendable(source));
            } else {
                hash = Some(MutexGuard::unlocked(&mut outbox, || {
                    self.hashing.hash(payload)
                }));
            }
        }
    }

    fn send_nowait(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.wire.check_open()?;
        let hash = (!payload.is_empty()).then(|| self.hashing.hash(payload));
        let mut outbox = self.outbox.lock();
        let waiting_bytes = outbox.waiting_bytes();
        if waiting_bytes >= NOWAIT_QUEUE_BYTES_MAX {
            return Err(LinkError::QueueFull {
                peer: self.wire.peer(),
                waiting_bytes,
            });
        }
        let appended = outbox.append(header, payload, hash.as_ref());
        appended.map_err(|source| self.unsendable(source))
    }

    fn leave(&self, header: &[u8], payload: &[u8]) -> Result<bool, LinkError> {
        if self.outbox.lock().is_in_use() {
            return self.send(header, payload).map(|()| false);
        }
        let hash = (!payload.is_empty()).then(|| self.hashing.hash(payload));
        self.wire.check_open()?;
        let mut outbox = self.outbox.lock();
        if outbox.is_in_use() {
            drop(outbox);
            return self.send(header, payload).map(|()| false);
        }
        let appended = outbox.append(header, payload, hash.as_ref());
        appended.map_err(|source| self.unsendable(source))?;
        Ok(true)
    }

    fn flush(&self) -> Result<(), LinkError> {
        self.wire.check_open()?;
        let outbox = self.outbox.lock();
        if outbox.held || outbox.is_idle() {
            return Ok(());
        }
        self.send_as_holder(outbox, None)
    }

    /// Sends what is queued, then `body`, whose head is queued last, then what others queue.
    fn send_as_holder<'a>(
        &'a self,
        mut outbox: MutexGuard<'a, Outbox>,
        mut body: Option<Body<'_>>,
    ) -> Result<(), LinkError> {
        loop {
            let mut batch = outbox.take();
            self.room.notify_all();
            drop(outbox);
            let sent = self.send_batch(&mut batch, body.take());
            batch.empty();
            outbox = self.outbox.lock();
            outbox.batch = batch;
            if sent.is_err() || outbox.queued.is_empty() {
                return self.give_back(outbox, sent);
            }
        }
    }

    fn send_batch(&self, batch: &mut Batch, body: Option<Body<'_>>) -> Result<(), LinkError> {
        if !batch.left().is_empty() {
            self.wire.write_raw(batch.left())?;
        }
        let body = body.filter(|body| !body.payload.is_empty());
        let Some(Body { payload, sums }) = body else {
            return self
                .wire
                .send([&batch.frames, &[], &[]], &mut batch.scratch);
        };
        if payload.len() > PIECE_BYTES {
            return self.send_in_pieces(batch, payload, &sums);
        }
        let Hash128(sum) = sums.sum(&self.hashing.hash(payload));
        self.wire
            .send([&batch.frames, payload, &sum], &mut batch.scratch)
    }

    fn send_in_pieces(
        &self,
        batch: &mut Batch,
        payload: &[u8],
        sums: &PayloadSums,
    ) -> Result<(), LinkError> {
        let mut frames = &batch.frames[..];
        let mut hasher = self.hashing.hasher();
        let mut pieces = payload.chunks(PIECE_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            hasher.update(piece);
            let last = pieces.peek().is_none();
            let sum = last.then(|| sums.sum(&hasher.finish()));
            let sum = sum.as_ref().map_or(&[][..], |Hash128(sum)| sum);
            self.wire.send([frames, piece, sum], &mut batch.scratch)?;
            frames = &[];
        }
        Ok(())
    }

    fn give_back(
        &self,
        mut outbox: MutexGuard<'_, Outbox>,
        sent: Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        outbox.held = false;
        if let Err(error) = &sent {
            self.wire.close(error.to_string());
            outbox.queued = Vec::new();
        }
        self.room.notify_all();
        sent
    }

    /// Sends what is queued as far as the socket takes it without waiting. True when nothing is
    /// left for the caller to see to.
    pub(crate) fn flush_nowait(&self) -> Result<bool, LinkError> {
        let mut outbox = self.outbox.lock();
        loop {
            if outbox.held || outbox.is_idle() {
                return Ok(true);
            }
            self.wire.check_open()?;
            let mut batch = outbox.take();
            self.room.notify_all();
            drop(outbox);
            let sent = self.send_batch_nowait(&mut batch);
            outbox = self.outbox.lock();
            outbox.batch = batch;
            let full = !outbox.batch.left().is_empty();
            if sent.is_err() || full || outbox.queued.is_empty() {
                return self.give_back(outbox, sent).map(|()| !full);
            }
            outbox.held = false;
        }
    }

    fn send_batch_nowait(&self, batch: &mut Batch) -> Result<(), LinkError> {
        batch.forget_written();
        let frames = mem::take(&mut batch.frames);
        if batch.stuck.is_empty() && !self.wire.is_encrypted() {
            batch.frames = mem::replace(&mut batch.stuck, frames);
        } else {
            self.wire.encrypt([&frames, &[], &[]], &mut batch.stuck)?;
            batch.frames = frames;
        }
        while !batch.left().is_empty() {
            match socket::write_nowait(self.wire.socket(), batch.left()) {
                Ok(Some(written)) => batch.written += written,
                Ok(None) => break,
                Err(error) => return Err(self.wire.socket_error("send", error)),
            }
        }
        batch.frames.clear();
        if batch.left().is_empty() {
            batch.empty();
        }
        Ok(())
    }

    fn unsendable(&self, source: FrameError) -> LinkError {
        LinkError::Unsendable {
            peer: self.wire.peer(),
            source,
        }
    }
}
