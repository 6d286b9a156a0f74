//! The snapshots that a node has made of its own copy, in a status.

use serde::{Deserialize, Serialize};

/// A snapshot that this node has made of its own copy, before a resync changed the copy. The other node does not have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnSnapshotStatus {
    /// The name: `fallback` while the resync changes the copy, `lost-GENERATION` for the copy of a deposed node.
    pub name: String,
    /// The moment at which a resync began to change the copy, in UTC by the clock of that machine.
    pub time: String,
    /// The last operation of the copy on names and attributes.
    pub osn: String,
    /// The copy is exactly that of this moment. Else the machine had lost power, and the copy is what its disk had.
    pub exact: bool,
    /// The generation in which this node had the role that it lost, if it had something alone.
    pub lost_generation: Option<u64>,
}
