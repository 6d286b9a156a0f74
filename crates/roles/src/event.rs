//! The vocabulary of the role machine: its settings and phases, the events that the driver brings, and the effects that
//! the driver carries out.

use lockstep_types::settings::OnPowerLoss;

use crate::change::RoleChange;
use crate::record::{Member, RoleRecord};
use crate::witness::{Claim, WitnessRecord};

/// The settings of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoleSettings {
    /// This node.
    pub me: Member,
    /// A witness is configured.
    pub has_witness: bool,
    /// See [`OnPowerLoss`].
    pub on_power_loss: OnPowerLoss,
}

/// The present work of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Primary: serves nothing until the peer, the witness or an operator has told how things stand.
    Unsure,
    /// Primary: acknowledges without the peer, and resyncs the peer when it is connected.
    Alone,
    /// Primary: both copies are equal; the two records that say so are being made.
    Entering,
    /// Primary: acknowledges what both nodes have.
    Mirrored,
    /// Primary: connected again; distributed recovery runs. Acknowledgements wait.
    CatchingUp,
    /// Primary: the peer is away and may be complete. Acknowledgements wait.
    Paused,
    /// Primary of a new generation: serves nothing until the lease of the old primary is over, or the old primary has
    /// stepped down.
    TakingOver,
    /// Secondary: connected to its primary.
    Following,
    /// Secondary: not connected to a primary.
    Standby,
}

/// An occurrence that a machine decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoleEvent {
    /// The peer has told its record: at the begin of a connection, and whenever either record has changed.
    PeerTold(Told),
    /// The connection with the peer is lost.
    Disconnected,
    /// The record that the machine asked for is durable.
    Recorded,
    /// The witness has answered. The value is its record after the claim, if there was a claim.
    WitnessAnswered(Option<WitnessRecord>),
    /// The last question or claim to the witness has no answer. A claim may have been granted, or may be granted later.
    WitnessSilent,
    /// Primary: the peer has been away for the pause limit.
    PauseOver,
    /// Every lease that this node, or an earlier process of it, has promised to the peer is over.
    LeaseOver,
    /// Time to ask again: a question to the witness may have no answer.
    Tick,
    /// Primary: the copies are equal, after a recovery or a resync.
    CopiesEqual,
    /// Secondary: the primary has recorded that this copy is equal now.
    CopyIsEqual,
    /// An operator asks for the other node as primary. No operation is in flight.
    HandOver,
    /// An operator makes this node the primary. The operator vouches that the peer does not serve.
    Promote,
}

/// A task for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoleEffect {
    /// Carry this change out, whose record becomes durable; then report [`RoleEvent::Recorded`].
    Record(RoleChange),
    /// Ask the witness for its record.
    AskWitness,
    /// Send a claim to the witness.
    Claim(Claim),
    /// Tell the peer the record of this node, if the peer is connected. Messages arrive in their order.
    TellPeer(Told),
    /// Bring the copies of both nodes together by distributed recovery, then report [`RoleEvent::CopiesEqual`].
    Recover,
    /// Make the peer's copy equal by a resync, then report [`RoleEvent::CopiesEqual`].
    Resync,
}

/// The message by which a node tells its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Told {
    /// The record of the sender.
    pub record: RoleRecord,
    /// The record of the receiver, as the sender knows it.
    pub seen: Option<RoleRecord>,
}
