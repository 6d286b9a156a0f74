//! The network between the two nodes: connections that deliver whole frames in order, late, or not
//! at all.
//!
//! Other tests cover the layers below a connection (TCP, encryption, checksums). This file
//! simulates their effects on the layers above. A connection may end at any frame, earlier for one
//! side than for the other, with or without a message. It may delay frames for any time. It may
//! fall silent in one direction or both. A corrupted frame ends the connection when the frame
//! arrives. A connection carries a limited number of bytes at once. A sender with more bytes waits,
//! or leaves the bytes to be sent when there is room, as the `SendFrames` trait promises.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_link::{FrameRef, LinkError, Payload, ReceiveFrames, SendFrames};
use lockstep_repl::message::{Envelope, Message};
use lockstep_sums::{BlockOffset, PieceSums, SumKey};
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

use super::fibers::{self, Event, Wait};
use super::process::{Process, Shared};
use super::side::Side;

/// The longest time of a frame from one node to the other, in microseconds.
const DELAY_MAX_US: u64 = 3000;

/// The number of bytes in flight that fill a connection.
const PIPE_BYTES_MAX: usize = 4 << 10;

/// The time that a byte of a payload keeps the connection busy, in nanoseconds.
const BYTE_NS: u64 = 100;

/// The interval between two looks for room by a waiting thread.
const FULL_POLL: Duration = Duration::from_millis(1);

/// Decides about each frame before the side sends it.
pub type FrameObserver = Arc<dyn Fn(Side) -> FrameVerdict + Send + Sync>;

/// The decision about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameVerdict {
    /// The frame is sent.
    Pass,
    /// The connection is lost before the frame. Earlier frames of the same direction arrive.
    Disconnect {
        /// Most frames of the other direction that still arrive.
        kept: u64,
    },
}

/// The network between the nodes.
#[derive(Default)]
pub struct Network {
    link: Arc<LinkState>,
    pipes: Mutex<Vec<Arc<Pipe>>>,
}

/// The state that all connections share.
#[derive(Default)]
struct LinkState {
    silent: Mutex<[bool; 2]>,
    observer: Mutex<Option<FrameObserver>>,
    /// Number of frames in flight that arrive when a connection ends. `None`: random.
    frames_kept: Mutex<Option<u64>>,
    /// The first answer of the secondary that reports a failed operation.
    failure: Mutex<Option<String>>,
    /// A thread that serves clients or reads from the peer has waited for room.
    has_blocked: AtomicBool,
}

impl LinkState {
    fn is_silent(&self, from: Side) -> bool {
        *from.of(&self.silent.lock())
    }

    fn verdict(&self, from: Side) -> FrameVerdict {
        let observer = self.observer.lock().clone();
        observer.map_or(FrameVerdict::Pass, |observer| observer(from))
    }

    fn note_blocked(&self) {
        self.has_blocked.store(true, Ordering::Relaxed);
    }

    fn note_failure(&self, header: &[u8]) {
        let Ok(envelope) = Envelope::decode(header) else {
            return;
        };
        let is_failure = matches!(
            envelope.message,
            Message::WriteAck {
                failed: Some(_),
                ..
            } | Message::SyncAck {
                failed: Some(_),
                ..
            } | Message::MetaAck {
                outcome: Err(_),
                ..
            }
        );
        if is_failure {
            let text = || format!("{:?}", envelope.message);
            self.failure.lock().get_or_insert_with(text);
        }
    }
}

/// One direction of one connection.
struct Pipe {
    from: Side,
    link: Arc<LinkState>,
    state: Mutex<PipeState>,
}

#[derive(Default)]
struct PipeState {
    /// The frames in flight, each with the time of its arrival.
    frames: VecDeque<(Duration, Frame)>,
    /// The time from which on the receiver can see that the sender closed its end.
    end_seen_at: Option<Duration>,
    /// The pipe drops every new frame.
    drops_new: bool,
    /// The reason why the receiver's own node closed this end, if it did.
    closed: Option<String>,
    /// Frames that are not in flight yet: sent without a flush, or waiting for room.
    queued: VecDeque<Frame>,
    /// Number of queued frames that wait for room.
    waiting_for_room: usize,
    corrupts_next: bool,
    /// The process of the receiver has ended.
    receiver_gone: bool,
}

impl PipeState {
    /// Returns the number of bytes in flight.
    fn bytes(&self) -> usize {
        let frames = self.frames.iter();
        frames
            .map(|(_, frame)| frame.header.len() + frame.payload.len())
            .sum()
    }
}

