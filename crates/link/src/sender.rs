//! The sending half: many threads, one socket.
//!
//! Flat combining. Whoever finds the socket free holds it: it writes its own frame straight from
//! the caller's memory, a large one piece by piece as it hashes it, then whatever others queued
//! meanwhile, until nothing is queued. Whoever finds it held copies its frame into the queue and
//! returns at once, so under load many frames leave in one system call and no thread is woken for it.
//!
//! What a peer that does not read brings about depends on the call. [`Sender::send`] waits, for room in
//! the socket and in the queue: back-pressure for threads that carry data over in bulk. [`Sender::post`]
//! and [`Sender::leave`], for threads that serve clients, never wait: what the socket does not take at once
//! is copied, and a thread of the connection, the *pusher*, waits for room and writes the rest. The pusher is
//! started when the socket is full for the first time. Callers of `post` bound what they have under way.
//!
//! The thread that reads from the peer uses [`Sender::send_nowait`]: what it queues leaves with whoever
//! sends next, by [`Sender::flush`], or when the [`crate::Receiver`] is about to wait. One frame at a time may
//! be left in the queue on purpose, for the next to take along ([`Sender::leave`]).
//!
//! Invariants: frames are sealed and queued under one lock and written by one holder at a time, so
//! they leave in the order of sealing; the holder gives the socket back only with an empty queue,
//! or (without waiting) with a full socket, and then the pusher or the receiver waits for room; nobody holds
//! the lock across a system call.

use std::mem;
use std::sync::Arc;
use std::thread;

use lockstep_types::Hash128;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::LinkError;
use crate::frame::{FrameError, Sealer};
use crate::socket;
use crate::sums::{Hashing, PayloadHash, PayloadSums};
use crate::wire::{Backlog, Wire};

/// Bytes queued at which [`Sender::send`] waits.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;

/// Bytes queued at which [`Sender::send_nowait`] refuses: room above the other bound, so that the
/// frames that free memory at the peer are not kept out by those that fill it.
pub const NOWAIT_QUEUE_BYTES_MAX: usize = 2 * QUEUE_BYTES_MAX;

/// Bytes queued at which [`Sender::post`] refuses. Its callers bound what they have under way, so only a
/// fault of theirs gets there.
pub const POST_QUEUE_BYTES_MAX: usize = 8 * QUEUE_BYTES_MAX;

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

    /// Sends a frame without ever waiting for the peer: what the socket does not take at once is copied,
    /// and leaves when there is room. `Ok` says nothing about arrival.
    ///
    /// # Errors
    /// [`LinkError::QueueFull`] when [`POST_QUEUE_BYTES_MAX`] are queued; else as [`Sender::send`].
    pub fn post(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.outgoing().post(header, payload)
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
    /// [`Sender::post`]. True when it was left: it goes with the next one who sends, flushes, or begins to
    /// wait in [`crate::Receiver::recv`], and the caller must know that somebody will.
    ///
    /// # Errors
    /// As [`Sender::post`].
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

    /// Sends what is queued, also by others meanwhile, without ever waiting for the peer: what the socket
    /// does not take at once leaves when there is room.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn flush_nowait(&self) -> Result<(), LinkError> {
        self.outgoing().flush_or_push()
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

    fn outgoing(&self) -> &Arc<Outgoing> {
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
    /// Told when the pusher has something to do, or the connection was closed.
    push: Condvar,
}

/// Whether a holder of the socket waits while it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Wait,
    NoWait,
}

/// The thread that waits for room in place of those who never wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pusher {
    /// The socket has never been full.
    NotStarted,
    /// It has nothing to do.
    Idle,
    /// It waits for room, and writes what is queued then.
    Pushing,
}

struct Outbox {
    sealer: Sealer,
    /// Whole sealed frames.
    queued: Vec<u8>,
    /// What the last holder left or the next one may use.
    batch: Batch,
    /// Whether a thread holds the socket.
    held: bool,
    pusher: Pusher,
}

/// What the holder of the socket works with; its memory is reused.
#[derive(Default)]
struct Batch {
    /// What a holder could not write without waiting.
    backlog: Backlog,
    /// Whole sealed frames, to be sent after the backlog.
    frames: Vec<u8>,
    /// Memory for ciphertext.
    scratch: Vec<u8>,
}

impl Batch {
    /// Gives back what a large frame took; the backlog stays.
    fn tidy(&mut self) {
        for memory in [&mut self.frames, &mut self.scratch] {
            memory.clear();
            memory.shrink_to(KEPT_BYTES_MAX);
        }
        self.backlog.tidy(KEPT_BYTES_MAX);
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
        self.queued.is_empty() && self.batch.backlog.is_empty()
    }

