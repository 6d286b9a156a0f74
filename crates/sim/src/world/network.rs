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

/// So many bytes of frames on the way fill a connection.
const ROOM_BYTES: usize = 4 << 10;

/// How long a byte of a payload keeps the way busy, in nanoseconds.
const BYTE_NS: u64 = 100;

/// How often a thread that waits for room looks for some.
const FULL_LOOK: Duration = Duration::from_millis(1);

/// Who is asked before each frame is put on the way, by the side that sends it. If it says so, the
/// connection is lost before that frame.
pub type FrameObserver = Arc<dyn Fn(Side) -> OnFrame + Send + Sync>;

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFrame {
    /// It goes its way.
    Pass,
    /// The connection is lost before it. Those before it arrive; of those that come towards them, so
    /// many.
    Lose {
        /// Frames of the other direction that still arrive, at most.
        kept: u64,
    },
}

/// The wires between the nodes.
#[derive(Default)]
pub struct Network {
    wires: Arc<Wires>,
    pipes: Mutex<Vec<Arc<Pipe>>>,
}

/// Whether frames pass, by the side that sends.
#[derive(Default)]
struct Wires {
    silent: Mutex<[bool; 2]>,
    observer: Mutex<Option<FrameObserver>>,
    /// How many of the frames on their way arrive when a connection ends; by chance if not said.
    kept: Mutex<Option<u64>>,
    /// The first answer by which the secondary said that it could not do something.
    failure: Mutex<Option<String>>,
    /// A thread that serves clients, or reads from the peer, has waited for room.
    has_waited: AtomicBool,
}

impl Wires {
    fn is_silent(&self, from: Side) -> bool {
        *from.of(&self.silent.lock())
    }

    fn meet(&self, from: Side) -> OnFrame {
        let observer = self.observer.lock().clone();
        observer.map_or(OnFrame::Pass, |observer| observer(from))
    }

    fn note_wait(&self) {
        self.has_waited.store(true, Ordering::Relaxed);
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
    wires: Arc<Wires>,
    flow: Mutex<Flow>,
}

#[derive(Default)]
struct Flow {
    /// Frames on their way, each with the moment of its arrival.
    frames: VecDeque<(Duration, Frame)>,
    /// The sender's end is gone, and since when the receiver can know.
    ended: Option<Duration>,
    /// Nothing that is sent from now on arrives.
    deaf: bool,
    /// This end was closed by its own node.
    closed: Option<String>,
    /// Sent without a flush, or for want of room not on the way yet.
    gathered: VecDeque<Frame>,
    /// What of that waits for room.
    stuck: usize,
    corrupt_next: bool,
    /// The process that should receive has gone.
    unheard: bool,
}

impl Flow {
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
        let flow = self.flow.lock();
        if flow.closed.is_some() {
            return true;
        }
        let arrived = flow.frames.front().is_some_and(|(at, _)| *at <= now);
        let over = flow.frames.is_empty() && flow.ended.is_some_and(|at| at <= now);
        (arrived || over) && !self.wires.is_silent(self.from)
    }

    fn due(&self) -> Option<Duration> {
        if self.wires.is_silent(self.from) {
            return None;
        }
        let flow = self.flow.lock();
        flow.frames.front().map(|(at, _)| *at).or(flow.ended)
    }
}

impl Pipe {
    fn new(from: Side, wires: &Arc<Wires>) -> Arc<Self> {
        Arc::new(Self {
            from,
            wires: Arc::clone(wires),
            flow: Mutex::default(),
        })
    }

    /// The next frame that was gathered, if the way has room for it.
    fn next_with_room(&self) -> Option<Frame> {
        let mut flow = self.flow.lock();
        if flow.deaf || flow.bytes() < ROOM_BYTES {
            return flow.gathered.pop_front();
        }
        None
    }

    /// Whether something is left for want of room, which then goes by itself when there is some.
    fn note_full(&self) -> bool {
        let mut flow = self.flow.lock();
        flow.stuck = flow.gathered.len();
        flow.stuck > 0
    }

    /// Puts a frame on the way.
    fn carry(&self, frame: Frame, shared: &Shared) {
        let mut flow = self.flow.lock();
        let delay = shared.draw(|chance| chance.below(DELAY_MAX_US));
        let earliest = flow.frames.back().map_or(Duration::ZERO, |(at, _)| *at);
        let takes = Duration::from_nanos(BYTE_NS * frame.payload.len() as u64);
        let at = (shared.now() + Duration::from_micros(delay)).max(earliest) + takes;
        let corrupt = std::mem::take(&mut flow.corrupt_next);
        if !flow.deaf {
            flow.frames.push_back((at, Frame { corrupt, ..frame }));
        }
    }

