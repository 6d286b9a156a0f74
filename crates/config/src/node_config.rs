//! The checked configuration of a node. Plain values: this file touches neither disks nor sockets.

use std::net::SocketAddr;
use std::path::PathBuf;

use lockstep_driver::config::DatastoreConfig;
use lockstep_types::DatastoreUuid;
use lockstep_witness::WitnessConfig;

/// Longest name of a node or datastore, in bytes: the name of a node goes into its certificate.
pub const NAME_BYTES_MAX: usize = 63;
/// Longest path of a Unix socket that Linux can bind, in bytes (`sun_path` less its NUL).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The configuration of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Name of the node in logs and in `lockstep status`.
    pub name: String,
    /// Unix socket on which the node answers commands. At most [`SOCKET_PATH_BYTES_MAX`] long.
    pub control: PathBuf,
    /// Identity and address of the node for its peers; `None` only when no datastore has a peer.
    pub link: Option<LinkConfig>,
    /// The datastores, in the order of the file; never empty.
    pub datastores: Vec<DatastoreConfig>,
    /// The witnesses of the datastores that have one.
    pub witnesses: Vec<(DatastoreUuid, WitnessConfig)>,
}

impl NodeConfig {
    /// Returns the datastore of that name.
    pub fn datastore(&self, name: &str) -> Option<&DatastoreConfig> {
        self.datastores.iter().find(|store| store.name == name)
    }

    /// Returns the witness of a datastore.
    pub fn witness(&self, uuid: DatastoreUuid) -> Option<&WitnessConfig> {
        let mut all = self.witnesses.iter();
        all.find(|(of, _)| *of == uuid).map(|(_, witness)| witness)
    }
}

/// The identity of a node, and the address that its peers connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Directory with `node.key` and `node.crt`, made by `lockstep init`.
    pub identity: PathBuf,
    /// Address for replication connections. The port is never zero.
    pub listen: SocketAddr,
}