#[derive(Clone)]
struct Frame {
    header: Vec<u8>,
    payload: Vec<u8>,
    /// The place of the payload in its block.
    start: BlockOffset,
    corrupt: bool,
}

impl Event for Pipe {
    fn has_happened(&self, now: Duration) -> bool {
        let state = self.state.lock();
        if state.closed.is_some() {
            return true;
        }
        let arrived = state.frames.front().is_some_and(|(at, _)| *at <= now);
        let over = state.frames.is_empty() && state.end_seen_at.is_some_and(|at| at <= now);
        (arrived || over) && !self.link.is_silent(self.from)
    }

    fn due(&self) -> Option<Duration> {
        if self.link.is_silent(self.from) {
            return None;
        }
        let state = self.state.lock();
        state
            .frames
            .front()
            .map(|(at, _)| *at)
            .or(state.end_seen_at)
    }
}

impl Pipe {
    fn new(from: Side, link: &Arc<LinkState>) -> Arc<Self> {
        Arc::new(Self {
            from,
            link: Arc::clone(link),
            state: Mutex::default(),
        })
    }

    /// Removes the next queued frame, if the pipe has room for it.
    fn next_with_room(&self) -> Option<Frame> {
        let mut state = self.state.lock();
        if state.drops_new || state.bytes() < PIPE_BYTES_MAX {
            return state.queued.pop_front();
        }
        None
    }

    /// Marks all queued frames as waiting for room. They are sent without a further call when there
    /// is room. Returns whether there are any.
    fn note_waiting(&self) -> bool {
        let mut state = self.state.lock();
        state.waiting_for_room = state.queued.len();
        state.waiting_for_room > 0
    }

    /// Sends a frame.
    fn send(&self, frame: Frame, shared: &Shared) {
        let mut state = self.state.lock();
        let delay = shared.with_random(|random| random.below(DELAY_MAX_US));
        let earliest = state.frames.back().map_or(Duration::ZERO, |(at, _)| *at);
        let takes = Duration::from_nanos(BYTE_NS * frame.payload.len() as u64);
        let at = (shared.now() + Duration::from_micros(delay)).max(earliest) + takes;
        let corrupt = std::mem::take(&mut state.corrupts_next);
        if !state.drops_new {
            state.frames.push_back((at, Frame { corrupt, ..frame }));
        }
    }

    /// Sends waiting frames, because the other side has received a frame. No observer decides about
    /// these frames: a loss here equals a loss before or after a frame that finds room at once.
    fn send_queued(&self, shared: &Shared) {
        while self.state.lock().waiting_for_room > 0
            && let Some(frame) = self.next_with_room()
        {
            self.link.note_failure(&frame.header);
            self.send(frame, shared);
            self.note_waiting();
        }
    }

    /// Loses the frames in flight from a chosen frame on, and all later frames.
    fn drop_tail(&self, shared: &Shared) {
        let count = self.state.lock().frames.len() as u64;
        let chosen = *self.link.frames_kept.lock();
        self.truncate(
            chosen.unwrap_or_else(|| shared.with_random(|random| random.below(count + 1))),
        );
    }

    /// Lets so many of the frames in flight arrive, and no later frame.
    fn truncate(&self, frames: u64) {
        let mut state = self.state.lock();
        state
            .frames
            .truncate(usize::try_from(frames).unwrap_or(usize::MAX));
        state.queued.clear();
        state.drops_new = true;
    }

    /// Lets the receiver see the end of the connection, after a delay.
    fn end(&self, shared: &Shared) {
        let delay = shared.with_random(|random| random.below(DELAY_MAX_US));
        let at = shared.now() + Duration::from_micros(delay);
        self.state.lock().end_seen_at.get_or_insert(at);
    }
}

impl Network {
    /// Makes a connection from a machine to the other one. The first endpoint is the dialing side's.
    pub fn connect(
        &self,
        from: Side,
        dialing: &Arc<Process>,
        listening: &Arc<Process>,
    ) -> [Endpoint; 2] {
        let there = Pipe::new(from, &self.link);
        let back = Pipe::new(from.other(), &self.link);
        let mut pipes = self.pipes.lock();
        // Only this list holds a pipe that both ends have given up.
        pipes.retain(|pipe| Arc::strong_count(pipe) > 1);
        pipes.extend([Arc::clone(&there), Arc::clone(&back)]);
        [
            Endpoint {
                process: Arc::clone(dialing),
                outgoing: Arc::clone(&there),
                incoming: Arc::clone(&back),
            },
            Endpoint {
                process: Arc::clone(listening),
                outgoing: back,
                incoming: there,
            },
        ]
    }

