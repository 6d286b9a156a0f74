//! The states of a datastore on one node, and the triggers that move it between them (paper, Figure 2).
//!
//! [`TABLE`] holds the pairs of state and trigger that are handled, [`REFUSED`] all other pairs, each with
//! the reason for the refusal. The compiler checks that every pair is in exactly one of the two tables.
//! The documents of the protocol show both tables, and a test keeps document and code the same.
//!
//! A state machine lives as long as a role: the role machine (`crates/roles`) decides on changes of the role.

mod refused;
mod table;
mod transition;

use lockstep_types::mutants::{Mutant, is_active};
use serde::{Deserialize, Serialize};
use strum::VariantArray;

pub use refused::{REFUSED, RefusalReason, RefusedRow};
pub use table::{Row, TABLE};
pub use transition::RefusedTrigger;

/// State of a datastore on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, VariantArray, Serialize, Deserialize)]
pub enum State {
    /// No peer is configured: nothing is mirrored.
    Unmirrored,
    /// Primary; the secondary lacks operations and is not connected. Clients are served alone.
    OutOfSync,
    /// Primary; the namespace is being carried to the secondary. Clients are served alone.
    ResyncNamespace,
    /// Primary; the secondary gets the last changes of the namespace. Metadata operations wait.
    ResyncTail,
    /// Primary; content is being carried to the secondary, and new operations are mirrored.
    ResyncContent,
    /// Primary; namespace and content are equal; the mark "in sync" is being made durable.
    EnteringSync,
    /// Primary; connected and in sync: every operation is on both nodes.
    Synced,
    /// Primary; in sync, the connection is lost. Acknowledgements wait, up to the pause limit.
    Paused,
    /// Primary; the pause limit has passed and the policy is to freeze until the peer is back.
    Frozen,
    /// Primary; connected again: distributed recovery runs. Acknowledgements wait.
    CatchingUp,
    /// Primary; the mark "out of sync" is being made durable. Acknowledgements wait.
    LeavingSync,
    /// Primary; its disk has failed: reads only, until an operator acts (P16).
    Poisoned,
    /// Secondary; lacks operations; waits for a resync.
    SecondaryOutOfSync,
    /// Secondary; is being resynced.
    SecondaryResyncing,
    /// Secondary; connected and in sync.
    SecondarySynced,
    /// Secondary; in sync as of the moment the connection was lost.
    SecondaryDisconnected,
    /// Secondary; connected again: distributed recovery runs.
    SecondaryCatchingUp,
    /// Secondary; its disk has failed: it follows no primary, until an operator acts (P16).
    SecondaryPoisoned,
}

/// An occurrence that moves a datastore between states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, VariantArray, Serialize, Deserialize)]
pub enum Trigger {
    /// Connected, and both sides say in sync: catch up.
    LinkUpInSync,
    /// Connected, and one side says it is not in sync: resync.
    LinkUpOutOfSync,
    /// The connection is gone.
    LinkLost,
    /// The pause limit has passed; the policy is to continue alone.
    PauseOverContinue,
    /// The pause limit has passed; the policy is to freeze.
    PauseOverFreeze,
    /// The secondary could not do what the primary can, or not in time.
    PeerFailed,
    /// Distributed recovery is complete.
    Recovered,
    /// The namespace was sent but for the last changes.
    ImageSent,
    /// The namespace is equal.
    ImageDone,
    /// The content is equal.
    ContentDone,
    /// The mark "in sync" is durable.
    MarkedInSync,
    /// The mark "out of sync" is durable.
    MarkedOutOfSync,
    /// The disk of this node's store has failed.
    StorePoisoned,
    /// The witness has noted that the secondary is out of sync (paper, section 3.3, point 6).
    OutOfSyncGranted,
}

/// A task that a change of state brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, VariantArray, Serialize, Deserialize)]
pub enum Action {
    /// Start counting the pause.
    StartPause,
    /// Send the operations again that the peer may not have.
    Recover,
    /// Make "in sync" durable.
    MarkInSync,
    /// Make "out of sync" durable.
    MarkOutOfSync,
    /// Give up the connection.
    DropLink,
    /// Finish operations in flight without the peer.
    FinishAlone,
    /// Let waiting operations go on.
    Admit,
    /// Carry the namespace over.
    SendImage,
    /// Carry the last changes of the namespace over once no metadata operation is in flight.
    SendTail,
    /// Carry the content over.
    SendContent,
    /// Tell the secondary that it is in sync.
    TellInSync,
    /// End every change and sync in flight with an error.
    RefuseAll,
}

