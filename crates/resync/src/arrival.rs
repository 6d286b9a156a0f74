//! Bringing the values of snapshots to the node that lacks them, once the nodes are in sync (rule P37).
//!
//! The primary does this in both directions: it sends values to the secondary, and asks the secondary for values.
//! Newer snapshots come first: an older one is read through them.

use std::collections::BTreeSet;

use lockstep_fs::store::{
    ArrivalAccess, ArrivalItem, ArrivalPage, ArrivalPlace, ArrivalWindow, NewTouch,
};
use lockstep_fs::{OpError, Store};
use lockstep_repl::message::{Request, Response};
use lockstep_types::limits::{SNAPSHOTS_MAX, WRITE_BYTES_MAX};
use lockstep_types::{Errno, Hash128, SnapshotId, SnapshotKind};

use crate::api::{AnswerError, Locks, Peer, PeerError, ResyncError};
use crate::secondary::checked_records::check_record;

/// Bytes of a page in a request, without its last value.
const SENT_BYTES: usize = WRITE_BYTES_MAX / 2;
/// The same for a page in an answer, which fits the header of a frame.
const ANSWERED_BYTES: usize = 16 << 10;

/// The action of each request, for an operator.
const ARRIVE: &str = "let a snapshot arrive";

/// The node that lacks a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LackingSide {
    Here,
    Peer,
}

/// A snapshot that one of the nodes lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LackedSnapshot {
    /// The snapshot.
    pub id: SnapshotId,
    lacked_by: LackingSide,
}

/// The snapshots that both nodes have whole, and those that one of them lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotsOfBoth {
    whole: BTreeSet<SnapshotId>,
    /// The newest first.
    lacked: Vec<LackedSnapshot>,
    /// The snapshots that were made for an arrival, as far as this node has them.
    made: BTreeSet<SnapshotId>,
}

impl SnapshotsOfBoth {
    /// Asks the secondary for its snapshots.
    ///
    /// # Errors
    /// The secondary does not answer.
    pub fn ask(store: &Store, peer: &dyn Peer) -> Result<Self, ResyncError> {
        let Response::Snapshots(theirs) = peer.ask(Request::Snapshots, &[])? else {
            return Err(unexpected());
        };
        let theirs: BTreeSet<SnapshotId> = theirs.into_iter().collect();
        let ours = ArrivalAccess::of(store).held();
        let made = ours
            .iter()
            .filter(|(_, kind)| *kind == SnapshotKind::Arrival);
        let made: BTreeSet<SnapshotId> = made.map(|(id, _)| *id).collect();
        let ours: BTreeSet<SnapshotId> = ours.into_iter().map(|(id, _)| id).collect();
        let only = |these: &BTreeSet<SnapshotId>, those: &BTreeSet<SnapshotId>, lacked_by| {
            let only = these.difference(those);
            let lacked = |id: &SnapshotId| LackedSnapshot { id: *id, lacked_by };
            only.map(lacked).collect::<Vec<_>>()
        };
        let mut lacked = only(&ours, &theirs, LackingSide::Peer);
        lacked.extend(only(&theirs, &ours, LackingSide::Here));
        lacked.retain(|it| !made.contains(&it.id));
        lacked.sort_by_key(|it| std::cmp::Reverse(it.id));
        let whole = ours.intersection(&theirs).copied().collect();
        Ok(Self {
            whole,
            lacked,
            made,
        })
    }

    /// The snapshots that a node lacks, the newest first.
    pub fn lacked(&self) -> &[LackedSnapshot] {
        &self.lacked
    }

    /// Whether [`Arrival::bring`] may begin: a snapshot was made for it.
    pub fn can_begin(&self) -> bool {
        self.made_for_this().is_some()
    }

    /// The snapshot that was made for this arrival: both nodes have the snapshot, and no node lacks a newer one.
    fn made_for_this(&self) -> Option<SnapshotId> {
        let last = self.made.last().copied()?;
        let newest = self.lacked.first().map(|it| it.id);
        (self.whole.contains(&last) && newest < Some(last)).then_some(last)
    }
}

/// How an arrival has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// The snapshots that are whole on both nodes now.
    pub snapshots: usize,
    /// Bytes of values that have crossed the wire.
    pub bytes: u64,
    /// The list of snapshots has changed meanwhile: the others come with the next arrival.
    pub is_cut_short: bool,
}

/// One arrival, over one connection.
pub struct Arrival<'a> {
    store: &'a Store,
    peer: &'a dyn Peer,
    locks: &'a dyn Locks,
    goes_on: &'a dyn Fn() -> bool,
    done: Arrived,
}

