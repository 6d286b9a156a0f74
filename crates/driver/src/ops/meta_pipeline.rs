//! Metadata operations on the primary: numbered, logged and sent one at a time, and applied in the same order
//! (rule P2).
//!
//! Invariants:
//! - A thread holds the sequencer while it numbers, logs and sends an operation, and while it applies operations.
//! - The thread releases the sequencer before it reports applied operations to the core. It reports an operation
//!   that cannot be applied at once.
//! - An operation that this node cannot apply blocks every later operation until the secondary is marked out of
//!   sync (rule P15).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::store::Applied;
use lockstep_fs::{OpError, StoreView};
use lockstep_repl::core::{Effect, Effects, Event, OpId, OpKind};
use lockstep_repl::message::Message;
use lockstep_repl::state::Trigger;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Attr, Errno, Ino, MetaOp, MetaRequest, Osn};
use parking_lot::Mutex;

use super::announcements::Announcements;
use super::berths::Berths;
use super::lock_plan;
use super::pending::{PendingMetadata, PendingOp, PendingOps};
use super::reap_queue::ReapQueue;
use crate::client::Done;
use crate::engine::Engine;
use crate::engine::references::References;
use crate::host::ThreadKind;
use crate::replication::Replication;

/// The time that a thread which must not wait for the disk waits for the sequencer. To number, log and send an
/// operation takes less.
const SEQUENCER_WAIT: Duration = Duration::from_millis(1);

/// Bytes of a message besides its payload: two names at most.
pub(crate) const MESSAGE_BYTES: u64 = 1024;

/// A metadata operation that was applied after both sides agreed on it.
struct Committed {
    osn: Osn,
    op: Option<OpId>,
    outcome: Result<Option<Applied>, OpError>,
}

/// See the head of this file.
pub(crate) struct MetaPipeline {
    engine: Arc<Engine>,
    replication: Arc<Replication>,
    pending: Arc<PendingOps>,
    references: Arc<References>,
    berths: Arc<Berths>,
    announcements: Arc<Announcements>,
    /// Keeps metadata operations in one order.
    sequencer: Mutex<()>,
    /// Operations that the core has decided to apply, and that no thread has applied yet.
    committed: Mutex<BTreeMap<Osn, Option<OpId>>>,
    /// The operation that this node cannot apply.
    stuck: Mutex<Option<Committed>>,
    reaps: ReapQueue,
}

impl MetaPipeline {
    /// The pipeline of one session.
    pub fn new(
        engine: Arc<Engine>,
        replication: Arc<Replication>,
        pending: Arc<PendingOps>,
        berths: Arc<Berths>,
        announcements: Arc<Announcements>,
    ) -> Self {
        engine.references.trash.begin_session();
        Self {
            references: Arc::clone(&engine.references),
            engine,
            replication,
            pending,
            berths,
            announcements,
            sequencer: Mutex::new(()),
            committed: Mutex::default(),
            stuck: Mutex::default(),
            reaps: ReapQueue::default(),
        }
    }

    /// Submits an operation to the core.
    pub fn submit(&self, request: MetaRequest, done: Done<Option<Attr>>) {
        let targets = lock_plan::targets(&self.engine.store, &request);
        let locks = lock_plan::metadata(&request, &targets);
        let bytes = message_bytes(&request);
        let kind = match request {
            MetaRequest::SnapshotCreate { .. } => OpKind::Snapshot,
            _ => OpKind::Meta,
        };
        let op = self.pending.insert(PendingOp::Meta(PendingMetadata {
            request,
            time: self.engine.host.time_of_day(),
            begun: self.engine.host.now(),
            targets,
            is_stale: false,
            applied: None,
            done,
            inside: self.engine.gate.hold(),
        }));
        let submit = Event::Submit {
            op,
            kind,
            locks,
            bytes,
        };
        self.replication
            .handle_event(self.engine.calling_thread(), submit);
        if kind == OpKind::Snapshot {
            // A tick ends the wait at the gate.
            self.engine.wakes.tick_work.note();
        }
    }

    /// Frees an inode without a name, soon.
    pub fn reap(&self, ino: Ino) {
        self.free(self.reaps.add(ino));
        self.engine.wakes.tick_work.note();
    }

