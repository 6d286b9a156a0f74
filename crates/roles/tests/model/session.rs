//! The session of a node, in place of the core of the replication.
//!
//! | session | states of the product (`crates/repl/src/state`) |
//! |---|---|
//! | `Standby` | `SecondaryOutOfSync`, `SecondaryDisconnected` |
//! | `Following` | `SecondaryResyncing`, `SecondaryCatchingUp`, `SecondarySynced` |
//! | `Undecided` | the same as `Standby`, on a primary by its record that serves no client |
//! | `Alone` | `OutOfSync`, `ResyncNamespace`, `ResyncTail`, `ResyncContent` |
//! | `EnteringSync` | `EnteringSync`, once the mark of the primary is durable |
//! | `Synced` | `Synced`, with the connection |
//! | `Paused` | `Paused` |
//! | `CatchingUp` | `CatchingUp` |
//! | `LeavingSync` | `LeavingSync` |
//!
//! `ResyncContent` waits for the secondary. The model acknowledges alone meanwhile, which promises more.
//! `Unmirrored`, `Frozen` and the two states of a failed disk are not in the model: no node of these states leaves it without
//! an operator, or it behaves as `Paused` does.

use lockstep_roles::{RoleRecord, ServicePart, SessionState};

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Session {
    Standby,
    Following,
    Undecided,
    Alone,
    EnteringSync,
    Synced {
        /// The secondary has told that its record says complete (rule R8).
        is_recorded: bool,
    },
    Paused,
    CatchingUp,
    LeavingSync,
}

impl Session {
    /// The session with which a node begins a part (`first_state` of the driver).
    pub const fn first(part: ServicePart, record: RoleRecord) -> Self {
        match part {
            ServicePart::Serve if record.complete && record.peer_complete => Self::Paused,
            ServicePart::Serve => Self::Alone,
            ServicePart::Wait if record.is_primary() => Self::Undecided,
            ServicePart::Wait => Self::Standby,
        }
    }

    /// Whether this node serves clients, as far as its lease lets it.
    pub const fn is_leading(self) -> bool {
        !matches!(self, Self::Standby | Self::Following | Self::Undecided)
    }

    /// The session after the loss of the connection.
    pub const fn without_link(self) -> Self {
        match self {
            Self::Following => Self::Standby,
            Self::Synced { .. } | Self::CatchingUp => Self::Paused,
            Self::EnteringSync => Self::LeavingSync,
            other => other,
        }
    }

    /// The state for the role machine.
    pub const fn state(self) -> SessionState {
        match self {
            Self::Standby | Self::Following => SessionState::Secondary,
            Self::Undecided => SessionState::Undecided,
            Self::Alone | Self::EnteringSync | Self::CatchingUp => SessionState::Primary,
            Self::Synced { is_recorded } => SessionState::Synced {
                is_connected: true,
                is_recorded,
            },
            Self::Paused => SessionState::Paused,
            Self::LeavingSync => SessionState::LeavingSync,
        }
    }

    /// Whether a solo grant decides about a later step of this session.
    pub const fn needs_solo_grant(self) -> bool {
        matches!(
            self,
            Self::EnteringSync
                | Self::Synced { .. }
                | Self::Paused
                | Self::CatchingUp
                | Self::LeavingSync
        )
    }

    /// A number for each session.
    pub const fn rank(self) -> u64 {
        match self {
            Self::Standby => 0,
            Self::Following => 1,
            Self::Undecided => 2,
            Self::Alone => 3,
            Self::EnteringSync => 4,
            Self::Synced { is_recorded: false } => 5,
            Self::Synced { is_recorded: true } => 6,
            Self::Paused => 7,
            Self::CatchingUp => 8,
            Self::LeavingSync => 9,
        }
    }
}
