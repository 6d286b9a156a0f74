//! Jobs that carry data to the secondary outside clients' operations: distributed recovery, resync, and the
//! comparison of `lockstep verify`. They run on threads that may wait. The comparison that follows a resync is in
//! `resync/touched.rs`, and the one before its end in `resync/proof.rs`.
//!
//! Invariant: a job runs over the connection that it was decided for. A job that begins after the loss of its
//! connection does nothing.

mod before_failover;
mod byte_budget;
mod client_pause;
mod counted_peer;
mod daily;
mod daily_turn;
mod pace;
mod peer_marks;
mod progress;
mod proof;
mod scrub;
mod scrub_record;
mod speed;
mod touched;
mod unproved;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::StoreError;
use lockstep_fs::store::TraceAccess;
use lockstep_repl::core::{ConnectionId, Event, LockSet, Transfer};
use lockstep_repl::message::Request;
use lockstep_repl::state::{State, Trigger};
use lockstep_resync::{
    JobProgress, LockClaim, Locks, NewResync, Operations, Peer, PeerBase, PeerError, ResyncError,
    ResyncSource, ResyncStart, TouchedPlaces,
};
use lockstep_types::Osn;
use lockstep_verify::DeepCopy;
use lockstep_verify::own_sums::StoreSums;
use parking_lot::Mutex;

use crate::durable::tables::{add_writes_to_delta, ranges_of};
use crate::engine::Engine;
use crate::host::oneshot::{Promise, promise};
use crate::jobs::barriers::Barriers;
use crate::ops::announcements::Announcements;
use crate::ops::content::ContentOps;
use crate::ops::locks::{HeldLocks, InternalLocks};
use crate::peer::connection::ActiveConnection;
use crate::peer::requests::PendingRequests;
use crate::replication::Replication;
use crate::replication::remote::RemotePeer;
use crate::report::{CommandFailure, ResyncStatus, VerifyMode, VerifyProgress};
use counted_peer::CountedPeer;
use daily_turn::DailyCheck;
use pace::{PacedJob, ResyncPace};
use progress::ResyncMeter;
use scrub_record::Scrub;
use touched::TouchedInodes;
use unproved::UnprovedPlaces;

/// The locks of the core, and the pace of a job over one connection.
struct CoreLocks<'a> {
    locks: &'a InternalLocks,
    engine: &'a Engine,
    paced: PacedJob<'a>,
    peer: &'a RemotePeer,
}

impl Locks for CoreLocks<'_> {
    fn with_locks(
        &self,
        locks: LockSet,
        body: &mut dyn FnMut() -> Result<(), ResyncError>,
    ) -> Result<(), ResyncError> {
        let done = self.locks.with_locks(locks, body);
        done.unwrap_or_else(|| Err(stopping()))
    }

    fn claim(&self, locks: LockSet) -> Result<Box<dyn LockClaim + '_>, ResyncError> {
        Ok(Box::new(self.locks.acquire(locks)))
    }

    fn pause(&self, time: Duration) {
        self.engine.sleep_unless(time, || false);
    }

    fn is_turn(&self) -> bool {
        self.paced.is_turn()
    }

    fn wait_for_turn(&self) {
        self.paced.wait_for_turn(|| !self.peer.is_standing());
    }

    fn note_read(&self, bytes: u64) {
        self.paced.note_read(bytes);
    }
}

impl LockClaim for HeldLocks<'_> {
    fn is_held(&self) -> bool {
        HeldLocks::is_held(self)
    }

    fn wait(&mut self) -> Result<(), ResyncError> {
        let is_held = HeldLocks::wait(self);
        is_held.then_some(()).ok_or_else(stopping)
    }
}

/// The metadata operations of the core, for a resync over one connection.
struct CoreOperations<'a> {
    peer: &'a RemotePeer,
    paced: PacedJob<'a>,
}

impl Operations for CoreOperations<'_> {
    fn caught_up(&self) {
        let caught_up = Event::NamesBehind(false);
        let peer = self.peer;
        peer.replication
            .handle_event_on(peer.connection.id, caught_up);
    }

    fn take_turn(&self, bytes: u64) {
        self.paced.note_read(bytes);
        self.paced.wait_for_turn(|| !self.peer.is_standing());
    }
}

fn stopping() -> ResyncError {
    stopped("the node is stopping")
}

fn stopped(why: &str) -> ResyncError {
    ResyncError::Stopped {
        why: why.to_owned(),
    }
}

