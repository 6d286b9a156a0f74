//! The situations of a datastore on one node, as far as they differ in the effect of a failure.

use lockstep_driver::report::{DatastoreStatus, ServiceStatus};
use lockstep_repl::state::State;
use lockstepfs::config::Role;

/// The situation of a datastore on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Situation {
    /// The store is not open.
    NotStarted,
    /// There is no other node.
    Unmirrored,
    /// Primary; the disk has failed, and the other copy is complete or not.
    PrimaryFailedDisk { is_other_complete: bool },
    /// Secondary; the disk has failed.
    SecondaryFailedDisk,
    /// Primary that may not serve: since its start, or because its lease is over.
    Undecided,
    /// Primary between two roles.
    Changing,
    /// Primary in sync with its secondary.
    InSync,
    /// Primary; the connection with a complete secondary is lost, and changes wait.
    Paused,
    /// Primary of a secondary that does not follow; changes wait for the record of that, and before it for the witness.
    LeavingSync,
    /// Primary; changes wait for a short work of both nodes, or for a record on this disk.
    Settling,
    /// Primary, which serves alone; the secondary is connected, and the resync begins once the connection has stood for a time.
    Steadying,
    /// Primary; the secondary is connected, and its copy is not complete yet.
    Resyncing,
    /// Primary without a connection, which serves alone.
    Alone,
    /// Secondary in sync with its primary.
    Following,
    /// Secondary; connected, and the operations that were in flight are being settled.
    CatchingUp,
    /// Secondary without a connection; the copy was complete when the connection was lost.
    CutOff,
    /// Secondary; connected, and its copy is not complete yet.
    BeingResynced,
    /// Secondary without a connection and without a complete copy.
    Incomplete,
}

/// The part of a node in a situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SituationPart {
    /// A primary that serves, or waits to serve on.
    Serving,
    /// A secondary with a working disk.
    Following,
    /// A node that serves no changes, for a reason of its own, or that has no other node.
    Other,
}

impl Situation {
    /// The part of the node.
    pub(super) const fn part(self) -> SituationPart {
        match self {
            Self::InSync
            | Self::Paused
            | Self::LeavingSync
            | Self::Settling
            | Self::Steadying
            | Self::Resyncing
            | Self::Alone => SituationPart::Serving,
            Self::Following
            | Self::CatchingUp
            | Self::CutOff
            | Self::BeingResynced
            | Self::Incomplete => SituationPart::Following,
            Self::NotStarted
            | Self::Unmirrored
            | Self::PrimaryFailedDisk { .. }
            | Self::SecondaryFailedDisk
            | Self::Undecided
            | Self::Changing => SituationPart::Other,
        }
    }

    /// The situation behind a status.
    pub(super) fn of(store: &DatastoreStatus) -> Self {
        if !store.sync.started {
            return Self::NotStarted;
        }
        let Some(peer) = &store.peer else {
            return match (&store.poisoned, store.settings.role) {
                (None, _) => Self::Unmirrored,
                (Some(_), Role::Primary) => Self::PrimaryFailedDisk {
                    is_other_complete: false,
                },
                (Some(_), Role::Secondary) => Self::SecondaryFailedDisk,
            };
        };
        match store.settings.role {
            Role::Primary => Self::of_primary(store, peer.connected),
            Role::Secondary => Self::of_secondary(store, peer.connected),
        }
    }

    fn of_primary(store: &DatastoreStatus, is_connected: bool) -> Self {
        if store.poisoned.is_some() {
            return Self::PrimaryFailedDisk {
                is_other_complete: store.is_peer_fit(),
            };
        }
        if store.sync.in_sync && store.sync.service == ServiceStatus::Mirrored {
            return Self::InSync;
        }
        match (store.sync.service, is_connected) {
            (ServiceStatus::Undecided, _) => Self::Undecided,
            (ServiceStatus::None, _) => Self::Changing,
            (ServiceStatus::Waiting, _) if store.sync.state == State::LeavingSync.describe() => {
                Self::LeavingSync
            }
            // Without a connection, only a primary of a complete secondary makes changes wait for long.
            (ServiceStatus::Waiting, false) if store.sync.copy.marked_in_sync => Self::Paused,
            (ServiceStatus::Waiting, _) => Self::Settling,
            (_, true) if store.sync.state == State::OutOfSync.describe() => Self::Steadying,
            (_, true) => Self::Resyncing,
            (_, false) => Self::Alone,
        }
    }

    fn of_secondary(store: &DatastoreStatus, is_connected: bool) -> Self {
        if store.poisoned.is_some() {
            return Self::SecondaryFailedDisk;
        }
        match (store.sync.copy.marked_in_sync, is_connected) {
            _ if store.sync.in_sync => Self::Following,
            (true, true) => Self::CatchingUp,
            (true, false) => Self::CutOff,
            (false, true) => Self::BeingResynced,
            (false, false) => Self::Incomplete,
        }
    }
}
