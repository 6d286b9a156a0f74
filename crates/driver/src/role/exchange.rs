//! This node in a role exchange: it offers its record, decides on the offer of the other node, and changes its role.

use std::sync::Arc;

use lockstep_link::{ReceiveFrames, SendFrames};
use lockstep_repl::message::{Envelope, Message, PROTOCOL_VERSION};
use lockstep_roles::{LocalCopy, PeerWitness, RoleChange, RoleConflict, RoleOffer, RoleRecord};
use lockstep_types::DatastoreUuid;
use lockstep_types::mutants::{Mutant, is_active};

use super::keeper::RoleKeeper;
use super::{incomplete_mark, promotion, switch};
use crate::client::Standing;
use crate::config::DatastoreConfig;
use crate::engine::Engine;
use crate::engine::witness_state::WordTime;
use crate::replication::greeting::{self, GreetingError, refuse, refuse_poisoned};
use crate::replication::role_exchange::{self, ROUNDS_MAX, RolePeer};
use crate::session::Session;
use crate::session::build::SessionPart;

/// Why a primary is refused by a node that serves, or may have served.
const NO_SECONDARY: &str = "the other node is no secondary of this datastore: the nodes meet again";

/// Why a greeting is refused before the nodes have met.
const NOT_MET: &str =
    "the greeting came before the exchange: run the same version of lockstep on both";

/// Why a caller is refused.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    #[error(transparent)]
    Conflict(#[from] RoleConflict),
}

impl RoleKeeper {
    /// Serves an authenticated node that has dialled this one, from its first message on, until the connection is lost.
    /// Returns `false` if the first message is none with which a node begins.
    pub fn serve_peer(
        &self,
        sender: &Arc<dyn SendFrames>,
        receiver: Box<dyn ReceiveFrames>,
        first: &Envelope,
    ) -> bool {
        match &first.message {
            Message::RoleOffer(offer) => self.meet_caller(sender, receiver, first, *offer),
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
        mut offer: RoleOffer,
    ) {
        if receiver
            .set_timeout(Some(self.engine.config.peer_timeout))
            .is_err()
        {
            return;
        }
        let begun = self.begin();
        for round in 0..ROUNDS_MAX {
            if let Some(reason) = self.engine.failure_reason() {
                return refuse_poisoned(&**sender, first, &reason);
            }
            // A change of the role would wait for the disk.
            if let Some(reason) = self.engine.stall_reason() {
                return refuse(&**sender, first, &reason);
            }
            if let Err(unfit) =
                self.answer_caller(&**sender, first, offer, (round > 0).then_some(begun))
            {
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
                Message::RoleOffer(next) => offer = *next,
                Message::Hello(_) => return self.serve_primary(sender, receiver, &envelope),
                Message::Poisoned { reason } => {
                    return self.engine.notes.set_peer_disk_failed(reason);
                }
                _ => return sender.shutdown("a message that belongs to no exchange"),
            }
        }
        sender.shutdown("the exchange has no end");
    }

    /// Tells the caller the record of this node. From the second message on, the record of the caller counts: then `begun` is
    /// there.
    fn answer_caller(
        &self,
        sender: &dyn SendFrames,
        first: &Envelope,
        offer: RoleOffer,
        begun: Option<WordTime>,
    ) -> Result<(), Unfit> {
        greeting::check_peer(self.engine.store.uuid(), first.datastore, offer.version)?;
        if let Some(begun) = begun {
            self.on_offer(&offer, begun)?;
        }
        role_exchange::send(self, sender, self.own_offer(Some(offer.record)));
        Ok(())
    }

    /// A node whose disk has failed writes no record. A primary serves reads until the other node may serve. The caller holds
    /// `changing`.
    fn hear_poisoned(&self, local: &LocalCopy, theirs: &RoleOffer) {
        let is_deposed = theirs.record.generation > local.record.generation;
        if is_deposed {
            self.set_standing(Standing::Following);
        } else if local.record.is_primary()
            && local.decide(theirs).is_ok_and(|decision| decision.leads)
        {
            switch::serve_reads(self);
        }
    }

    fn serve_primary(
        &self,
        sender: &Arc<dyn SendFrames>,
        receiver: Box<dyn ReceiveFrames>,
        envelope: &Envelope,
    ) {
        match (self.session(), &envelope.message) {
            (Session::Secondary(session), Message::Hello(hello)) => {
                session.serve_primary(sender, receiver, hello, envelope);
            }
            _ => refuse(&**sender, envelope, NO_SECONDARY),
        }
    }
}

/// The witness of the other node. A node without one connects with a node that has one: a witness is added on one node after the
/// other.
fn peer_witness(config: &DatastoreConfig, theirs: &RoleOffer) -> Result<PeerWitness, RoleConflict> {
    match (theirs.failover_after_ms, config.failover_after_ms()) {
        (Some(theirs), Some(own)) if theirs != own => Err(RoleConflict::OtherTimes),
        (None, _) => Ok(PeerWitness::None),
        _ if theirs.witness == config.witness_id() => Ok(PeerWitness::Same),
        _ => Ok(PeerWitness::Other),
    }
}

/// What the other node has answered alone is given up. Returns whether that is noted.
fn note_given_up(engine: &Engine) -> bool {
    if is_active(Mutant::KeepVerifierOfDemoted) {
        return true;
    }
    let noted = promotion::begin_anew(engine);
    if let Err(error) = &noted {
        tracing::error!(datastore = engine.name(), %error, "this node cannot lead");
    }
    noted.is_ok()
}

impl RolePeer for RoleKeeper {
    fn datastore(&self) -> DatastoreUuid {
        self.engine.store.uuid()
    }

