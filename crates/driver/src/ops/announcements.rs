//! Announced regions: a mirrored write begins on this node only when the secondary has marked its regions (rule P26). So the secondary
//! knows each place at which this node may have bytes that the secondary never got.
//!
//! A write is asked about when its locks are held and the core has numbered it. If the secondary has not marked all of its regions,
//! this node's part of the write waits, and an announcement goes to the secondary. The answer lets the write begin on a thread of the
//! pool. For the core such a write is one of a slow disk: the core sends it again only when this node has made it, and a barrier waits
//! for it (P27). No thread waits: the bytes are kept as those of any write that cannot begin.
//!
//! *An announcement counts for the interval that was open when it was posted.* `Turn` of that interval goes first, over the same
//! connection, so the mark is in that interval or in a later one. A write asks about the interval that is open when it asks, which is
//! its own or a later one. No barrier of that interval is complete before the write is over. So the secondary keeps the mark.
//!
//! *The creation of a file announces the file as a whole.* The secondary marks all of a new file when it commits the creation. `Turn` of
//! the interval that is open when the creation is sent went first, over the same connection. The answer to the creation is the answer to
//! the announcement. A creation that is sent again announces nothing: the secondary may have committed it before a loss of its marks.
//!
//! Invariants:
//! - A write of a connection that is gone waits for an answer over the next one. Answers of a connection that is gone count no more.
//! - When the mark "out of sync" is durable, each waiting write begins, and none waits any more: it is made alone, or in a resync.
//!   This node has no name on stable storage then (P28).
//! - No lock is held while a message is sent.
//!
//! Locks: the core's lock may be held when this file's lock is taken, and not the other way round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_delta::announced::ENTRIES_MAX;
use lockstep_delta::{AnnouncedRegions, FileRegions, Interval};
use lockstep_repl::core::{ConnectionId, Effect, OpId};
use lockstep_repl::message::{Message, RegionRun};
use lockstep_sums::SummedBytes;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Ino, MetaOp, MetaRequest, NodeKind, Osn};
use parking_lot::Mutex;

use crate::engine::Engine;
use crate::peer::connection::{ActiveConnection, Delivery};
use crate::replication::Replication;

/// Regions that a stream announces ahead.
const AHEAD: u64 = 15;
/// Most runs of regions of one message.
const RUNS_MAX: usize = 1024;
/// Most creations without an answer. A further one announces nothing.
const CREATIONS_MAX: usize = 4096;

/// A write whose part on this node waits.
#[derive(Clone)]
struct Waiting {
    op: OpId,
    osn: Osn,
    ino: Ino,
    regions: FileRegions,
}

/// An announcement without an answer.
struct Sent {
    interval: Interval,
    runs: Vec<(Ino, FileRegions)>,
    waiting: Vec<Waiting>,
}

impl Sent {
    fn covers(&self, ino: Ino, regions: &FileRegions) -> bool {
        let (first, last) = regions.numbers().into_inner();
        self.runs.iter().any(|(of, run)| {
            *of == ino && run.numbers().contains(&first) && run.numbers().contains(&last)
        })
    }
}

struct AnnouncementState {
    /// The nodes are in sync, or were, and this node has not left the sync on stable storage yet.
    mirrors: bool,
    /// The connection of each of the following fields, the last one that has begun.
    connection: ConnectionId,
    /// The youngest interval of which `Turn` is sent.
    told: Interval,
    known: AnnouncedRegions,
    /// By number, which counts over all connections.
    sent: BTreeMap<u64, Sent>,
    last: u64,
    /// Creations of files without an answer, each with the interval that was open when it was sent.
    creations: BTreeMap<Osn, (Ino, Interval)>,
    /// Writes without an announcement: no connection stands.
    waiting: Vec<Waiting>,
    /// Writes that may begin, and have not.
    released: BTreeSet<OpId>,
}

impl AnnouncementState {
    /// Everything of an earlier connection is void. Returns false for a connection that is gone: a later one has begun.
    fn over(&mut self, connection: ConnectionId) -> bool {
        if self.connection.0 < connection.0 {
            self.connection = connection;
            self.told = Interval::ZERO;
            self.known.forget_all();
            self.creations.clear();
            for sent in std::mem::take(&mut self.sent).into_values() {
                self.waiting.extend(sent.waiting);
            }
        }
        self.connection == connection
    }

