//! Why two nodes get no primary and secondary, and why a command of an operator is refused.

use thiserror::Error;

/// Why two nodes that have met have no primary and secondary. Each text names the cure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RoleConflict {
    /// Both nodes are the primary of one generation.
    #[error(
        "both nodes are the primary of this datastore in one generation: run `lockstep demote` on one of them; what \
         only that node holds is lost then"
    )]
    TwoPrimaries,
    /// Both nodes are the secondary of one generation.
    #[error(
        "both nodes are the secondary of this datastore, and wait for a primary: run `lockstep promote` on the node \
         whose copy is to be kept (with --force-data-loss if both stores are new)"
    )]
    TwoSecondaries,
    /// Both nodes have served without the other.
    #[error(
        "both nodes have served this datastore without the other, and each has changes that the other lacks: run \
         `lockstep demote` on the node whose changes are to be lost"
    )]
    BothServed,
    /// The copies do not belong together.
    #[error(
        "the stores of the two nodes are not copies of each other, or one is older than the other's last sync: \
         mount the disks that belong together; or run `lockstep promote` on the node whose copy is to be kept"
    )]
    OtherCopy,
    /// The primary has an older copy than the secondary.
    #[error(
        "the store of the primary is an older copy: the complete copy of the other node has operations that it lacks; put the \
         newer store back, or run `lockstep promote` on the node whose copy is to be kept"
    )]
    OlderCopy,
    /// The times of a takeover differ.
    #[error(
        "the failover_after_ms of the two nodes differ: write the same into the configuration of both, and start both again"
    )]
    OtherTimes,
}

/// Why a command of an operator changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandRefusal {
    /// This node is not the primary, which could give the role away.
    NotPrimary,
    /// This node is the secondary already.
    IsSecondary,
    /// This node is the primary already.
    IsPrimary,
    /// The other node is connected as the primary, so it serves.
    PrimaryIsConnected,
    /// The nodes are in sync: a planned failover loses nothing.
    InSync,
    /// The nodes are not in sync.
    NotInSync,
    /// The secondary has not recorded yet that its copy is complete.
    NotRecorded,
    /// The witness decides which node is the primary.
    WitnessDecides,
    /// The copy of this node may lack operations that programs were told are done.
    MayLackOperations,
    /// The witness has made the other node the primary of a generation that this node did not know of.
    Overtaken,
}
