//! The marks in a role file, as a check of a store sees them that does not use the store.

use lockstep_roles::RoleRecord;
use lockstep_types::{SyncId, WriteVerifier};

use super::slots::{SlotChoice, parse};

/// The marks in a role file, for checks of a store from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleMarks {
    /// The copy is marked in sync: a primary's peer is complete, a secondary is complete itself.
    pub in_sync: bool,
    /// The record of the node.
    pub record: RoleRecord,
    /// The last sync in which the copy took part.
    pub sync: Option<SyncId>,
    /// The store was closed cleanly.
    pub is_closed: bool,
    /// The write verifier of the copy.
    pub verifier: WriteVerifier,
    /// The machine has lost power while the copy was complete, and the copy has not been made equal since. It may differ from the
    /// other one in operations that were under way then.
    pub has_lost_power: bool,
}

impl RoleMarks {
    /// The marks in the bytes of a role file; `None` for a damaged file.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let (state, _) = parse(bytes, SlotChoice::Last).ok()?;
        Some(Self {
            in_sync: state.is_in_sync(),
            record: state.record,
            sync: state.lineage.sync.newest(),
            is_closed: state.boot.is_none(),
            verifier: state.clients.verifier,
            has_lost_power: state.lineage.power.has_lost_power,
        })
    }
}