    /// Frees the inodes that were gathered, on a thread that may wait. Until the next call, further inodes are gathered
    /// if `may_wait` says so.
    pub fn reap_gathered(self: &Arc<Self>, may_wait: bool) {
        let inos = self.reaps.take(may_wait);
        if !inos.is_empty() {
            let pipeline = Arc::clone(self);
            self.replication.spawn(move || pipeline.free(inos));
        }
    }

    /// Frees inodes without a name. An inode that a program has opened meanwhile, by its handle, is freed later.
    fn free(&self, mut inos: Vec<Ino>) {
        if self.replication.is_over() {
            return;
        }
        inos.retain(|ino| !self.references.keeps(*ino));
        let request = match inos[..] {
            [] => return,
            [ino] => MetaRequest::Reap { ino },
            _ => MetaRequest::ReapAll { inos },
        };
        let datastore = self.engine.name().to_owned();
        let done = move |result: Result<_, Errno>| {
            if let Err(error) = result {
                tracing::debug!(datastore, %error, "inodes not freed");
            }
        };
        self.submit(request, Box::new(done));
    }

    /// Frees an inode that has lost its last name, unless a program has it open.
    pub fn reap_if_unused(&self, ino: Ino) {
        if self.references.orphaned(ino) {
            self.reap(ino);
        }
    }

    /// Frees the inodes that lost their last name before this node serves, or without an operation of this session. Those that a program of this
    /// node has open stay.
    pub fn reap_orphans(&self) {
        match self.engine.store.tree().orphans() {
            Ok(orphans) => {
                for ino in orphans {
                    self.reap_if_unused(ino);
                }
            }
            Err(error) => {
                self.engine.log_and_errno(&error);
            }
        }
    }

    /// Whether the session has ended.
    pub fn is_over(&self) -> bool {
        self.replication.is_over()
    }

    /// Prepares an operation on this thread, or in the worker pool if the thread of a client finds no berth. The
    /// thread may wait for the sequencer, and for a checkpoint.
    pub fn prepare_on(self: &Arc<Self>, thread: ThreadKind, op: OpId) -> Option<Event> {
        if thread == ThreadKind::MayWait {
            return self.prepare(op);
        }
        if let Some(_berth) = self.berths.take() {
            return self.prepare(op);
        }
        let pipeline = Arc::clone(self);
        self.replication.spawn(move || {
            if let Some(event) = pipeline.prepare(op) {
                pipeline
                    .replication
                    .handle_event(ThreadKind::MayWait, event);
            }
        });
        None
    }

    /// Numbers, validates, logs and sends an operation, with no other one in between (rule P2).
    fn prepare(self: &Arc<Self>, op: OpId) -> Option<Event> {
        let mut outcome = None;
        let mut others = Effects::new();
        let earlier = {
            let _sequencer = self.sequencer.lock();
            let effects = self.replication.step_core(Event::Sequence(op));
            // Operations that were committed before this one got its number are applied first. This one may be
            // committed already, if the core has given the secondary up since; but it is not logged yet.
            let earlier = self.apply_committed(number_in(&effects));
            for effect in effects {
                if let Effect::Sequenced { op, osn, mirrored } = effect {
                    outcome = self.begin(op, osn, mirrored);
                } else {
                    others.push(effect);
                }
            }
            earlier
        };
        self.report(ThreadKind::MayWait, earlier);
        // If the disk has failed since, the core has refused the operation and released its locks: then these
        // effects let the waiting operations continue.
        self.replication.run_effects(ThreadKind::MayWait, others);
        if self.engine.store.image().changes_exceed() {
            // New operations wait until a resync has sent some of the changes (rule P18).
            self.replication
                .handle_event(ThreadKind::MayWait, Event::NamesBehind(true));
        }
        outcome
    }

    /// Validates, logs and sends an operation that has its number. The caller holds the sequencer.
    pub fn begin(&self, id: OpId, osn: Osn, mirrored: bool) -> Option<Event> {
        let done = |result| Some(Event::LocalDone(id, result));
        let numbered = self.pending.with_meta(id, |meta| MetaOp {
            osn,
            time: meta.time,
            request: meta.complete(&self.engine),
        });
        let Some(op) = numbered else {
            return done(Err(Errno::Io));
        };
        let targets = lock_plan::targets(&self.engine.store, &op.request);
        let is_stale = self.pending.with_meta(id, |meta| {
            meta.is_stale = targets != meta.targets;
            meta.is_stale
        });
        if is_stale.unwrap_or(true) {
            return done(Err(Errno::Again));
        }
        match self.begin_checked(id, &op, mirrored) {
            Ok(true) => done(Ok(())),
            Ok(false) => None,
            Err(error) => done(Err(self.engine.log_and_errno(&error))),
        }
    }

