//! Changes of the role of a running datastore: one session ends, and another begins over the same engine.
//!
//! Order of a change: (1) the gate closes, so that no client sees or causes a change; (2) the session ends, with
//! everything that works for it; (3) the record is durable; (4) the next session begins; (5) the gate opens, if this node
//! serves. A primary that gives its role away in order lets its clients' operations end between the first two steps.
//!
//! Invariants:
//! - One change at a time.
//! - The record on the disk decides: if it cannot be written, the earlier role stays.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lockstep_repl::state::{ServiceMode, State};
use lockstep_roles::RoleRecord;
use lockstep_types::Generation;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::Role;
use lockstep_types::time::millis;

use super::Datastore;
use crate::client::{RoleObserver, Standing};
use crate::durable::role_file::RoleState;
use crate::engine::Engine;
use crate::maintenance;
use crate::report::{CommandFailure, RoleReport};
use crate::session::Session;
use crate::session::build::{self, SessionPart};

/// The longest time that operations of clients may take to end before a planned change of the role.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait of a planned change of the role for the word of the new primary.
const SUCCESSOR_LIMIT: Duration = Duration::from_secs(10);
/// The longest wait of a planned change of the role for the mark of the secondary.
const MARK_LIMIT: Duration = Duration::from_secs(5);
/// Time between two looks for the word of the new primary.
const SUCCESSOR_POLL: Duration = Duration::from_millis(2);
/// Why a planned change of the role is not complete.
const NO_SUCCESSOR: &str = "this node has given its role away and is the secondary now, but the other node has not taken the role \
                            yet: none of them serves";
const NO_SUCCESSOR_CURE: &str = "the other node serves as soon as the nodes meet: start it, and see `lockstep status`; if this node is lost, \
                                 run `lockstep promote` on the other one";

impl Datastore {
    /// Gives the role of the primary to the other node, which is in sync. No operation of a client fails.
    ///
    /// # Errors
    /// If this node is not the primary, or the nodes are not in sync: then nothing has changed. Or if the other node does
    /// not take the role in time: then it takes the role when the nodes meet.
    pub fn hand_over(&self) -> Result<RoleReport, CommandFailure> {
        let begin;
        {
            let _changing = self.changing.acquire(&*self.engine.host);
            check_hand_over(self)?;
            begin = self.engine.host.now();
            self.set_standing(Standing::Retiring);
            if let Err(failure) = self.give_away() {
                self.set_standing(Standing::Serving);
                return Err(failure);
            }
        }
        if wait_for_successor(self) {
            Ok(self.report(begin))
        } else {
            Err(CommandFailure::new(NO_SUCCESSOR, NO_SUCCESSOR_CURE))
        }
    }

    /// Checks that this node could give its role away now, and does what can be done before: programs go on.
    ///
    /// # Errors
    /// If this node is not the primary, or the nodes are not in sync.
    pub fn prepare_hand_over(&self) -> Result<(), CommandFailure> {
        check_hand_over(self)?;
        self.tell_observers(|observer| observer.preparing());
        Ok(())
    }

    /// Ends the operations of clients, and the session.
    fn give_away(&self) -> Result<(), CommandFailure> {
        self.drain()?;
        self.tell_observers(|observer| observer.retiring());
        self.drain()?;
        // The other node serves after the record only. Until then this node may serve on the requests of programs.
        self.set_standing(Standing::Undecided);
        self.drain()?;
        self.check_synced()?;
        let mine = self.engine.role_file.state().record;
        self.begin_as(mine, mine.grant(), SessionPart::Follow)
    }

    fn drain(&self) -> Result<(), CommandFailure> {
        if is_active(Mutant::HandOverBusy) || self.gate().drain(&*self.engine.host, DRAIN_LIMIT) {
            return Ok(());
        }
        Err(CommandFailure::new(
            format!(
                "operations of programs were still under way after {} s",
                DRAIN_LIMIT.as_secs()
            ),
            "see the state in `lockstep status`, then try again",
        ))
    }

    /// Checks that the copy of the secondary is complete, also by the secondary's own record. Without that record, a power
    /// loss of both nodes would leave two copies that are not complete, and the worse one would lead.
    fn check_synced(&self) -> Result<(), CommandFailure> {
        let session = self.session();
        let (state, is_connected) = session.replication().state_and_connected();
        let is_complete = session.replication().peer.is_complete();
        match session {
            Session::Secondary(_) => Err(CommandFailure::new(
                "this node is not the primary of the datastore",
                "run the command on the primary; if that is dead, see `lockstep promote --help`",
            )),
            Session::Primary(_) if state == State::Synced && is_connected && is_complete => Ok(()),
            Session::Primary(_) if is_active(Mutant::HandOverUnsynced) => Ok(()),
            Session::Primary(_) if state == State::Synced && is_connected => {
                Err(CommandFailure::new(
                    "the other node has not recorded yet that its copy is complete",
                    "try again in a few seconds; if that does not help, see the log of the other node",
                ))
            }
            Session::Primary(_) => Err(CommandFailure::new(
                format!(
                    "the nodes are not in sync ({})",
                    self.engine.notes.in_words(state)
                ),
                "wait until `lockstep status` says in sync, then try again",
            )),
        }
    }

