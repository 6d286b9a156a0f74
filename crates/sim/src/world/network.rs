//! The network between the two nodes: connections that deliver whole frames in order, late, or not at
//! all.
//!
//! What is below a connection (TCP, encryption, checksums) is tested elsewhere; what it may do to
//! those above is done here: it may end at any frame, for one side sooner than for the other or
//! without a word, keep frames for any time, and fall silent in one direction or both. A corrupted
//! frame is one that ends the connection when it arrives. A connection carries so many bytes at once; who
//! sends more waits, or leaves it to go when there is room, as the halves promise.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_link::{FrameRef, LinkError, ReceiveFrames, SendFrames};
use lockstep_repl::message::{Envelope, Message};
use parking_lot::Mutex;

use super::fibers::{self, Event, Wait};
use super::process::{Process, Shared};
use super::side::Side;

/// What a frame takes from one node to the other, at most, in microseconds.
const DELAY_MAX_US: u64 = 3000;

/// So many bytes of frames on the way send_queued a connection.
const PIPE_BYTES_MAX: usize = 4 << 10;

/// How long a byte of a payload keeps the way busy, in nanoseconds.
const BYTE_NS: u64 = 100;

/// How often a thread that waits for room looks for some.
const FULL_POLL: Duration = Duration::from_millis(1);

/// Who is asked before each frame is put on the way, by the side that sends it. If it says so, the
/// connection is lost before that frame.
pub type FrameObserver = Arc<dyn Fn(Side) -> FrameVerdict + Send + Sync>;

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameVerdict {
    /// It goes its way.
    Pass,
    /// The connection is lost before it. Those before it arrive; of those that come towards them, so
    /// many.
    Disconnect {
        /// Frames of the other direction that still arrive, at most.
        kept: u64,
    },
}

/// The link between the nodes.
#[derive(Default)]
pub struct Network {
    link: Arc<LinkState>,
    pipes: Mutex<Vec<Arc<Pipe>>>,
}

/// Whether frames pass, by the side that sends.
#[derive(Default)]
struct LinkState {
    silent: Mutex<[bool; 2]>,
    observer: Mutex<Option<FrameObserver>>,
    /// How many of the frames on their way arrive when a connection ends; by random if not said.
    frames_kept: Mutex<Option<u64>>,
    /// The first answer by which the secondary said that it could not do something.
    failure: Mutex<Option<String>>,
    /// A thread that serves clients, or reads from the peer, has waited for room.
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
            let told = || format!("{:?}", envelope.message);
            self.failure.lock().get_or_insert_with(told);
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
    /// Frames on their way, each with the moment of its arrival.
    frames: VecDeque<(Duration, Frame)>,
    /// The sender's end is gone, and since when the receiver can know.
    end_seen_at: Option<Duration>,
    /// Nothing that is sent from now on arrives.
    drops_new: bool,
    /// This end was closed by its own node.
    closed: Option<String>,
    /// Sent without a flush, or for want of room not on the way yet.
    queued: VecDeque<Frame>,
    /// What of that waits for room.
    waiting_for_room: usize,
    corrupts_next: bool,
    /// The process that should receive has gone.
    receiver_gone: bool,
}

impl PipeState {
    /// Bytes on the way.
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
    corrupt: bool,
}

