//! The greeting: the first messages of a connection, and the refusals.
//!
//! Both sides check here what they must agree on before any other message.

use lockstep_link::SendFrames;
use lockstep_repl::message::{Envelope, Message, PROTOCOL_VERSION};
use lockstep_sums::SummedBytes;
use lockstep_types::{DatastoreUuid, Generation, Osn};
use thiserror::Error;

use crate::peer::connection::{Delivery, deliver};
use crate::replication::Replication;

/// Why the peer's greeting is refused. Each text names the cure.
#[derive(Debug, Error)]
pub(crate) enum GreetingError {
    /// Another version of the protocol.
    #[error(
        "the peer speaks protocol version {0}, this node {PROTOCOL_VERSION}: run the same version of lockstep on \
         both"
    )]
    Version(u32),
    /// Another datastore.
    #[error("the peer's datastore is {peer}, this node's {own}: give both the same uuid")]
    Datastore {
        peer: DatastoreUuid,
        own: DatastoreUuid,
    },
    /// Another generation.
    #[error(
        "the peer is in generation {peer}, this node in {own}: one of the stores is from another \
         time; move the secondary's store away, so that it is made anew from the primary's"
    )]
    Generation { peer: Generation, own: Generation },
}

/// Checks the version of the peer, and its datastore, before any word of it counts.
pub(crate) fn check_peer(
    own: DatastoreUuid,
    peer: DatastoreUuid,
    version: u32,
) -> Result<(), GreetingError> {
    if version != PROTOCOL_VERSION {
        return Err(GreetingError::Version(version));
    }
    if peer != own {
        return Err(GreetingError::Datastore { peer, own });
    }
    Ok(())
}

/// Checks the envelope and the version of a greeting.
pub(crate) fn check(
    replication: &Replication,
    envelope: &Envelope,
    version: u32,
) -> Result<(), GreetingError> {
    check_peer(replication.engine.store.uuid(), envelope.datastore, version)?;
    let (peer, own) = (envelope.generation, replication.generation());
    if peer != own {
        return Err(GreetingError::Generation { peer, own });
    }
    Ok(())
}

/// Refuses a peer, and sends it the reason. A caller that an operator should hear logs the refusal itself.
pub fn refuse(sender: &dyn SendFrames, greeting: &Envelope, reason: &str) {
    tracing::debug!(datastore = %greeting.datastore, reason, "peer refused");
    let reason = reason.to_owned();
    answer(sender, greeting, Message::Refuse { reason });
}

/// Tells a primary that this copy cannot be used, because its disk has failed (rule P16).
pub(crate) fn refuse_poisoned(sender: &dyn SendFrames, greeting: &Envelope, reason: &str) {
    let reason = reason.to_owned();
    answer(sender, greeting, Message::Poisoned { reason });
}

/// Answers in the words of the greeting: this node may have no such datastore. The peer may be gone.
fn answer(sender: &dyn SendFrames, greeting: &Envelope, message: Message) {
    let envelope = Envelope {
        datastore: greeting.datastore,
        generation: greeting.generation,
        done_below: Osn::ZERO,
        message,
    };
    let _sent = deliver(sender, &envelope, SummedBytes::default(), Delivery::Wait);
}
