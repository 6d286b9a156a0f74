//! Room on both disks: which changes of clients may begin (rule P20).
//!
//! A change that takes space begins only if the disks of both nodes have room for it. Otherwise the client gets
//! `ENOSPC` before anything is done on either node. This node asks its own disk. The room of the secondary's disk is
//! known by the secondary's report, which comes with each `Pong`, with `Welcome`, and on request. While the secondary is
//! away or out of sync, its room is estimated: its last report in sync, changed as the room of this node's disk has
//! changed since.
//!
//! The space of changes in flight may or may not be counted yet in a report or in an answer of the disk. So a change begins
//! at once if both disks have room for it beside all changes in flight. Any other change *requests space*: both nodes remove
//! content that no inode needs, the secondary is asked, and the change begins, is refused, or waits for the end of the
//! changes in flight.
//!
//! Invariants:
//! - The space of a change is counted from before the change begins until it is over, unless both disks have ample room.
//! - No lock is held here while a disk or the peer is asked. No thread of a client waits here.

mod relief;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_fs::StoreError;
use lockstep_repl::message::{Request, Response};
use lockstep_repl::state::{ServiceMode, State};
use lockstep_resync::Peer;
use lockstep_types::backing::{Room, Space};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{AllocateMode, Errno, Ino, MetaRequest};
use parking_lot::Mutex;

use crate::client::Done;
use crate::engine::Engine;
use crate::peer::requests::PendingRequests;
use crate::replication::Replication;
use crate::replication::remote::RemotePeer;
use relief::{ReliefWait, ReliefWish};

/// Time between two decisions on a request whose room depends on changes in flight.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// A request is refused after this many decisions.
const LOOKS_MAX: u32 = 100;

/// The known room on both disks.
#[derive(Default)]
struct SpaceLedger {
    /// At the last tick, both disks had ample room: changes are not counted.
    is_ample: AtomicBool,
    known: Mutex<Known>,
    requests: Mutex<SpaceRequests>,
    relief: ReliefWish,
}

#[derive(Default)]
struct Known {
    /// Space of the changes in flight.
    under_way: Room,
    /// Space of all changes that are over, since the start.
    over: Room,
    /// The last report of the secondary.
    report: Option<SpaceReport>,
    /// The circumstances of the last `Ping`.
    at_ping: ReportContext,
    /// The rooms of the secondary and of this node when both were last known in sync.
    in_sync: Option<(Room, Room)>,
}

/// The secondary's report on its disk.
#[derive(Clone, Copy)]
struct SpaceReport {
    room: Room,
    asked: ReportContext,
}

/// The circumstances in which the secondary was asked for its report.
#[derive(Clone, Copy, Default)]
struct ReportContext {
    /// [`Known::over`].
    over: Room,
    /// The secondary had the content of this node: since then only changes take room there.
    has_all: bool,
}

impl ReportContext {
    /// Whether the answer to this request is newer than the answer to another request over the same connection. Both
    /// may have been in flight at the same time.
    const fn is_better(&self, other: Self) -> bool {
        let is_later = self.over.covers(&other.over);
        is_later && (self.has_all || !other.has_all)
    }
}

/// Changes that wait for a decision.
#[derive(Default)]
struct SpaceRequests {
    waiting: VecDeque<SpaceRequest>,
    /// A thread decides.
    is_served: bool,
}

struct SpaceRequest {
    room: Room,
    begin: Begin,
    looks: u32,
    relief: ReliefWait,
}

/// Begins a change, or ends it with an error. Must not keep the session alive, which keeps the requests for space.
pub(crate) type Begin = Box<dyn FnOnce(Result<Charge, Errno>) + Send>;

/// The decision on a change.
pub(crate) enum Admission {
    /// The change may begin.
    Granted(Charge),
    /// The change ends with this error.
    Refused(Errno),
    /// [`SpaceCheck::request`] decides later whether there is this room.
    Undecided(Room),
}

/// See the head of this file.
pub(crate) struct SpaceCheck {
    engine: Arc<Engine>,
    replication: Arc<Replication>,
    requests: Arc<PendingRequests>,
    ledger: Arc<SpaceLedger>,
}