impl Event for Pipe {
    fn has_come(&self, now: Duration) -> bool {
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

    /// The next frame that was queued, if the way has room for it.
    fn next_with_room(&self) -> Option<Frame> {
        let mut state = self.state.lock();
        if state.drops_new || state.bytes() < PIPE_BYTES_MAX {
            return state.queued.pop_front();
        }
        None
    }

    /// Whether something is left for want of room, which then goes by itself when there is some.
    fn note_waiting(&self) -> bool {
        let mut state = self.state.lock();
        state.waiting_for_room = state.queued.len();
        state.waiting_for_room > 0
    }

    /// Puts a frame on the way.
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

    /// The other side has current something: what found no room goes on its way. Nobody is asked whether a
    /// frame is lost here: it is lost before or behind those that find room at once.
    fn send_queued(&self, shared: &Shared) {
        while self.state.lock().waiting_for_room > 0
            && let Some(frame) = self.next_with_room()
        {
            if self.from == Side::Secondary {
                self.link.note_failure(&frame.header);
            }
            self.send(frame, shared);
            self.note_waiting();
        }
    }

    /// Loses the frames on their way from some one on, and whatever follows.
    fn drop_tail(&self, shared: &Shared) {
        let count = self.state.lock().frames.len() as u64;
        let said = *self.link.frames_kept.lock();
        self.truncate(said.unwrap_or_else(|| shared.with_random(|random| random.below(count + 1))));
    }

    /// Of the frames on their way so many arrive, and nothing that follows.
    fn truncate(&self, frames: u64) {
        let mut state = self.state.lock();
        state
            .frames
            .truncate(usize::try_from(frames).unwrap_or(usize::MAX));
        state.queued.clear();
        state.drops_new = true;
    }

    /// Lets the receiver know that no more will come.
    fn end(&self, shared: &Shared) {
        let delay = shared.with_random(|random| random.below(DELAY_MAX_US));
        let at = shared.now() + Duration::from_micros(delay);
        self.state.lock().end_seen_at.get_or_insert(at);
    }
}

impl Network {
    /// A new connection; the first half is the dialing side's.
    pub fn connect(&self, dialing: &Arc<Process>, listening: &Arc<Process>) -> [Endpoint; 2] {
        let there = Pipe::new(Side::Primary, &self.link);
        let back = Pipe::new(Side::Secondary, &self.link);
        let mut pipes = self.pipes.lock();
        // Of those that both ends have given up, nobody holds any but this list.
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

    /// Whether a connection can be made now.
    pub fn can_connect(&self) -> bool {
        *self.link.silent.lock() == [false; 2]
    }

    /// Lets frames of a side pass or not; those on their way wait.
    pub fn set_silent(&self, from: Side, silent: bool) {
        *from.of_mut(&mut self.link.silent.lock()) = silent;
    }

    /// Who is asked before each frame from now on. One that holds the network keeps it from being
    /// freed until it is current off again.
    pub fn observe(&self, observer: Option<FrameObserver>) {
        *self.link.observer.lock() = observer;
    }

    /// How many of the frames on their way arrive when a connection ends; `None`: by random.
    pub fn set_frames_kept(&self, frames: Option<u64>) {
        *self.link.frames_kept.lock() = frames;
    }

    /// The first answer by which the secondary said that it could not do what the primary asked for, as
    /// text.
    pub fn refused_by_secondary(&self) -> Option<String> {
        self.link.failure.lock().clone()
    }

    /// Whether a thread that serves clients, or reads from the peer, has waited for the other node to read.
    pub fn has_blocked(&self) -> bool {
        self.link.has_blocked.load(Ordering::Relaxed)
    }

    /// Frames of a side that are on their way to somebody.
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

    /// Ends all connections, each direction at a frame of its own.
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

    /// A process has gone. Its system tells the other side; a machine without power does not.
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
    /// The receiving half of this end.
    pub fn receiver(&self) -> Box<dyn ReceiveFrames> {
        Box::new(Receiver {
            end: self.clone(),
            timeout: None,
            current: None,
        })
    }

    /// The sending half of this end.
    pub fn sender(&self) -> Arc<dyn SendFrames> {
        Arc::new(self.clone())
    }

    fn check_open(&self) -> Result<(), LinkError> {
        match &self.incoming.state.lock().closed {
            None => Ok(()),
            Some(reason) => Err(closed(reason)),
        }
    }

    /// Puts what is queued on the way, as far as there is room. The rest goes when the other side takes
    /// something, or waits here for that.
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
            if fibers::thread_role() != fibers::ThreadRole::Other {
                self.outgoing.link.note_blocked();
            }
            let look = self.process.shared().now() + FULL_POLL;
            fibers::wait(Wait::Until(look));
            self.process.stop_if_dead();
        }
    }

    fn send_frame(&self, frame: Frame) {
        if self.outgoing.from == Side::Secondary {
            self.outgoing.link.note_failure(&frame.header);
        }
        if let FrameVerdict::Disconnect { kept } = self.outgoing.link.verdict(self.outgoing.from) {
            self.lose(kept);
        }
        self.outgoing.send(frame, self.process.shared());
    }
}

impl Endpoint {
    /// The connection is lost: what this end has sent arrives, of what comes so many.
    fn lose(&self, kept: u64) {
        self.outgoing.truncate(u64::MAX);
        self.incoming.truncate(kept);
        for pipe in [&self.outgoing, &self.incoming] {
            pipe.end(self.process.shared());
        }
    }
}

impl SendFrames for Endpoint {
    fn send(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.send_nowait(header, payload)?;
        self.flush()
    }

    fn post(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.send_nowait(header, payload)?;
        self.flush_nowait()
    }

    fn send_nowait(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.check_open()?;
        self.outgoing.state.lock().queued.push_back(Frame {
            header: header.to_vec(),
            payload: payload.to_vec(),
            corrupt: false,
        });
        Ok(())
    }

    fn leave(&self, header: &[u8], payload: &[u8]) -> Result<bool, LinkError> {
        let is_only_one = self.outgoing.state.lock().queued.is_empty();
        self.send_nowait(header, payload)?;
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
}

impl Receiver {
    /// The next frame that has arrived, if the connection still stands.
    fn take(&self) -> Result<Option<Frame>, LinkError> {
        self.end.check_open()?;
        let now = self.end.process.shared().now();
        if !self.end.incoming.has_come(now) {
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

    fn recv(&mut self) -> Result<FrameRef<'_>, LinkError> {
        let limit = self
            .timeout
            .map(|timeout| self.end.process.shared().now() + timeout);
        loop {
            if let Some(frame) = self.take()? {
                let frame = self.current.insert(frame);
                return Ok(FrameRef {
                    header: &frame.header,
                    payload: &frame.payload,
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
