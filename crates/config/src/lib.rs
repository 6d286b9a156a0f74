//! The configuration file of one node or of a witness, and its check.
//!
//! A configuration file is TOML. It is read whole, checked whole and refused whole: all mistakes are reported at
//! once, each with its line, key, cause and cure, up to [`LISTED_MAX`] of them. An unknown key is never ignored. If
//! the syntax is wrong, only mistakes of syntax are reported. `docs/reference-config.md` describes each key for
//! operators. [`settings`] is the one description of the keys of a datastore, with which a test compares that page.
//!
//! The types of this module are plain values, which touch neither disks nor sockets. Only [`load`] and [`load_witness`]
//! read a file.
//!
//! Invariants of a [`NodeConfig`] that [`parse`] has returned:
//! - there is at least one datastore, and names, UUIDs, stores and mount points are all different;
//! - every path is absolute, and no store or mount point lies inside another;
//! - [`NodeConfig::link`] is set whenever any datastore has a peer;
//! - a datastore with a witness has a peer, and neither of the two nodes is the witness;
//! - a secondary has a peer, and all peers have the same setting of `encryption`;
//! - every number lies within its documented bounds.

mod check;
mod hooks_section;
mod located;
mod node_config;
mod problem;
mod section;
mod sections;
mod snapshots_section;
mod template;
mod value;
mod witness_section;
mod witness_server;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use lockstep_driver::config::{
    DatastoreConfig, FUSE_THREADS_DEFAULT, NotAnAddress, PeerAddress, PeerConfig, Policies,
    settings,
};
pub use lockstep_types::settings::{
    Choice, Durability, Encryption, OnPeerLoss, OnPowerLoss, Role, Standby,
};
pub use lockstep_witness::WitnessConfig;
pub use node_config::{LinkConfig, NAME_BYTES_MAX, NodeConfig, SOCKET_PATH_BYTES_MAX};
pub use problem::{ConfigError, LISTED_MAX, Problem};
pub use template::{ConfigDraft, DraftPeer, NodeDraft, draft_text, witness_section_text};
pub use witness_server::{WitnessDraft, WitnessServerConfig, WitnessedNode, witness_draft_text};

/// Largest configuration file that [`load`] accepts: enough for some hundred datastores.
pub const CONFIG_BYTES_MAX: u64 = 256 << 10;

/// Reads and checks the configuration file at `path`.
pub fn load(path: &Path) -> Result<NodeConfig, ConfigError> {
    parse(&read_bounded(path)?, path)
}

/// Reads and checks the configuration file of a witness at `path`.
pub fn load_witness(path: &Path) -> Result<WitnessServerConfig, ConfigError> {
    parse_witness(&read_bounded(path)?, path)
}

fn read_bounded(path: &Path) -> Result<String, ConfigError> {
    read_text(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?.take(CONFIG_BYTES_MAX + 1);
    io::BufReader::new(file).read_to_string(&mut text)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        let why = format!("it is larger than {CONFIG_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

/// Checks the text of a configuration file. `path` appears only in errors.
pub fn parse(text: &str, path: &Path) -> Result<NodeConfig, ConfigError> {
    sections::read(text).map_err(|listed| invalid(path, listed))
}

/// Checks the text of the configuration file of a witness. `path` appears only in errors.
pub fn parse_witness(text: &str, path: &Path) -> Result<WitnessServerConfig, ConfigError> {
    witness_server::read(text).map_err(|listed| invalid(path, listed))
}

fn invalid(path: &Path, (problems, more): problem::Listed) -> ConfigError {
    ConfigError::Invalid {
        path: path.to_owned(),
        problems,
        more,
    }
}

#[cfg(test)]
mod tests;