    /// The other side has taken something: what found no room goes on its way. Nobody is asked whether a
    /// frame is lost here: it is lost before or behind those that find room at once.
    fn fill(&self, shared: &Shared) {
        while self.flow.lock().stuck > 0
            && let Some(frame) = self.next_with_room()
        {
            if self.from == Side::Secondary {
                self.wires.note_failure(&frame.header);
            }
            self.carry(frame, shared);
            self.note_full();
        }
    }

    /// Loses the frames on their way from some one on, and whatever follows.
    fn lose_tail(&self, shared: &Shared) {
        let count = self.flow.lock().frames.len() as u64;
        let said = *self.wires.kept.lock();
        self.keep(said.unwrap_or_else(|| shared.draw(|chance| chance.below(count + 1))));
    }

    /// Of the frames on their way so many arrive, and nothing that follows.
    fn keep(&self, frames: u64) {
        let mut flow = self.flow.lock();
        flow.frames
            .truncate(usize::try_from(frames).unwrap_or(usize::MAX));
        flow.gathered.clear();
        flow.deaf = true;
    }

    /// Lets the receiver know that no more will come.
    fn end(&self, shared: &Shared) {
        let delay = shared.draw(|chance| chance.below(DELAY_MAX_US));
        let at = shared.now() + Duration::from_micros(delay);
        self.flow.lock().ended.get_or_insert(at);
    }
}

impl Network {
    /// A new connection; the first half is the dialing side's.
    pub fn connect(&self, dialing: &Arc<Process>, listening: &Arc<Process>) -> [End; 2] {
        let there = Pipe::new(Side::Primary, &self.wires);
        let back = Pipe::new(Side::Secondary, &self.wires);
        let mut pipes = self.pipes.lock();
        // Of those that both ends have given up, nobody holds any but this list.
        pipes.retain(|pipe| Arc::strong_count(pipe) > 1);
        pipes.extend([Arc::clone(&there), Arc::clone(&back)]);
        [
            End {
                process: Arc::clone(dialing),
                outgoing: Arc::clone(&there),
                incoming: Arc::clone(&back),
            },
            End {
                process: Arc::clone(listening),
                outgoing: back,
                incoming: there,
            },
        ]
    }

    /// Whether a connection can be made now.
    pub fn is_whole(&self) -> bool {
        *self.wires.silent.lock() == [false; 2]
    }

    /// Lets frames of a side pass or not; those on their way wait.
    pub fn set_silent(&self, from: Side, silent: bool) {
        *from.of_mut(&mut self.wires.silent.lock()) = silent;
    }

    /// Who is asked before each frame from now on. One that holds the network keeps it from being
    /// freed until it is taken off again.
    pub fn observe(&self, observer: Option<FrameObserver>) {
        *self.wires.observer.lock() = observer;
    }

    /// How many of the frames on their way arrive when a connection ends; `None`: by chance.
    pub fn keep(&self, frames: Option<u64>) {
        *self.wires.kept.lock() = frames;
    }

    /// The first answer by which the secondary said that it could not do what the primary asked for, as
    /// text.
    pub fn failure(&self) -> Option<String> {
        self.wires.failure.lock().clone()
    }

    /// Whether a thread that serves clients, or reads from the peer, has waited for the other node to read.
    pub fn has_waited(&self) -> bool {
        self.wires.has_waited.load(Ordering::Relaxed)
    }

    /// Frames of a side that are on their way to somebody.
    pub fn on_the_way(&self, from: Side) -> u64 {
        let pipes = self.pipes.lock();
        let of_side = pipes.iter().filter(|pipe| pipe.from == from);
        let frames = of_side.map(|pipe| {
            let flow = pipe.flow.lock();
            let count = if flow.unheard { 0 } else { flow.frames.len() };
            count as u64
        });
        frames.sum()
    }

    /// Ends all connections, each direction at a frame of its own.
    pub fn cut(&self, shared: &Shared) {
        for pipe in self.pipes.lock().iter() {
            pipe.lose_tail(shared);
            pipe.end(shared);
        }
    }

    /// Damages the next frame of a side.
    pub fn corrupt_next(&self, from: Side) {
        for pipe in self.pipes.lock().iter().filter(|pipe| pipe.from == from) {
            pipe.flow.lock().corrupt_next = true;
        }
    }

    /// A process has gone. Its system tells the other side; a machine without power does not.
    pub fn process_gone(&self, side: Side, shared: &Shared, is_told: bool) {
        for pipe in self.pipes.lock().iter() {
            if pipe.from != side {
                pipe.flow.lock().unheard = true;
                continue;
            }
            pipe.lose_tail(shared);
            if is_told {
                pipe.end(shared);
            }
        }
    }
}