/// The reason why a sync ends after a resync of the changes.
const DIFFERED: &str = "the secondary's copy differed in files that the last resync had touched: everything is compared";

/// A job over a connection, and the event that follows from it.
type TransferJob = fn(&ResyncJobs, &RemotePeer) -> Result<Event, ResyncError>;

/// The comparisons that this node begins by itself.
struct OwnChecks {
    scrub: Scrub,
    daily: DailyCheck,
}

/// See the head of this file.
pub(crate) struct ResyncJobs {
    engine: Arc<Engine>,
    replication: Arc<Replication>,
    requests: Arc<PendingRequests>,
    pub locks: InternalLocks,
    content: Arc<ContentOps>,
    pub barriers: Arc<Barriers>,
    /// The resync that waits until no metadata operation is in flight, and its connection.
    tail: Mutex<Option<(ConnectionId, Promise<()>)>>,
    /// Progress of the resync of content.
    progress: ResyncMeter,
    /// The inodes that the last resync has touched, and no comparison has seen since.
    touched: TouchedInodes,
    /// The places that the resync has touched, and that are not proved: the nodes are not in sync before.
    unproved: UnprovedPlaces,
    pace: ResyncPace,
    own_checks: OwnChecks,
}

impl ResyncJobs {
    /// The jobs of one session.
    pub fn new(
        engine: Arc<Engine>,
        replication: Arc<Replication>,
        requests: Arc<PendingRequests>,
        locks: InternalLocks,
        content: Arc<ContentOps>,
        announcements: Arc<Announcements>,
    ) -> Self {
        let daily = DailyCheck::new(engine.host.now());
        Self {
            pace: ResyncPace::new(Arc::clone(&engine)),
            barriers: Barriers::begin(&engine, &replication, announcements),
            engine,
            replication,
            requests,
            locks,
            content,
            tail: Mutex::default(),
            progress: ResyncMeter::default(),
            touched: TouchedInodes::default(),
            unproved: UnprovedPlaces::default(),
            own_checks: OwnChecks {
                scrub: Scrub::default(),
                daily,
            },
        }
    }

    /// Begins a transfer over the connection that it was decided for, unless the connection is gone.
    pub fn begin(self: &Arc<Self>, connection: ConnectionId, transfer: Transfer) {
        let Some(connection) = self.replication.peer.get(connection) else {
            return;
        };
        match transfer {
            Transfer::RecoverRanges => {
                self.spawn(connection, "distributed recovery", Self::recover_ranges);
            }
            // New operations are admitted already; their numbers are not below the watermark.
            Transfer::TellRecovered => {
                let below = self.replication.core.lock().done_below();
                let verifier = self.engine.role_file.state().clients.verifier;
                self.spawn_request(connection, Request::RecoveryDone { below, verifier });
            }
            Transfer::SendImage => {
                self.spawn(connection, "resync of the namespace", Self::send_image);
            }
            Transfer::SendTail => self.release_tail(connection.id, true),
            Transfer::SendContent => {
                self.spawn(connection, "resync of the content", Self::send_content);
            }
            Transfer::TellInSync => {
                let verifier = self.engine.role_file.state().clients.verifier;
                self.spawn_request(connection, Request::InSync { verifier });
            }
        }
    }

    fn remote_peer(&self, connection: Arc<ActiveConnection>) -> RemotePeer {
        let (replication, requests) = (Arc::clone(&self.replication), Arc::clone(&self.requests));
        RemotePeer::new(replication, requests, connection)
    }

    /// Runs a job on another thread, and gives its event to the core unless the connection is gone then.
    fn spawn(
        self: &Arc<Self>,
        connection: Arc<ActiveConnection>,
        name: &'static str,
        job: TransferJob,
    ) {
        let jobs = Arc::clone(self);
        self.replication.spawn(move || {
            let peer = jobs.remote_peer(connection);
            match job(&jobs, &peer) {
                Ok(event) => jobs.replication.handle_event_on(peer.connection.id, event),
                Err(error) => {
                    if !matches!(
                        error,
                        ResyncError::Peer(PeerError::Lost) | ResyncError::Stopped { .. }
                    ) {
                        // The copies may differ in something that the delta lacks.
                        jobs.engine.store.delta().end();
                    }
                    let reason = format!("{name} failed: {error}");
                    jobs.set_reason_on(peer.connection.id, &reason);
                    peer.end(&error);
                }
            }
        });
    }

