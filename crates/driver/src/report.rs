//! What a datastore tells of itself: plain data, the same in JSON as on the control socket.

use lockstep_types::settings::{Choice, Durability, Encryption, OnPeerLoss, Role};
use serde::{Deserialize, Serialize};

use crate::config::DatastoreConfig;

/// How one datastore is on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatastoreStatus {
    /// Name of the datastore.
    pub name: String,
    /// Identity of the datastore.
    pub uuid: String,
    /// What this node is for it.
    pub role: Role,
    /// The state in words, such as `synced and connected`.
    pub state: String,
    /// What happens to a change that a client asks for now.
    pub service: ServiceStatus,
    /// Whether the nodes are connected and both hold every acknowledged operation. False for an
    /// unmirrored datastore.
    pub in_sync: bool,
    /// What is noted on stable storage. On the primary: the secondary holds every operation that was
    /// acknowledged. On the secondary: this copy did when the connection was lost.
    pub marked_in_sync: bool,
    /// For how long it has been in this state, in milliseconds.
    pub since_ms: u64,
    /// Why it is not in sync, where there is something to say.
    pub reason: Option<String>,
    /// How the disk of the store has failed, if it has: nothing is promised until an operator acts.
    pub poisoned: Option<PoisonStatus>,
    /// The other node; `None` for an unmirrored datastore.
    pub peer: Option<PeerStatus>,
    /// How often the primary has changed, from one.
    pub generation: u64,
    /// The last operation, as `generation.sequence`.
    pub osn: String,
    /// Writes not yet done on both nodes.
    pub writes_in_flight: u64,
    /// Metadata operations not yet done on both nodes.
    pub metadata_in_flight: u64,
    /// Bytes of writes that cannot begin yet, or could not at first and are not over, in memory and on the disk of
    /// the store.
    pub kept_bytes: u64,
    /// Entries of the table of writes that the primary keeps for recovery.
    pub paw: u64,
    /// Entries of the table of writes that the secondary keeps for recovery.
    pub saw: u64,
    /// Where it is mounted; `None` where it is not.
    pub mount: Option<String>,
    /// When acknowledged writes are on stable storage.
    pub durability: Durability,
    /// What happens when the peer stays away.
    pub on_peer_loss: OnPeerLoss,
    /// Room on the disk of the store, where it could be asked.
    pub space: Option<SpaceStatus>,
    /// How far the resync of content is, while there is one; on the primary.
    pub resync: Option<ResyncStatus>,
    /// Whether the node could open the store and, on the primary, mount it. If not, `reason` says why, and
    /// the node tries again from time to time.
    pub started: bool,
    /// What the mount directory itself holds, if anything: it was written while nothing was mounted there.
    pub stray: Option<StrayStatus>,
    /// What the last comparison of both nodes found, if there was one since the node was started; on the
    /// primary. A resync that has ended since makes it void.
    pub verified: Option<VerifiedStatus>,
}

impl DatastoreStatus {
    /// Of a datastore of which nothing is known but its configuration.
    pub fn of_configuration(config: &DatastoreConfig) -> Self {
        Self {
            name: config.name.clone(),
            uuid: config.uuid.to_string(),
            role: config.role,
            state: String::new(),
            service: ServiceStatus::None,
            in_sync: false,
            marked_in_sync: false,
            since_ms: 0,
            reason: None,
            poisoned: None,
            peer: config.peer.as_ref().map(|peer| PeerStatus {
                address: peer.address.to_string(),
                connected: false,
                encryption: peer.encryption,
                disk_failed: false,
                obstacle: false,
            }),
            generation: 1,
            osn: "0.0".to_owned(),
            writes_in_flight: 0,
            metadata_in_flight: 0,
            kept_bytes: 0,
            paw: 0,
            saw: 0,
            mount: None,
            durability: config.durability,
            on_peer_loss: config.on_peer_loss,
            space: None,
            resync: None,
            started: true,
            stray: None,
            verified: None,
        }
    }
}

/// Files in a mount directory that are no part of the datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrayStatus {
    /// The first names.
    pub names: Vec<String>,
    /// Whether there are more.
    pub more: bool,
}

/// What the last comparison found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedStatus {
    /// When it ended, in UTC by the clock of that machine.
    pub time: String,
    /// Whether both nodes held the same.
    pub identical: bool,
    /// How many differences there were.
    pub differences_total: u64,
    /// The first of them, in words.
    pub differences: Vec<String>,
}

/// What a change that a client asks for meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceStatus {
    /// It is done on both nodes.
    Mirrored,
    /// It is done on this node only.
    Alone,
    /// A write is done on this node only; a change of names or attributes waits.
    WritesAlone,
    /// It waits.
    Waiting,
    /// It fails: the disk has failed.
    Refused,
    /// There are no clients: this node is a secondary, or has not started the datastore.
    None,
}

impl Choice for ServiceStatus {
    const ALL: &'static [(Self, &'static str)] = &[
        (Self::Mirrored, "mirrored"),
        (Self::Alone, "alone"),
        (Self::WritesAlone, "writes-alone"),
        (Self::Waiting, "waiting"),
        (Self::Refused, "refused"),
        (Self::None, "none"),
    ];
}

/// How a disk failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoisonStatus {
    /// What failed, on which file, with which error.
    pub reason: String,
    /// When, in UTC by the clock of that machine.
    pub time: String,
}

/// The other node, as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Where it is expected.
    pub address: String,
    /// Whether it is there.
    pub connected: bool,
    /// Whether the bytes between the nodes are encrypted.
    pub encryption: Encryption,
    /// Whether its disk has failed, by its own word: then it needs an operator.
    pub disk_failed: bool,
    /// Whether `reason` names something that does not go away by waiting for the other node, such as a
    /// configuration that does not fit or a full disk.
    pub obstacle: bool,
}

/// How far a resync of content has come. The totals are those at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResyncStatus {
    /// Regular files there are.
    pub files_total: u64,
    /// Regular files that are equal on both nodes now.
    pub files_done: u64,
    /// Bytes of content there are, holes included.
    pub bytes_total: u64,
    /// Bytes of content compared, holes included.
    pub bytes_done: u64,
    /// Bytes sent because they differed.
    pub bytes_sent: u64,
}

/// Room on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceStatus {
    /// All of it, in bytes.
    pub total_bytes: u64,
    /// What may still be used, in bytes.
    pub available_bytes: u64,
}

/// How far a comparison has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyProgress {
    /// Files, directories and so on compared.
    pub inodes_compared: u64,
    /// How many there are, once that is known.
    pub inodes_total: Option<u64>,
    /// Bytes of content compared.
    pub bytes_compared: u64,
}

/// The outcome of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Whether both nodes hold the same.
    pub identical: bool,
    /// Files, directories and so on compared.
    pub inodes_compared: u64,
    /// Bytes of content compared.
    pub bytes_compared: u64,
    /// How many differences there are.
    pub differences_total: u64,
    /// The first of them.
    pub differences: Vec<Difference>,
}

/// One thing that is not the same on both nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The inode; zero for what belongs to none.
    pub inode: u64,
    /// A name that leads to it, from the root of the datastore, if one is known.
    pub path: Option<String>,
    /// What differs, in words.
    pub what: String,
}

/// A comparison that could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{cause}\n  cure: {cure}")]
pub struct VerifyFailure {
    /// Why not.
    pub cause: String,
    /// What to do about it.
    pub cure: String,
}
