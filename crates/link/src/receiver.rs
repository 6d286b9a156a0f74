//! The receiving half: one thread, a large buffer, frames borrowed from it.
//!
//! One system call brings as many frames as have arrived; each is handed out where it lies. The
//! memory is bounded by the largest frame and what one read brings. Before it waits, the receiver
//! sends what was queued without waiting; when the socket is too full for that it waits for both
//! directions, so a node that reads always answers.
//!
//! A frame may take longer to arrive than a peer may be silent: a slow link is no dead one. So a time-out
//! comes also while bytes of a frame arrive, and [`LinkError::is_slow`] tells the two apart.
//!
//! Invariants: a time-out loses nothing; after any other error the connection is closed. What is handed
//! out was checked: the sums of header and payload (rule P14).

use std::io;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::LinkError;
use crate::frame::{FRAME_BYTES_MAX, FrameRef, Opener, Progress};
use crate::sender::Outgoing;
use crate::socket;
use crate::wire::Wire;

/// Bytes one read may bring; large, so that one system call brings many frames.
const READ_BYTES: usize = 256 << 10;

/// Bytes one read may bring through TLS; they are decrypted under one hold of its lock.
const SEALED_READ_BYTES: usize = 128 << 10;

/// Rather than read fewer bytes than this, the rest of the buffer is moved to its start.
const SPACE_BYTES_MIN: usize = 64 << 10;

/// The receiving half of a connection. The connection is closed when it is dropped.
pub struct Receiver {
    wire: Arc<Wire>,
    outgoing: Arc<Outgoing>,
    opener: Opener,
    inbox: Inbox,
    /// Memory for ciphertext; empty when the connection is not encrypted.
    sealed: Vec<u8>,
    timeout: Option<Duration>,
    /// Bytes of the frame handed out last.
    handed_out: usize,
    /// An error was returned after which the stream cannot be followed.
    lost: bool,
    /// The frame that is asked for is likely to come at once.
    soon: bool,
    /// Bytes have come since the last frame or time-out.
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
            handed_out: 0,
            lost: false,
            soon: false,
            heard: false,
        }
    }

    /// Limits how long [`Receiver::recv`] waits; `None`, as at first, for ever.
    ///
    /// # Errors
    /// [`LinkError::Socket`]; zero is refused by the socket.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), LinkError> {
        let set = self.wire.socket().set_read_timeout(timeout);
        set.map_err(|error| self.wire.socket_error("set a time-out", error))?;
        self.timeout = timeout;
        Ok(())
    }

    /// The next frame, verified; it is over when the next call begins.
    ///
    /// # Errors
    /// [`LinkError::TimedOut`] when no whole frame came in time: call again, nothing is lost. Any other
    /// one means that the connection is lost, and closed.
    pub fn recv(&mut self) -> Result<FrameRef<'_>, LinkError> {
        self.next_frame(false)
    }

    /// As [`Receiver::recv`], for a frame that is likely to come at once: looks out for it for up to 0.1 ms
    /// before it sleeps, unless others need the processor. A thread that sleeps is late, and waking it
    /// costs; on one machine, the one who sends.
    ///
    /// # Errors
    /// As [`Receiver::recv`].
    pub fn recv_soon(&mut self) -> Result<FrameRef<'_>, LinkError> {
        self.next_frame(true)
    }

    fn next_frame(&mut self, soon: bool) -> Result<FrameRef<'_>, LinkError> {
        self.soon = soon;
        if self.lost {
            return Err(self.ended());
        }
        self.inbox.discard(mem::take(&mut self.handed_out));
        let (mut has_waited, mut begun) = (false, None);
        let span = loop {
            match self.opener.open(self.inbox.filled()) {
                Ok(Progress::Frame(span)) => break span,
                Ok(Progress::Need(bytes)) => {
                    // A frame that one read brings costs no look at the clock.
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
        self.handed_out = span.frame_bytes();
        let Some(frame) = span.split(self.inbox.filled()) else {
            unreachable!("the opener says frame only when all of it is there")
        };
        Ok(frame)
    }

    /// Says that time is up when a frame has been arriving for longer than the time-out, since `begun`.
    fn check_time(&mut self, begun: &mut Option<Instant>) -> Result<(), LinkError> {
        let begun = begun.get_or_insert_with(Instant::now);
        match self.timeout {
            Some(limit) if begun.elapsed() >= limit => Err(self.timed_out()),
            _ => Ok(()),
        }
    }

    /// Whether a whole frame may lie in the buffer already: the next [`Receiver::recv`] is likely
    /// not to wait. Good for deciding when to send what was gathered for the peer.
    pub fn has_more(&self) -> bool {
        self.inbox.filled().len() > self.handed_out
    }

    /// Closes the connection at once, both ways; whoever waits on it returns with an error that
    /// gives `reason`.
    pub fn shutdown(&self, reason: &str) {
        self.outgoing.close(reason);
    }

    fn give_up(&mut self, error: LinkError) -> LinkError {
        self.lost = true;
        self.outgoing.close(&error.to_string());
        error
    }

    /// Reads once, having made room for a frame of `bytes`.
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
        let read = socket::read_once(self.wire.socket(), self.inbox.space(), self.soon);
        let bytes = self.check_read(read)?;
        self.heard = true;
        self.inbox.filled_more(bytes);
        Ok(())
    }

    fn read_sealed(&mut self) -> Result<(), LinkError> {
        let read = socket::read_once(self.wire.socket(), &mut self.sealed, self.soon);
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

    /// The stream has ended: by us, by the peer, or in the middle of a frame.
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

/// Bytes received and not yet handed out: `memory[start..end]`.
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

    /// Makes sure that a frame of `bytes` fits behind `start`, and that there is some space.
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

    /// Takes decrypted bytes; they are at most what one read brought.
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
