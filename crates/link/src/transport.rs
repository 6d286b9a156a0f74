//! The two halves of a connection, as traits: the simulator implements them without a socket.
//!
//! [`crate::Sender`] and [`crate::Receiver`] are the halves of a real connection. This file holds no code that sends or
//! receives.

use std::sync::Arc;
use std::time::Duration;

use lockstep_sums::SumKey;

use crate::error::LinkError;
use crate::frame::FrameRef;
use crate::payload::Payload;

/// The sending half, for any number of threads. Frames of one thread arrive in the order of its calls.
///
/// Invariant: only [`SendFrames::send`] and [`SendFrames::flush`] may wait for the peer.
pub trait SendFrames: Send + Sync {
    /// Sends a frame, or leaves the frame with the thread that is sending. Waits while the peer does not read and
    /// [`crate::QUEUE_BYTES_MAX`] are queued. `Ok` does not mean that the frame arrives.
    ///
    /// # Errors
    /// [`LinkError::Unsendable`] outside the bounds of [`crate::frame`]; any other error means that the connection is
    /// lost.
    fn send(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError>;

    /// Sends a frame without waiting for the peer. Bytes that the socket does not take at once are copied, and leave
    /// when the socket has room. `Ok` does not mean that the frame arrives.
    ///
    /// # Errors
    /// [`LinkError::QueueFull`] when [`crate::POST_QUEUE_BYTES_MAX`] are queued; else as [`SendFrames::send`].
    fn post(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError>;

    /// Queues a frame without sending it. The frame leaves with the next call that sends or flushes, or when the
    /// receiving half begins to wait for a frame.
    ///
    /// # Errors
    /// [`LinkError::QueueFull`] when [`crate::ENQUEUE_BYTES_MAX`] are queued; else as [`SendFrames::send`].
    fn enqueue(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError>;

    /// Queues a frame as [`SendFrames::enqueue`] does and returns true, if nothing is queued and no thread is sending.
    /// Otherwise sends the frame and the queue as [`SendFrames::post`] does, and returns false. After true, the caller
    /// must ensure that a later call takes the frame along.
    ///
    /// # Errors
    /// As [`SendFrames::post`].
    fn send_deferred(&self, header: &[u8], payload: Payload<'_>) -> Result<bool, LinkError>;

    /// Sends the queue, or leaves the queue with the thread that is sending. May wait for the peer.
    ///
    /// # Errors
    /// The connection is lost.
    fn flush(&self) -> Result<(), LinkError>;

    /// Sends the queue, with the frames that other threads add meanwhile, without waiting for the peer. Bytes that the
    /// socket does not take at once leave when the socket has room.
    ///
    /// # Errors
    /// The connection is lost.
    fn flush_nowait(&self) -> Result<(), LinkError>;

    /// Has the payloads of the next frames hashed with this key: the sums of their blocks are then those that a store with this
    /// secret keeps. The receiving half of the peer must have the same key from the same frame on, and the caller keeps other
    /// threads from sending meanwhile. A connection in clear takes no notice. The first key counts.
    fn use_sum_key(&self, _key: &Arc<SumKey>) {}

    /// Closes the connection at once, in both directions. All threads that wait on the connection return with an error
    /// that gives `reason`.
    fn shutdown(&self, reason: &str);
}

/// The receiving half, for one thread.
pub trait ReceiveFrames: Send {
    /// Limits the wait of [`ReceiveFrames::recv`]. `None`, the initial value, means forever.
    ///
    /// # Errors
    /// [`LinkError::Socket`]; the socket refuses zero.
    fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), LinkError>;

    /// The receiving side of [`SendFrames::use_sum_key`].
    fn use_sum_key(&mut self, _key: &Arc<SumKey>) {}

    /// Returns the next frame, verified. The frame is valid until the next call.
    ///
    /// # Errors
    /// [`LinkError::TimedOut`] when no whole frame arrived in time: nothing is lost, and the caller may call again. Any
    /// other error means that the connection is lost, and closed.
    fn recv(&mut self) -> Result<FrameRef<'_>, LinkError>;

    /// As [`ReceiveFrames::recv`], for a frame that is likely to arrive at once: polls for up to 0.1 ms before the
    /// thread blocks, unless other threads need the processor. A blocked thread receives the frame late, and waking it
    /// costs time; on one machine, the sender's time.
    ///
    /// An implementation without a cost of blocking need not spin.
    ///
    /// # Errors
    /// As [`ReceiveFrames::recv`].
    fn recv_spinning(&mut self) -> Result<FrameRef<'_>, LinkError> {
        self.recv()
    }
}
