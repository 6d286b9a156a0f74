//! The role of this node at this moment: owns the session of the role, and everything that a change of the role touches.
//!
//! Invariants:
//! - One change of the role at a time: the thread that changes the role holds `changing`.
//! - No function of this folder knows the datastore.

use std::sync::{Arc, OnceLock};

use lockstep_roles::{Member, RoleEffect, RoleEvent, RoleFacts, ServicePart};
use parking_lot::{Mutex, RwLock};

use super::bound_witness::BoundWitness;
use super::facts;
use crate::client::{RoleObserver, Standing};
use crate::engine::Engine;
use crate::host::exclusive::Exclusive;
use crate::service_gate::ServiceGate;
use crate::session::Session;
use crate::session::build;

/// See the head of this file.
pub(crate) struct CurrentRole {
    pub(super) engine: Arc<Engine>,
    /// The session of the present role.
    session: RwLock<Session>,
    /// Held by the thread that changes the role.
    pub(super) changing: Exclusive,
    observers: Mutex<Vec<Arc<dyn RoleObserver>>>,
    /// The witness, once this node asks it.
    pub(super) witness: OnceLock<BoundWitness>,
}

impl CurrentRole {
    /// The role of a datastore that begins with `session`. A primary whose disk has failed has a session, and serves reads
    /// only if its `part` says so.
    pub(crate) fn new(engine: &Arc<Engine>, session: Session, part: ServicePart) -> Self {
        let record = engine.role_file.state().record;
        let standing = match &session {
            Session::Primary(_) if part == ServicePart::Serve => Standing::Serving,
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
        self.engine.wakes.changes.raise();
        self.engine.wakes.tick_work.note();
    }

    /// Ends the session of the moment, for good. A change of the role that is under way ends first.
    pub(crate) fn stop(&self) {
        let _changing = self.changing.acquire(&*self.engine.host);
        self.session().stop();
    }

    /// The facts of this moment for the role machine.
    pub(super) fn facts(&self) -> RoleFacts {
        let me = self
            .witness
            .get()
            .map_or(Member::First, |witness| witness.me);
        facts::of(&self.engine, &self.session(), me)
    }

    /// Has the role machine decide on an event. If the effects may change the role, the caller holds `changing`.
    pub(super) fn decide(&self, event: &RoleEvent) -> Vec<RoleEffect> {
        self.engine.role.handle(&self.facts(), event)
    }

    /// The gate for the requests of clients.
    pub(super) fn gate(&self) -> &Arc<ServiceGate> {
        &self.engine.gate
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

    pub(crate) fn tell_observers(&self, tell: impl Fn(&dyn RoleObserver)) {
        let observers = self.observers.lock().clone();
        for observer in observers {
            tell(&*observer);
        }
    }
}
