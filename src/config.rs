//! The configuration of one node: what an operator may say, and what is made of it.
//!
//! A configuration file is TOML. It is read whole, checked whole and refused whole: the mistakes
//! found are reported at once, each with its line, key, cause and cure, up to [`LISTED_MAX`] of them,
//! and an unknown key is never ignored. What is wrong besides its syntax is looked for once that is
//! right. `docs/reference-config.md` describes each key for operators.
//!
//! The types here hold values only and touch neither disks nor sockets; [`load`] alone reads the
//! file.
//!
//! Invariants of a [`NodeConfig`] that [`parse`] has returned:
//! - there is at least one datastore, and names, UUIDs, stores and mount points are all different;
//! - every path is absolute, and no store or mount point lies inside another;
//! - [`NodeConfig::link`] is there whenever any datastore has a peer;
//! - a secondary has a peer, and all peers have the same setting of `encryption`;
//! - every number lies within its documented bounds.

mod check;
mod problem;
mod section;
mod sections;
mod template;
mod value;

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use lockstep_driver::config::{
    ANSWER_LIMIT_BOUNDS_MS, ANSWER_LIMIT_DEFAULT, DatastoreConfig, FUSE_THREADS_BOUNDS,
    FUSE_THREADS_DEFAULT, NotAnAddress, PAUSE_LIMIT_BOUNDS_MS, PAUSE_LIMIT_DEFAULT,
    PEER_TIMEOUT_BOUNDS_MS, PEER_TIMEOUT_DEFAULT, PeerAddress, PeerConfig,
};
pub use lockstep_types::settings::{Choice, Durability, Encryption, OnPeerLoss, Role};
pub use problem::{ConfigError, LISTED_MAX, Problem};
pub use template::{Draft, DraftPeer, draft_text};

/// Longest name of a node or datastore, in bytes: a node's goes into its certificate.
pub const NAME_BYTES_MAX: usize = 63;
/// Longest path of a Unix socket that Linux can bind, in bytes (`sun_path` less its NUL).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Largest configuration file that is read: some hundred datastores.
pub const CONFIG_BYTES_MAX: u64 = 256 << 10;

/// Everything one node needs to know to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// What people call this node, in logs and in `lockstep status`.
    pub name: String,
    /// Unix socket on which the node answers commands. At most [`SOCKET_PATH_BYTES_MAX`] long.
    pub control: PathBuf,
    /// How this node meets its peers; `None` only when no datastore has a peer.
    pub link: Option<LinkConfig>,
    /// The datastores, in the order of the file; never empty.
    pub datastores: Vec<DatastoreConfig>,
}

impl NodeConfig {
    /// The datastore of that name.
    pub fn datastore(&self, name: &str) -> Option<&DatastoreConfig> {
        self.datastores.iter().find(|store| store.name == name)
    }
}

/// How a node proves who it is and where its peers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Directory with `node.key` and `node.crt`, made by `lockstep init`.
    pub identity: PathBuf,
    /// Where replication connections are accepted. The port is never zero.
    pub listen: SocketAddr,
}

/// Reads and checks the configuration file at `path`.
pub fn load(path: &Path) -> Result<NodeConfig, ConfigError> {
    let text = read_bounded(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&text, path)
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?.take(CONFIG_BYTES_MAX + 1);
    io::BufReader::new(file).read_to_string(&mut text)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        let why = format!("it is larger than {CONFIG_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

/// Checks the text of a configuration file; `path` only names it in errors.
pub fn parse(text: &str, path: &Path) -> Result<NodeConfig, ConfigError> {
    sections::read(text).map_err(|(problems, more)| ConfigError::Invalid {
        path: path.to_owned(),
        problems,
        more,
    })
}

#[cfg(test)]
mod tests;
