//! The role exchange: the first messages of a connection, in which both nodes tell their role records.
//!
//! The caller tells its record, and the other node answers with its own, until each has seen the present record of the
//! other. Then the primary sends its greeting, if the caller is the primary.
//!
//! Invariant: no node acts on the first message of the caller. That message may have been on its way for long: the
//! answer to a later one proves that this node has been heard over the same connection.

use lockstep_link::{LinkError, ReceiveFrames, SendFrames};
use lockstep_repl::message::{Envelope, Message, MessageError};
use lockstep_roles::{RoleConflict, RoleOffer, RoleRecord, SoloEnds};
use lockstep_sums::SummedBytes;
use lockstep_types::{DatastoreUuid, Osn};
use thiserror::Error;

use super::greeting::{self, GreetingError};
use crate::peer::connection::{Delivery, deliver};

/// Messages of one side in a role exchange. Each change of a record needs one more, and two nodes agree after two changes.
pub(crate) const ROUNDS_MAX: usize = 8;

/// Why a role exchange, or the greeting after it, came to no end.
#[derive(Debug, Error)]
pub(crate) enum ExchangeError {
    /// The other node refuses this one.
    #[error("the peer refuses: {0}")]
    RefusedByPeer(String),
    /// The disk of the other node has failed.
    #[error("{0}")]
    PeerPoisoned(String),
    /// The other node is another one than expected, or of another version.
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    /// The records of the nodes do not fit.
    #[error(transparent)]
    Conflict(#[from] RoleConflict),
    /// The connection was lost.
    #[error(transparent)]
    Lost(#[from] LinkError),
    /// The answer cannot be decoded.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The answer belongs to no exchange.
    #[error(
        "the peer did not answer as a node of this version does: run the same version of lockstep on both"
    )]
    NoExchange,
    /// Each message has changed a record.
    #[error("the nodes do not agree on their roles; they try again")]
    NoEnd,
}

impl ExchangeError {
    /// Whether an operator has to act: waiting for the other node does not help.
    pub const fn is_obstacle(&self) -> bool {
        matches!(
            self,
            Self::RefusedByPeer(_) | Self::Greeting(_) | Self::Conflict(_)
        )
    }
}

/// A node in a role exchange.
pub(crate) trait RolePeer {
    /// The datastore.
    fn datastore(&self) -> DatastoreUuid;

    /// The message of this node. `seen`: the record that the other node has told last.
    fn own_offer(&self, seen: Option<RoleRecord>) -> RoleOffer;

    /// The moment of this node before its first message.
    fn begin(&self) -> SoloEnds;

    /// Acts on the offer of the other node, which came in a role exchange since `since`. Returns whether the record of this node
    /// has changed.
    fn on_offer(&self, theirs: &RoleOffer, since: SoloEnds) -> Result<bool, RoleConflict>;
}

/// Meets the node that was dialled. Returns the last message of that node: both nodes have seen each other's record.
pub(crate) fn call<M: RolePeer>(
    node: &M,
    sender: &dyn SendFrames,
    receiver: &mut dyn ReceiveFrames,
) -> Result<RoleOffer, ExchangeError> {
    let mut seen = None;
    let since = node.begin();
    for _ in 0..ROUNDS_MAX {
        let own = node.own_offer(seen);
        send(node, sender, own);
        let theirs = read_answer(node, receiver)?;
        let has_changed = node.on_offer(&theirs, since)?;
        if !has_changed && theirs.seen == Some(own.record) && seen == Some(theirs.record) {
            return Ok(theirs);
        }
        seen = Some(theirs.record);
    }
    Err(ExchangeError::NoEnd)
}

/// Sends the record of this node.
pub(crate) fn send<M: RolePeer>(node: &M, sender: &dyn SendFrames, offer: RoleOffer) {
    let envelope = Envelope {
        datastore: node.datastore(),
        generation: offer.record.generation,
        done_below: Osn::ZERO,
        message: Message::RoleOffer(offer),
    };
    // The reader of the connection sees a failure.
    let _sent = deliver(sender, &envelope, SummedBytes::default(), Delivery::Wait);
}

fn read_answer<M: RolePeer>(
    node: &M,
    receiver: &mut dyn ReceiveFrames,
) -> Result<RoleOffer, ExchangeError> {
    let envelope = receive(receiver)?;
    let Message::RoleOffer(offer) = envelope.message else {
        return Err(ExchangeError::NoExchange);
    };
    greeting::check_peer(node.datastore(), envelope.datastore, offer.version)?;
    Ok(offer)
}

/// Receives the answer of the node that was dialled. A refusal is an error.
pub(crate) fn receive(receiver: &mut dyn ReceiveFrames) -> Result<Envelope, ExchangeError> {
    let envelope = Envelope::decode(receiver.recv()?.header)?;
    match envelope.message {
        Message::Refuse { reason } => Err(ExchangeError::RefusedByPeer(reason)),
        Message::Poisoned { reason } => Err(ExchangeError::PeerPoisoned(reason)),
        _ => Ok(envelope),
    }
}
