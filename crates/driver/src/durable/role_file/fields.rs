//! Fields of `role.json` that the state has in another form.

use lockstep_roles::RoleRecord;
use lockstep_types::settings::Role;
use lockstep_types::{SyncId, SyncNames, WriteVerifier};
use serde::{Deserialize, Serialize};

/// What clients must be told of operations that were not synced.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnsyncedFields {
    /// Rule P22.
    pub verifier: WriteVerifier,
    /// What only this copy has is given up.
    pub gave_up: bool,
    /// Missing while it says nothing, as in earlier versions: the checksum of a file of theirs is that of its text.
    #[serde(default, skip_serializing_if = "PowerMarks::say_nothing")]
    pub power: PowerMarks,
}

/// The names of the sync in the file.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum SyncField {
    /// One name.
    Settled(SyncId),
    /// The name that both nodes have, and the proposed one.
    Proposed(ProposedFields),
}

/// The name that both nodes have, and the proposed one.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProposedFields {
    last: SyncId,
    proposed: SyncId,
}

impl SyncField {
    pub fn names(self) -> SyncNames {
        match self {
            Self::Settled(last) => SyncNames::settled(Some(last)),
            Self::Proposed(ProposedFields { last, proposed }) => SyncNames {
                last: Some(last),
                proposed: Some(proposed),
            },
        }
    }

    /// `None` before the first resync.
    pub fn of(names: SyncNames) -> Option<Self> {
        let last = names.last?;
        Some(names.proposed.map_or(Self::Settled(last), |proposed| {
            Self::Proposed(ProposedFields { last, proposed })
        }))
    }
}

/// The role in the file.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RoleWord {
    Primary,
    Secondary,
    /// A secondary that stands for the next generation: only with a witness.
    Candidate,
}

impl RoleWord {
    pub const fn role(self) -> Role {
        match self {
            Self::Primary => Role::Primary,
            Self::Secondary | Self::Candidate => Role::Secondary,
        }
    }

    pub const fn of(record: RoleRecord) -> Self {
        match (record.role, record.is_candidate) {
            (Role::Primary, _) => Self::Primary,
            (Role::Secondary, false) => Self::Secondary,
            (Role::Secondary, true) => Self::Candidate,
        }
    }
}

/// The marks of a copy for a loss of power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PowerMarks {
    /// Each operation that this copy has acknowledged since the last clean shutdown, or since it became complete, was on
    /// stable storage before.
    pub all_synced: bool,
    /// The machine has lost power while the copy was complete, and the copy has not been made equal since.
    pub has_lost_power: bool,
}

impl PowerMarks {
    /// Whether no mark is set.
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde gives a reference
    pub const fn say_nothing(&self) -> bool {
        !self.all_synced && !self.has_lost_power
    }
}
