//! The states of a datastore on one node, and what moves it between them (paper, Figure 2).
//!
//! [`TABLE`] holds the pairs of state and trigger that are handled, [`REFUSED`] all others, each with
//! the reason why it is refused. That every pair is in one of them, once, is checked when this is
//! compiled. `docs/protocol/states.md` shows both, and a test keeps page and code the same.
//!
//! The change of roles itself comes with the witness; its events are here, and refused.

mod refused;

use lockstep_types::deliberate::{Bug, is_on};
use serde::{Deserialize, Serialize};
use strum::VariantArray;

pub use refused::{REFUSED, Refusal, Refused, RefusedRow};

/// Where a datastore stands on one node.
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
    /// Primary; all is equal; the mark "in sync" is being made durable.
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
    /// Secondary; lacks operations; waits to be resynced.
    SecondaryOutOfSync,
    /// Secondary; is being resynced.
    SecondaryResyncing,
    /// Secondary; connected and in sync.
    SecondarySynced,
    /// Secondary; in sync as of the moment the connection was lost.
    SecondaryDisconnected,
    /// Secondary; connected again: distributed recovery runs.
    SecondaryCatchingUp,
    /// Secondary; its disk has failed: it follows nobody, until an operator acts (P16).
    SecondaryPoisoned,
}

/// What moves a datastore between states.
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
    /// Later. Secondary in sync: so long was nothing heard of the primary that it may be taken over
    /// from; the witness is to be asked (paper, section 3.3, point 5).
    TakeoverDue,
    /// Later. The witness has made this node the primary of the next generation.
    TakeoverGranted,
    /// Later. The witness has noted that the secondary is out of sync (paper, section 3.3, point 6).
    OutOfSyncGranted,
    /// Later. The witness has refused what this node asked for: the other node was first.
    RaceLost,
    /// Later. Primary: neither peer nor witness was heard of for the time of the lease. It must
    /// freeze before the secondary may take over (paper, note 3).
    LeaseOver,
    /// Later. Primary: the lease runs again.
    LeaseRenewed,
    /// Later. A message of a higher generation: the other node is the primary now.
    Deposed,
    /// Later. An operator asks for the roles to be swapped, with nothing lost or refused.
    FailoverAsked,
    /// Later. An operator makes this node the primary; it is in sync.
    PromoteAsked,
    /// Later. The same although it may lack operations, and these are then lost.
    PromoteForced,
    /// Later. An operator makes this node the secondary.
    DemoteAsked,
}

