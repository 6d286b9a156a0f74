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

mod address;
mod check;
mod choice;
mod problem;
mod section;
mod sections;
mod template;
mod value;

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_link::identity::Fingerprint;
use lockstep_types::DatastoreUuid;

pub use address::{NotAnAddress, PeerAddress};
pub use choice::{Choice, Durability, Encryption, OnPeerLoss, Role};
pub use problem::{ConfigError, LISTED_MAX, Problem};
pub use template::{Draft, DraftPeer, draft_text};

/// How long acknowledgements wait for a lost peer unless said otherwise.
pub const PAUSE_LIMIT_DEFAULT: Duration = Duration::from_secs(10);
/// Bounds of `pause_limit_ms`, in milliseconds.
pub const PAUSE_LIMIT_BOUNDS_MS: (u64, u64) = (0, 600_000);
/// How long a silent peer is believed to be there unless said otherwise.
pub const PEER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);
/// Bounds of `peer_timeout_ms`, in milliseconds.
pub const PEER_TIMEOUT_BOUNDS_MS: (u64, u64) = (200, 60_000);
/// How long an operation waits for the answer of a connected peer unless said otherwise: longer than a
/// disk that is only slow takes for a flush.
pub const ANSWER_LIMIT_DEFAULT: Duration = Duration::from_secs(60);
/// Bounds of `answer_limit_ms`, in milliseconds.
pub const ANSWER_LIMIT_BOUNDS_MS: (u64, u64) = (1000, 600_000);
/// The longest time between two questions for a sign of life.
const BEAT_MAX: Duration = Duration::from_millis(500);
/// Threads that serve one mount unless said otherwise: measured best at eight jobs on two cores.
pub const FUSE_THREADS_DEFAULT: usize = 8;
/// Bounds of `fuse_threads`.
pub const FUSE_THREADS_BOUNDS: (u64, u64) = (1, 64);
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

/// One datastore as this node holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatastoreConfig {
    /// Name of the datastore in commands and logs, the same on both nodes by custom only.
    pub name: String,
    /// Identity of the datastore, the same on both nodes.
    pub uuid: DatastoreUuid,
    /// Directory of the backing store on this node.
    pub store: PathBuf,
    /// Directory where the datastore is mounted while this node is its primary.
    pub mount: PathBuf,
    /// What this node is for the datastore.
    pub role: Role,
    /// When an acknowledged write must be on stable storage. Default [`Durability::Posix`].
    pub durability: Durability,
    /// What happens to clients when the peer stays away. Default [`OnPeerLoss::Continue`].
    pub on_peer_loss: OnPeerLoss,
    /// How long acknowledgements wait for a lost peer before [`Self::on_peer_loss`] decides.
    /// Default [`PAUSE_LIMIT_DEFAULT`], bounds [`PAUSE_LIMIT_BOUNDS_MS`].
    pub pause_limit: Duration,
    /// How long the peer may be silent before the connection counts as lost.
    /// Default [`PEER_TIMEOUT_DEFAULT`], bounds [`PEER_TIMEOUT_BOUNDS_MS`].
    pub peer_timeout: Duration,
    /// How long an operation waits for the answer of a peer that is connected, before
    /// [`Self::on_peer_loss`] decides. Default [`ANSWER_LIMIT_DEFAULT`], bounds
    /// [`ANSWER_LIMIT_BOUNDS_MS`].
    pub answer_limit: Duration,
    /// Threads that serve the mount. Default [`FUSE_THREADS_DEFAULT`], bounds
    /// [`FUSE_THREADS_BOUNDS`].
    pub fuse_threads: usize,
    /// The other node; `None` for a datastore that is deliberately not mirrored.
    pub peer: Option<PeerConfig>,
}

impl DatastoreConfig {
    /// How often the peer is asked for a sign of life.
    pub fn beat(&self) -> Duration {
        BEAT_MAX.min(self.peer_timeout / 4)
    }

    /// [`Self::answer_limit`] in signs of life that the peer has given. One more, as the first may answer what
    /// was asked before.
    pub fn answer_limit_beats(&self) -> u64 {
        let beats = self.answer_limit.as_nanos() / self.beat().as_nanos().max(1);
        u64::try_from(beats).unwrap_or(u64::MAX).saturating_add(1)
    }
}

/// The other node of a datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Where it accepts replication connections.
    pub address: PeerAddress,
    /// The certificate it must show.
    pub fingerprint: Fingerprint,
    /// Whether the bytes between the nodes are encrypted. Default [`Encryption::On`].
    pub encryption: Encryption,
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
