//! Sending frames: many threads, one socket.
//!
//! Flat combining. A thread that finds the socket free holds it. The holder writes its own frame straight from the
//! caller's memory, a large frame in pieces while hashing it, then the frames that other threads have queued meanwhile,
//! until the queue is empty. A thread that finds the socket held copies its frame into the queue and returns at once.
//! So under load many frames leave in one system call, and no thread is woken for them.
//!
//! If the peer does not read, the call decides. [`Outgoing::send`] waits for room in the socket and in the queue:
//! back-pressure for threads that carry data over in bulk. [`Outgoing::post`] and [`Outgoing::send_deferred`], for
//! threads that serve clients, never wait: bytes that the socket does not take at once are copied, and a thread of the
//! connection, the *pusher*, waits for room and writes them. The first full socket starts the pusher. Callers of `post`
//! bound their own bytes in flight.
//!
//! The thread that reads from the peer uses [`Outgoing::enqueue`]. A queued frame leaves with the next call that sends
//! or flushes, or when the receiver is about to wait. [`Outgoing::send_deferred`] may leave one frame at a time in the
//! queue on purpose, for the next call to take along.
//!
//! Invariants: frames are sealed and queued under one lock and written by one holder at a time, so they leave in the
//! order of sealing. The holder releases the socket only with an empty queue, or, if it does not wait, with a full
//! socket; then the pusher or the receiver waits for room. No thread holds the lock across a system call.

use std::mem;
use std::sync::{Arc, OnceLock};
use std::thread;

use lockstep_sums::SumKey;
use lockstep_types::Hash128;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::LinkError;
use crate::frame::{FrameError, Sealer};
use crate::outbox::{Outbox, PusherState, SendBatch};
use crate::payload::Payload;
use crate::socket::{self, WhenFull};
use crate::sums::{Hashing, PayloadHash, PayloadSums};
use crate::wire::Wire;

/// Queued bytes at which [`crate::SendFrames::send`] waits.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;

/// Queued bytes at which [`crate::SendFrames::enqueue`] refuses. The bound is above [`QUEUE_BYTES_MAX`], so that bulk
/// data cannot keep out the frames that free memory at the peer.
pub const ENQUEUE_BYTES_MAX: usize = 2 * QUEUE_BYTES_MAX;

/// Queued bytes at which [`crate::SendFrames::post`] refuses. Its callers bound their bytes in flight, so only a faulty
/// caller reaches this bound.
pub const POST_QUEUE_BYTES_MAX: usize = 8 * QUEUE_BYTES_MAX;

/// Size of the pieces in which a payload is hashed, encrypted and sent: the peer reads one piece while this node makes
/// the next piece.
const PIECE_BYTES: usize = 128 << 10;

/// The sending side of a connection. Both halves use it.
pub(crate) struct Outgoing {
    wire: Arc<Wire>,
    hashing: Hashing,
    /// The function with the key that both nodes have agreed on meanwhile.
    agreed: OnceLock<Hashing>,
    outbox: Mutex<Outbox>,
    /// Notified when a holder takes the queue or releases the socket, and when the connection is closed.
    room: Condvar,
    /// Notified when the pusher has work, and when the connection is closed.
    push: Condvar,
}

/// A payload that leaves from the caller's memory, and the maker of its sum.
struct UnsentPayload<'a> {
    payload: Payload<'a>,
    sums: PayloadSums,
}

impl Outgoing {
    pub(crate) fn new(wire: Arc<Wire>, sealer: Sealer) -> Self {
        Self {
            wire,
            hashing: sealer.hashing().clone(),
            agreed: OnceLock::new(),
            outbox: Mutex::new(Outbox::new(sealer, SendBatch::default())),
            room: Condvar::new(),
            push: Condvar::new(),
        }
    }

    pub(crate) fn use_key(&self, key: &Arc<SumKey>) {
        // A second key would need an order among the frames under way.
        let _first = self.agreed.set(self.hashing.with_key(key));
    }

    /// The hash function for payloads.
    fn hashing(&self) -> &Hashing {
        self.agreed.get().unwrap_or(&self.hashing)
    }