    /// Sends the request on another thread by which the secondary hears of the sync, and then compares what a resync has
    /// touched. If the secondary cannot serve the request, the sync ends.
    fn spawn_request(self: &Arc<Self>, connection: Arc<ActiveConnection>, request: Request) {
        let jobs = Arc::clone(self);
        let makes_complete = matches!(request, Request::InSync { .. });
        self.replication.spawn(move || {
            let peer = jobs.remote_peer(connection);
            match peer.ask(request, &[]) {
                Ok(_) => {
                    if makes_complete {
                        peer.connection.note_complete_peer();
                    }
                    jobs.compare_touched(&peer);
                }
                Err(PeerError::Lost) => peer.end_lost(),
                Err(error) => jobs.peer_failed(peer.connection.id, &error),
            }
        });
    }

    /// The secondary could not do a step without which the nodes are not in sync (rule P15).
    fn peer_failed(&self, connection: ConnectionId, error: &PeerError) {
        self.end_sync(connection, &error.to_string());
    }

    /// Compares what the last resync has touched, as far as no comparison has seen it (rule P21).
    fn compare_touched(&self, peer: &RemotePeer) {
        let connection = peer.connection.id;
        match self
            .touched
            .compare(&self.replication, peer, &self.core_locks(peer))
        {
            Ok(None) | Err(ResyncError::Peer(PeerError::Lost) | ResyncError::Stopped { .. }) => {}
            Ok(Some(report)) => {
                let time = self.engine.host.time_of_day();
                self.engine.notes.note_touched(&report, time);
                // The core ends the delta as well, so everything is compared.
                if !report.is_identical() {
                    self.end_sync(connection, DIFFERED);
                }
            }
            // A copy that cannot be read is not complete.
            Err(ResyncError::Peer(failed)) => self.peer_failed(connection, &failed),
            Err(error) => {
                let datastore = self.engine.name();
                tracing::warn!(datastore, %error, "cannot compare what the resync has touched");
            }
        }
    }

    fn end_sync(&self, connection: ConnectionId, reason: &str) {
        self.set_reason_on(connection, reason);
        let failed = Event::Trigger(Trigger::PeerFailed);
        self.replication.handle_event_on(connection, failed);
    }

    /// Sets the reason that `status` shows, unless the connection is gone: a failure that follows from the loss is no
    /// reason of its own.
    fn set_reason_on(&self, connection: ConnectionId, reason: &str) {
        if self.replication.peer.get(connection).is_some() {
            self.engine.notes.set_reason(reason);
        }
    }

    /// Sends the blocks that may differ after a disconnect.
    fn recover_ranges(&self, peer: &RemotePeer) -> Result<Event, ResyncError> {
        let (old, waiting) = (
            self.content.paw.old_entries(),
            &peer.connection.copy.waiting,
        );
        let store = &self.engine.store;
        for (ino, offset, length) in ranges_of(&old).chain(ranges_of(waiting)) {
            store.barriers().mark_write(ino, offset, length);
        }
        let recovered = lockstep_resync::recover_ranges(&store.tree(), peer, &old, waiting)?;
        if self.engine.is_always_durable() {
            // Clients see the bytes from now on, and either copy stays complete over a loss of power (rule P8).
            for ino in recovered {
                store.sync_file(ino, true)?;
            }
        }
        self.content.paw.remove_old();
        Ok(Event::RangesRecovered)
    }

    fn send_image(&self, peer: &RemotePeer) -> Result<Event, ResyncError> {
        let connection = peer.connection.id;
        let drawn = self.engine.host.random_id();
        let role_file = &self.engine.role_file;
        let is_current = || self.replication.peer.get(connection).is_some();
        let (generation, told) = (self.replication.generation(), peer.connection.copy.sync);
        let noted = role_file.carry_over(generation, told, drawn, is_current);
        let sync = noted
            .map_err(StoreError::disk("note the resync in", "role.json"))?
            .ok_or(PeerError::Lost)?;
        // The secondary hears of it next, and the count begins with its answer.
        self.engine.disk.count.note_proposed(sync);
        let operations = CoreOperations {
            peer,
            paced: self.pace.begin_job(),
        };
        let store = &self.engine.store;
        add_writes_to_delta(store, ranges_of(&peer.connection.copy.waiting));
        let resync = NewResync {
            sync,
            generation: self.replication.generation(),
            start: self.start_of(peer)?,
        };
        let view = store.tree();
        let source = ResyncSource::new(&view, store);
        self.progress.begin_namespace();
        let peer = CountedPeer {
            peer,
            sent: &self.progress.records,
        };
        let image = lockstep_resync::send_image(source, &peer, resync, &operations)?;
        self.hold_metadata(connection)?;
        lockstep_resync::send_tail(source, &peer, &image)?;
        Ok(Event::Trigger(Trigger::ImageDone))
    }

