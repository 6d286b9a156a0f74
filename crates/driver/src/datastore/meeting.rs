//! This node in a meeting: it tells its record, judges the record of the other node, and changes its role.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lockstep_link::{ReceiveFrames, SendFrames};
use lockstep_repl::core::Event;
use lockstep_repl::message::{Envelope, Meet, Message, PROTOCOL_VERSION};
use lockstep_repl::state::{State, Trigger};
use lockstep_roles::RoleRecord;
use lockstep_types::{DatastoreUuid, Osn};

use super::Datastore;
use crate::client::Standing;
use crate::host::ThreadKind;
use crate::peer::greeting::{self, GreetingError, refuse, refuse_poisoned};
use crate::peer::meeting::{self, Meets, ROUNDS_MAX};
use crate::role_judge::{Attendee, Discord};
use crate::session::Session;
use crate::session::build::SessionPart;

/// Why a primary is refused by a node that serves, or may have served.
const NO_SECONDARY: &str = "the other node is no secondary of this datastore: the nodes meet again";

/// Why a greeting is refused before the nodes have met.
const NOT_MET: &str =
    "the greeting came before the meeting: run the same version of lockstep on both";

/// Why a caller is refused.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    #[error(transparent)]
    Discord(#[from] Discord),
}

impl Datastore {
    /// Serves an authenticated node that has dialled this one, from its first message on, until the connection is lost.
    /// Returns `false` if the first message is none with which a node begins.
    pub fn serve_peer(
        &self,
        sender: &Arc<dyn SendFrames>,
        receiver: Box<dyn ReceiveFrames>,
        first: &Envelope,
    ) -> bool {
        match &first.message {
            Message::Meet(meet) => self.meet_caller(sender, receiver, first, *meet),
            Message::Poisoned { reason } => self.engine.notes.set_peer_disk_failed(reason),
            Message::Hello(hello) if hello.version != PROTOCOL_VERSION => {
                let error = GreetingError::Version(hello.version).to_string();
                self.engine.notes.set_obstacle(&error);
                refuse(&**sender, first, &error);
            }
            Message::Hello(_) => refuse(&**sender, first, NOT_MET),
            _ => return false,
        }
        true
    }

    /// Answers each record of the caller by the record of this node, until the caller sends its greeting.
    fn meet_caller(
        &self,
        sender: &Arc<dyn SendFrames>,
        mut receiver: Box<dyn ReceiveFrames>,
        first: &Envelope,
        mut meet: Meet,
    ) {
        if receiver
            .set_timeout(Some(self.engine.config.peer_timeout))
            .is_err()
        {
            return;
        }
        for round in 0..ROUNDS_MAX {
            if let Some(reason) = self.engine.failure_reason() {
                return refuse_poisoned(&**sender, first, &reason);
            }
            if let Err(unfit) = self.answer_caller(&**sender, first, meet, round > 0) {
                let reason = unfit.to_string();
                if let Unfit::Greeting(_) = unfit {
                    self.note_refused_peer(&reason);
                }
                return refuse(&**sender, first, &reason);
            }
            let Ok(frame) = receiver.recv() else {
                return;
            };
            let Ok(envelope) = Envelope::decode(frame.header) else {
                return sender.shutdown("a message that is none");
            };
            match &envelope.message {
                Message::Meet(next) => meet = *next,
                Message::Hello(_) => return self.serve_primary(sender, receiver, &envelope),
                Message::Poisoned { reason } => {
                    return self.engine.notes.set_peer_disk_failed(reason);
                }
                _ => return sender.shutdown("a message that belongs to no meeting"),
            }
        }
        sender.shutdown("the meeting has no end");
    }

    /// Tells the caller the record of this node. From the second message on, the record of the caller counts.
    fn answer_caller(
        &self,
        sender: &dyn SendFrames,
        first: &Envelope,
        meet: Meet,
        counts: bool,
    ) -> Result<(), Unfit> {
        greeting::check_peer(self.uuid(), first.datastore, meet.version)?;
        if counts {
            self.hear(&meet)?;
        }
        meeting::send(self, sender, self.tell(Some(meet.record)));
        Ok(())
    }

