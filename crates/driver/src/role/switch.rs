//! Changes of the role of a running datastore: one session ends, and another begins over the same engine.
//!
//! Order of a change: (1) the gate closes, so that no client sees or causes a change; (2) the session ends, with
//! everything that works for it; (3) the record is durable; (4) the next session begins; (5) the gate opens, if this node
//! serves. A primary that gives its role away in order lets its clients' operations end between the first two steps.
//!
//! Invariants:
//! - One change at a time.
//! - The record on the disk decides: if it cannot be written, the earlier role stays.

use std::time::Duration;

use lockstep_repl::state::ServiceMode;
use lockstep_roles::{RoleChange, RoleRecord, ServicePart, SessionEvent};
use lockstep_types::mutants::{Mutant, is_active};

use super::current_role::CurrentRole;
use super::effects::skip_numbers;
use crate::client::Standing;
use crate::engine::Engine;
use crate::maintenance;
use crate::session::Session;
use crate::session::build;

/// The longest time that operations of clients may take to end before a planned change of the role.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(5);

impl CurrentRole {
    /// Carries a change of the role out. Returns whether this node has the record of the change now. The caller holds
    /// `changing`.
    pub(super) fn switch_role(&self, change: RoleChange) -> bool {
        let session = self.session();
        let is_leading = matches!(session, Session::Primary(_));
        let leads = change.serves();
        if is_leading == leads && !change.ends_session() {
            return self.write_record(change);
        }
        self.close_gate(change.to, change.part);
        let serves_alone = session.replication().state().service_mode() == ServiceMode::Alone;
        if is_leading && leads && serves_alone {
            // The next generation of a primary that needs no other node: no operation fails.
            let _is_empty = self.gate().drain(&*self.engine.host, DRAIN_LIMIT);
        }
        if !is_active(Mutant::KeepSession) {
            session.retire("the role of this node changes");
        }
        // The next session may be one of the same generation: the secondary would take its operations for those of this one.
        let next = session.replication().core.lock().next_osn();
        self.engine.store.note_given_sequences(next.sequence);
        let is_written = self.write_record(change);
        let part = if is_written {
            change.part
        } else if is_leading {
            ServicePart::Serve
        } else {
            ServicePart::Wait
        };
        self.begin_session(part) && is_written
    }

    /// Makes the record of a change durable. Returns whether this node has that record now.
    fn write_record(&self, change: RoleChange) -> bool {
        if !change.changes_record() {
            return true;
        }
        let Engine {
            role_file, host, ..
        } = &*self.engine;
        let drawn = host.random_id();
        let prepared = if change.makes_complete() {
            // This copy may lack anything.
            let left_out = skip_numbers(&self.engine, drawn);
            left_out.and_then(|()| self.session().barriers().forget())
        } else {
            Ok(())
        };
        let prepared = prepared.map_err(std::io::Error::other);
        let written = prepared.and_then(|()| role_file.replace(change, drawn));
        if let Err(error) = &written {
            let datastore = self.engine.name();
            tracing::error!(datastore, %error, "the role cannot be written");
        }
        if change.steps_down() {
            // The other node gets the time in which it may lead.
            self.engine.role.promise.give(&**host);
        }
        written.unwrap_or(false)
    }

    /// A node that is about to lead keeps its standing: a restarted primary was undecided, and the caches of its kernel
    /// are right.
    fn close_gate(&self, record: RoleRecord, part: ServicePart) {
        let standing = match (part, self.gate().standing()) {
            (ServicePart::Serve, Standing::Serving | Standing::Retiring) => Standing::Undecided,
            (ServicePart::Serve, closed) => closed,
            (ServicePart::Wait, _) if record.is_primary() => Standing::Undecided,
            (ServicePart::Wait, _) => Standing::Following,
        };
        self.set_standing(standing);
    }

    /// Begins the next session of the record on the disk. On a disk that fails meanwhile, that is a session which only reads. If
    /// there is no session, this node serves nothing until its process is started again.
    fn begin_session(&self, part: ServicePart) -> bool {
        let record = self.engine.role_file.state().record;
        let datastore = self.engine.name();
        let has_failed = || self.engine.poison.has_failed();
        let built = build::session(&self.engine, part).or_else(|error| {
            if has_failed() {
                build::poisoned(&self.engine)
            } else {
                Err(error)
            }
        });
        match built {
            Ok(session) => self.put_session(session),
            Err(error) => {
                tracing::error!(datastore, %error, "the datastore cannot go on in its role");
                self.engine.notes.set_obstacle(&error.to_string());
                return false;
            }
        }
        let (role, generation) = (record.role, record.generation.get());
        tracing::warn!(datastore, ?role, generation, ?part, "the role of this node");
        self.engine.notes.forget_obstacles();
        self.engine.role.note_session(SessionEvent::Begins);
        let (gate, host) = (self.gate(), &*self.engine.host);
        gate.need_lease(host, build::needs_lease(&self.engine));
        if part == ServicePart::Serve {
            self.set_standing(Standing::Serving);
            if has_failed() {
                return true;
            }
            self.session().reap_orphans();
            if !record.peer_complete {
                maintenance::sync_soon(self.session().replication());
            }
        } else {
            self.close_gate(record, part);
        }
        true
    }

    /// Lets a primary whose disk has failed serve reads. While it did not serve, its session was one that waits for the other node,
    /// and no such session answers programs. The caller holds `changing`.
    pub(super) fn serve_reads(&self) {
        let session = self.session();
        if !matches!(session, Session::Primary(_)) {
            session.retire("the disk of this node has failed");
            match build::poisoned(&self.engine) {
                Ok(reading) => self.put_session(reading),
                Err(error) => return self.engine.notes.set_obstacle(&error.to_string()),
            }
        }
        self.set_standing(Standing::Serving);
    }
}
