//! Room on both disks: which changes of clients may begin (rule P20).
//!
//! A change that takes space begins only if the disks of both nodes have room for it; otherwise its client is told that
//! there is no space, before anything is done on either node. The room of this node's disk is looked at. That of the
//! secondary's is known by the secondary's word, which comes with each `Pong`, with `Welcome`, and when it is asked for;
//! while the secondary is away or out of sync, by the last word in sync and by what this node's disk has lost or gained
//! since.
//!
//! A word and a look may already count what changes under way have taken, or not yet. So a change that both disks have
//! room for beside all of those begins at once. Any other *applies*: content that nobody needs is removed on both nodes,
//! the secondary is asked, and the change begins, is refused, or waits until those under way are over.
//!
//! Invariants:
//! - What a change takes is counted from before it begins until it is over, unless both disks have ample room.
//! - Nothing here is locked while a disk or the peer is asked. No thread of a client waits here.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_fs::StoreError;
use lockstep_repl::message::{Request, Response};
use lockstep_repl::state::{Service, State};
use lockstep_resync::Peer;
use lockstep_types::backing::{Room, Space};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{AllocateMode, Errno, Ino, MetaRequest};
use parking_lot::Mutex;

use super::Datastore;
use crate::client::Done;

/// Between two looks for applicants whose room depends on changes under way.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// So many looks one waits before it is refused.
const LOOKS_MAX: u32 = 100;

/// What is known of the room on both disks.
#[derive(Default)]
pub(super) struct Rooms {
    /// Both disks have ample room, by the last tick: changes need not be counted.
    is_ample: AtomicBool,
    known: Mutex<Known>,
    applicants: Mutex<Applicants>,
}

#[derive(Default)]
struct Known {
    /// What changes under way take.
    under_way: Room,
    /// What changes took that are over: all together, since the start.
    over: Room,
    /// The last word of the secondary.
    word: Option<Word>,
    /// What was so when the last `Ping` was sent.
    at_ping: Asked,
    /// The rooms of the secondary and of this node when they were last known in sync.
    in_sync: Option<(Room, Room)>,
}

/// What the secondary has said of its disk.
#[derive(Clone, Copy)]
struct Word {
    room: Room,
    asked: Asked,
}

/// What was so when the secondary was asked for its word.
#[derive(Clone, Copy, Default)]
struct Asked {
    /// [`Known::over`].
    over: Room,
    /// The secondary had all that this node had: nothing but changes takes room there since.
    has_all: bool,
}

impl Asked {
    /// Whether the answer to this question says more than that to another one over the same connection, which may
    /// have been under way at the same time.
    const fn is_better(&self, other: Self) -> bool {
        let is_later = self.over.covers(&other.over);
        is_later && (self.has_all || !other.has_all)
    }
}

/// Changes that wait for a decision.
#[derive(Default)]
struct Applicants {
    waiting: VecDeque<Applicant>,
    /// A thread decides.
    is_served: bool,
}

struct Applicant {
    room: Room,
    begin: Begin,
    looks: u32,
}

/// Begins a change, or ends it with an error. Given the datastore: one that an applicant held would hold itself.
type Begin = Box<dyn FnOnce(&Arc<Datastore>, Result<Charge, Errno>) + Send>;

/// Whether a change may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Yes,
    /// Not beside those that are under way, or were when a disk was looked at.
    Perhaps,
    No,
}

/// Where the room of the secondary is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Its last word.
    Word,
    /// This node's disk.
    Estimate,
    /// It has yet to say: nothing goes to it before, and no client is answered.
    Nowhere,
}

/// The room that a change under way takes. Dropped, the change is over.
pub(super) struct Charge(Option<(Arc<Rooms>, Room)>);

impl Charge {
    /// For a change that takes nothing, or need not be counted.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Has the answer to a client end the charge.
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
        if let Some((rooms, room)) = self.0.take() {
            let mut known = rooms.known.lock();
            known.under_way = known.under_way.minus(room);
            known.over = known.over.plus(room);
        }
    }
}

impl Known {
    /// What changes took that were under way, or over since, when the secondary was asked for its word.
    fn uncertain(&self, word: &Word) -> Room {
        self.under_way.plus(self.over.minus(word.asked.over))
    }