    /// Returns whether a connection can be made now.
    pub fn can_connect(&self) -> bool {
        *self.link.silent.lock() == [false; 2]
    }

    /// Stops or passes the frames of a side. The frames in flight wait.
    pub fn set_silent(&self, from: Side, silent: bool) {
        *from.of_mut(&mut self.link.silent.lock()) = silent;
    }

    /// Sets the observer of all frames from now on. An observer that holds the network keeps the
    /// network in memory until the observer is removed.
    pub fn observe(&self, observer: Option<FrameObserver>) {
        *self.link.observer.lock() = observer;
    }

    /// Sets the number of frames in flight that arrive when a connection ends. `None`: random.
    pub fn set_frames_kept(&self, frames: Option<u64>) {
        *self.link.frames_kept.lock() = frames;
    }

    /// Returns the first answer of the secondary that reports a failed operation, as text.
    pub fn refused_by_secondary(&self) -> Option<String> {
        self.link.failure.lock().clone()
    }

    /// Returns whether a thread that serves clients or reads from the peer has waited for the other
    /// node to read.
    pub fn has_blocked(&self) -> bool {
        self.link.has_blocked.load(Ordering::Relaxed)
    }

    /// Returns the number of frames of a side that are in flight to a running process.
    pub fn frames_in_flight(&self, from: Side) -> u64 {
        let pipes = self.pipes.lock();
        let of_side = pipes.iter().filter(|pipe| pipe.from == from);
        let frames = of_side.map(|pipe| {
            let state = pipe.state.lock();
            let count = if state.receiver_gone {
                0
            } else {
                state.frames.len()
            };
            count as u64
        });
        frames.sum()
    }

    /// Ends all connections, each direction at a random frame.
    pub fn cut(&self, shared: &Shared) {
        for pipe in self.pipes.lock().iter() {
            pipe.drop_tail(shared);
            pipe.end(shared);
        }
    }

    /// Damages the next frame of a side.
    pub fn corrupt_next(&self, from: Side) {
        for pipe in self.pipes.lock().iter().filter(|pipe| pipe.from == from) {
            pipe.state.lock().corrupts_next = true;
        }
    }

    /// Ends the connections of an ended process. `is_notified`: the operating system tells the
    /// other side. A machine without power does not.
    pub fn process_ended(&self, side: Side, shared: &Shared, is_notified: bool) {
        for pipe in self.pipes.lock().iter() {
            if pipe.from != side {
                pipe.state.lock().receiver_gone = true;
                continue;
            }
            pipe.drop_tail(shared);
            if is_notified {
                pipe.end(shared);
            }
        }
    }
}

/// One end of a connection.
#[derive(Clone)]
pub struct Endpoint {
    process: Arc<Process>,
    outgoing: Arc<Pipe>,
    incoming: Arc<Pipe>,
}

impl Endpoint {
    /// Returns the receiving half of this end.
    pub fn receiver(&self) -> Box<dyn ReceiveFrames> {
        Box::new(Receiver {
            end: self.clone(),
            timeout: None,
            current: None,
            key: None,
            sums: None,
        })
    }

    /// Returns the sending half of this end.
    pub fn sender(&self) -> Arc<dyn SendFrames> {
        Arc::new(self.clone())
    }

    fn check_open(&self) -> Result<(), LinkError> {
        match &self.incoming.state.lock().closed {
            None => Ok(()),
            Some(reason) => Err(closed(reason)),
        }
    }

    /// Sends the queued frames, as far as there is room. The other frames are sent when the other
    /// side has received some, or the caller waits until then.
    fn send_all_queued(&self, may_wait: bool) -> Result<(), LinkError> {
        loop {
            self.check_open()?;
            if self.process.is_dead() {
                self.outgoing.state.lock().queued.clear();
                return Ok(());
            }
            while let Some(frame) = self.outgoing.next_with_room() {
                self.send_frame(frame);
            }
            let is_full = self.outgoing.note_waiting();
            if !is_full || !may_wait || !fibers::is_in_fiber() {
                return Ok(());
            }
            if fibers::thread_role().must_not_wait_for_room() {
                self.outgoing.link.note_blocked();
            }
            if is_active(Mutant::WaitToSend) {
                // The mutant's threads may hold a lock: a wait would block the one thread of the world.
                return Ok(());
            }
            let look = self.process.shared().now() + FULL_POLL;
            fibers::wait(Wait::Until(look));
            self.process.stop_if_dead();
        }
    }

