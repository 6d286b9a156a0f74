//! The keeper of the role: what the threads and the commands of a datastore do about its role.

use std::sync::Arc;

use lockstep_roles::ServicePart;

use super::current_role::CurrentRole;
use crate::engine::Engine;
use crate::session::Session;

/// See the head of this file.
pub struct RoleKeeper {
    pub(super) engine: Arc<Engine>,
    pub(super) role: CurrentRole,
}

impl RoleKeeper {
    /// The keeper of a datastore that begins with `session`. A primary whose disk has failed has a session, and serves reads
    /// only if its `part` says so.
    pub(crate) fn new(engine: &Arc<Engine>, session: Session, part: ServicePart) -> Self {
        Self {
            engine: Arc::clone(engine),
            role: CurrentRole::new(engine, session, part),
        }
    }

    /// The role of this moment.
    pub(crate) const fn current(&self) -> &CurrentRole {
        &self.role
    }

    /// The authenticated peer was refused before it named this datastore.
    pub fn note_refused_peer(&self, reason: &str) {
        if self.role.session().waits_for_primary() {
            self.engine.notes.set_obstacle(reason);
        }
    }

    /// A client was refused before it was authenticated. It may be the primary. So `status` shows the reason beside a known
    /// reason, and never in its place. `reason` must hold no word of the client.
    pub fn note_unauthenticated(&self, reason: &str) {
        if self.role.session().waits_for_primary() {
            self.engine.notes.set_unauthenticated(reason);
        }
    }
}