impl<'a> Arrival<'a> {
    /// An arrival that goes on while `goes_on`.
    pub const fn new(
        store: &'a Store,
        peer: &'a dyn Peer,
        locks: &'a dyn Locks,
        goes_on: &'a dyn Fn() -> bool,
    ) -> Self {
        Self {
            store,
            peer,
            locks,
            goes_on,
            done: Arrived {
                snapshots: 0,
                bytes: 0,
                is_cut_short: false,
            },
        }
    }

    /// Brings all snapshots that a node lacks. The primary has made a snapshot for that before, which both nodes have.
    ///
    /// # Errors
    /// A disk fails or is full, or the connection is lost. The snapshots that are whole stay so.
    pub fn bring(mut self, mut of_both: SnapshotsOfBoth) -> Result<Arrived, ResyncError> {
        let Some(made) = of_both.made_for_this() else {
            self.done.is_cut_short = true;
            return Ok(self.done);
        };
        let mut arrived = BTreeSet::from([(LackingSide::Here, made), (LackingSide::Peer, made)]);
        for lacked in std::mem::take(&mut of_both.lacked) {
            let newer = of_both.whole.range(lacked.id..).next();
            let until = newer.copied().unwrap_or(made);
            // Both nodes have the zeros behind a snapshot that came in this arrival, or was made for it.
            let has_zeros = arrived.contains(&(lacked.lacked_by, until));
            let window = ArrivalWindow {
                of: lacked.id,
                until,
                last: if has_zeros { until } else { made },
            };
            if !(self.goes_on)() || !self.bring_one(lacked, window)? {
                self.done.is_cut_short = true;
                break;
            }
            of_both.whole.insert(lacked.id);
            arrived.insert((lacked.lacked_by, lacked.id));
            self.done.snapshots += 1;
        }
        Ok(self.done)
    }

    /// Brings the values of one snapshot. Returns `false` if the list has changed.
    fn bring_one(
        &mut self,
        lacked: LackedSnapshot,
        window: ArrivalWindow,
    ) -> Result<bool, ResyncError> {
        if !self.begin(lacked)? {
            return Ok(false);
        }
        let (mut place, mut stamp) = (ArrivalPlace::default(), None::<Hash128>);
        loop {
            if !(self.goes_on)() {
                return Ok(false);
            }
            self.locks.wait_for_turn();
            let Some(page) = self.page(lacked, window, &place)? else {
                return Ok(false);
            };
            let is_same = stamp.is_none_or(|first| first == page.stamp);
            stamp = Some(page.stamp);
            if !is_same || !self.put(lacked, page.items)? {
                return Ok(false);
            }
            match page.next {
                Some(next) => place = next,
                None => return self.end(lacked, window),
            }
        }
    }

    fn begin(&self, lacked: LackedSnapshot) -> Result<bool, ResyncError> {
        match lacked.lacked_by {
            LackingSide::Here => {
                Ok(if_there(ArrivalAccess::of(self.store).begin(lacked.id))?.is_some())
            }
            LackingSide::Peer => self.ask(Request::BeginArrival { of: lacked.id }, &[]),
        }
    }

    /// The next page; `None` if the list has changed.
    fn page(
        &mut self,
        lacked: LackedSnapshot,
        window: ArrivalWindow,
        place: &ArrivalPlace,
    ) -> Result<Option<ArrivalPage>, ResyncError> {
        if lacked.lacked_by == LackingSide::Peer {
            let page = ArrivalAccess::of(self.store).page(window, place, SENT_BYTES);
            let page = if_there(page)?;
            self.locks.note_read(page.as_ref().map_or(0, bytes_of));
            return Ok(page);
        }
        let asked = postcard::to_allocvec(&(window, place))?;
        match self.peer.ask(Request::ReadArrival, &asked)? {
            Response::Bytes(page) => {
                self.note_bytes(page.len());
                Ok(Some(postcard::from_bytes(&page)?))
            }
            Response::Arrived(false) => Ok(None),
            _ => Err(unexpected()),
        }
    }

    /// Puts values. Returns `false` if the list has changed.
    fn put(
        &mut self,
        lacked: LackedSnapshot,
        items: Vec<ArrivalItem>,
    ) -> Result<bool, ResyncError> {
        if items.is_empty() {
            return Ok(true);
        }
        if lacked.lacked_by == LackingSide::Here {
            check_items(&items).map_err(|_| unexpected())?;
            let put = ArrivalAccess::of(self.store).put(lacked.id, items);
            return Ok(if_there(put)?.is_some());
        }
        let payload = postcard::to_allocvec(&items)?;
        self.note_bytes(payload.len());
        self.ask(Request::PutArrival { of: lacked.id }, &payload)
    }