    fn send_frame(&self, frame: Frame) {
        self.outgoing.link.note_failure(&frame.header);
        if let FrameVerdict::Disconnect { kept } = self.outgoing.link.verdict(self.outgoing.from) {
            self.lose(kept);
        }
        self.outgoing.send(frame, self.process.shared());
    }
}

impl Endpoint {
    /// Loses the connection. All frames that this end has sent arrive. At most `kept` of the frames
    /// to this end arrive.
    fn lose(&self, kept: u64) {
        self.outgoing.truncate(u64::MAX);
        self.incoming.truncate(kept);
        for pipe in [&self.outgoing, &self.incoming] {
            pipe.end(self.process.shared());
        }
    }
}

impl SendFrames for Endpoint {
    fn send(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
        self.enqueue(header, payload)?;
        self.flush()
    }

    fn post(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
        self.enqueue(header, payload)?;
        self.flush_nowait()
    }

    fn enqueue(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
        self.check_open()?;
        self.outgoing.state.lock().queued.push_back(Frame {
            header: header.to_vec(),
            payload: payload.bytes.to_vec(),
            start: payload.start,
            corrupt: false,
        });
        Ok(())
    }

    fn send_deferred(&self, header: &[u8], payload: Payload<'_>) -> Result<bool, LinkError> {
        let is_only_one = self.outgoing.state.lock().queued.is_empty();
        self.enqueue(header, payload)?;
        if !is_only_one {
            self.flush_nowait()?;
        }
        Ok(is_only_one)
    }

    fn flush(&self) -> Result<(), LinkError> {
        self.send_all_queued(true)
    }

    fn flush_nowait(&self) -> Result<(), LinkError> {
        self.send_all_queued(false)
    }

    fn shutdown(&self, reason: &str) {
        if self.process.is_dead() {
            return;
        }
        let shared = self.process.shared();
        self.incoming
            .state
            .lock()
            .closed
            .get_or_insert_with(|| reason.to_owned());
        self.outgoing.state.lock().queued.clear();
        self.outgoing.drop_tail(shared);
        self.outgoing.end(shared);
    }
}

struct Receiver {
    end: Endpoint,
    timeout: Option<Duration>,
    current: Option<Frame>,
    /// The key of the payloads, once both nodes have agreed on one, and the sums of the current one.
    key: Option<Arc<SumKey>>,
    sums: Option<PieceSums>,
}

impl Receiver {
    /// Returns the next frame that has arrived, if the connection is still open.
    fn take(&self) -> Result<Option<Frame>, LinkError> {
        self.end.check_open()?;
        let now = self.end.process.shared().now();
        if !self.end.incoming.has_happened(now) {
            return Ok(None);
        }
        let next = self.end.incoming.state.lock().frames.pop_front();
        self.end.incoming.send_queued(self.end.process.shared());
        match next {
            Some((_, frame)) if frame.corrupt => {
                self.end.shutdown("a frame was damaged on the way");
                Err(closed("a frame was damaged on the way"))
            }
            Some((_, frame)) => Ok(Some(frame)),
            None => Err(closed("the peer closed it")),
        }
    }
}

impl ReceiveFrames for Receiver {
    fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), LinkError> {
        self.timeout = timeout;
        Ok(())
    }

    fn use_sum_key(&mut self, key: &Arc<SumKey>) {
        self.key = Some(Arc::clone(key));
    }

    fn recv(&mut self) -> Result<FrameRef<'_>, LinkError> {
        let limit = self
            .timeout
            .map(|timeout| self.end.process.shared().now() + timeout);
        loop {
            if let Some(frame) = self.take()? {
                let frame = self.current.insert(frame);
                let of_key = |key| PieceSums::of(key, frame.start, &frame.payload);
                self.sums = self.key.as_ref().map(of_key);
                return Ok(FrameRef {
                    header: &frame.header,
                    payload: match &self.sums {
                        Some(sums) => sums.with(&frame.payload),
                        None => (&frame.payload).into(),
                    },
                });
            }
            if limit.is_some_and(|limit| limit <= self.end.process.shared().now()) {
                return Err(LinkError::TimedOut {
                    heard: false,
                    peer: peer_address(),
                    limit: self.timeout.unwrap_or_default(),
                });
            }
            self.end.flush_nowait()?;
            let incoming = Arc::clone(&self.end.incoming) as Arc<dyn Event>;
            self.end.process.wait_for(incoming, limit);
        }
    }
}

fn closed(reason: &str) -> LinkError {
    LinkError::Closed {
        peer: peer_address(),
        reason: reason.to_owned(),
    }
}

fn peer_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}