    /// Has the core admit no metadata operation, and waits until none is in flight.
    fn hold_metadata(&self, connection: ConnectionId) -> Result<(), PeerError> {
        let (due, wait) = promise(&*self.engine.host);
        let earlier = self.tail.lock().replace((connection, due));
        drop(earlier);
        let sent = Event::Trigger(Trigger::ImageSent);
        self.replication.handle_event_on(connection, sent);
        if self.replication.peer.get(connection).is_none() {
            // The connection may have ended before the promise was there.
            self.release_tail(connection, false);
        }
        wait.get().ok_or(PeerError::Lost)
    }

    /// Wakes the resync over that connection which waits for the end of metadata operations. `due`: none is in flight;
    /// otherwise the resync fails.
    pub fn release_tail(&self, connection: ConnectionId, due: bool) {
        let waiting = self.tail.lock().take_if(|(of, _)| *of == connection);
        if let Some((_, promise)) = waiting
            && due
        {
            promise.keep(());
        }
    }

    fn send_content(&self, peer: &RemotePeer) -> Result<Event, ResyncError> {
        // Writes that the core admitted before all were mirrored, and that have not begun.
        add_writes_to_delta(&self.engine.store, self.content.admitted_writes());
        self.barriers.content_begun(peer.connection.id);
        let locks = self.core_locks(peer);
        let (store, base) = (&self.engine.store, Some(self.base_of(peer)));
        let view = store.tree();
        let source = ResyncSource::new(&view, store);
        self.progress.begin_content();
        let progress = &self.progress.content;
        let touched = Cell::new(BTreeSet::new());
        let hears = |places: TouchedPlaces| {
            touched.set(places.inodes().collect());
            self.unproved.add(places);
        };
        lockstep_resync::send_content(source, peer, &locks, progress, base, &hears)?;
        self.log_resync();
        self.prove(source, peer, &locks)?;
        if progress.is_whole() {
            self.touched.clear();
            self.engine.notes.note_all_compared();
        }
        // Of a resync of everything: the inodes that have changed while its connection was lost.
        self.touched.add(touched.take());
        self.content.paw.remove_old();
        Ok(Event::Trigger(Trigger::ContentDone))
    }

    /// The places that a resync looks at. From here on the marks of this node hold all of them, and each change: the secondary
    /// may lose any of them with its power, also one that the resync is over with (rules P27, P29).
    fn start_of(&self, peer: &RemotePeer) -> Result<ResyncStart, ResyncError> {
        let (delta, barriers) = (self.engine.store.delta(), self.engine.store.barriers());
        let copy = &peer.connection.copy;
        let start = match copy.base.filter(|base| base.has_delta(delta)) {
            Some(base) => ResyncStart::Changes(base),
            None => match self.adopt_base(peer)? {
                Some(name) => ResyncStart::SinceBarrier(name),
                None => ResyncStart::Everything,
            },
        };
        if start == ResyncStart::Everything {
            self.barriers.forget()?;
        } else {
            delta.keep_in_columns();
            // From here on the secondary gets what this node may lose with its power (rule P28). A barrier in the content gives the
            // names back (rule P30).
            barriers.hide_names()?;
            TraceAccess::of(&self.engine.store).end()?;
        }
        Ok(start)
    }

    /// The base of the secondary's copy, whose namespace is equal now. A resync of everything has given it one (rule P24).
    fn base_of(&self, peer: &RemotePeer) -> PeerBase {
        let store = &self.engine.store;
        let told = peer.connection.copy.base;
        told.filter(|base| base.has_delta(store.delta()))
            .unwrap_or_else(|| PeerBase {
                generation: self.replication.generation(),
                applied: store.applied(),
            })
    }

    fn core_locks<'a>(&'a self, peer: &'a RemotePeer) -> CoreLocks<'a> {
        CoreLocks {
            locks: &self.locks,
            engine: &self.engine,
            paced: self.pace.begin_job(),
            peer,
        }
    }

    /// Runs `body` with the locks of the core, and at the pace of the jobs beside clients.
    pub fn with_core_locks<T>(&self, peer: &RemotePeer, body: impl FnOnce(&dyn Locks) -> T) -> T {
        body(&self.core_locks(peer))
    }