/// What a change of state makes happen besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, VariantArray, Serialize, Deserialize)]
pub enum Action {
    /// Start counting the pause.
    StartPause,
    /// Send again what the other side may not have.
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

/// One line of the table: in this state, on this trigger, go there and do that.
pub type Row = (State, Trigger, State, &'static [Action]);

/// Every pair that is handled.
#[rustfmt::skip]
pub const TABLE: &[Row] = {
    use Action::{
        Admit, DropLink, FinishAlone, MarkInSync, MarkOutOfSync, Recover, RefuseAll, SendContent,
        SendImage, SendTail, StartPause, TellInSync,
    };
    use State::{
        CatchingUp, EnteringSync, Frozen, LeavingSync, OutOfSync, Paused, Poisoned, ResyncContent,
        ResyncNamespace, ResyncTail, SecondaryCatchingUp, SecondaryDisconnected,
        SecondaryOutOfSync, SecondaryPoisoned, SecondaryResyncing, SecondarySynced, Synced,
        Unmirrored,
    };
    use Trigger::{
        ContentDone, ImageDone, ImageSent, LinkLost, LinkUpInSync, LinkUpOutOfSync, MarkedInSync,
        MarkedOutOfSync, PauseOverContinue, PauseOverFreeze, PeerFailed, Recovered, StorePoisoned,
    };
    &[
        (OutOfSync, LinkUpInSync, ResyncNamespace, &[SendImage]),
        (OutOfSync, LinkUpOutOfSync, ResyncNamespace, &[SendImage]),
        (OutOfSync, LinkLost, OutOfSync, &[]),
        (OutOfSync, PeerFailed, OutOfSync, &[DropLink]),

        (ResyncNamespace, LinkLost, OutOfSync, &[FinishAlone, Admit]),
        (ResyncNamespace, PeerFailed, OutOfSync, &[DropLink, FinishAlone, Admit]),
        (ResyncNamespace, ImageSent, ResyncTail, &[SendTail]),

        (ResyncTail, LinkLost, OutOfSync, &[FinishAlone, Admit]),
        (ResyncTail, PeerFailed, OutOfSync, &[DropLink, FinishAlone, Admit]),
        (ResyncTail, ImageDone, ResyncContent, &[SendContent, Admit]),

        (ResyncContent, LinkLost, OutOfSync, &[FinishAlone, Admit]),
        (ResyncContent, PeerFailed, OutOfSync, &[DropLink, FinishAlone, Admit]),
        (ResyncContent, ContentDone, EnteringSync, &[MarkInSync]),

        (EnteringSync, MarkedInSync, Synced, &[TellInSync]),
        (EnteringSync, LinkLost, LeavingSync, &[MarkOutOfSync]),
        (EnteringSync, PeerFailed, LeavingSync, &[DropLink, MarkOutOfSync]),

        (Synced, LinkLost, Paused, &[StartPause]),
        (Synced, PeerFailed, LeavingSync, &[DropLink, MarkOutOfSync]),

        (Paused, LinkUpInSync, CatchingUp, &[Recover]),
        (Paused, LinkUpOutOfSync, LeavingSync, &[DropLink, MarkOutOfSync]),
        (Paused, PauseOverContinue, LeavingSync, &[MarkOutOfSync]),
        (Paused, PauseOverFreeze, Frozen, &[]),
        (Paused, PeerFailed, LeavingSync, &[MarkOutOfSync]),

        (Frozen, LinkUpInSync, CatchingUp, &[Recover]),
        (Frozen, LinkUpOutOfSync, LeavingSync, &[DropLink, MarkOutOfSync]),
        (Frozen, PeerFailed, LeavingSync, &[MarkOutOfSync]),

        (CatchingUp, LinkLost, Paused, &[]),
        (CatchingUp, PeerFailed, LeavingSync, &[DropLink, MarkOutOfSync]),
        (CatchingUp, Recovered, Synced, &[Admit]),

        (LeavingSync, MarkedOutOfSync, OutOfSync, &[FinishAlone, Admit]),
        (LeavingSync, MarkedInSync, LeavingSync, &[]),
        (LeavingSync, LinkLost, LeavingSync, &[]),
        (LeavingSync, LinkUpInSync, LeavingSync, &[DropLink]),
        (LeavingSync, LinkUpOutOfSync, LeavingSync, &[DropLink]),
        (LeavingSync, PeerFailed, LeavingSync, &[]),

        (SecondaryOutOfSync, LinkUpOutOfSync, SecondaryResyncing, &[]),
        (SecondaryOutOfSync, MarkedInSync, SecondaryDisconnected, &[]),
        (SecondaryResyncing, LinkLost, SecondaryOutOfSync, &[]),
        (SecondaryResyncing, MarkedOutOfSync, SecondaryResyncing, &[]),
        (SecondarySynced, MarkedOutOfSync, SecondaryResyncing, &[]),
        (SecondaryCatchingUp, MarkedOutOfSync, SecondaryResyncing, &[]),
        (SecondaryResyncing, MarkedInSync, SecondarySynced, &[]),
        (SecondarySynced, LinkLost, SecondaryDisconnected, &[]),
        (SecondaryDisconnected, LinkUpInSync, SecondaryCatchingUp, &[]),
        (SecondaryDisconnected, LinkUpOutOfSync, SecondaryResyncing, &[MarkOutOfSync]),
        (SecondaryDisconnected, MarkedOutOfSync, SecondaryOutOfSync, &[]),
        (SecondaryCatchingUp, LinkLost, SecondaryDisconnected, &[]),
        (SecondaryCatchingUp, Recovered, SecondarySynced, &[]),

        (Unmirrored, StorePoisoned, Poisoned, &[RefuseAll]),
        (OutOfSync, StorePoisoned, Poisoned, &[DropLink, RefuseAll]),
        (ResyncNamespace, StorePoisoned, Poisoned, &[DropLink, RefuseAll]),
        (ResyncTail, StorePoisoned, Poisoned, &[DropLink, RefuseAll]),
        (ResyncContent, StorePoisoned, Poisoned, &[DropLink, RefuseAll]),
        (EnteringSync, StorePoisoned, Poisoned, &[DropLink, RefuseAll]),
        (Synced, StorePoisoned, Poisoned, &[DropLink, RefuseAll]),
        (Paused, StorePoisoned, Poisoned, &[DropLink, RefuseAll]),
        (Frozen, StorePoisoned, Poisoned, &[DropLink, RefuseAll]),
        (CatchingUp, StorePoisoned, Poisoned, &[DropLink, RefuseAll]),
        (LeavingSync, StorePoisoned, Poisoned, &[DropLink, RefuseAll]),

        (SecondaryOutOfSync, StorePoisoned, SecondaryPoisoned, &[DropLink]),
        (SecondaryResyncing, StorePoisoned, SecondaryPoisoned, &[DropLink]),
        (SecondarySynced, StorePoisoned, SecondaryPoisoned, &[DropLink]),
        (SecondaryCatchingUp, StorePoisoned, SecondaryPoisoned, &[DropLink]),
        (SecondaryDisconnected, StorePoisoned, SecondaryPoisoned, &[DropLink]),
    ]
};

impl State {
    /// Where `trigger` leads, and what is to be done on the way; or why it leads nowhere.
    pub fn next(self, trigger: Trigger) -> Result<(Self, &'static [Action]), Refused> {
        TABLE
            .iter()
            .find(|(state, on, ..)| *state == self && *on == trigger)
            .map(|&(_, _, next, actions)| (next, actions))
            .ok_or_else(|| Refused::pair(self, trigger))
    }

    /// What a client's change meets in this state.
    pub fn service(self) -> Service {
        match self {
            _ if self.is_secondary() && is_on(Bug::SecondaryServes) => Service::Alone,
            Self::Unmirrored | Self::OutOfSync | Self::ResyncNamespace => Service::Alone,
            Self::ResyncContent | Self::EnteringSync | Self::Synced => Service::Mirrored,
            Self::ResyncTail => Service::WritesAlone,
            Self::Poisoned => Service::Refused,
            _ => Service::Wait,
        }
    }

    /// Whether it is a state of a secondary.
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

    /// Which state of the paper's Figure 2 this is, or is a part of. Numbers are those that the
    /// paper's text gives.
    pub const fn in_paper(self) -> &'static str {
        match self {
            Self::Unmirrored => "(not replicated)",
            Self::OutOfSync => "2: primary, out of sync",
            Self::ResyncNamespace | Self::ResyncTail | Self::ResyncContent | Self::EnteringSync => {
                "primary, initializing or resyncing"
            }
            Self::Synced => "3: primary, synced, connected",
            Self::Paused => "4: primary, synced, disconnected",
            Self::Frozen => "4, for ever (the mode \"not implemented\" of section 3.2)",
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

    /// For people: what the state means.
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

/// What a client's change meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// It is done here only.
    Alone,
    /// It is done on both nodes.
    Mirrored,
    /// A write is done here only; a metadata operation waits.
    WritesAlone,
    /// It waits.
    Wait,
    /// It fails with `EIO`.
    Refused,
}
