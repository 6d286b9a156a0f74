//! The configuration file of a playground's node, as the playground writes it and reads it back.
//!
//! The file holds the keys that a playground sets. `docs/reference-config.md` describes each key; a node checks the
//! file when it starts.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lockstep_link::Fingerprint;
use lockstep_types::Role;
use serde::{Deserialize, Serialize};

/// Name of the datastore in every playground.
pub(crate) const DATASTORE: &str = "playground";

/// The first lines of the file.
const HEAD: &str = "\
# Configuration of a node of a playground. docs/reference-config.md describes every key.
# The playground writes this file again whenever it starts.

";

/// The whole file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeFile {
    pub(crate) node: NodeTable,
    pub(crate) datastore: Vec<DatastoreTable>,
}

/// The table `[node]`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeTable {
    pub(crate) name: String,
    pub(crate) identity: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) control: PathBuf,
}

/// The table `[[datastore]]`. A setting that is a word is passed on as the word.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DatastoreTable {
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) store: PathBuf,
    pub(crate) mount: PathBuf,
    pub(crate) role: Role,
    pub(crate) durability: String,
    pub(crate) on_peer_loss: String,
    /// Absent with a witness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pause_limit_ms: Option<u64>,
    /// Absent without a witness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failover_after_ms: Option<u64>,
    /// Absent in a playground without a replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<PeerTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) witness: Option<WitnessTable>,
}

/// The table `[datastore.witness]`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WitnessTable {
    pub(crate) address: SocketAddr,
    pub(crate) fingerprint: Fingerprint,
}

/// The table `[datastore.peer]`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PeerTable {
    pub(crate) address: SocketAddr,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) encryption: String,
}

impl NodeFile {
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = toml::to_string(self)
            .with_context(|| format!("cannot write the configuration {}", path.display()))?;
        fs::write(path, format!("{HEAD}{text}"))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| {
            format!(
                "{} is not the configuration of a playground\n  cure: choose another --dir",
                path.display()
            )
        })
    }
}
