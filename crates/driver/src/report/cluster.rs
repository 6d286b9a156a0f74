//! The cluster address of a datastore in a status, and the NFS server behind it: both belong to other programs, which may hang.

use serde::{Deserialize, Serialize};

/// The cluster address that moves by the answers of this node, as the node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The address.
    pub address: String,
    /// Whether this server has the address.
    pub here: bool,
    /// Time since the node has seen the address come to this server or leave it, in milliseconds. The first look counts as
    /// well.
    pub moved_ms: u64,
    /// Time since the program that moves the address has last asked this node, in milliseconds.
    pub asked_ms: u64,
    /// Time for which the NFS server has not answered at the address, in milliseconds: zero if it has answered the last time.
    /// `None` without a caller that asks for the NFS server, if the address is elsewhere, or if this node lets changes wait.
    pub nfs_silent_ms: Option<u64>,
}