    /// The announcement of some regions. A file that is written one region after the other announces the following ones, too.
    fn announce(&mut self, interval: Interval, waiting: Waiting) -> (u64, Vec<RegionRun>) {
        let Waiting { ino, regions, .. } = &waiting;
        let first = *regions.numbers().start();
        let before = first.checked_sub(1);
        let before = before.map(FileRegions::of_region);
        let is_stream = before.is_some_and(|it| self.known.holds(interval, *ino, &it));
        let ahead = if is_stream { AHEAD } else { 0 };
        let runs = vec![(*ino, regions.with_ahead(ahead))];
        self.put(interval, runs, vec![waiting])
    }

    /// Announces each write that waits, or has it wait for an announcement that is on its way.
    fn announce_all(&mut self, open: Interval) -> Vec<(u64, Vec<RegionRun>)> {
        let mut messages = Vec::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let covers = |sent: &&mut Sent| {
                sent.interval >= open && sent.covers(waiting.ino, &waiting.regions)
            };
            match self.sent.values_mut().find(covers) {
                Some(sent) => sent.waiting.push(waiting),
                None => messages.push(self.announce(open, waiting)),
            }
        }
        messages
    }

    fn put(
        &mut self,
        interval: Interval,
        runs: Vec<(Ino, FileRegions)>,
        waiting: Vec<Waiting>,
    ) -> (u64, Vec<RegionRun>) {
        self.last += 1;
        let named = runs.iter().map(|(ino, regions)| run_of(*ino, regions));
        let named = named.collect();
        let sent = Sent {
            interval,
            runs,
            waiting,
        };
        self.sent.insert(self.last, sent);
        (self.last, named)
    }
}

fn run_of(ino: Ino, regions: &FileRegions) -> RegionRun {
    let (first, last) = regions.numbers().into_inner();
    RegionRun {
        ino,
        first,
        count: u32::try_from(last - first + 1).unwrap_or(u32::MAX),
    }
}

/// See the head of this file.
pub(crate) struct Announcements {
    engine: Arc<Engine>,
    replication: Arc<Replication>,
    state: Mutex<AnnouncementState>,
}

/// Writes.
impl Announcements {
    /// The announcements of a session that begins.
    pub fn new(engine: &Arc<Engine>, replication: &Arc<Replication>) -> Self {
        Self {
            engine: Arc::clone(engine),
            replication: Arc::clone(replication),
            state: Mutex::new(AnnouncementState {
                mirrors: false,
                connection: ConnectionId(0),
                told: Interval::ZERO,
                known: AnnouncedRegions::new(ENTRIES_MAX),
                sent: BTreeMap::new(),
                last: 0,
                creations: BTreeMap::new(),
                waiting: Vec::new(),
                released: BTreeSet::new(),
            }),
        }
    }

    /// Whether this node may make a mirrored write now.
    pub fn may_begin(&self, op: OpId, ino: Ino, offset: u64, length: usize) -> bool {
        let open = self.engine.store.barriers().open();
        let regions = FileRegions::of_bytes(offset, length as u64);
        let mut state = self.state.lock();
        let is_released = !state.released.is_empty() && state.released.remove(&op);
        is_released
            || !state.mirrors
            || state.known.holds(open, ino, &regions)
            || is_active(Mutant::AnnounceAfterWrite)
    }

    /// Has a write wait, whose bytes are kept. Returns false if the write may begin after all.
    pub fn wait(&self, op: OpId, osn: Osn, ino: Ino, offset: u64, length: usize) -> bool {
        let regions = FileRegions::of_bytes(offset, length as u64);
        {
            let mut state = self.state.lock();
            if !state.mirrors {
                return false;
            }
            state.waiting.push(Waiting {
                op,
                osn,
                ino,
                regions,
            });
        }
        self.go_on();
        true
    }