    fn begin(&self) -> WordTime {
        self.engine.witness.word_time()
    }

    fn own_offer(&self, seen: Option<RoleRecord>) -> RoleOffer {
        let state = self.engine.role_file.told();
        RoleOffer {
            version: PROTOCOL_VERSION,
            record: state.record,
            seen,
            store: state.lineage.store,
            sync: self.engine.standing(),
            asks_incomplete_mark: incomplete_mark::asks_peer_to_mark_incomplete(self),
            discarded_own_changes: state.clients.discarded_own_changes,
            failover_after_ms: self.engine.config.failover_after_ms(),
            witness: self.engine.config.witness_id(),
        }
    }

    fn on_offer(&self, theirs: &RoleOffer, begun: WordTime) -> Result<bool, RoleConflict> {
        self.engine
            .witness
            .note_peer(peer_witness(&self.engine.config, theirs)?);
        let _changing = self.changing.acquire(&*self.engine.host);
        if self.engine.is_stopping() {
            return Ok(false);
        }
        self.note_peer_generation(theirs.record.generation);
        let local = self.local_copy();
        let mine = local.record;
        if self.engine.poison.has_failed() {
            self.hear_poisoned(&local, theirs);
            return Ok(false);
        }
        let is_outdated = local.is_outdated(theirs);
        self.engine.witness.note_outdated(is_outdated);
        match local.decide(theirs) {
            Ok(decision) => {
                incomplete_mark::note_incomplete_peer(self, mine, theirs, begun);
                if incomplete_mark::mark_incomplete(self, mine, theirs) {
                    return Ok(true);
                }
                let part = if decision.leads {
                    SessionPart::Lead
                } else {
                    SessionPart::Follow
                };
                // A candidate may have the generation of its lead already.
                let is_new = !mine.is_primary() || decision.change.to.generation > mine.generation;
                let begins = decision.leads && is_new;
                let goes_back = theirs.discarded_own_changes && begins
                    || decision.leads && local.has_lost_peer(theirs);
                // The other node cannot have answered by the word of the witness while this node serves.
                let has_paused = !self.gate().excludes_other(&*self.engine.host);
                let leads_without = goes_back && has_paused;
                if leads_without && !note_given_up(&self.engine) {
                    return Ok(false);
                }
                self.switch_role(decision.change, part);
                Ok(self.engine.role_file.state().record != mine)
            }
            Err(conflict) => {
                let is_deposed = theirs.record.generation > mine.generation;
                if conflict == RoleConflict::BothServed && is_deposed || is_outdated {
                    self.switch_role(RoleChange::stop_serving(mine), SessionPart::Follow);
                }
                Err(conflict)
            }
        }
    }
}