    /// Where the room of the secondary is known from, in a state of this node.
    fn source(&self, state: State, is_linked: bool) -> Source {
        let is_first = self.in_sync.is_none() && state.service() == Service::Wait;
        if !(has_all(state) && is_linked || is_first) {
            return Source::Estimate;
        }
        match self.word {
            Some(word) if is_linked && word.asked.has_all => Source::Word,
            _ => Source::Nowhere,
        }
    }

    /// Decides on a change, with the room of this node's disk.
    fn verdict(&self, wanted: Room, own: Room, source: Source) -> Verdict {
        let here = verdict(wanted, own, self.under_way);
        let there = match (source, &self.word) {
            _ if is_active(Mutant::IgnorePeerRoom) => Verdict::Yes,
            (Source::Word, Some(word)) => verdict(wanted, word.room, self.uncertain(word)),
            (Source::Nowhere, _) => Verdict::Perhaps,
            _ => verdict(wanted, self.estimate(own), self.under_way),
        };
        match (here, there) {
            (Verdict::No, _) | (_, Verdict::No) => Verdict::No,
            (Verdict::Yes, Verdict::Yes) => Verdict::Yes,
            _ => Verdict::Perhaps,
        }
    }

    /// The room that the secondary has for certain, as far as known.
    fn there(&self, own: Room, source: Source) -> Room {
        match (source, &self.word) {
            (Source::Word, Some(word)) => word.room.minus(self.uncertain(word)),
            _ => self.estimate(own),
        }
    }

    /// The room of a secondary that has not all that this node has: it will take there what it took here.
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

/// Whether the secondary has all that this node has, but for what is under way.
const fn has_all(state: State) -> bool {
    matches!(state, State::Synced | State::EnteringSync)
}

/// A count that changes as another one did, `from` one value `to` another.
const fn shifted(count: u64, from: u64, to: u64) -> u64 {
    count
        .saturating_add(to.saturating_sub(from))
        .saturating_sub(from.saturating_sub(to))
}

/// Decides by the room of one disk, of which it is not certain whether it counts `uncertain` already.
fn verdict(wanted: Room, room: Room, uncertain: Room) -> Verdict {
    if room.minus(uncertain).covers(&wanted) {
        Verdict::Yes
    } else if room.covers(&wanted) {
        Verdict::Perhaps
    } else {
        Verdict::No
    }
}

/// Whether a request takes an amount of space that its client names.
const fn is_reservation(request: &MetaRequest) -> bool {
    match request {
        MetaRequest::Allocate { mode, .. } => !matches!(mode, AllocateMode::PunchHole),
        _ => false,
    }
}

impl Datastore {
    /// Has a metadata operation begin with the charge for what it takes, or end with an error; at once where that
    /// can be decided at once.
    pub(super) fn admit_request(
        self: &Arc<Self>,
        request: MetaRequest,
        begin: impl FnOnce(&Arc<Self>, MetaRequest, Result<Charge, Errno>) + Send + 'static,
    ) {
        if self.has_ample_room() && !is_reservation(&request) {
            return begin(self, request, Ok(Charge::none()));
        }
        let room = match self.store.room_for_request(&request) {
            Ok(room) => room,
            Err(error) => return begin(self, request, Err(self.told(&error.into()))),
        };
        if let Some(charge) = self.take_room(room) {
            return begin(self, request, Ok(charge));
        }
        let begin = move |datastore: &Arc<Self>, taken| begin(datastore, request, taken);
        self.apply_for_room(room, Box::new(begin));
    }

    /// Whether both disks have so much room that no single change need be counted.
    pub(super) fn has_ample_room(&self) -> bool {
        self.rooms.is_ample.load(Ordering::Acquire)
    }

    /// Takes room for a change, if both disks have it for certain.
    pub(super) fn take_room(self: &Arc<Self>, wanted: Room) -> Option<Charge> {
        if wanted == Room::NONE {
            return Some(Charge::none());
        }
        let own = self.store.room().ok()?;
        let (state, is_linked) = self.state_and_link();
        let mut known = self.rooms.known.lock();
        let source = known.source(state, is_linked);
        let is_certain = known.verdict(wanted, own, source) == Verdict::Yes;
        is_certain.then(|| self.charge(&mut known, wanted))
    }