    /// Returns whether the operation is over already.
    fn begin_checked(&self, id: OpId, op: &MetaOp, mirrored: bool) -> Result<bool, OpError> {
        let store = &self.engine.store;
        if !mirrored {
            let applied = store.commit(op)?;
            if self.engine.is_always_durable() || applied.must_be_durable() {
                store.sync_applied(&applied)?;
            }
            self.keep_outcome(id, applied);
            return Ok(true);
        }
        store.validate(op)?;
        self.announcements.sends(op);
        let intent = store.intents().log(op)?;
        self.send(op.clone(), intent.previous);
        Ok(false)
    }

    fn send(&self, op: MetaOp, previous: Osn) {
        let durable = self.engine.is_always_durable() || op.request.is_on_snapshots();
        let op = match &op.request {
            MetaRequest::IntoTrash { removal } if is_active(Mutant::TrashUnsent) => MetaOp {
                request: removal.request(),
                ..op
            },
            _ => op,
        };
        self.replication.send_current(Message::Meta {
            op,
            previous,
            durable,
        });
    }

    fn keep_outcome(&self, id: OpId, applied: Applied) {
        self.pending
            .with_meta(id, |meta| meta.applied = Some(applied));
    }

    /// Sends an operation again that is still PENDING.
    pub fn resend(&self, osn: Osn) {
        if let Some((op, previous)) = self.engine.store.intents().get(osn) {
            self.send(op, previous);
        }
    }

    /// The core has decided to apply an operation. Called under the core's lock.
    pub fn queue(&self, osn: Osn, op: Option<OpId>) {
        self.committed.lock().insert(osn, op);
    }

    /// Applies the operations on which both sides have agreed. A thread that must not wait for the disk leaves
    /// them to the worker pool if the sequencer is not free soon.
    pub fn commit(self: &Arc<Self>, thread: ThreadKind) {
        let sequencer = match thread {
            ThreadKind::MayWait => Some(self.sequencer.lock()),
            ThreadKind::Client | ThreadKind::Reader => self.sequencer.try_lock_for(SEQUENCER_WAIT),
        };
        let Some(sequencer) = sequencer else {
            let pipeline = Arc::clone(self);
            let job = move || pipeline.commit(ThreadKind::MayWait);
            self.replication.spawn(job);
            return;
        };
        let applied = self.apply_committed(None);
        drop(sequencer);
        self.report(thread, applied);
    }

    /// Applies, in their order, all committed operations, or those below `end`. The caller holds the sequencer.
    fn apply_committed(&self, end: Option<Osn>) -> Vec<Committed> {
        let mut applied = Vec::new();
        while self.stuck.lock().is_none() {
            let Some((osn, op)) = self.next_committed(end) else {
                break;
            };
            let outcome = self.engine.store.intents().commit(osn);
            let failed = outcome.as_ref().err().map(ToString::to_string);
            let committed = Committed { osn, op, outcome };
            match failed {
                None => applied.push(committed),
                Some(why) => {
                    self.leave_sync(&why);
                    applied.extend(self.give_up(committed));
                }
            }
        }
        applied
    }

    fn next_committed(&self, end: Option<Osn>) -> Option<(Osn, Option<OpId>)> {
        let mut committed = self.committed.lock();
        let next = committed.first_entry()?;
        let is_due = end.is_none_or(|end| *next.key() < end);
        is_due.then(|| next.remove_entry())
    }

    /// This node cannot apply an operation that the secondary has applied. The core learns of it before anything
    /// is rolled back, so that a mark "in sync" in the making does not count. The caller holds the sequencer.
    fn leave_sync(&self, why: &str) {
        self.engine.notes.set_reason(why);
        self.replication
            .handle_event_later(Event::Trigger(Trigger::PeerFailed));
    }

