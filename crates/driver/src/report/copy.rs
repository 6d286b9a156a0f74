//! The copy of a node in a status: its content.

use serde::{Deserialize, Serialize};

use super::changes::ChangeReaderStatus;
use super::own_snapshots::OwnSnapshotStatus;

/// The content of the copy of this node. In JSON the fields stand beside those of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyStatus {
    /// The mark on stable storage. On the primary: the secondary holds every acknowledged operation. On the
    /// secondary: this copy did when the connection was lost.
    pub marked_in_sync: bool,
    /// This copy holds every acknowledged operation that this node knows of: an operator may promote this node without
    /// accepting a loss.
    #[serde(default)]
    pub complete: bool,
    /// The write verifier of this copy; `None` before the store is open.
    #[serde(default)]
    pub write_verifier: Option<u64>,
    /// On a secondary without a connection: the moment at which this copy was last in sync, in UTC by the clock of that
    /// machine. `None` on a primary, while the nodes are in sync, and if they never were.
    #[serde(default)]
    pub as_of: Option<String>,
    /// On a primary: the last proof that both copies are the same.
    #[serde(default)]
    pub proved: Option<ProvedStatus>,
    /// On a primary: the comparison of the disks in the background; `None` if there is none.
    #[serde(default)]
    pub scrub: Option<ScrubStatus>,
    /// Those that ask this node what has changed.
    #[serde(default)]
    pub readers: Vec<ChangeReaderStatus>,
    /// A resync has begun to change this copy, and has not ended: the copy shows no moment of the datastore.
    #[serde(default)]
    pub mixed: bool,
    /// The seed from which this copy was made, until the copy is in sync or leads; `None` for any other copy.
    #[serde(default)]
    pub seed: Option<SeedStatus>,
    /// The snapshots that this node has made of its own copy, the oldest first.
    #[serde(default)]
    pub own_snapshots: Vec<OwnSnapshotStatus>,
}

/// Both copies were found to be the same: each file, and each name, at some moment after all these operations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvedStatus {
    /// Every operation before this one was done on both nodes when the comparison began.
    pub through: String,
    /// The end of the comparison, in UTC by the clock of that machine.
    pub time: String,
}

/// The comparison of the disks with the sums of their nodes in the background. The numbers are those of the last pass that has
/// come to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// The beginning of the pass of the moment, in UTC by the clock of that machine; `None` if none is under way.
    pub began: Option<String>,
    /// Inodes that this pass has compared.
    pub inodes_done: Option<u64>,
    /// The end of the last pass; `None` if none has come to its end.
    pub last_ended: Option<String>,
    /// Number of differences.
    pub differences_total: u64,
    /// Number of the differences that were healed.
    pub healed_total: u64,
    /// Blocks of 4 KiB of either node of whose bytes its sums said nothing.
    pub unproved_blocks: u64,
}

/// The seed from which a copy was made, which lacks each change since.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedStatus {
    /// The moment of the snapshot, in UTC by the clock of the node that made it.
    pub time: String,
    /// The operation that made the snapshot.
    pub osn: String,
}
