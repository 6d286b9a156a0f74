//! The responses of a secondary to the requests of recovery, resync and verify.
//!
//! Invariants:
//! - No request of a resync changes a copy in sync, except `BeginResync`, which marks the copy out of sync first (rules P10,
//!   P17).
//! - A request of a repair changes only bytes that do not fit their sums, or such sums, and makes them fit ([`DeepCopy`]).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_fs::store::{CopyBefore, FallbackAccess, FallbackEnd};
use lockstep_fs::{OpError, StoreError};
use lockstep_repl::core::Event;
use lockstep_repl::message::{BarrierName, Request, RequestFailure, Response, ResyncScope};
use lockstep_repl::state::Trigger;
use lockstep_resync::api::AnswerError;
use lockstep_types::backing::Room;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{SyncId, WriteVerifier};

use lockstep_verify::DeepCopy;
use lockstep_verify::own_sums::StoreSums;
use parking_lot::Mutex;
use thiserror::Error;

use crate::durable::role_file::Greeted;
use crate::engine::Engine;
use crate::host::ThreadKind;
use crate::jobs::barriers::Barriers;
use crate::replication::Replication;
use crate::session::copy_base::CopyBase;

/// Why a request gets no response.
#[derive(Debug, Error)]
enum ResponseError {
    /// The disk of this node has failed (rule P16).
    #[error("{0}")]
    DiskFailed(String),
    /// The primary takes this copy for one that was in sync with it.
    #[error("it was asked to take over what has changed, but its copy may differ in anything")]
    NoBase,
    /// The primary takes this copy for one that has reached a barrier.
    #[error(
        "it was asked to take over what has changed since a barrier that its copy does not know"
    )]
    UnknownBarrier,
    /// Only a copy out of sync enters a sync.
    #[error("it was told to be in sync, which it is")]
    AlreadyInSync,
    /// This node has told something else since the connection began.
    #[error(
        "the role of this node has changed, or it has said since that its copy is not complete"
    )]
    SaidIncomplete,
    /// The request belongs to a resync that is over (rule P10).
    #[error("it was asked to change a copy that is in sync, outside a resync")]
    InSync,
    /// The role file cannot be changed.
    #[error(transparent)]
    RoleFile(#[from] io::Error),
    /// The store cannot serve the request.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store cannot sync a recovered file.
    #[error(transparent)]
    Sync(#[from] OpError),
    /// Resync or verify cannot serve the request.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// A comparison with the disk, or a repair, cannot serve the request.
    #[error(transparent)]
    Deep(#[from] RequestFailure),
}

/// See the head of this file.
pub(crate) struct Responder {
    replication: Arc<Replication>,
    base: Arc<CopyBase>,
    barriers: Arc<Barriers>,
    /// The greeting of the connection of the moment.
    greeted: Mutex<Greeted>,
    /// A resync over that connection has given this copy the namespace.
    has_namespace: AtomicBool,
}

impl Responder {
    /// The responder of one session.
    pub fn new(
        replication: Arc<Replication>,
        base: Arc<CopyBase>,
        barriers: Arc<Barriers>,
    ) -> Self {
        Self {
            replication,
            base,
            barriers,
            greeted: Mutex::default(),
            has_namespace: AtomicBool::new(false),
        }
    }

    /// A connection is about to be greeted. No request of an earlier one is under way. `is_durable`: each operation of the primary
    /// is.
    pub fn begin(&self, is_durable: bool) {
        let words = self.replication.engine.role_file.words();
        *self.greeted.lock() = Greeted { words, is_durable };
        self.has_namespace.store(false, Ordering::Release);
    }

    /// Whether this copy may reach a barrier: it is in sync, or a resync over the connection of the moment has given it the namespace. The
    /// primary names in its rest what the copy lacks besides (rule P30).
    pub fn may_reach_barrier(&self) -> bool {
        self.replication.engine.role_file.state().is_in_sync()
            || self.has_namespace.load(Ordering::Acquire)
    }

    fn happened(&self, trigger: Trigger) {
        let event = Event::Trigger(trigger);
        self.replication.handle_event(ThreadKind::MayWait, event);
    }

    /// The response to a request, or the reason that the primary shows. `None`: the connection has to end, because this node does not
    /// stand by its greeting. A failure would say that the copies may differ in anything.
    pub fn response(
        &self,
        request: &Request,
        payload: &[u8],
    ) -> Option<Result<Response, RequestFailure>> {
        match self.try_respond(request, payload) {
            Err(ResponseError::SaidIncomplete) => None,
            response => Some(response.map_err(|error| RequestFailure(error.to_string()))),
        }
    }

    fn try_respond(&self, request: &Request, payload: &[u8]) -> Result<Response, ResponseError> {
        if let Some(reason) = self.replication.engine.failure_reason() {
            return Err(ResponseError::DiskFailed(reason));
        }
        let engine = &*self.replication.engine;
        let store = &engine.store;
        match request {
            Request::RecoveryDone { below, verifier } => {
                let generation = self.replication.generation();
                engine.role_file.adopt_verifier(generation, *verifier)?;
                self.base.recovered(*below);
                self.happened(Trigger::Recovered);
                Ok(Response::Done)
            }
            Request::RecoverRange { ino, .. } => {
                let response = lockstep_resync::answer(store, request, payload)?;
                // The bytes are shown soon, and this copy stays complete over a loss of power (rule P8).
                if self.greeted.lock().is_durable && !is_active(Mutant::RecoverUnsynced) {
                    store.sync_file(*ino, true)?;
                }
                Ok(response)
            }
            Request::InSync { verifier } => self.mark_in_sync(*verifier),
            Request::Marks { since, told } => {
                self.check_barrier(*since)?;
                Ok(Response::Marks(store.delta().tell_marks(*since, *told)))
            }
            Request::BeginResync { sync, scope } => {
                self.begin_resync(*sync, *scope)?;
                Ok(lockstep_resync::answer(store, request, payload)?)
            }
            request if lockstep_verify::secondary::is_deep(request) => {
                let sums = &StoreSums::of(store);
                let copy = DeepCopy { store, sums };
                Ok(lockstep_verify::answer_deep(copy, request, payload)?)
            }
            Request::DigestOfBatch { .. }
            | Request::Digests { .. }
            | Request::Inspect { .. }
            | Request::Records { .. } => Ok(lockstep_verify::answer(&store.tree(), request)?),
            request if lockstep_resync::arrival::is_of_arrival(request) => {
                Ok(lockstep_resync::arrival::answer(store, request, payload)?)
            }
            Request::Room { for_change } => {
                engine.make_room(for_change.then_some(Room::NONE));
                Ok(Response::Room(store.capacity().room()?))
            }
            // The request belongs to a transfer that should be over: this copy is in sync (rule P10).
            _ if request.is_of_resync() && engine.role_file.state().is_in_sync() => {
                Err(ResponseError::InSync)
            }
            Request::EndImage { .. } => {
                let response = lockstep_resync::answer(store, request, payload)?;
                self.image_ended()?;
                Ok(response)
            }
            _ => Ok(lockstep_resync::answer(store, request, payload)?),
        }
    }

    /// Marks the copy before anything is changed (rules P10, P17).
    fn begin_resync(&self, sync: SyncId, scope: ResyncScope) -> Result<(), ResponseError> {
        let Engine {
            role_file, store, ..
        } = &*self.replication.engine;
        let base = match scope {
            ResyncScope::Everything => {
                self.barriers.forget()?;
                None
            }
            ResyncScope::SinceBarrier(name) => {
                self.check_barrier(name)?;
                None
            }
            ResyncScope::Changes => {
                let base = self.base.generation();
                Some(base.ok_or(ResponseError::NoBase)?)
            }
        };
        let was_in_sync = role_file.state().is_in_sync();
        if !is_active(Mutant::ResyncUnmarked) {
            role_file.take_over(self.replication.generation(), sync, base)?;
        }
        self.replication.engine.disk.count.begin(sync);
        if let ResyncScope::SinceBarrier(_) = scope {
            // The primary has asked for the marks of the changes that this node has made alone.
            store.barriers().reveal_names()?;
        }
        store.delta().end();
        self.has_namespace.store(false, Ordering::Release);
        let deposed = role_file.state().lineage.deposed;
        // A base of a later generation comes from a resync of everything, which has not compared all content yet.
        let has_nothing_alone =
            |generation| base == Some(generation) && !self.base.has_own_writes();
        let copy = CopyBefore {
            is_exact: !role_file.state().lineage.power.has_lost_power,
            own_of: deposed.filter(|generation| !has_nothing_alone(*generation)),
            time: self.replication.engine.host.time_of_day(),
        };
        self.base.begin_resync(base.is_some());
        self.happened(Trigger::MarkedOutOfSync);
        let fallback = FallbackAccess::of(store);
        if was_in_sync {
            // The end of an earlier resync may have been cut short.
            fallback.end()?;
        }
        fallback.begin(copy)?;
        Ok(())
    }

    fn check_barrier(&self, name: BarrierName) -> Result<(), ResponseError> {
        let account = self.replication.engine.store.delta().account();
        if account.known.contains(&name) {
            Ok(())
        } else {
            Err(ResponseError::UnknownBarrier)
        }
    }

    /// The namespace is equal, and on stable storage. Only now the copy has a base again after a resync of everything (rule P24).
    fn image_ended(&self) -> io::Result<()> {
        let generation = self.replication.generation();
        self.base.image_ended(generation);
        let base = self.base.generation();
        self.replication
            .engine
            .role_file
            .note_base(generation, base)?;
        self.has_namespace.store(true, Ordering::Release);
        Ok(())
    }

    fn mark_in_sync(&self, verifier: WriteVerifier) -> Result<Response, ResponseError> {
        let Engine {
            role_file, store, ..
        } = &*self.replication.engine;
        if role_file.state().is_in_sync() {
            return Err(ResponseError::AlreadyInSync);
        }
        // The content of the resync is in the system's cache. On the primary the same content may be durable (rule P10).
        if !is_active(Mutant::MarkBeforeSync) {
            store.sync_everything()?;
        }
        let generation = self.replication.generation();
        store.delta().follow(generation);
        // The connection may be lost, and this node may have said meanwhile that its copy is not complete.
        let marked = role_file.enter_sync(generation, verifier, *self.greeted.lock());
        if !matches!(marked, Ok(true)) {
            store.delta().end();
        }
        if !marked? {
            return Err(ResponseError::SaidIncomplete);
        }
        self.base.enter_sync(generation);
        self.end_fallback();
        self.happened(Trigger::MarkedInSync);
        Ok(Response::Done)
    }

    /// The copy is whole again. The next resync, or the next start, tries again to end a fallback whose end fails.
    fn end_fallback(&self) {
        let engine = &*self.replication.engine;
        match FallbackAccess::of(&engine.store).end() {
            Ok(FallbackEnd::Gone) => {}
            Ok(FallbackEnd::Lost(snapshot)) => {
                tracing::warn!(
                    datastore = engine.name(),
                    snapshot,
                    "what this node had alone when it was deposed is kept as a snapshot: see `lockstep status`",
                );
            }
            Err(error) => {
                tracing::error!(datastore = engine.name(), %error, "the fallback of the resync stays");
            }
        }
    }
}