/// Whether a change may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Yes,
    /// Only if changes that were in flight when a disk was asked take less than they may.
    Perhaps,
    No,
}

/// The source of the secondary's room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Its last report.
    Report,
    /// This node's disk.
    Estimate,
    /// The secondary has not said yet. Until then no change goes to it, and no client is answered.
    Nowhere,
}

/// The room of a change in flight. Dropped, the change is over.
pub(crate) struct Charge(Option<(Arc<SpaceLedger>, Room)>);

impl Charge {
    /// The charge of a change that takes no room or is not counted.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Ends the charge with the answer to the client.
    pub fn until_done<T: 'static>(self, done: Done<T>) -> Done<T> {
        if self.0.is_none() {
            return done;
        }
        Box::new(move |result| {
            drop(self);
            done(result);
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some((ledger, room)) = self.0.take() {
            let mut known = ledger.known.lock();
            known.under_way = known.under_way.minus(room);
            known.over = known.over.plus(room);
        }
    }
}

impl Known {
    /// Space of the changes that were in flight when the secondary was asked, or have begun since.
    fn uncertain(&self, report: &SpaceReport) -> Room {
        self.under_way.plus(self.over.minus(report.asked.over))
    }

    /// The source of the secondary's room, in a state of this node.
    fn source(&self, state: State, is_connected: bool) -> Source {
        let is_first = self.in_sync.is_none() && state.service_mode() == ServiceMode::Wait;
        if !(has_all(state) && is_connected || is_first) {
            return Source::Estimate;
        }
        match self.report {
            Some(report) if is_connected && report.asked.has_all => Source::Report,
            _ => Source::Nowhere,
        }
    }

    /// Decides on a change, with the room of this node's disk.
    fn verdict(&self, wanted: Room, own: Room, source: Source) -> Verdict {
        let here = verdict(wanted, own, self.under_way);
        let there = match (source, &self.report) {
            _ if is_active(Mutant::IgnorePeerRoom) => Verdict::Yes,
            (Source::Report, Some(report)) => verdict(wanted, report.room, self.uncertain(report)),
            (Source::Nowhere, _) => Verdict::Perhaps,
            _ => verdict(wanted, self.estimate(own), self.under_way),
        };
        match (here, there) {
            (Verdict::No, _) | (_, Verdict::No) => Verdict::No,
            (Verdict::Yes, Verdict::Yes) => Verdict::Yes,
            _ => Verdict::Perhaps,
        }
    }

    /// The room that the secondary certainly has, as far as known.
    fn there(&self, own: Room, source: Source) -> Room {
        match (source, &self.report) {
            (Source::Report, Some(report)) => report.room.minus(self.uncertain(report)),
            _ => self.estimate(own),
        }
    }

    /// The room of a secondary that lacks content of this node: the content will take there the room that it took here.
    fn estimate(&self, own: Room) -> Room {
        let Some((there, here)) = self.in_sync else {
            return Room::ALL;
        };
        Room {
            bytes: shifted(there.bytes, here.bytes, own.bytes),
            files: shifted(there.files, here.files, own.files),
        }
    }
}

/// Whether the secondary has the content of this node, except for changes in flight.
const fn has_all(state: State) -> bool {
    matches!(state, State::Synced | State::EnteringSync)
}

/// A count that changes as another count changed, `from` one value `to` another.
const fn shifted(count: u64, from: u64, to: u64) -> u64 {
    count
        .saturating_add(to.saturating_sub(from))
        .saturating_sub(from.saturating_sub(to))
}

/// Decides by the room of one disk, which may or may not count `uncertain` already.
fn verdict(wanted: Room, room: Room, uncertain: Room) -> Verdict {
    if room.minus(uncertain).covers(&wanted) {
        Verdict::Yes
    } else if room.covers(&wanted) {
        Verdict::Perhaps
    } else {
        Verdict::No
    }
}

/// Whether the client of a request names the amount of space.
const fn is_reservation(request: &MetaRequest) -> bool {
    match request {
        MetaRequest::Allocate { mode, .. } => !matches!(mode, AllocateMode::PunchHole),
        _ => false,
    }
}

impl SpaceCheck {
    /// The admission of one session.
    pub fn new(
        engine: Arc<Engine>,
        replication: Arc<Replication>,
        requests: Arc<PendingRequests>,
    ) -> Self {
        Self {
            engine,
            replication,
            requests,
            ledger: Arc::default(),
        }
    }

