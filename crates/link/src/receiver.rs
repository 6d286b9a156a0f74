//! The receiving half of a connection: one thread, a large buffer, and frames borrowed from the buffer.
//!
//! One system call reads all frames that have arrived; the receiver returns each frame where it lies. The largest frame
//! and the size of one read bound the memory. Before the receiver waits, it sends the queue without waiting. If the
//! socket is too full for the queue, the receiver waits for both directions, so a node that reads always answers.
//!
//! A frame may take longer to arrive than a peer may be silent: a slow link is not a dead link. A time-out therefore
//! occurs also while bytes of a frame arrive, and [`LinkError::is_slow`] tells the two cases apart.
//!
//! Invariants: a time-out loses nothing; after any other error the connection is closed. The sums of header and payload
//! are checked before a frame is returned (rule P14).

use std::io;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_sums::SumKey;

use crate::error::LinkError;
use crate::frame::{FRAME_BYTES_MAX, FrameRef, OpenProgress, Opener};
use crate::outgoing::Outgoing;
use crate::socket;
use crate::transport::ReceiveFrames;
use crate::wire::Wire;

/// Most bytes of one read; large, so that one system call reads many frames.
const READ_BYTES: usize = 256 << 10;

/// Most bytes of one read through TLS. They are decrypted under one hold of the TLS lock.
const SEALED_READ_BYTES: usize = 128 << 10;

/// With less free space than this, the receiver moves the rest of the buffer to its start before it reads.
const SPACE_BYTES_MIN: usize = 64 << 10;

/// The receiving half of a connection. The connection is closed when the receiver is dropped.
pub struct Receiver {
    wire: Arc<Wire>,
    outgoing: Arc<Outgoing>,
    opener: Opener,
    inbox: Inbox,
    /// Memory for ciphertext; empty when the connection is not encrypted.
    sealed: Vec<u8>,
    timeout: Option<Duration>,
    /// Bytes of the frame that the last call returned.
    returned: usize,
    /// An earlier error has made the stream unusable.
    is_lost: bool,
    /// The thread polls before it blocks.
    spins: bool,
    /// Bytes have arrived since the last frame or time-out.
    heard: bool,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.outgoing.close("the receiver was dropped");
    }
}

impl Receiver {
    pub(crate) fn new(wire: Arc<Wire>, outgoing: Arc<Outgoing>, opener: Opener) -> Self {
        let sealed_bytes = if wire.is_encrypted() {
            SEALED_READ_BYTES
        } else {
            0
        };
        Self {
            wire,
            outgoing,
            opener,
            inbox: Inbox::new(),
            sealed: vec![0; sealed_bytes],
            timeout: None,
            returned: 0,
            is_lost: false,
            spins: false,
            heard: false,
        }
    }

    /// Whether the buffer may hold a whole frame already: the next [`Receiver::recv`] is unlikely to wait. Helps to
    /// decide when to send the queued answers.
    pub fn has_more(&self) -> bool {
        self.inbox.filled().len() > self.returned
    }

    /// Closes the connection at once, in both directions. All threads that wait on the connection return with an error
    /// that gives `reason`.
    pub fn shutdown(&self, reason: &str) {
        self.outgoing.close(reason);
    }