    /// Ends an operation that this node cannot apply and the secondary has applied. Once the secondary is marked
    /// out of sync, the operation has not happened. Until then it stays stuck: a restart would have to try it
    /// again before every later operation (rules P8, P15). The caller holds the sequencer.
    fn give_up(&self, committed: Committed) -> Option<Committed> {
        if self.engine.poison.has_failed() {
            // The mark is not made any more (rule P16): the operation ends with an error.
            return Some(committed);
        }
        if self.engine.role_file.state().is_in_sync() {
            *self.stuck.lock() = Some(committed);
            return None;
        }
        if let Err(error) = self.engine.store.intents().roll_back(committed.osn) {
            let datastore = self.engine.name();
            tracing::error!(datastore, %error, "an agreed operation failed here");
        }
        Some(committed)
    }

    /// Ends the stuck operation, and applies the operations behind it.
    pub fn release_stuck(&self) {
        let applied = {
            let _sequencer = self.sequencer.lock();
            let stuck = self.stuck.lock().take();
            let mut applied: Vec<Committed> = stuck
                .and_then(|committed| self.give_up(committed))
                .into_iter()
                .collect();
            applied.extend(self.apply_committed(None));
            applied
        };
        self.report(ThreadKind::MayWait, applied);
    }

    /// Reports applied operations to the core.
    fn report(&self, thread: ThreadKind, applied: Vec<Committed>) {
        for committed in applied {
            if let Some(event) = self.outcome(thread, committed) {
                self.replication.handle_event(thread, event);
            }
        }
    }

    fn outcome(&self, thread: ThreadKind, committed: Committed) -> Option<Event> {
        let Committed { osn, op, outcome } = committed;
        let result = match outcome {
            // Refused here before it was sent: the thread that refused it reports to the core.
            Ok(None) if op.is_some() => return None,
            Ok(None) => Ok(()),
            Ok(Some(applied)) => {
                if let Some(op) = op {
                    self.keep_outcome(op, applied);
                    if self.engine.is_always_durable() || applied.must_be_durable() {
                        return self.sync_outcome(thread, op, applied);
                    }
                } else {
                    self.tend_unnamed(&applied, None);
                }
                Ok(())
            }
            Err(error) => Err(self.engine.log_and_errno(&error)),
        };
        Some(match op {
            Some(op) => Event::LocalDone(op, result),
            None => Event::Applied(osn),
        })
    }

    /// With `durability = "always"`, or for a snapshot: syncs an applied operation before its client gets the answer (rule P11).
    fn sync_outcome(&self, thread: ThreadKind, op: OpId, applied: Applied) -> Option<Event> {
        let engine = Arc::clone(&self.engine);
        let sync = move || {
            let synced = engine.store.sync_applied(&applied);
            let result = synced.map_err(|error| engine.log_and_errno(&error.into()));
            Event::LocalDone(op, result)
        };
        if thread == ThreadKind::MayWait {
            return Some(sync());
        }
        let replication = Arc::clone(&self.replication);
        let job = move || replication.handle_event(ThreadKind::MayWait, sync());
        self.replication.spawn(job);
        None
    }

    /// Ends an operation and answers the client, or submits the operation again with other locks.
    pub fn finish(&self, meta: PendingMetadata, result: Result<(), Errno>) {
        if meta.is_stale {
            return self.submit(meta.request, meta.done);
        }
        let applied = meta.applied;
        (meta.done)(result.map(|()| applied.and_then(|applied| applied.attr)));
        if let Some(applied) = applied {
            self.tend_unnamed(&applied, Some(&meta.request));
        }
    }

    /// Frees the inodes that an operation has left without a name and without a place in the trash, and notes changes of the trash. Without the
    /// request, the operation is one of an earlier process.
    fn tend_unnamed(&self, applied: &Applied, request: Option<&MetaRequest>) {
        let trash = &self.references.trash;
        if let Some(ino) = applied.orphaned {
            self.reap_if_unused(ino);
        }
        if let Some(ino) = applied.trash_moved {
            trash.note(ino);
        }
        match request {
            Some(MetaRequest::TrashDrop { inos }) => {
                for ino in inos {
                    trash.note(*ino);
                    self.reap_if_unused(*ino);
                }
            }
            None if applied.empties_trash && !is_active(Mutant::DropUnreaped) => {
                trash.note_orphans();
            }
            _ => {}
        }
    }
}

/// The number in a core's decision to sequence an operation.
fn number_in(effects: &Effects) -> Option<Osn> {
    effects.iter().find_map(|effect| match effect {
        Effect::Sequenced { osn, .. } => Some(*osn),
        _ => None,
    })
}