    /// Whether a write would find room at once.
    pub(super) fn has_room_for_write(&self, ino: Ino, offset: u64, length: u64) -> bool {
        if self.has_ample_room() {
            return true;
        }
        let wanted = self.store.room_for_write(ino, offset, length);
        let (Ok(wanted), Ok(own)) = (wanted, self.store.room()) else {
            // It is refused at once.
            return true;
        };
        let (state, is_linked) = self.state_and_link();
        let known = self.rooms.known.lock();
        let source = known.source(state, is_linked);
        known.verdict(wanted, own, source) == Verdict::Yes
    }

    fn charge(&self, known: &mut Known, wanted: Room) -> Charge {
        // It may take nearly all there is: the next tick says whether there is ample room beside it.
        self.rooms.is_ample.store(false, Ordering::Release);
        known.under_way = known.under_way.plus(wanted);
        Charge(Some((Arc::clone(&self.rooms), wanted)))
    }

    /// Has another thread decide on a change whose room is not certain.
    pub(super) fn apply_for_room(self: &Arc<Self>, room: Room, begin: Begin) {
        if self.is_stopping() {
            // A node that is stopping answers nobody any more.
            return;
        }
        let looks = 0;
        let applicant = Applicant { room, begin, looks };
        let is_served = {
            let mut applicants = self.rooms.applicants.lock();
            applicants.waiting.push_back(applicant);
            mem::replace(&mut applicants.is_served, true)
        };
        if !is_served {
            let datastore = Arc::clone(self);
            self.host
                .spawn(Box::new(move || datastore.serve_applicants()));
        }
    }

    /// Decides on all who have applied, until none is left.
    fn serve_applicants(self: &Arc<Self>) {
        loop {
            let waiting = {
                let mut applicants = self.rooms.applicants.lock();
                if applicants.waiting.is_empty() || self.is_stopping() {
                    applicants.is_served = false;
                    break;
                }
                mem::take(&mut applicants.waiting)
            };
            let undecided = self.decide_on(waiting);
            if !undecided.is_empty() {
                let mut applicants = self.rooms.applicants.lock();
                for applicant in undecided.into_iter().rev() {
                    applicants.waiting.push_front(applicant);
                }
                drop(applicants);
                self.host.sleep(LOOK_AGAIN);
            }
        }
        if self.is_stopping() {
            self.abandon_applicants();
        }
    }

    /// Drops all who have applied: the node is stopping.
    pub(super) fn abandon_applicants(&self) {
        let abandoned = mem::take(&mut self.rooms.applicants.lock().waiting);
        drop(abandoned);
    }

    /// Decides on applicants by what both disks have now. Returns those that must wait for others.
    fn decide_on(self: &Arc<Self>, applicants: VecDeque<Applicant>) -> Vec<Applicant> {
        self.collect_garbage_for_room();
        self.ask_for_room();
        let mut undecided = Vec::new();
        for mut applicant in applicants {
            match self.decide_on_one(&mut applicant) {
                Ok(Some(charge)) => (applicant.begin)(self, Ok(charge)),
                Ok(None) => undecided.push(applicant),
                Err(errno) => (applicant.begin)(self, Err(errno)),
            }
        }
        undecided
    }

    /// The charge for an applicant that may begin; `None` if it has to wait.
    fn decide_on_one(&self, applicant: &mut Applicant) -> Result<Option<Charge>, Errno> {
        let own = self
            .store
            .room()
            .map_err(|error| self.told(&error.into()))?;
        let (state, is_linked) = self.state_and_link();
        let mut known = self.rooms.known.lock();
        let source = known.source(state, is_linked);
        match known.verdict(applicant.room, own, source) {
            Verdict::Yes => return Ok(Some(self.charge(&mut known, applicant.room))),
            Verdict::No => return Err(Errno::NoSpace),
            Verdict::Perhaps => {}
        }
        if source != Source::Nowhere {
            applicant.looks += 1;
        }
        if applicant.looks < LOOKS_MAX {
            Ok(None)
        } else {
            Err(Errno::NoSpace)
        }
    }