    /// Makes this primary, which serves alone or may not serve yet, the secondary: the other node has, or gets, the role.
    /// The next resync drops the operations that only this copy has, and sets them aside.
    ///
    /// # Errors
    /// If this node is no primary, or is in sync with its secondary. Then nothing has changed.
    pub fn demote(&self) -> Result<RoleReport, CommandFailure> {
        let begin = self.engine.host.now();
        let _changing = self.changing.acquire(&*self.engine.host);
        self.check_sound()?;
        let mine = self.engine.role_file.state().record;
        if !mine.is_primary() {
            return Err(CommandFailure::new(
                "this node is not the primary of the datastore",
                "nothing is to be done",
            ));
        }
        if self.session().replication().state().is_in_sync() {
            return Err(CommandFailure::new(
                "the nodes are in sync",
                "run `lockstep failover`, which loses nothing",
            ));
        }
        if self.assume(mine, demoted(self, mine), SessionPart::Follow) {
            return Ok(self.report(begin));
        }
        // The session that has ended may have marked its peer out of sync meanwhile.
        let marked = self.engine.role_file.state().record;
        self.begin_as(marked, demoted(self, marked), SessionPart::Follow)?;
        Ok(self.report(begin))
    }

    pub(super) fn begin_as(
        &self,
        mine: RoleRecord,
        record: RoleRecord,
        part: SessionPart,
    ) -> Result<(), CommandFailure> {
        if self.assume(mine, record, part) {
            Ok(())
        } else {
            Err(CommandFailure::new(
                "the role of this node could not be written to its disk",
                "see the log of this node",
            ))
        }
    }

    pub(super) fn check_sound(&self) -> Result<(), CommandFailure> {
        match self.engine.failure_reason() {
            None if self.engine.is_stopping() => Err(CommandFailure::new(
                "this node is stopping",
                "start it again",
            )),
            None => match self.engine.stall_reason() {
                None => Ok(()),
                Some(reason) => Err(CommandFailure::new(
                    reason,
                    "see \"A disk hangs\" in docs/operations/disks.md",
                )),
            },
            Some(reason) => Err(CommandFailure::new(
                reason,
                "repair or replace the disk; use the other node's copy",
            )),
        }
    }

    pub(super) fn report(&self, begin: Duration) -> RoleReport {
        let RoleState {
            record, unrecorded, ..
        } = self.engine.role_file.state();
        RoleReport {
            role: record.role,
            generation: record.generation.get(),
            pause_ms: millis(self.engine.host.since(begin)),
            address: None,
            as_of: None,
            witness_unaware: unrecorded.is_some(),
            standby: Some(self.engine.config.policies.standby),
        }
    }

    /// Takes up a part with a record, in place of `mine`. Returns whether this node has the record now. The caller holds
    /// `changing`.
    pub(super) fn assume(&self, mine: RoleRecord, record: RoleRecord, part: SessionPart) -> bool {
        let session = self.session();
        let is_leading = matches!(session, Session::Primary(_));
        let is_same_session = is_leading == (part == SessionPart::Lead)
            && record.generation == session.replication().generation();
        if is_same_session && record.role == mine.role {
            return record == mine || self.write_record(mine, record);
        }
        self.close_gate(record, part);
        let serves_alone = session.replication().state().service_mode() == ServiceMode::Alone;
        if is_leading && part == SessionPart::Lead && serves_alone {
            // The next generation of a primary that needs no other node: no operation fails.
            let _is_empty = self.gate().drain(&*self.engine.host, DRAIN_LIMIT);
        }
        if !is_active(Mutant::KeepSession) {
            session.retire("the role of this node changes");
        }
        // The next session may be one of the same generation: the secondary would take its operations for those of this one.
        let next = session.replication().core.lock().next_osn();
        self.engine.store.note_given_sequences(next.sequence);
        let is_written = record == mine || self.write_record(mine, record);
        let part = if is_written {
            part
        } else if is_leading {
            SessionPart::Lead
        } else {
            SessionPart::Follow
        };
        self.begin_session(part) && is_written
    }