    pub(crate) fn close(&self, reason: &str) {
        self.wire.close(reason.to_owned());
        // Without the lock, a sender between its check and its wait would miss the notification.
        let _outbox = self.outbox.lock();
        self.room.notify_all();
        self.push.notify_all();
    }

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.outbox.lock().waiting_bytes()
    }

    pub(crate) fn post(
        self: &Arc<Self>,
        header: &[u8],
        payload: Payload<'_>,
    ) -> Result<(), LinkError> {
        let all = self.send(header, payload, WhenFull::Return)?;
        self.push_unless(all)
    }

    /// Sends a frame, or leaves it with the holder of the socket. Returns false if the socket is full.
    pub(crate) fn send(
        &self,
        header: &[u8],
        payload: Payload<'_>,
        when_full: WhenFull,
    ) -> Result<bool, LinkError> {
        let mut hash = None;
        let mut outbox = self.outbox.lock();
        loop {
            self.wire.check_open()?;
            if !outbox.is_held {
                if when_full == WhenFull::Return {
                    self.check_room(&outbox, POST_QUEUE_BYTES_MAX)?;
                }
                let sealed = outbox.append_head(header, payload);
                let sums = sealed.map_err(|source| self.unsendable(source))?;
                let unsent = UnsentPayload { payload, sums };
                return self.send_as_holder(outbox, Some(unsent), when_full);
            }
            if when_full == WhenFull::Wait && outbox.queued_bytes() >= QUEUE_BYTES_MAX {
                self.room.wait(&mut outbox);
            } else if payload.bytes.is_empty() || hash.is_some() {
                self.check_room(&outbox, POST_QUEUE_BYTES_MAX)?;
                // The holder sends the frame, or finds the socket full and reports it.
                let appended = outbox.append(header, payload, hash.as_ref());
                return appended
                    .map(|()| true)
                    .map_err(|source| self.unsendable(source));
            } else {
                hash = MutexGuard::unlocked(&mut outbox, || self.hash_of(payload));
            }
        }
    }

    pub(crate) fn enqueue(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
        self.wire.check_open()?;
        let hash = self.hash_of(payload);
        let mut outbox = self.outbox.lock();
        self.check_room(&outbox, ENQUEUE_BYTES_MAX)?;
        let appended = outbox.append(header, payload, hash.as_ref());
        appended.map_err(|source| self.unsendable(source))
    }

    pub(crate) fn send_deferred(
        self: &Arc<Self>,
        header: &[u8],
        payload: Payload<'_>,
    ) -> Result<bool, LinkError> {
        if self.outbox.lock().is_in_use() {
            return self.post(header, payload).map(|()| false);
        }
        let hash = self.hash_of(payload);
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

    pub(crate) fn flush(&self) -> Result<(), LinkError> {
        self.wire.check_open()?;
        self.flush_queue(WhenFull::Wait).map(drop)
    }

    /// Sends the queue as far as the socket takes it without waiting. Returns false if the socket is full: the caller
    /// must then wait for room.
    pub(crate) fn flush_nowait(&self) -> Result<bool, LinkError> {
        self.flush_queue(WhenFull::Return)
    }

    /// Sends the queue as far as the socket takes it without waiting. The pusher sends the rest.
    pub(crate) fn flush_or_push(self: &Arc<Self>) -> Result<(), LinkError> {
        let all = self.flush_nowait()?;
        self.push_unless(all)
    }

    fn flush_queue(&self, when_full: WhenFull) -> Result<bool, LinkError> {
        let outbox = self.outbox.lock();
        if outbox.is_held || outbox.is_idle() {
            return Ok(true);
        }
        self.wire.check_open()?;
        self.send_as_holder(outbox, None, when_full)
    }

    /// Sends the queue, then `payload`, whose head is last in the queue, then the frames that other threads queue
    /// meanwhile. Returns false if the socket is full and bytes are left.
    fn send_as_holder<'a>(
        &'a self,
        mut outbox: MutexGuard<'a, Outbox>,
        mut payload: Option<UnsentPayload<'_>>,
        when_full: WhenFull,
    ) -> Result<bool, LinkError> {
        loop {
            let mut batch = outbox.hold();
            self.room.notify_all();
            drop(outbox);
            let sent = self.send_batch(&mut batch, payload.take(), when_full);
            batch.tidy();
            let all = batch.is_written();
            outbox = self.outbox.lock();
            outbox.store(batch);
            if sent.is_err() || !all || outbox.queued_bytes() == 0 {
                return self.release(outbox, sent).map(|()| all);
            }
        }
    }

    fn send_batch(
        &self,
        batch: &mut SendBatch,
        payload: Option<UnsentPayload<'_>>,
        when_full: WhenFull,
    ) -> Result<(), LinkError> {
        let SendBatch { frames, buffers } = batch;
        self.wire.write_backlog(buffers, when_full)?;
        let Some(UnsentPayload { payload, sums }) =
            payload.filter(|unsent| !unsent.payload.bytes.is_empty())
        else {
            return self.wire.send([frames, &[], &[]], buffers, when_full);
        };
        let bytes = payload.bytes.bytes();
        let hashing = self.hashing();
        if bytes.len() <= PIECE_BYTES {
            let Hash128(sum) = sums.sum(&hashing.hash(payload));
            return self.wire.send([frames, bytes, &sum], buffers, when_full);
        }
        let mut frames = &frames[..];
        let mut hasher = (!hashing.knows(&payload)).then(|| hashing.hasher(payload.start));
        let (pieces, last) = bytes.split_at((bytes.len() - 1) / PIECE_BYTES * PIECE_BYTES);
        for (number, piece) in pieces.chunks(PIECE_BYTES).enumerate() {
            let end = (number + 1) * PIECE_BYTES;
            if let Some(hasher) = &mut hasher {
                hasher.advance(bytes.get(..end).unwrap_or_default());
            }
            self.wire.send([frames, piece, &[]], buffers, when_full)?;
            frames = &[];
        }
        let hash = match hasher {
            Some(hasher) => hasher.finish(bytes).0,
            None => hashing.hash(payload),
        };
        let Hash128(sum) = sums.sum(&hash);
        self.wire.send([frames, last, &sum], buffers, when_full)
    }

    fn release(
        &self,
        mut outbox: MutexGuard<'_, Outbox>,
        sent: Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        outbox.is_held = false;
        if let Err(error) = &sent {
            self.wire.close(error.to_string());
            outbox.discard_queue();
            self.push.notify_all();
        }
        self.room.notify_all();
        sent
    }

    /// Lets the pusher wait for room, unless `all` bytes were sent.
    fn push_unless(self: &Arc<Self>, all: bool) -> Result<(), LinkError> {
        if all {
            return Ok(());
        }
        let before = mem::replace(&mut self.outbox.lock().pusher, PusherState::Pushing);
        match before {
            PusherState::Pushing => Ok(()),
            PusherState::Idle => {
                self.push.notify_one();
                Ok(())
            }
            PusherState::NotStarted => self.start_pusher(),
        }
    }

    fn start_pusher(self: &Arc<Self>) -> Result<(), LinkError> {
        let outgoing = Arc::clone(self);
        let pusher = thread::Builder::new().name("link-push".into());
        match pusher.spawn(move || outgoing.run_pusher()) {
            Ok(_) => Ok(()),
            Err(error) => {
                let error = self.wire.socket_error("start a thread for", error);
                self.close(&error.to_string());
                Err(error)
            }
        }
    }

    /// The pusher: whenever it has work, waits for room and writes the queue, until the connection is closed.
    fn run_pusher(&self) {
        while self.wait_for_work() {
            let pushed = socket::wait_for_room(self.wire.socket())
                .map_err(|error| self.wire.socket_error("wait", error))
                .and_then(|()| self.push_once());
            if let Err(error) = pushed {
                return self.close(&error.to_string());
            }
        }
    }

    /// Waits until the pusher has work. Returns false when the connection is closed.
    fn wait_for_work(&self) -> bool {
        let mut outbox = self.outbox.lock();
        while outbox.pusher != PusherState::Pushing && self.wire.check_open().is_ok() {
            self.push.wait(&mut outbox);
        }
        self.wire.check_open().is_ok()
    }

    fn push_once(&self) -> Result<(), LinkError> {
        // If another thread holds the socket now and finds it full, that thread sets `Pushing` again.
        self.outbox.lock().pusher = PusherState::Idle;
        if !self.flush_nowait()? {
            self.outbox.lock().pusher = PusherState::Pushing;
        }
        Ok(())
    }

    fn hash_of(&self, payload: Payload<'_>) -> Option<PayloadHash> {
        (!payload.bytes.is_empty()).then(|| self.hashing().hash(payload))
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

    fn unsendable(&self, source: FrameError) -> LinkError {
        LinkError::Unsendable {
            peer: self.wire.peer(),
            source,
        }
    }
}
