//! What a node tells of itself: plain data, the same in JSON as on the socket.

use lockstep_driver::report::DatastoreStatus;
use serde::{Deserialize, Serialize};

/// How a node is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Name of the node.
    pub node: String,
    /// Version of the program it runs.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// The fingerprint of its certificate, which its peers have in their configurations; `None` for
    /// a node without peers.
    pub fingerprint: Option<String>,
    /// Its datastores, in the order of the configuration.
    pub datastores: Vec<DatastoreStatus>,
}