    fn write_record(&self, mine: RoleRecord, record: RoleRecord) -> bool {
        let Engine {
            config,
            role_file,
            store,
            host,
            ..
        } = &*self.engine;
        // The other node may have given out numbers that this copy has not heard of.
        let left_out = if mine.becomes_complete(&record) {
            store.leave_out_inos(config.ino_ranges())
        } else {
            Ok(())
        };
        let left_out = left_out.map_err(std::io::Error::other);
        let written = left_out.and_then(|()| role_file.replace(mine, record, host.random_id()));
        if let Err(error) = &written {
            let datastore = self.engine.name();
            tracing::error!(datastore, %error, "the role cannot be written");
        }
        if mine.is_primary() && !record.is_primary() {
            // The other node gets the time in which it may lead.
            self.engine.witness.promise.give(&**host);
        }
        written.unwrap_or(false)
    }

    /// A node that is about to lead keeps its standing: a restarted primary was undecided, and the caches of its kernel
    /// are right.
    fn close_gate(&self, record: RoleRecord, part: SessionPart) {
        let standing = match (part, self.gate().standing()) {
            (SessionPart::Lead, Standing::Serving | Standing::Retiring) => Standing::Undecided,
            (SessionPart::Lead, closed) => closed,
            (SessionPart::Follow, _) if record.is_primary() => Standing::Undecided,
            (SessionPart::Follow, _) => Standing::Following,
        };
        self.set_standing(standing);
    }

    /// Begins the next session of the record on the disk. On a disk that fails meanwhile, that is a session which only reads. If
    /// there is no session, this node serves nothing until its process is started again.
    fn begin_session(&self, part: SessionPart) -> bool {
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
            Ok(session) => *self.session.write() = session,
            Err(error) => {
                tracing::error!(datastore, %error, "the datastore cannot go on in its role");
                self.engine.notes.set_obstacle(&error.to_string());
                return false;
            }
        }
        let (role, generation) = (record.role, record.generation.get());
        tracing::warn!(datastore, ?role, generation, ?part, "the role of this node");
        self.engine.notes.forget_obstacles();
        self.engine.witness.begin_session();
        let (gate, host) = (self.gate(), &*self.engine.host);
        gate.need_lease(host, build::needs_lease(&self.engine));
        if part == SessionPart::Lead {
            self.set_standing(Standing::Serving);
            if has_failed() {
                return true;
            }
            self.reap_orphans();
            if !record.peer_complete {
                maintenance::sync_soon(self.session().replication());
            }
        } else {
            self.close_gate(record, part);
        }
        true
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
}

/// Lets a primary whose disk has failed serve reads. While it did not serve, its session was one that waits for the other node,
/// and no such session answers programs. The caller holds `changing`.
pub(super) fn serve_reads(datastore: &Datastore) {
    let session = datastore.session();
    if matches!(session, Session::Secondary(_)) {
        session.retire("the disk of this node has failed");
        match build::poisoned(&datastore.engine) {
            Ok(reading) => *datastore.session.write() = reading,
            Err(error) => return datastore.engine.notes.set_obstacle(&error.to_string()),
        }
    }
    datastore.set_standing(Standing::Serving);
}

/// Waits a moment for the mark of the secondary.
fn check_hand_over(datastore: &Datastore) -> Result<(), CommandFailure> {
    datastore.check_sound()?;
    datastore.session().replication().wait_for_mark(MARK_LIMIT);
    datastore.check_synced()
}

/// Waits until the new primary is connected, so that the caller knows that the change is complete. Returns whether
/// that was in time.
fn wait_for_successor(datastore: &Datastore) -> bool {
    let start = datastore.engine.host.now();
    while datastore.engine.host.since(start) < SUCCESSOR_LIMIT && !datastore.engine.is_stopping() {
        if datastore.session().replication().peer.is_connected() {
            return true;
        }
        datastore.engine.host.sleep(SUCCESSOR_POLL);
    }
    false
}

/// The record of a demoted primary. A peer of an earlier generation takes the record for a grant, and leads its
/// generation: so that must be a new one.
fn demoted(datastore: &Datastore, mine: RoleRecord) -> RoleRecord {
    let is_new = latest_met(datastore) < mine.generation;
    let generation = if is_new && !is_active(Mutant::DemoteInSameGeneration) {
        mine.generation.next()
    } else {
        mine.generation
    };
    RoleRecord {
        generation,
        role: Role::Secondary,
        complete: is_active(Mutant::KeepDemotedComplete),
        peer_complete: false,
        ..mine
    }
}

/// The latest generation that the other node has told of since the start of this process.
pub(super) fn latest_met(datastore: &Datastore) -> Generation {
    Generation::new(datastore.rival.load(Ordering::Acquire)).unwrap_or(Generation::FIRST)
}