    fn waiting_bytes(&self) -> usize {
        self.queued.len() + self.batch.backlog.len()
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
                pusher: Pusher::NotStarted,
            }),
            room: Condvar::new(),
            push: Condvar::new(),
        }
    }

    pub(crate) fn close(&self, reason: &str) {
        self.wire.close(reason.to_owned());
        // Under the lock, or a sender between its check and its wait would miss the news.
        let _outbox = self.outbox.lock();
        self.room.notify_all();
        self.push.notify_all();
    }

    fn send(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.give(header, payload, Pace::Wait).map(drop)
    }

    fn post(self: &Arc<Self>, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        let all = self.give(header, payload, Pace::NoWait)?;
        self.push_unless(all)
    }

    /// Sends a frame, or leaves it with the thread that is sending. False when the socket is full.
    fn give(&self, header: &[u8], payload: &[u8], pace: Pace) -> Result<bool, LinkError> {
        let mut hash = None;
        let mut outbox = self.outbox.lock();
        loop {
            self.wire.check_open()?;
            if !outbox.held {
                if pace == Pace::NoWait {
                    self.check_room(&outbox, POST_QUEUE_BYTES_MAX)?;
                }
                let sealed = {
                    let Outbox { sealer, queued, .. } = &mut *outbox;
                    sealer.seal(queued, header, payload.len())
                };
                let sums = sealed.map_err(|source| self.unsendable(source))?;
                return self.send_as_holder(outbox, Some(Body { payload, sums }), pace);
            }
            if pace == Pace::Wait && outbox.queued.len() >= QUEUE_BYTES_MAX {
                self.room.wait(&mut outbox);
            } else if payload.is_empty() || hash.is_some() {
                self.check_room(&outbox, POST_QUEUE_BYTES_MAX)?;
                let appended = outbox.append(header, payload, hash.as_ref());
                // The holder takes it along, or finds the socket full and says so.
                return appended
                    .map(|()| true)
                    .map_err(|source| self.unsendable(source));
            } else {
                hash = Some(MutexGuard::unlocked(&mut outbox, || {
                    self.hashing.hash(payload)
                }));
            }
        }
    }

    fn check_room(&self, outbox: &Outbox, most: usize) -> Result<(), LinkError> {
        let waiting_bytes = outbox.waiting_bytes();
        if waiting_bytes < most {
            return Ok(());
        }
        Err(LinkError::QueueFull {
            peer: self.wire.peer(),
            waiting_bytes,
        })
    }

    fn send_nowait(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.wire.check_open()?;
        let hash = (!payload.is_empty()).then(|| self.hashing.hash(payload));
        let mut outbox = self.outbox.lock();
        self.check_room(&outbox, NOWAIT_QUEUE_BYTES_MAX)?;
        let appended = outbox.append(header, payload, hash.as_ref());
        appended.map_err(|source| self.unsendable(source))
    }

    fn leave(self: &Arc<Self>, header: &[u8], payload: &[u8]) -> Result<bool, LinkError> {
        if self.outbox.lock().is_in_use() {
            return self.post(header, payload).map(|()| false);
        }
        let hash = (!payload.is_empty()).then(|| self.hashing.hash(payload));
        self.wire.check_open()?;
        let mut outbox = self.outbox.lock();
        if outbox.is_in_use() {
            drop(outbox);
            return self.post(header, payload).map(|()| false);
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
        self.send_as_holder(outbox, None, Pace::Wait).map(drop)
    }

    /// Sends what is queued, then `body`, whose head is queued last, then what others queue. False when
    /// the socket is full: some of it is left then.
    fn send_as_holder<'a>(
        &'a self,
        mut outbox: MutexGuard<'a, Outbox>,
        mut body: Option<Body<'_>>,
        pace: Pace,
    ) -> Result<bool, LinkError> {
        loop {
            let mut batch = outbox.take();
            self.room.notify_all();
            drop(outbox);
            let sent = self.send_batch(&mut batch, body.take(), pace);
            batch.tidy();
            outbox = self.outbox.lock();
            outbox.batch = batch;
            let all = outbox.batch.backlog.is_empty();
            if sent.is_err() || !all || outbox.queued.is_empty() {
                return self.give_back(outbox, sent).map(|()| all);
            }
        }
    }

    fn send_batch(
        &self,
        batch: &mut Batch,
        body: Option<Body<'_>>,
        pace: Pace,
    ) -> Result<(), LinkError> {
        self.write_backlog(batch, pace)?;
        let frames = mem::take(&mut batch.frames);
        let sent = match body.filter(|body| !body.payload.is_empty()) {
            None => self.put([&frames, &[], &[]], batch, pace),
            Some(Body { payload, sums }) if payload.len() > PIECE_BYTES => {
                self.put_in_pieces(&frames, payload, &sums, batch, pace)
            }
            Some(Body { payload, sums }) => {
                let Hash128(sum) = sums.sum(&self.hashing.hash(payload));
                self.put([&frames, payload, &sum], batch, pace)
            }
        };
        batch.frames = frames;
        sent
    }

    fn write_backlog(&self, batch: &mut Batch, pace: Pace) -> Result<(), LinkError> {
        if pace == Pace::NoWait {
            return self.wire.write_backlog(&mut batch.backlog);
        }
        if !batch.backlog.is_empty() {
            self.wire.write_raw(batch.backlog.left())?;
            batch.backlog.clear();
        }
        Ok(())
    }

    fn put(&self, parts: [&[u8]; 3], batch: &mut Batch, pace: Pace) -> Result<(), LinkError> {
        match pace {
            Pace::Wait => self.wire.send(parts, &mut batch.scratch),
            Pace::NoWait => {
                let Batch {
                    backlog, scratch, ..
                } = batch;
                self.wire.send_nowait(parts, scratch, backlog)
            }
        }
    }

    fn put_in_pieces(
        &self,
        mut frames: &[u8],
        payload: &[u8],
        sums: &PayloadSums,
        batch: &mut Batch,
        pace: Pace,
    ) -> Result<(), LinkError> {
        let mut hasher = self.hashing.hasher();
        let mut pieces = payload.chunks(PIECE_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            hasher.update(piece);
            let last = pieces.peek().is_none();
            let sum = last.then(|| sums.sum(&hasher.finish()));
            let sum = sum.as_ref().map_or(&[][..], |Hash128(sum)| sum);
            self.put([frames, piece, sum], batch, pace)?;
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
            self.push.notify_all();
        }
        self.room.notify_all();
        sent
    }

    /// Sends what is queued as far as the socket takes it without waiting. True when nothing is
    /// left for the caller to see to.
    pub(crate) fn flush_nowait(&self) -> Result<bool, LinkError> {
        let outbox = self.outbox.lock();
        if outbox.held || outbox.is_idle() {
            return Ok(true);
        }
        self.wire.check_open()?;
        self.send_as_holder(outbox, None, Pace::NoWait)
    }

    /// The same; the pusher sees to what is left.
    fn flush_or_push(self: &Arc<Self>) -> Result<(), LinkError> {
        let all = self.flush_nowait()?;
        self.push_unless(all)
    }

    /// Has the pusher wait for room, unless all was sent.
    fn push_unless(self: &Arc<Self>, all: bool) -> Result<(), LinkError> {
        if all {
            return Ok(());
        }
        let before = mem::replace(&mut self.outbox.lock().pusher, Pusher::Pushing);
        match before {
            Pusher::Pushing => Ok(()),
            Pusher::Idle => {
                self.push.notify_one();
                Ok(())
            }
            Pusher::NotStarted => self.start_pusher(),
        }
    }

    fn start_pusher(self: &Arc<Self>) -> Result<(), LinkError> {
        let outgoing = Arc::clone(self);
        let pusher = thread::Builder::new().name("link-push".into());
        match pusher.spawn(move || outgoing.push_on()) {
            Ok(_) => Ok(()),
            Err(error) => {
                let error = self.wire.socket_error("start a thread for", error);
                self.close(&error.to_string());
                Err(error)
            }
        }
    }

    /// The pusher's life: waits for room where it is told to, until the connection is closed.
    fn push_on(&self) {
        while self.has_to_push() {
            let pushed = socket::wait_for_room(self.wire.socket())
                .map_err(|error| self.wire.socket_error("wait", error))
                .and_then(|()| self.push_once());
            if let Err(error) = pushed {
                return self.close(&error.to_string());
            }
        }
    }

    /// Waits until there is something to push. False when the connection is closed.
    fn has_to_push(&self) -> bool {
        let mut outbox = self.outbox.lock();
        while outbox.pusher != Pusher::Pushing && self.wire.check_open().is_ok() {
            self.push.wait(&mut outbox);
        }
        self.wire.check_open().is_ok()
    }

    fn push_once(&self) -> Result<(), LinkError> {
        {
            let mut outbox = self.outbox.lock();
            // Whoever holds the socket now finds it full, if it is, and says so again.
            outbox.pusher = Pusher::Idle;
        }
        if !self.flush_nowait()? {
            self.outbox.lock().pusher = Pusher::Pushing;
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
