//! The keeper of the role: owns the session of the present role, and everything that changes the role.
//!
//! Invariants:
//! - One change of the role at a time: the thread that changes the role holds `changing`.
//! - No function of this folder knows the datastore.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use lockstep_roles::LocalCopy;
use lockstep_types::{Generation, Osn};
use parking_lot::{Mutex, RwLock};

use super::forced_claim::BoundWitness;
use crate::client::{RoleObserver, Standing};
use crate::durable::role_file::RoleState;
use crate::engine::Engine;
use crate::host::exclusive::Exclusive;
use crate::service_gate::ServiceGate;
use crate::session::Session;
use crate::session::build::{self, SessionPart};

/// See the head of this file.
pub struct RoleKeeper {
    pub(super) engine: Arc<Engine>,
    /// The session of the present role.
    session: RwLock<Session>,
    /// Held by the thread that changes the role.
    pub(super) changing: Exclusive,
    /// The latest generation that the other node has told of.
    peer_generation: AtomicU64,
    observers: Mutex<Vec<Arc<dyn RoleObserver>>>,
    /// The witness, once this node asks it.
    pub(super) witness: OnceLock<BoundWitness>,
}

impl RoleKeeper {
    /// The keeper of a datastore that begins with `session`. A primary whose disk has failed has a session, and serves reads
    /// only if its `part` says so.
    pub(crate) fn new(engine: &Arc<Engine>, session: Session, part: SessionPart) -> Self {
        let record = engine.role_file.state().record;
        let standing = match &session {
            Session::Primary(_) if part == SessionPart::Lead => Standing::Serving,
            _ if record.is_primary() => Standing::Undecided,
            _ => Standing::Following,
        };
        engine
            .gate
            .need_lease(&*engine.host, build::needs_lease(engine));
        engine.gate.begin(&*engine.host, standing);
        Self {
            engine: Arc::clone(engine),
            session: RwLock::new(session),
            changing: Exclusive::default(),
            peer_generation: AtomicU64::new(0),
            observers: Mutex::default(),
            witness: OnceLock::new(),
        }
    }

    /// The session of the present role.
    pub(crate) fn session(&self) -> Session {
        self.session.read().clone()
    }

    /// Puts the next session in the place of the one that has ended. The caller holds `changing`.
    pub(super) fn put_session(&self, next: Session) {
        *self.session.write() = next;
    }

    /// Ends the session of the moment, for good. A change of the role that is under way ends first.
    pub(crate) fn stop(&self) {
        let _changing = self.changing.acquire(&*self.engine.host);
        self.session().stop();
    }

    /// The role record and the copy of this node.
    pub(super) fn local_copy(&self) -> LocalCopy {
        let engine = &self.engine;
        let RoleState {
            record, lineage, ..
        } = engine.role_file.state();
        LocalCopy {
            record,
            store: lineage.store,
            sync: engine.standing(),
            was_resynced: lineage.was_resynced,
            has_data: engine.store.applied() != Osn::ZERO,
            is_serving: self.gate().standing() == Standing::Serving,
        }
    }

    /// The gate for the requests of clients.
    pub(super) fn gate(&self) -> &Arc<ServiceGate> {
        &self.engine.gate
    }

    /// Notes a generation of the other node.
    pub(super) fn note_peer_generation(&self, generation: Generation) {
        self.peer_generation
            .fetch_max(generation.get(), Ordering::AcqRel);
    }

    /// The latest generation that the other node has told of since the start of this process.
    pub(super) fn latest_generation(&self) -> Generation {
        let raw = self.peer_generation.load(Ordering::Acquire);
        Generation::new(raw).unwrap_or(Generation::FIRST)
    }

    /// Has an observer learn of the changes of the role, from now on.
    pub(crate) fn observe(&self, observer: Arc<dyn RoleObserver>) {
        self.observers.lock().push(observer);
    }

    /// Changes the standing, and tells the observers.
    pub(super) fn set_standing(&self, standing: Standing) {
        if self.gate().standing() == standing {
            return;
        }
        self.gate().set(&*self.engine.host, standing);
        self.tell_observers(|observer| observer.changed(standing));
    }

    pub(super) fn tell_observers(&self, tell: impl Fn(&dyn RoleObserver)) {
        let observers = self.observers.lock().clone();
        for observer in observers {
            tell(&*observer);
        }
    }

    /// The authenticated peer was refused before it named this datastore.
    pub fn note_refused_peer(&self, reason: &str) {
        if self.session().waits_for_primary() {
            self.engine.notes.set_obstacle(reason);
        }
    }

    /// A client was refused before it was authenticated. It may be the primary. So `status` shows the reason beside a known
    /// reason, and never in its place. `reason` must hold no word of the client.
    pub fn note_unauthenticated(&self, reason: &str) {
        if self.session().waits_for_primary() {
            self.engine.notes.set_unauthenticated(reason);
        }
    }
}
