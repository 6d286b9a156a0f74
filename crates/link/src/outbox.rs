//! The outbox of a connection: the sealed frames that wait for the socket, and the state of the socket's holder and of
//! the pusher.
//!
//! Invariant: the queue has whole sealed frames, in the order of sealing. This file knows no socket and no thread.

use std::mem;

use crate::frame::{FrameError, Sealer};
use crate::payload::Payload;
use crate::sums::{PayloadHash, PayloadSums};
use crate::wire::WireBuffers;

/// Bound on the kept memory of an emptied queue.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// The state of the pusher: the thread that waits for room in place of the threads that never wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PusherState {
    /// The socket has never been full.
    NotStarted,
    /// The pusher has nothing to do.
    Idle,
    /// The pusher waits for room, and then writes the queue.
    Pushing,
}

/// The frames that the holder of the socket writes, and its memory, which is reused.
#[derive(Default)]
pub(crate) struct SendBatch {
    /// Whole sealed frames, to be sent after the backlog.
    pub(crate) frames: Vec<u8>,
    pub(crate) buffers: WireBuffers,
}

impl SendBatch {
    /// Discards the written frames, and frees the memory that a large frame took. The backlog stays.
    pub(crate) fn tidy(&mut self) {
        self.frames.clear();
        self.frames.shrink_to(KEPT_BYTES_MAX);
        self.buffers.tidy(KEPT_BYTES_MAX);
    }

    pub(crate) fn is_written(&self) -> bool {
        self.buffers.backlog.is_empty()
    }
}

/// The outbox. Its fields are under one lock, the lock of `Outgoing`.
pub(crate) struct Outbox {
    sealer: Sealer,
    queued: Vec<u8>,
    /// The batch of the last holder, for the next holder.
    batch: SendBatch,
    /// Whether a thread holds the socket.
    pub(crate) is_held: bool,
    pub(crate) pusher: PusherState,
}

impl Outbox {
    pub(crate) const fn new(sealer: Sealer, batch: SendBatch) -> Self {
        Self {
            sealer,
            queued: Vec::new(),
            batch,
            is_held: false,
            pusher: PusherState::NotStarted,
        }
    }

    /// Queues the part of a frame before its payload, and returns the sums for the payload.
    pub(crate) fn append_head(
        &mut self,
        header: &[u8],
        payload: Payload<'_>,
    ) -> Result<PayloadSums, FrameError> {
        self.sealer.seal(&mut self.queued, header, payload)
    }

    /// Queues a frame. `hash` is the hash of the payload, if the frame has a payload.
    pub(crate) fn append(
        &mut self,
        header: &[u8],
        payload: Payload<'_>,
        hash: Option<&PayloadHash>,
    ) -> Result<(), FrameError> {
        let sums = self.append_head(header, payload)?;
        if let Some(hash) = hash {
            self.queued.extend_from_slice(&payload.bytes);
            self.queued.extend_from_slice(&sums.sum(hash).0);
        }
        Ok(())
    }

    /// Whether no frame waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.batch.is_written()
    }

    /// Whether a thread is sending, or a frame waits.
    pub(crate) fn is_in_use(&self) -> bool {
        self.is_held || !self.is_idle()
    }

    pub(crate) const fn queued_bytes(&self) -> usize {
        self.queued.len()
    }

    /// Bytes in the queue and in the backlog.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.queued.len() + self.batch.buffers.backlog.len()
    }

    /// Makes the calling thread the holder of the socket, and gives it the queue.
    pub(crate) fn hold(&mut self) -> SendBatch {
        self.is_held = true;
        let mut batch = mem::take(&mut self.batch);
        mem::swap(&mut batch.frames, &mut self.queued);
        batch
    }

    /// Keeps the holder's batch for the next holder.
    pub(crate) fn store(&mut self, batch: SendBatch) {
        self.batch = batch;
    }

    /// Discards the queue of a lost connection.
    pub(crate) fn discard_queue(&mut self) {
        self.queued = Vec::new();
    }
}