    /// Decides on a metadata operation, if that is possible at once.
    pub fn admit_request(&self, request: &MetaRequest) -> Admission {
        let capacity = self.engine.store.capacity();
        let is_large = || is_reservation(request) || capacity.may_keep_much(request);
        if self.has_ample_room() && !is_large() {
            return Admission::Granted(Charge::none());
        }
        self.admit(capacity.room_for_request(request))
    }

    /// Decides on a write, if that is possible at once.
    pub fn admit_write(&self, ino: Ino, offset: u64, length: u64) -> Admission {
        if self.has_ample_room() {
            return Admission::Granted(Charge::none());
        }
        self.admit(
            self.engine
                .store
                .capacity()
                .room_for_write(ino, offset, length),
        )
    }

    fn admit(&self, wanted: Result<Room, StoreError>) -> Admission {
        match wanted {
            Err(error) => Admission::Refused(self.engine.log_and_errno(&error.into())),
            Ok(room) => match self.take_room(room) {
                Some(charge) => Admission::Granted(charge),
                None => Admission::Undecided(room),
            },
        }
    }

    /// Whether both disks have so much room that no single change is counted.
    pub fn has_ample_room(&self) -> bool {
        self.ledger.is_ample.load(Ordering::Acquire)
    }

    /// Takes room for a change, if both disks certainly have it.
    fn take_room(&self, wanted: Room) -> Option<Charge> {
        if wanted == Room::NONE {
            return Some(Charge::none());
        }
        let own = self.engine.store.capacity().room().ok()?;
        let (state, is_connected) = self.replication.state_and_connected();
        let mut known = self.ledger.known.lock();
        let source = known.source(state, is_connected);
        let is_certain = known.verdict(wanted, own, source) == Verdict::Yes;
        is_certain.then(|| self.charge(&mut known, wanted))
    }

    /// Whether a write would be decided at once.
    pub fn decides_write_at_once(&self, ino: Ino, offset: u64, length: u64) -> bool {
        if self.has_ample_room() {
            return true;
        }
        let wanted = self
            .engine
            .store
            .capacity()
            .room_for_write(ino, offset, length);
        let (Ok(wanted), Ok(own)) = (wanted, self.engine.store.capacity().room()) else {
            // The write is refused at once.
            return true;
        };
        let (state, is_connected) = self.replication.state_and_connected();
        let known = self.ledger.known.lock();
        let source = known.source(state, is_connected);
        known.verdict(wanted, own, source) == Verdict::Yes
    }

    fn charge(&self, known: &mut Known, wanted: Room) -> Charge {
        // The change may take nearly all room: the next tick says whether there is ample room beside it.
        self.ledger.is_ample.store(false, Ordering::Release);
        known.under_way = known.under_way.plus(wanted);
        Charge(Some((Arc::clone(&self.ledger), wanted)))
    }

    /// Has another thread decide on a change that was left undecided.
    pub fn request(self: &Arc<Self>, room: Room, begin: Begin) {
        if self.replication.is_over() {
            return self.abandon(begin);
        }
        let request = SpaceRequest {
            room,
            begin,
            looks: 0,
            relief: ReliefWait::default(),
        };
        let is_served = {
            let mut requests = self.ledger.requests.lock();
            requests.waiting.push_back(request);
            mem::replace(&mut requests.is_served, true)
        };
        if self.replication.is_over() {
            // The end may have abandoned all requests for space before this one was there.
            return self.abandon_applicants();
        }
        if !is_served {
            let space = Arc::clone(self);
            let job = move || space.serve_applicants();
            self.replication.spawn(job);
        }
    }

