//! Fields of `role.json` that the state has in another form.

use lockstep_roles::RoleRecord;
use lockstep_types::WriteVerifier;
use lockstep_types::settings::Role;
use serde::{Deserialize, Serialize};

/// What clients must be told of operations that were not synced.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnsyncedFields {
    /// Rule P22.
    pub verifier: WriteVerifier,
    /// What only this copy has is given up.
    pub gave_up: bool,
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