    fn next_frame(&mut self, spins: bool) -> Result<FrameRef<'_>, LinkError> {
        self.spins = spins;
        if self.is_lost {
            return Err(self.ended());
        }
        self.inbox.discard(mem::take(&mut self.returned));
        let (mut has_waited, mut begun) = (false, None);
        let span = loop {
            match self.opener.open(self.inbox.filled()) {
                Ok(OpenProgress::Frame(span)) => break span,
                Ok(OpenProgress::Need(bytes)) => {
                    // The clock is read only for a frame that needs more than one read.
                    if mem::replace(&mut has_waited, true) {
                        self.check_time(&mut begun)?;
                    }
                    self.fill(bytes)?;
                }
                Err(source) => {
                    let peer = self.wire.peer();
                    return Err(self.give_up(LinkError::BadFrame { peer, source }));
                }
            }
        };
        self.heard = false;
        self.returned = span.frame_bytes();
        let Some(frame) = self.opener.frame(&span, self.inbox.filled()) else {
            unreachable!("the opener returns a frame only when the buffer has the whole frame")
        };
        Ok(frame)
    }

    /// Returns a time-out if a frame has been arriving since `begun` for longer than the limit.
    fn check_time(&mut self, begun: &mut Option<Instant>) -> Result<(), LinkError> {
        let begun = begun.get_or_insert_with(Instant::now);
        match self.timeout {
            Some(limit) if begun.elapsed() >= limit => Err(self.timed_out()),
            _ => Ok(()),
        }
    }

    fn give_up(&mut self, error: LinkError) -> LinkError {
        self.is_lost = true;
        self.outgoing.close(&error.to_string());
        error
    }

    /// Makes room for a frame of `bytes`, then reads once.
    fn fill(&mut self, bytes: usize) -> Result<(), LinkError> {
        self.inbox.make_room(bytes);
        match self.wait_and_read() {
            Err(error) if error.is_timed_out() => Err(error),
            outcome => outcome.map_err(|error| self.give_up(error)),
        }
    }

    fn wait_and_read(&mut self) -> Result<(), LinkError> {
        while !self.outgoing.flush_nowait()? {
            let ready = socket::wait_either(self.wire.socket(), self.timeout)
                .map_err(|error| self.wire.socket_error("wait", error))?;
            if ready.is_none() {
                return Err(self.timed_out());
            }
            if ready == Some(socket::Ready::Read) {
                break;
            }
        }
        self.wire.check_open()?;
        if self.wire.is_encrypted() {
            return self.read_sealed();
        }
        let read = socket::read_once(self.wire.socket(), self.inbox.space(), self.spins);
        let bytes = self.check_read(read)?;
        self.heard = true;
        self.inbox.filled_more(bytes);
        Ok(())
    }

    fn read_sealed(&mut self) -> Result<(), LinkError> {
        let read = socket::read_once(self.wire.socket(), &mut self.sealed, self.spins);
        let bytes = self.check_read(read)?;
        self.heard = true;
        let sealed = self.sealed.get(..bytes).unwrap_or_default();
        self.wire.decrypt(sealed, |plain| self.inbox.append(plain))
    }

    fn check_read(&mut self, read: io::Result<usize>) -> Result<usize, LinkError> {
        match read {
            Ok(0) => Err(self.ended()),
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(self.timed_out()),
            Err(error) => Err(self.wire.socket_error("receive", error)),
        }
    }

    /// The error for the end of the stream: this node or the peer has closed the connection, or the peer has closed it
    /// in the middle of a frame.
    fn ended(&self) -> LinkError {
        let reason = match self.inbox.filled() {
            [] => "the peer closed it",
            _ => "the peer closed it in the middle of a frame",
        };
        self.wire
            .check_open()
            .err()
            .unwrap_or_else(|| LinkError::Closed {
                peer: self.wire.peer(),
                reason: reason.into(),
            })
    }

    fn timed_out(&mut self) -> LinkError {
        LinkError::TimedOut {
            heard: mem::take(&mut self.heard),
            peer: self.wire.peer(),
            limit: self.timeout.unwrap_or_default(),
        }
    }
}

impl ReceiveFrames for Receiver {
    fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), LinkError> {
        let set = self.wire.socket().set_read_timeout(timeout);
        set.map_err(|error| self.wire.socket_error("set a time-out", error))?;
        self.timeout = timeout;
        Ok(())
    }

    fn use_sum_key(&mut self, key: &Arc<SumKey>) {
        self.opener.use_key(key);
    }

    fn recv(&mut self) -> Result<FrameRef<'_>, LinkError> {
        self.next_frame(false)
    }

    fn recv_spinning(&mut self) -> Result<FrameRef<'_>, LinkError> {
        self.next_frame(true)
    }
}

/// The received bytes that no call has returned yet: `memory[start..end]`.
struct Inbox {
    memory: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    fn new() -> Self {
        Self {
            memory: vec![0; READ_BYTES],
            start: 0,
            end: 0,
        }
    }

    fn filled(&self) -> &[u8] {
        self.memory.get(self.start..self.end).unwrap_or_default()
    }

    fn space(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.end..).unwrap_or_default()
    }

    fn filled_more(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.memory.len());
    }

    fn discard(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Ensures that a frame of `bytes` fits behind `start`, and that some space is free.
    fn make_room(&mut self, bytes: usize) {
        let space = self.memory.len() - self.end;
        let roomy = self.start == 0 || space >= SPACE_BYTES_MIN;
        if roomy && space > 0 && self.start + bytes <= self.memory.len() {
            return;
        }
        self.memory.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if bytes > self.memory.len() || self.end == self.memory.len() {
            let doubled = self.memory.len().saturating_mul(2).min(FRAME_BYTES_MAX);
            self.memory.resize(bytes.max(doubled), 0);
        }
    }

    /// Adds decrypted bytes, at most as many as one read returns.
    fn append(&mut self, bytes: &[u8]) {
        let free = self.memory.len() - self.end;
        if free < bytes.len() {
            self.memory.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.memory.len() < self.end + bytes.len() {
                self.memory.resize(self.end + bytes.len(), 0);
            }
        }
        if let Some(space) = self.memory.get_mut(self.end..self.end + bytes.len()) {
            space.copy_from_slice(bytes);
            self.end += bytes.len();
        }
    }
}