    /// Decides on all requests for space, until none is left.
    fn serve_applicants(&self) {
        loop {
            let waiting = {
                let mut requests = self.ledger.requests.lock();
                if requests.waiting.is_empty() || self.replication.is_over() {
                    requests.is_served = false;
                    break;
                }
                mem::take(&mut requests.waiting)
            };
            let undecided = self.decide_on(waiting);
            if !undecided.is_empty() {
                let mut requests = self.ledger.requests.lock();
                for request in undecided.into_iter().rev() {
                    requests.waiting.push_front(request);
                }
                drop(requests);
                self.engine
                    .sleep_unless(LOOK_AGAIN, || self.replication.is_over());
            }
        }
        if self.replication.is_over() {
            self.abandon_applicants();
        }
    }

    /// Drops all requests for space: the session is over.
    pub fn abandon_applicants(&self) {
        let abandoned = mem::take(&mut self.ledger.requests.lock().waiting);
        for request in abandoned {
            self.abandon(request.begin);
        }
    }

    /// Ends a change that has not begun. A node that is stopping answers no client any more.
    fn abandon(&self, begin: Begin) {
        if !self.engine.is_stopping() {
            begin(Err(self.engine.unknown_outcome()));
        }
    }

    /// Decides on requests for space by the present room of both disks. Returns those that must wait for others.
    fn decide_on(&self, requests: VecDeque<SpaceRequest>) -> Vec<SpaceRequest> {
        let all = requests.iter().map(|request| request.room);
        self.engine
            .make_room(Some(all.fold(Room::NONE, Room::plus)));
        self.ask_peer(true);
        let mut undecided = Vec::new();
        self.ledger.relief.note(&self.engine, false);
        for mut request in requests {
            match self.decide_on_one(&mut request) {
                Ok(Some(charge)) => (request.begin)(Ok(charge)),
                Ok(None) => undecided.push(request),
                Err(errno) => (request.begin)(Err(errno)),
            }
        }
        undecided
    }

    /// The charge for a request that may begin; `None` if the request has to wait.
    fn decide_on_one(&self, request: &mut SpaceRequest) -> Result<Option<Charge>, Errno> {
        let own = self.engine.store.capacity().room();
        let own = own.map_err(|error| self.engine.log_and_errno(&error.into()))?;
        let (state, is_connected) = self.replication.state_and_connected();
        let mut known = self.ledger.known.lock();
        let source = known.source(state, is_connected);
        match known.verdict(request.room, own, source) {
            Verdict::Yes => return Ok(Some(self.charge(&mut known, request.room))),
            Verdict::No => {
                drop(known);
                let waits = self
                    .ledger
                    .relief
                    .lets_wait(&self.engine, &mut request.relief);
                return if waits { Ok(None) } else { Err(Errno::NoSpace) };
            }
            Verdict::Perhaps => {}
        }
        if source != Source::Nowhere {
            request.looks += 1;
        }
        if request.looks < LOOKS_MAX {
            Ok(None)
        } else {
            Err(Errno::NoSpace)
        }
    }

    /// Notes that a snapshot is being deleted, whose room both nodes get back soon.
    pub fn note_relief(&self) {
        self.ledger.relief.note_deletion(self.engine.host.now());
    }

    /// Whether a change waits for the room that a deleted snapshot gives back.
    pub fn waits_for_relief(&self) -> bool {
        self.ledger.relief.is_there()
    }

    /// Whether a disk has so little room that snapshots of the schedule give way: less than is ample, and than a sixteenth of the disk of this node.
    pub fn is_low(&self) -> bool {
        let capacity = self.engine.store.capacity();
        let (Ok(space), Ok(own)) = (capacity.space(), capacity.room()) else {
            return false;
        };
        let low = relief::low_room(&space, self.engine.host.room_limits().ample);
        let (state, is_connected) = self.replication.state_and_connected();
        let known = self.ledger.known.lock();
        let source = known.source(state, is_connected);
        source != Source::Nowhere && !own.min(known.there(own, source)).covers(&low)
    }

