//! The pairs of state and trigger that are handled.
//!
//! Holds the table only. [`REFUSED`](super::REFUSED) holds all other pairs.

use super::{Action, State, Trigger};

/// A row of the table: present state, trigger, next state, and the actions of the transition.
pub type Row = (State, Trigger, State, &'static [Action]);

/// Every pair of state and trigger that is handled.
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
        MarkedOutOfSync, OutOfSyncGranted, PauseOverContinue, PauseOverFreeze, PeerFailed, Recovered,
        StorePoisoned,
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
        (Paused, OutOfSyncGranted, LeavingSync, &[MarkOutOfSync]),
        (Paused, PeerFailed, LeavingSync, &[MarkOutOfSync]),

        (Frozen, LinkUpInSync, CatchingUp, &[Recover]),
        (Frozen, LinkUpOutOfSync, LeavingSync, &[DropLink, MarkOutOfSync]),
        (Frozen, PeerFailed, LeavingSync, &[MarkOutOfSync]),
        (Frozen, OutOfSyncGranted, LeavingSync, &[MarkOutOfSync]),

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
