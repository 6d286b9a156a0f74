//! The status of a node: plain data, with the same content in JSON as on the socket.

use lockstep_driver::report::DatastoreStatus;
use serde::{Deserialize, Serialize};

/// The status of a node at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Name of the node.
    pub node: String,
    /// Version of the node's program.
    pub version: String,
    /// Process id of the node.
    pub pid: u32,
    /// Fingerprint of the node's certificate, which the configurations of its peers contain; `None` for a node
    /// without peers.
    pub fingerprint: Option<String>,
    /// The datastores of the node, in the order of the configuration.
    pub datastores: Vec<DatastoreStatus>,
}