/// Estimated bytes of an operation on the wire.
fn message_bytes(request: &MetaRequest) -> u64 {
    let more = match request {
        MetaRequest::Create { target, .. } => target.len(),
        MetaRequest::SetXattr { value, .. } => value.len(),
        MetaRequest::ReapAll { inos } | MetaRequest::TrashDrop { inos } => {
            inos.len() * size_of::<Ino>()
        }
        _ => 0,
    };
    MESSAGE_BYTES + more as u64
}

#[cfg(test)]
mod tests {
    use lockstep_repl::lock::{LockKey, LockMode};
    use lockstep_types::{FileName, NodeKind};
    use smallvec::smallvec;

    use super::*;
    use crate::open::tests::{Place, creation};

    /// Between its number and its log record, an operation may become committed for the core: the connection is
    /// lost, or an earlier operation fails here. The operation must be found in the log when it is applied.
    #[test]
    fn an_operation_that_is_not_logged_yet_is_not_applied() {
        let place = Place::in_sync();
        let datastore = place.start().unwrap();
        let session = datastore.primary().unwrap();
        let (pipeline, first) = (&session.pipeline, session.replication.first_osn);
        let number = |sequence| Osn {
            sequence: first.sequence + sequence,
            ..first
        };
        for sequence in [1, 2] {
            pipeline.queue(number(sequence), None);
        }
        let osns = |applied: Vec<Committed>| -> Vec<Osn> {
            applied.into_iter().map(|committed| committed.osn).collect()
        };
        let sequencer = pipeline.sequencer.lock();
        assert_eq!(osns(pipeline.apply_committed(Some(number(2)))), [number(1)]);
        assert_eq!(osns(pipeline.apply_committed(None)), [number(2)]);
        drop(sequencer);
        datastore.stop();
        datastore.close();
    }

    #[test]
    fn many_removals_take_one_operation_more() {
        const MADE: u64 = 50;
        let place = Place::in_sync();
        let datastore = place.start_out_of_sync();
        let session = datastore.primary().unwrap();
        let change = |request| {
            let (told, outcome) = std::sync::mpsc::channel();
            let done = move |result: Result<Option<Attr>, Errno>| told.send(result).unwrap();
            session.pipeline.submit(request, Box::new(done));
            outcome.recv().unwrap().unwrap();
        };
        session.pipeline.reap_gathered(true);
        for number in 0..MADE {
            let ino = datastore.store().next_ino().unwrap();
            change(creation(ino, &number.to_string(), NodeKind::Directory));
        }
        let before = session.replication.core.lock().next_osn();
        for number in 0..MADE {
            change(MetaRequest::Rmdir {
                parent: Ino::ROOT,
                name: FileName::new(number.to_string().as_bytes()).unwrap(),
            });
        }
        let orphans = || datastore.store().tree().orphans().unwrap().len() as u64;
        assert_eq!(orphans(), MADE);
        session.pipeline.reap_gathered(true);
        while orphans() > 0 {
            std::thread::yield_now();
        }
        let after = session.replication.core.lock().next_osn();
        assert_eq!(after.sequence - before.sequence, MADE + 1);
        datastore.stop();
        datastore.close();
    }

    #[test]
    fn the_operation_that_waits_for_longest_is_known() {
        let place = Place::in_sync();
        let datastore = place.start_out_of_sync();
        let session = datastore.primary().unwrap();
        let locks = smallvec![(LockKey::File(Ino::ROOT), LockMode::Exclusive)];
        let mut held = session.jobs.locks.acquire(locks);
        assert!(held.wait() && session.usage().oldest_metadata.is_none());
        let (told, outcome) = std::sync::mpsc::channel();
        let done = move |result: Result<Option<Attr>, Errno>| told.send(result).unwrap();
        let ino = Ino::ROOT;
        let request = MetaRequest::Truncate {
            ino,
            size: 0,
            drop_set_id: false,
        };
        session.pipeline.submit(request, Box::new(done));
        let (name, of, _) = session.usage().oldest_metadata.unwrap();
        assert_eq!((name, of), ("truncate", Some(ino)));
        drop(held);
        assert_eq!(outcome.recv().unwrap(), Err(Errno::IsDirectory));
        assert!(session.usage().oldest_metadata.is_none());
        datastore.stop();
        datastore.close();
    }
}