    /// Says how much of the copies was compared.
    fn log_resync(&self) {
        let datastore = self.engine.name();
        let done = &self.progress.content;
        let (files, bytes) = (done.inodes_total.get(), done.bytes_total.get());
        let sent = done.bytes_sent.get();
        let of = if done.is_whole() {
            "everything"
        } else {
            "what has changed"
        };
        tracing::info!(
            datastore,
            files,
            bytes,
            sent,
            "resync of {of}: content is equal"
        );
    }

    /// Progress of the resync of the moment, if this state of the core has one: for `status`, and for the secondary.
    pub fn status(&self, state: State) -> Option<ResyncStatus> {
        let now = self.engine.host.now();
        self.progress.status(state, now, self.pace.waits_for())
    }

    /// Compares this node with the secondary, and notes the result for `status`: also that the copies are the same.
    pub fn compare_and_note(
        &self,
        mode: VerifyMode,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<lockstep_verify::Report, CommandFailure> {
        let (report, through) = self.compare(mode, progress)?;
        self.note_compared(&report, through);
        Ok(report)
    }

    /// Notes a comparison of everything for `status`. `through`: see [`ResyncJobs::compare`].
    fn note_compared(&self, report: &lockstep_verify::Report, through: Osn) {
        let (notes, time) = (&self.engine.notes, self.engine.host.time_of_day());
        notes.note_comparison(report, time);
        if report.is_identical() {
            notes.note_proved(through.to_string(), time);
        }
    }

    /// Compares this node with the secondary.
    ///
    /// Also returns the operation before which all were done on both nodes when the comparison began.
    pub fn compare(
        &self,
        mode: VerifyMode,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<(lockstep_verify::Report, Osn), CommandFailure> {
        let peer = self.peer_in_sync()?;
        let through = self.done_through();
        let done = JobProgress::default();
        let mut compared = None;
        let mut compare = || {
            let (store, locks) = (&self.engine.store, self.core_locks(&peer));
            compared = Some(match mode {
                VerifyMode::Memory => lockstep_verify::compare(&store.tree(), &peer, &locks, &done),
                VerifyMode::Sums => {
                    let sums = &StoreSums::of(store);
                    let copy = DeepCopy { store, sums };
                    lockstep_verify::compare_fast(copy, &peer, &locks, &done)
                }
                VerifyMode::Disk | VerifyMode::Repair => {
                    let sums = &StoreSums::of(store);
                    let copy = DeepCopy { store, sums };
                    let repairs = mode == VerifyMode::Repair;
                    lockstep_verify::compare_deep(copy, &peer, &locks, &done, repairs)
                }
            });
        };
        let mut tell = || {
            progress(VerifyProgress {
                inodes_compared: done.inodes_done.get(),
                inodes_total: Some(done.inodes_total.get()),
                bytes_compared: done.bytes_done.get(),
            });
        };
        self.engine.host.attend(&mut compare, &mut tell);
        let compared = compared.unwrap_or_else(|| Err(stopped("the comparison has panicked")));
        let report = compared.map_err(|error| could_not_compare(&error))?;
        Ok((report, through))
    }

    /// Both nodes have done every operation before this one.
    fn done_through(&self) -> Osn {
        self.replication.core.lock().done_below()
    }

    /// The secondary, if the nodes are in sync.
    pub fn peer_in_sync(&self) -> Result<RemotePeer, CommandFailure> {
        let state = self.replication.state();
        if self.engine.config.current().peer.is_none() {
            return Err(CommandFailure {
                cause: "the datastore is not mirrored: there is no other copy to compare with"
                    .to_owned(),
                cure: "configure a peer ([datastore.peer]) if it is to be mirrored".to_owned(),
            });
        }
        let connection = self
            .replication
            .peer
            .current()
            .filter(|_| state.is_in_sync());
        let connection = connection.ok_or_else(|| CommandFailure {
            cause: format!(
                "the nodes are not in sync ({})",
                self.engine.notes.in_words(state)
            ),
            cure: "wait until `lockstep status` says in sync, then verify again".to_owned(),
        })?;
        Ok(self.remote_peer(connection))
    }
}

fn could_not_compare(error: &ResyncError) -> CommandFailure {
    CommandFailure {
        cause: error.to_string(),
        cure: "see the log of both nodes, then verify again".to_owned(),
    }
}

#[cfg(test)]
mod tests;