    fn end(&self, lacked: LackedSnapshot, window: ArrivalWindow) -> Result<bool, ResyncError> {
        match lacked.lacked_by {
            LackingSide::Here => Ok(ArrivalAccess::of(self.store).end(window)),
            LackingSide::Peer => self.ask(Request::EndArrival, &postcard::to_allocvec(&window)?),
        }
    }

    /// Asks the secondary. The answer is `false` if its list has changed.
    fn ask(&self, request: Request, payload: &[u8]) -> Result<bool, ResyncError> {
        match self.peer.ask(request, payload)? {
            Response::Arrived(is_there) => Ok(is_there),
            _ => Err(unexpected()),
        }
    }

    fn note_bytes(&mut self, bytes: usize) {
        self.done.bytes += bytes as u64;
    }
}

fn bytes_of(page: &ArrivalPage) -> u64 {
    let bytes = page.items.iter().map(|item| match item {
        ArrivalItem::Record { key, value } => {
            key.len() + value.as_ref().map_or(0, |value| value.len())
        }
        ArrivalItem::Blocks(touch) => touch.bytes.len(),
        ArrivalItem::Content { touches, .. } => touches.iter().map(|it| it.bytes.len()).sum(),
    });
    bytes.sum::<usize>() as u64
}

/// The outcome of a step; `None` if the list of snapshots has changed since the step was decided.
fn if_there<T>(done: Result<T, OpError>) -> Result<Option<T>, OpError> {
    match done {
        Err(OpError::Refused(Errno::Stale | Errno::NoEntry | Errno::Busy)) => Ok(None),
        done => done.map(Some),
    }
}

fn unexpected() -> ResyncError {
    PeerError::Unexpected { what: ARRIVE }.into()
}

/// Answers the requests of an arrival, on the secondary.
///
/// # Errors
/// The text is for the primary's operator.
pub fn answer(store: &Store, request: &Request, payload: &[u8]) -> Result<Response, AnswerError> {
    let arrivals = ArrivalAccess::of(store);
    match request {
        Request::Snapshots => {
            let mut held = arrivals.held();
            held.truncate(SNAPSHOTS_MAX);
            let ids = held.into_iter().map(|(id, _)| id);
            Ok(Response::Snapshots(ids.collect()))
        }
        Request::BeginArrival { of } => {
            let begun = if_there(arrivals.begin(*of))?;
            Ok(Response::Arrived(begun.is_some()))
        }
        Request::ReadArrival => {
            let (window, place) = postcard::from_bytes::<(ArrivalWindow, ArrivalPlace)>(payload)?;
            match if_there(arrivals.page(window, &place, ANSWERED_BYTES))? {
                Some(page) => Ok(Response::Bytes(postcard::to_allocvec(&page)?)),
                None => Ok(Response::Arrived(false)),
            }
        }
        Request::PutArrival { of } => {
            let items: Vec<ArrivalItem> = postcard::from_bytes(payload)?;
            check_items(&items)?;
            let put = if_there(arrivals.put(*of, items))?;
            Ok(Response::Arrived(put.is_some()))
        }
        Request::EndArrival => {
            let window: ArrivalWindow = postcard::from_bytes(payload)?;
            Ok(Response::Arrived(arrivals.end(window)))
        }
        _ => Err(AnswerError::OtherRequest { of: "an arrival" }),
    }
}

/// Whether [`answer`] answers a request.
pub const fn is_of_arrival(request: &Request) -> bool {
    matches!(
        request,
        Request::Snapshots
            | Request::BeginArrival { .. }
            | Request::ReadArrival
            | Request::PutArrival { .. }
            | Request::EndArrival
    )
}

/// Refuses values that no snapshot can have.
fn check_items(items: &[ArrivalItem]) -> Result<(), AnswerError> {
    for item in items {
        match item {
            ArrivalItem::Record { key, value } => {
                check_record(key, value.as_ref().map(|it| &it[..]))?;
            }
            ArrivalItem::Blocks(touch) if !touch.is_sound() => {
                return Err(AnswerError::OtherPayload);
            }
            ArrivalItem::Content { touches, .. } if !touches.iter().all(NewTouch::is_sound) => {
                return Err(AnswerError::OtherPayload);
            }
            _ => {}
        }
    }
    Ok(())
}