impl State {
    /// How client changes are served in this state.
    pub fn service_mode(self) -> ServiceMode {
        match self {
            _ if self.is_secondary() && is_active(Mutant::SecondaryServes) => ServiceMode::Alone,
            Self::Unmirrored | Self::OutOfSync | Self::ResyncNamespace => ServiceMode::Alone,
            Self::ResyncContent | Self::EnteringSync | Self::Synced => ServiceMode::Mirrored,
            Self::ResyncTail => ServiceMode::WritesAlone,
            Self::Poisoned => ServiceMode::Refused,
            _ => ServiceMode::Wait,
        }
    }

    /// Whether this is a state of a secondary.
    pub const fn is_secondary(self) -> bool {
        match self {
            Self::SecondaryOutOfSync
            | Self::SecondaryResyncing
            | Self::SecondarySynced
            | Self::SecondaryDisconnected
            | Self::SecondaryCatchingUp
            | Self::SecondaryPoisoned => true,
            Self::Unmirrored
            | Self::OutOfSync
            | Self::ResyncNamespace
            | Self::ResyncTail
            | Self::ResyncContent
            | Self::EnteringSync
            | Self::Synced
            | Self::Paused
            | Self::Frozen
            | Self::CatchingUp
            | Self::LeavingSync
            | Self::Poisoned => false,
        }
    }

    /// Whether both nodes are known to hold every acknowledged operation.
    pub const fn is_in_sync(self) -> bool {
        matches!(self, Self::Synced | Self::SecondarySynced)
    }

    /// The state of the paper's Figure 2 that equals or contains this state, with the number from the
    /// paper's text.
    pub const fn in_paper(self) -> &'static str {
        match self {
            Self::Unmirrored => "(not replicated)",
            Self::OutOfSync => "2: primary, out of sync",
            Self::ResyncNamespace | Self::ResyncTail | Self::ResyncContent | Self::EnteringSync => {
                "primary, initializing or resyncing"
            }
            Self::Synced => "3: primary, synced, connected",
            Self::Paused => "4: primary, synced, disconnected",
            Self::Frozen => "4, forever (the mode \"not implemented\" of section 3.2)",
            Self::CatchingUp => "primary, catching up",
            Self::LeavingSync => "on the way from 4 to 2 (\"not shown\")",
            Self::SecondaryOutOfSync => "secondary, out of sync",
            Self::SecondaryResyncing => "secondary, initializing or resyncing",
            Self::SecondarySynced => "7: secondary, synced, connected",
            Self::SecondaryDisconnected => "secondary, synced, disconnected",
            Self::SecondaryCatchingUp => "secondary, catching up",
            Self::Poisoned => "(none: primary, its disk failed)",
            Self::SecondaryPoisoned => "(none: secondary, its disk failed)",
        }
    }

    /// Whether the disk of this node's store has failed.
    pub const fn is_poisoned(self) -> bool {
        matches!(self, Self::Poisoned | Self::SecondaryPoisoned)
    }

    /// A description of the state for people.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Unmirrored => "unmirrored",
            Self::OutOfSync | Self::SecondaryOutOfSync => "out of sync",
            Self::ResyncNamespace => "resyncing (namespace)",
            Self::ResyncTail => "resyncing (end of the namespace)",
            Self::ResyncContent => "resyncing (content)",
            Self::EnteringSync => "resyncing (finishing)",
            Self::Synced | Self::SecondarySynced => "synced and connected",
            Self::Paused => "synced and disconnected, acknowledgements paused",
            Self::Frozen => "frozen until the peer is back",
            Self::CatchingUp | Self::SecondaryCatchingUp => "catching up",
            Self::LeavingSync => "leaving sync",
            Self::SecondaryResyncing => "resyncing",
            Self::SecondaryDisconnected => "synced and disconnected",
            Self::Poisoned | Self::SecondaryPoisoned => "poisoned: the disk has failed",
        }
    }
}

/// How client changes are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceMode {
    /// A change is done on this node only.
    Alone,
    /// A change is done on both nodes.
    Mirrored,
    /// A write is done on this node only; a metadata operation waits.
    WritesAlone,
    /// A change waits.
    Wait,
    /// A change fails with `EIO`.
    Refused,
}
