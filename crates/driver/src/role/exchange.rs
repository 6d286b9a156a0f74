//! This node in a role exchange: it offers its record, decides on the offer of the other node, and changes its role.

use std::sync::Arc;

use lockstep_link::{ReceiveFrames, SendFrames};
use lockstep_repl::message::{Envelope, Message, PROTOCOL_VERSION};
use lockstep_roles::{Offered, RoleConflict, RoleEvent, RoleOffer, RoleRecord, SoloEnds};
use lockstep_types::DatastoreUuid;

use super::effects::EffectError;
use super::facts;
use super::keeper::RoleKeeper;
use crate::replication::greeting::{self, GreetingError, refuse, refuse_poisoned};
use crate::replication::role_exchange::{self, ROUNDS_MAX, RolePeer};
use crate::session::Session;

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
            .set_timeout(Some(self.engine.config.current().peer_timeout))
            .is_err()
        {
            return;
        }
        let since = self.begin();
        for round in 0..ROUNDS_MAX {
            if let Some(reason) = self.engine.failure_reason() {
                return refuse_poisoned(&**sender, first, &reason);
            }
            // A change of the role would wait for the disk.
            if let Some(reason) = self.engine.stall_reason() {
                return refuse(&**sender, first, &reason);
            }
            if let Err(unfit) =
                self.answer_caller(&**sender, first, offer, (round > 0).then_some(since))
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

    /// Tells the caller the record of this node. From the second message on, the record of the caller counts: then `since` is
    /// there.
    fn answer_caller(
        &self,
        sender: &dyn SendFrames,
        first: &Envelope,
        offer: RoleOffer,
        since: Option<SoloEnds>,
    ) -> Result<(), Unfit> {
        greeting::check_peer(self.engine.store.uuid(), first.datastore, offer.version)?;
        if let Some(since) = since {
            self.on_offer(&offer, since)?;
        }
        role_exchange::send(self, sender, self.own_offer(Some(offer.record)));
        Ok(())
    }

    fn serve_primary(
        &self,
        sender: &Arc<dyn SendFrames>,
        receiver: Box<dyn ReceiveFrames>,
        envelope: &Envelope,
    ) {
        match (self.role.session(), &envelope.message) {
            (Session::Secondary(session), Message::Hello(hello)) => {
                session.serve_primary(sender, receiver, hello, envelope);
            }
            _ => refuse(&**sender, envelope, NO_SECONDARY),
        }
    }
}

impl RolePeer for RoleKeeper {
    fn datastore(&self) -> DatastoreUuid {
        self.engine.store.uuid()
    }

    fn begin(&self) -> SoloEnds {
        self.engine.role.solo_ends()
    }

    fn own_offer(&self, seen: Option<RoleRecord>) -> RoleOffer {
        let state = self.engine.role_file.told();
        RoleOffer {
            version: PROTOCOL_VERSION,
            record: state.record,
            seen,
            store: state.lineage.store,
            sync: self.engine.standing(),
            asks_incomplete_mark: self.engine.role.asks_incomplete_mark(&self.role.facts()),
            discarded_own_changes: state.clients.discarded_own_changes,
            failover_after_ms: self.engine.config.current().failover_after_ms(),
            witness: self.engine.config.current().witness_id(),
        }
    }

    fn on_offer(&self, theirs: &RoleOffer, since: SoloEnds) -> Result<bool, RoleConflict> {
        let engine = &self.engine;
        let _changing = self.role.changing.acquire(&*engine.host);
        if engine.is_stopping() {
            return Ok(false);
        }
        let mine = engine.role_file.state().record;
        let offered = Offered {
            theirs: *theirs,
            copy: facts::copy_of(engine),
            since,
            excludes_other: self.role.gate().excludes_other(&*engine.host),
        };
        let event = if engine.poison.has_failed() {
            RoleEvent::OfferedToFailedDisk(offered)
        } else {
            RoleEvent::Offered(offered)
        };
        for effect in self.role.decide(&event) {
            match self.role.carry_out(effect) {
                Err(EffectError::Conflict(conflict)) => return Err(conflict),
                Err(EffectError::NotNoted(error)) => {
                    tracing::error!(datastore = engine.name(), %error, "this node cannot lead");
                    return Ok(false);
                }
                // The log says why. The next exchange begins with the record that this node has.
                Ok(()) | Err(EffectError::NotChanged | EffectError::Refused(_)) => {}
            }
        }
        Ok(engine.role_file.state().record != mine)
    }
}
