//! The message by which a node tells the other one its role and its copy.

use lockstep_types::{StoreId, SyncStanding, WitnessId};
use serde::{Deserialize, Serialize};

use crate::record::RoleRecord;

/// The role record of a node and the lineage of its copy, as the node offers them in a role exchange at the begin of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleOffer {
    /// The version of the protocol of the sender.
    pub version: u32,
    /// The record of the sender.
    pub record: RoleRecord,
    /// The record of the receiver, as the receiver has told it over this connection.
    pub seen: Option<RoleRecord>,
    /// The name of the sender's copy (rule P17).
    pub store: Option<StoreId>,
    /// The sync of the sender's copy (rule P17).
    pub sync: SyncStanding,
    /// Primary: the sender is about to serve alone, and asks the secondary to record that its copy is not complete.
    pub asks_incomplete_mark: bool,
    /// Secondary: the sender has served alone before, and the changes that only its copy has are discarded. A node that leads because of this
    /// offer draws another write verifier (rule P22).
    pub discarded_own_changes: bool,
    /// The time of a takeover through the witness, in milliseconds; `None` without a witness. The same on both nodes.
    pub failover_after_ms: Option<u64>,
    /// The witness that the sender asks; `None` without one. While the nodes ask different witnesses, no node acts on the answer
    /// of either.
    pub witness: Option<WitnessId>,
}