    /// Announces the regions of all writes that wait without an announcement, if a connection stands.
    pub fn go_on(&self) {
        let Some(connection) = self.replication.peer.current() else {
            return;
        };
        {
            let mut state = self.state.lock();
            if !state.over(connection.id) || state.waiting.is_empty() {
                return;
            }
        }
        self.tell(&connection, self.engine.store.barriers().open());
        let messages = {
            let mut state = self.state.lock();
            if !state.over(connection.id) {
                return;
            }
            // Each write here was numbered before this moment. The secondary was told of this interval before it was opened.
            let open = self.engine.store.barriers().open();
            state.announce_all(open)
        };
        self.send(&connection, messages);
    }

    /// The secondary has marked the regions of an announcement.
    pub fn answered(&self, number: u64) {
        let begins = {
            let mut state = self.state.lock();
            let Some(sent) = state.sent.remove(&number) else {
                return;
            };
            for (ino, regions) in &sent.runs {
                state.known.add(sent.interval, *ino, regions);
            }
            // In use from now on.
            for Waiting { ino, regions, .. } in &sent.waiting {
                let _known = state.known.holds(sent.interval, *ino, regions);
            }
            let begins = sent.waiting;
            state.released.extend(begins.iter().map(|it| it.op));
            begins
        };
        self.begin(begins);
        // A turn may wait for the answer.
        self.engine.wakes.tick_work.note();
    }

    fn begin(&self, writes: Vec<Waiting>) {
        for Waiting { op, osn, .. } in writes {
            let replication = Arc::clone(&self.replication);
            let job = move || replication.execute_deferred(Effect::Execute { op, osn });
            self.replication.spawn(job);
        }
    }

    fn send(&self, connection: &ActiveConnection, messages: Vec<(u64, Vec<RegionRun>)>) {
        for (id, runs) in messages {
            let message = Message::Announce { id, runs };
            self.replication
                .send_on(connection, message, SummedBytes::default(), Delivery::Post);
        }
    }
}

/// New files.
impl Announcements {
    /// A metadata operation has its number. It was not sent, and is not logged to be sent.
    pub fn sends(&self, op: &MetaOp) {
        if let MetaRequest::Create { ino, kind, .. } = &op.request
            && *kind == NodeKind::File
        {
            let open = self.engine.store.barriers().open();
            let mut state = self.state.lock();
            // Otherwise the secondary may have no marks yet.
            let is_told = state.told >= open && state.told > Interval::ZERO;
            if state.mirrors && is_told && state.creations.len() < CREATIONS_MAX {
                state.creations.insert(op.osn, (*ino, open));
            }
        }
    }

    /// The secondary has committed an operation: the caller reads from the connection that has begun last.
    pub fn committed(&self, osn: Osn) {
        let mut state = self.state.lock();
        if let Some((ino, interval)) = state.creations.remove(&osn) {
            state.known.add_new_file(interval, ino);
        }
    }
}