    /// Content that nobody needs takes room that a client may want.
    fn collect_garbage_for_room(&self) {
        if let Err(error) = self.store.collect_garbage() {
            tracing::debug!(datastore = self.name(), %error, "content of a freed inode stays");
        }
    }

    /// The nodes are in sync: the last word of the secondary may be of before.
    pub(super) fn ask_for_room_later(self: &Arc<Self>) {
        let datastore = Arc::clone(self);
        self.host.spawn(Box::new(move || datastore.ask_for_room()));
    }

    /// Asks a secondary in sync for its room.
    fn ask_for_room(self: &Arc<Self>) {
        let asked = self.asked_now();
        let Some(peer) = self.linked_peer().filter(|_| asked.has_all) else {
            return;
        };
        if let Ok(Response::Room(room)) = peer.ask(Request::Room, &[]) {
            self.heard_of_room(Word { room, asked });
        }
    }

    fn asked_now(&self) -> Asked {
        let state = self.core.lock().state();
        Asked {
            over: self.rooms.known.lock().over,
            has_all: has_all(state),
        }
    }

    /// What the secondary answers when it is asked for its room.
    pub(super) fn room_for_peer(&self) -> Result<Room, StoreError> {
        self.collect_garbage_for_room();
        self.store.room()
    }

    /// The room of the secondary when it is not asked for: what is known lately, or none.
    pub(super) fn room_lately(&self) -> Room {
        self.store.room().unwrap_or(Room::NONE)
    }

    /// A `Ping` goes out: its answer counts all that is over now.
    pub(super) fn asks_for_room(&self) {
        let asked = self.asked_now();
        self.rooms.known.lock().at_ping = asked;
    }

    /// A `Pong` has come.
    pub(super) fn pong_tells_room(&self, room: Room) {
        let asked = self.rooms.known.lock().at_ping;
        self.heard_of_room(Word { room, asked });
    }

    /// A connection begins with this word, before anything is sent over it: no earlier one counts. `in_sync`: by both
    /// marks.
    pub(super) fn welcome_tells_room(&self, room: Room, in_sync: bool) {
        let asked = Asked {
            has_all: in_sync,
            ..self.asked_now()
        };
        self.rooms.known.lock().word = None;
        self.heard_of_room(Word { room, asked });
    }

    fn heard_of_room(&self, word: Word) {
        let own = self.store.room().ok().filter(|_| word.asked.has_all);
        let mut known = self.rooms.known.lock();
        if known
            .word
            .is_none_or(|last| word.asked.is_better(last.asked))
        {
            known.word = Some(word);
        }
        if let Some(own) = own {
            known.in_sync = Some((word.room, own));
        }
    }

    fn state_and_link(&self) -> (State, bool) {
        let is_linked = self.link.read().is_some();
        (self.core.lock().state(), is_linked)
    }

    /// Gives the reserve back what it lacks, if there is room for that.
    pub(super) fn fill_reserve(&self) {
        if let Err(error) = self.reserve.fill() {
            tracing::debug!(datastore = self.name(), %error, "the reserve is not filled");
        }
    }

    /// Looks whether both disks have ample room. Called from time to time.
    pub(super) fn look_at_room(&self) {
        let Ok(own) = self.store.room() else {
            return;
        };
        let ample = self.host.room_limits().ample;
        let (state, is_linked) = self.state_and_link();
        let is_ample = {
            let known = self.rooms.known.lock();
            let source = known.source(state, is_linked);
            let is_known = source != Source::Nowhere;
            let here = own.minus(known.under_way);
            is_known && here.min(known.there(own, source)).covers(&ample)
        };
        self.rooms.is_ample.store(is_ample, Ordering::Release);
    }

    /// The space that clients are shown.
    pub(super) fn space_on_both(&self) -> Result<Space, StoreError> {
        let own = self.store.space()?;
        let garbage_bytes = self.store.garbage_bytes();
        let (state, is_linked) = self.state_and_link();
        let known = self.rooms.known.lock();
        let source = known.source(state, is_linked);
        Ok(shown(
            own,
            known.there(Room::of(&own), source),
            garbage_bytes,
        ))
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
