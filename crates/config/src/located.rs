//! The sections of a configuration file, together with the lines of their keys.

use std::net::SocketAddr;
use std::path::PathBuf;

use lockstep_driver::config::DatastoreConfig;
use lockstep_witness::WitnessConfig;

use super::node_config::LinkConfig;
use super::problem::Problems;
use super::section::{KeyLines, Section};

/// The values of `[node]`.
pub(super) struct NodeSection<'d> {
    pub(super) section: Section<'d>,
    pub(super) lines: KeyLines,
    pub(super) name: Option<String>,
    pub(super) control: Option<PathBuf>,
    pub(super) identity: Option<PathBuf>,
    pub(super) listen: Option<SocketAddr>,
}

impl NodeSection<'_> {
    /// Returns identity and address of the node for its peers. Both keys are required if a datastore has a peer.
    pub(super) fn link(&self, problems: &mut Problems<'_>, mirrored: bool) -> Option<LinkConfig> {
        let required = [
            (
                "identity",
                "identity = \"/etc/lockstep/a\", the directory made by `lockstep init`",
            ),
            (
                "listen",
                "listen = \"10.0.0.1:7400\", the address of this server for replication",
            ),
        ];
        for (key, example) in required {
            if mirrored && !self.section.has(key) {
                self.section.report_missing(problems, key, example);
            }
        }
        Some(LinkConfig {
            identity: self.identity.clone()?,
            listen: self.listen?,
        })
    }
}

/// The values of one `[[datastore]]`.
pub(super) struct LocatedDatastore {
    /// The datastore; its peer is missing if the file has a refused one.
    pub(super) datastore: DatastoreConfig,
    /// The witness, if the file has a valid one.
    pub(super) witness: Option<WitnessConfig>,
    /// The lines of the keys of the witness, if it is a section.
    pub(super) witness_lines: Option<KeyLines>,
    pub(super) lines: KeyLines,
    /// Whether the file has a peer, valid or not.
    pub(super) has_peer: bool,
    /// The lines of the keys of the peer, if it is a section.
    pub(super) peer_lines: Option<KeyLines>,
}