/// Intervals.
impl Announcements {
    /// The nodes begin or end to mirror. The caller may hold the core's lock.
    pub fn set_mirroring(&self, mirrors: bool) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.mirrors, mirrors) && mirrors {
            // A resync may have ended the secondary's marks, which the next word begins anew.
            state.told = Interval::ZERO;
        }
    }

    /// Lets each waiting write begin, if the nodes mirror no more.
    pub fn release(&self) {
        let begins = {
            let mut state = self.state.lock();
            if state.mirrors {
                return;
            }
            let mut begins = std::mem::take(&mut state.waiting);
            for sent in state.sent.values_mut() {
                begins.append(&mut sent.waiting);
            }
            state.known.forget_all();
            state.creations.clear();
            state.released.clear();
            begins
        };
        self.begin(begins);
    }

    /// Tells the secondary that an interval is about to be open, or is.
    fn tell(&self, connection: &ActiveConnection, interval: Interval) {
        let is_told =
            |state: &AnnouncementState| state.connection == connection.id && state.told >= interval;
        if is_told(&self.state.lock()) {
            return;
        }
        self.replication.send_on(
            connection,
            Message::Turn(interval),
            SummedBytes::default(),
            Delivery::Post,
        );
        let mut state = self.state.lock();
        if state.connection == connection.id {
            state.told = state.told.max(interval);
        }
    }

    /// A connection begins, before any operation goes over it.
    pub fn begin_connection(&self, connection: &ActiveConnection) {
        if self.state.lock().over(connection.id) {
            self.tell(connection, self.engine.store.barriers().open());
            self.go_on();
        }
    }

    /// Prepares the turn to the next interval: the secondary is told, and the regions in use are announced for that interval.
    /// Returns whether all of them are answered over this connection.
    pub fn prepare_turn(&self, connection: &ActiveConnection, next: Interval) -> bool {
        let open = Interval::new(next.get().saturating_sub(1));
        {
            let mut state = self.state.lock();
            if !state.over(connection.id) {
                return false;
            }
            if state.told >= next {
                return !state.sent.values().any(|sent| sent.interval >= next);
            }
        }
        self.tell(connection, open);
        self.tell(connection, next);
        let messages: Vec<_> = {
            let mut state = self.state.lock();
            if !state.over(connection.id) {
                return false;
            }
            let runs = runs_of(&state.known.in_use(open, ENTRIES_MAX));
            let chunks = runs.chunks(RUNS_MAX);
            chunks
                .map(|runs| state.put(next, runs.to_vec(), Vec::new()))
                .collect()
        };
        let is_ready = messages.is_empty();
        self.send(connection, messages);
        is_ready
    }

    /// A barrier is complete.
    pub fn forget_through(&self, through: Interval) {
        self.state.lock().known.forget_through(through);
    }
}

/// Regions in order, as runs.
fn runs_of(regions: &[(Ino, u64)]) -> Vec<(Ino, FileRegions)> {
    let next_to = |one: &(Ino, u64), other: &(Ino, u64)| {
        one.0 == other.0 && one.1.checked_add(1) == Some(other.1)
    };
    let runs = regions.chunk_by(next_to);
    let ends = runs.filter_map(|run| Some((*run.first()?, run.len() as u64)));
    ends.map(|((ino, first), length)| (ino, FileRegions::of_region(first).with_ahead(length - 1)))
        .collect()
}

#[cfg(test)]
mod tests {
    use lockstep_types::Timestamp;

    use super::*;
    use crate::open::tests::{Place, creation};

    const OP: OpId = OpId(7);

    /// A creation of a file with number 20 and of one with number 21 that the secondary never commits. `told`: the secondary has heard of
    /// the open interval. `between`: after the creations were sent. Returns whether a write to each of them may begin.
    fn created(kind: NodeKind, told: bool, between: impl FnOnce(&Announcements)) -> [bool; 2] {
        let place = Place::in_sync();
        let datastore = place.start().unwrap();
        let session = datastore.primary().unwrap();
        let announcements = &session.jobs.barriers.announcements;
        let first = session.replication.first_osn;
        let inos = [20, 21].map(|number| Ino::new(number).unwrap());
        announcements.set_mirroring(true);
        if told {
            let open = datastore.store().barriers().open();
            announcements.state.lock().told = open.next();
        }
        let mut osn = first;
        for ino in inos {
            osn.sequence += 1;
            announcements.sends(&MetaOp {
                osn,
                time: Timestamp::default(),
                request: creation(ino, &ino.to_string(), kind),
            });
        }
        between(announcements);
        osn.sequence -= 1;
        announcements.committed(osn);
        let may = inos.map(|ino| announcements.may_begin(OP, ino, 5 << 20, 4096));
        datastore.stop();
        datastore.close();
        may
    }

    #[test]
    fn a_write_to_a_new_file_that_the_secondary_has_needs_no_announcement() {
        assert_eq!(created(NodeKind::File, true, |_| ()), [true, false]);
        // A secondary that has not heard of the interval may have no marks.
        assert_eq!(created(NodeKind::File, false, |_| ()), [false, false]);
        assert_eq!(created(NodeKind::Directory, true, |_| ()), [false, false]);
    }

    #[test]
    fn a_creation_over_an_earlier_connection_announces_nothing() {
        let next = |announcements: &Announcements| {
            assert!(announcements.state.lock().over(ConnectionId(99)));
        };
        assert_eq!(created(NodeKind::File, true, next), [false, false]);
    }
}