/// One end of a connection.
#[derive(Clone)]
pub struct End {
    process: Arc<Process>,
    outgoing: Arc<Pipe>,
    incoming: Arc<Pipe>,
}

impl End {
    /// The receiving half of this end.
    pub fn receiver(&self) -> Box<dyn ReceiveFrames> {
        Box::new(Receiving {
            end: self.clone(),
            timeout: None,
            taken: None,
        })
    }

    /// The sending half of this end.
    pub fn sender(&self) -> Arc<dyn SendFrames> {
        Arc::new(self.clone())
    }

    fn check_open(&self) -> Result<(), LinkError> {
        match &self.incoming.flow.lock().closed {
            None => Ok(()),
            Some(reason) => Err(closed(reason)),
        }
    }

    /// Puts what is gathered on the way, as far as there is room. The rest goes when the other side takes
    /// something, or waits here for that.
    fn pass_on(&self, may_wait: bool) -> Result<(), LinkError> {
        loop {
            self.check_open()?;
            if self.process.is_dead() {
                self.outgoing.flow.lock().gathered.clear();
                return Ok(());
            }
            while let Some(frame) = self.outgoing.next_with_room() {
                self.put_on_the_way(frame);
            }
            let is_full = self.outgoing.note_full();
            if !is_full || !may_wait || !fibers::is_inside() {
                return Ok(());
            }
            if fibers::role() != fibers::Role::Any {
                self.outgoing.wires.note_wait();
            }
            let look = self.process.shared().now() + FULL_LOOK;
            fibers::wait(Wait::Until(look));
            self.process.end_if_dead();
        }
    }

    fn put_on_the_way(&self, frame: Frame) {
        if self.outgoing.from == Side::Secondary {
            self.outgoing.wires.note_failure(&frame.header);
        }
        if let OnFrame::Lose { kept } = self.outgoing.wires.meet(self.outgoing.from) {
            self.lose(kept);
        }
        self.outgoing.carry(frame, self.process.shared());
    }
}

impl End {
    /// The connection is lost: what this end has sent arrives, of what comes so many.
    fn lose(&self, kept: u64) {
        self.outgoing.keep(u64::MAX);
        self.incoming.keep(kept);
        for pipe in [&self.outgoing, &self.incoming] {
            pipe.end(self.process.shared());
        }
    }
}

impl SendFrames for End {
    fn send(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.enqueue(header, payload)?;
        self.flush()
    }

    fn post(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.enqueue(header, payload)?;
        self.flush_nowait()
    }

    fn enqueue(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.check_open()?;
        self.outgoing.flow.lock().gathered.push_back(Frame {
            header: header.to_vec(),
            payload: payload.to_vec(),
            corrupt: false,
        });
        Ok(())
    }

    fn send_deferred(&self, header: &[u8], payload: &[u8]) -> Result<bool, LinkError> {
        let is_only_one = self.outgoing.flow.lock().gathered.is_empty();
        self.enqueue(header, payload)?;
        if !is_only_one {
            self.flush_nowait()?;
        }
        Ok(is_only_one)
    }

    fn flush(&self) -> Result<(), LinkError> {
        self.pass_on(true)
    }

    fn flush_nowait(&self) -> Result<(), LinkError> {
        self.pass_on(false)
    }

    fn shutdown(&self, reason: &str) {
        if self.process.is_dead() {
            return;
        }
        let shared = self.process.shared();
        self.incoming
            .flow
            .lock()
            .closed
            .get_or_insert_with(|| reason.to_owned());
        self.outgoing.flow.lock().gathered.clear();
        self.outgoing.lose_tail(shared);
        self.outgoing.end(shared);
    }
}

struct Receiving {
    end: End,
    timeout: Option<Duration>,
    taken: Option<Frame>,
}

impl Receiving {
    /// The next frame that has arrived, if the connection still stands.
    fn take(&self) -> Result<Option<Frame>, LinkError> {
        self.end.check_open()?;
        let now = self.end.process.shared().now();
        if !self.end.incoming.has_come(now) {
            return Ok(None);
        }
        let next = self.end.incoming.flow.lock().frames.pop_front();
        self.end.incoming.fill(self.end.process.shared());
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

impl ReceiveFrames for Receiving {
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
                let frame = self.taken.insert(frame);
                return Ok(FrameRef {
                    header: &frame.header,
                    payload: &frame.payload,
                });
            }
            if limit.is_some_and(|limit| limit <= self.end.process.shared().now()) {
                return Err(LinkError::TimedOut {
                    heard: false,
                    peer: nowhere(),
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
        peer: nowhere(),
        reason: reason.to_owned(),
    }
}

fn nowhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}