    /// Asks the secondary on another thread. The nodes have just come in sync: the last report of the secondary may
    /// be older.
    pub fn ask_peer_later(self: &Arc<Self>) {
        let space = Arc::clone(self);
        let job = move || space.ask_peer(false);
        self.replication.spawn(job);
    }

    /// Asks a secondary in sync for its room; for a change, the secondary makes some before.
    fn ask_peer(&self, for_change: bool) {
        let asked = self.asked_now();
        let Some(connection) = self.replication.peer.current().filter(|_| asked.has_all) else {
            return;
        };
        let (replication, requests) = (Arc::clone(&self.replication), Arc::clone(&self.requests));
        let peer = RemotePeer::new(replication, requests, connection);
        if let Ok(Response::Room(room)) = peer.ask(Request::Room { for_change }, &[]) {
            self.note_report(SpaceReport { room, asked });
        }
    }

    fn asked_now(&self) -> ReportContext {
        let state = self.replication.state();
        ReportContext {
            over: self.ledger.known.lock().over,
            has_all: has_all(state),
        }
    }

    /// A `Ping` goes out: its answer counts all changes that are over now.
    pub fn note_ping(&self) {
        let asked = self.asked_now();
        self.ledger.known.lock().at_ping = asked;
    }

    /// A `Pong` has come.
    pub fn note_pong(&self, room: Room) {
        let asked = self.ledger.known.lock().at_ping;
        self.note_report(SpaceReport { room, asked });
    }

    /// A connection begins with this report, before any message is sent over it: no earlier report counts. `in_sync`:
    /// by the marks of both nodes.
    pub fn note_welcome(&self, room: Room, in_sync: bool) {
        let asked = ReportContext {
            has_all: in_sync,
            ..self.asked_now()
        };
        self.ledger.known.lock().report = None;
        self.note_report(SpaceReport { room, asked });
    }

    fn note_report(&self, report: SpaceReport) {
        let own = self.engine.store.capacity().room().ok();
        let own = own.filter(|_| report.asked.has_all);
        let mut known = self.ledger.known.lock();
        if known
            .report
            .is_none_or(|last| report.asked.is_better(last.asked))
        {
            known.report = Some(report);
        }
        if let Some(own) = own {
            known.in_sync = Some((report.room, own));
        }
    }

    /// Finds out whether both disks have ample room. Called at each tick.
    pub fn look_at_room(&self) {
        let Ok(own) = self.engine.store.capacity().room() else {
            return;
        };
        let ample = self.engine.host.room_limits().ample;
        let (state, is_connected) = self.replication.state_and_connected();
        let is_ample = {
            let known = self.ledger.known.lock();
            let source = known.source(state, is_connected);
            let is_known = source != Source::Nowhere;
            let here = own.minus(known.under_way);
            is_known && here.min(known.there(own, source)).covers(&ample)
        };
        self.ledger.is_ample.store(is_ample, Ordering::Release);
    }

    /// The space that clients are shown.
    pub fn shown_space(&self) -> Result<Space, StoreError> {
        let own = self.engine.store.capacity().space()?;
        let garbage_bytes = self.engine.store.capacity().garbage_bytes();
        let (state, is_connected) = self.replication.state_and_connected();
        let known = self.ledger.known.lock();
        let source = known.source(state, is_connected);
        let there = known.there(Room::of(&own), source);
        Ok(shown(own, there, garbage_bytes))
    }
}

/// The space that clients are shown: the room that both disks have for them, and the space used on this node's disk `own`.
/// The content of removed files counts as free on both disks: it goes within two seconds, or when a client needs its
/// space.
fn shown(own: Space, there: Room, garbage_bytes: u64) -> Space {
    let room = Room::of(&own).min(there);
    let within = |bytes: u64| bytes.saturating_add(garbage_bytes).min(own.total_bytes);
    Space {
        available_bytes: within(room.bytes),
        free_bytes: within(own.free_bytes.max(room.bytes)),
        free_files: if own.total_files == 0 { 0 } else { room.files },
        ..own
    }
}

#[cfg(test)]
mod tests;