    /// A secondary that lacks operations by its own record takes over from nobody, so its primary needs no witness to
    /// serve alone (rule R1).
    fn note_incomplete_peer(&self, mine: RoleRecord, theirs: &Meet) {
        let peer = theirs.record;
        let is_secondary = !peer.is_primary() && peer.generation == mine.generation;
        if !mine.is_primary() || !is_secondary || peer.complete || theirs.seen != Some(mine) {
            return;
        }
        let session = self.session();
        // The lock keeps the nodes from being in sync before the permit is there.
        let core = session.term().core.lock();
        let waits = matches!(
            core.state(),
            State::Paused | State::Frozen | State::LeavingSync
        );
        if waits {
            self.engine.witness.permit(mine.generation);
        }
    }

    /// Whether this primary may not serve alone yet, and has no other way than that.
    fn leaves_sync(&self) -> bool {
        let state = self.session().term().state();
        state == State::LeavingSync && !self.engine.witness.permits(self.generation())
    }

    /// A secondary whose primary cannot keep up the sync records that its copy is not complete (rule R1). Returns whether
    /// the record has changed.
    fn give_sync_up(&self, mine: RoleRecord, theirs: &Meet) -> bool {
        let primary = theirs.record;
        let is_asked = theirs.leaves_sync
            && theirs.seen == Some(mine)
            && primary.is_primary()
            && primary.generation == mine.generation;
        if !is_asked || mine.is_primary() || !mine.complete {
            return false;
        }
        let marked = self.engine.role_file.mark(mine.generation, false);
        if let Err(error) = &marked {
            let datastore = self.engine.name();
            tracing::error!(datastore, %error, "cannot mark the sync state");
            return false;
        }
        let session = self.session();
        let term = session.term();
        if term.state() == State::SecondaryDisconnected {
            let marked = Event::Trigger(Trigger::MarkedOutOfSync);
            term.handle_event(ThreadKind::MayWait, marked);
        }
        true
    }

    /// A node whose disk has failed writes no record. A primary serves reads until the other node may serve.
    fn hear_poisoned(&self, attendee: &Attendee, theirs: &Meet) {
        let is_deposed = theirs.record.generation > attendee.state.record.generation;
        if is_deposed {
            self.set_standing(Standing::Following);
        } else if attendee.state.record.is_primary()
            && attendee.judge(theirs).is_ok_and(|judgment| judgment.leads)
        {
            self.set_standing(Standing::Serving);
        }
    }

    fn serve_primary(
        &self,
        sender: &Arc<dyn SendFrames>,
        receiver: Box<dyn ReceiveFrames>,
        envelope: &Envelope,
    ) {
        let is_secondary = !self.engine.role_file.state().record.is_primary();
        match (self.session(), &envelope.message) {
            (Session::Secondary(session), Message::Hello(hello)) if is_secondary => {
                session.serve_primary(sender, receiver, hello, envelope);
            }
            _ => refuse(&**sender, envelope, NO_SECONDARY),
        }
    }
}

impl Meets for Datastore {
    fn datastore(&self) -> DatastoreUuid {
        self.uuid()
    }

    fn tell(&self, seen: Option<RoleRecord>) -> Meet {
        let state = self.engine.role_file.state();
        Meet {
            version: PROTOCOL_VERSION,
            record: state.record,
            seen,
            store: state.store,
            sync: state.sync,
            leaves_sync: self.leaves_sync(),
        }
    }

    fn hear(&self, theirs: &Meet) -> Result<bool, Discord> {
        let _changing = self.changing.acquire(&*self.engine.host);
        if self.engine.is_stopping() {
            return Ok(false);
        }
        self.rival
            .fetch_max(theirs.record.generation.get(), Ordering::AcqRel);
        let attendee = Attendee {
            state: self.engine.role_file.state(),
            has_data: self.engine.store.applied() != Osn::ZERO,
            is_serving: self.gate().standing() == Standing::Serving,
        };
        let mine = attendee.state.record;
        if self.engine.poison.has_failed() {
            self.hear_poisoned(&attendee, theirs);
            return Ok(false);
        }
        match attendee.judge(theirs) {
            Ok(judgment) => {
                self.note_incomplete_peer(mine, theirs);
                if self.give_sync_up(mine, theirs) {
                    return Ok(true);
                }
                let part = if judgment.leads {
                    SessionPart::Lead
                } else {
                    SessionPart::Follow
                };
                self.assume(mine, judgment.record, part);
                Ok(self.engine.role_file.state().record != mine)
            }
            Err(discord) => {
                let is_deposed = theirs.record.generation > mine.generation;
                if discord == Discord::BothServed && is_deposed {
                    self.assume(mine, mine, SessionPart::Follow);
                }
                Err(discord)
            }
        }
    }
}
