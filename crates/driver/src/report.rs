//! The reports of a datastore: plain data, the same in JSON as on the control socket.

mod changes;
mod cluster;
pub(crate) mod comparison;
mod copy;
mod fitness;
mod own_snapshots;
mod snapshot_diff;
mod snapshots;
mod trash;

use std::num::NonZeroU64;

use lockstep_types::settings::{Choice, Durability, Encryption, OnPeerLoss, Role, Standby};
use lockstep_types::time::millis;
use serde::{Deserialize, Serialize};

use crate::config::DatastoreConfig;

pub use changes::{
    ChangeEntry, ChangeReaderStatus, ChangedRange, ChangesHead, ChangesPart, ChangesQuestion,
    ReaderCommand,
};
pub use cluster::ClusterStatus;
pub use copy::{CopyStatus, ProvedStatus, ScrubStatus, SeedStatus};
pub use lockstep_types::{ResyncPhase, ResyncStatus, ResyncWait};
pub use own_snapshots::OwnSnapshotStatus;
pub use snapshot_diff::{
    DiffBegin, DiffBytes, DiffHead, DiffItem, DiffMoment, DiffPart, DiffQuestion,
};
pub use snapshots::{SnapshotCommand, SnapshotStatus};
pub use trash::{
    RestoreQuestion, TrashAnswer, TrashCommand, TrashEntry, TrashPage, TrashRestored, TrashStatus,
};

/// Settings of a datastore, and its place on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsStatus {
    /// Name of the datastore.
    pub name: String,
    /// Identity of the datastore.
    pub uuid: String,
    /// Role of this node at this moment; the configured one before the store is opened.
    pub role: Role,
    /// Mount point; `None` if the datastore is not mounted.
    pub mount: Option<String>,
    /// When acknowledged writes are on stable storage.
    pub durability: Durability,
    /// Policy for a peer that stays away.
    pub on_peer_loss: OnPeerLoss,
    /// Most bytes of content that a resync reads in a second, if this node is the primary; `None` without a limit.
    #[serde(default)]
    pub resync_bytes_per_second: Option<u64>,
    /// Time of an operation above which a resync pauses, in milliseconds; `None`: it never pauses.
    #[serde(default)]
    pub resync_pause_above_ms: Option<u64>,
}

/// State of a datastore, and its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncStatus {
    /// The state in words, such as `synced and connected`.
    pub state: String,
    /// The service for changes of clients at this moment.
    pub service: ServiceStatus,
    /// Time since this node last began or ceased to serve, in milliseconds: since its start, if it has done neither. Zero
    /// before the store is open.
    #[serde(default)]
    pub service_since_ms: u64,
    /// Time for which no other node serves by itself, even if this process ends, in milliseconds: a restart within
    /// this time is no failover. `None` if this node does not serve, or if its mount ends with the process.
    #[serde(default)]
    pub restart_within_ms: Option<u64>,
    /// Whether the nodes are connected and both hold every acknowledged operation. False for an
    /// unmirrored datastore.
    pub in_sync: bool,
    /// The content of this copy.
    #[serde(flatten)]
    pub copy: CopyStatus,
    /// Time in this state, in milliseconds.
    pub since_ms: u64,
    /// Time since the last barrier, in milliseconds: after a loss of power of one node, a resync compares what was written since
    /// then, and the changes that this node has made alone. `None`: everything is compared, as far as this process knows; and on a secondary.
    #[serde(default)]
    pub barrier_since_ms: Option<u64>,
    /// Why the nodes are not in sync, as far as known; and the trouble that an operator has to mend, although
    /// programs notice nothing.
    pub reason: Option<String>,
    /// Whether the node could open the store and, on the primary, mount it. If not, `reason` says why, and the node
    /// tries again from time to time.
    pub started: bool,
    /// The disk of this node, if it hangs.
    #[serde(default)]
    pub disk_stall: Option<DiskStallStatus>,
    /// The cluster address that moves by the answers of this node; `None` if no program has asked for one since the start of
    /// the process.
    #[serde(default)]
    pub cluster: Option<ClusterStatus>,
}

/// A disk that hangs: its calls do not return, and it reports no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStallStatus {
    /// Time for which the disk has not answered, in milliseconds.
    pub silent_ms: u64,
    /// This node was the primary, and has stopped serving so that the other node takes over.
    pub gave_way: bool,
}

/// Position and operations in flight of a datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkStatus {
    /// Generation: the number of changes of the primary, plus one.
    pub generation: u64,
    /// The last operation, as `generation.sequence`.
    pub osn: String,
    /// Writes not yet done on both nodes.
    pub writes_in_flight: u64,
    /// Metadata operations not yet done on both nodes.
    pub metadata_in_flight: u64,
    /// Bytes of writes that wait, or have waited and are not over, in memory and on the disk of the store.
    pub kept_bytes: u64,
    /// Requests of programs that wait in the mount for this node to serve.
    #[serde(default)]
    pub waiting_requests: u64,
    /// Entries of the primary's table of writes in flight.
    pub paw: u64,
    /// Entries of the secondary's table of writes in flight.
    pub saw: u64,
    /// The metadata operation that has been under way for longest, if that is more than a second.
    #[serde(default)]
    pub slow_operation: Option<SlowOperationStatus>,
}

/// A metadata operation that takes long. Later ones wait for it, because all have one order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowOperationStatus {
    /// The name of the operation, that of a system call where there is one.
    pub operation: String,
    /// The inode: of the file, or of the directory of the name.
    pub inode: u64,
    /// Time for which it has been under way, in milliseconds.
    pub since_ms: u64,
}

/// The witness of a datastore, as this node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WitnessStatus {
    /// Address of the witness. The node adds the address, because the driver does not know it: it is empty before that.
    pub address: String,
    /// The witness has answered the last call.
    pub answers: bool,
    /// The witness lets the secondary take over, as far as this node knows.
    pub protects: bool,
    /// Why the witness did not answer the last call, or why its answer decides nothing.
    pub trouble: Option<String>,
    /// The witness does not know that an operator has forced this node to lead.
    #[serde(default)]
    pub unaware: bool,
}

/// The times by which a mirrored datastore goes, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimesStatus {
    /// Time between two signs of life on the connection.
    pub ping_ms: u64,
    /// Time without a word of the peer after which the connection is treated as lost.
    pub peer_timeout_ms: u64,
    /// Wait of acknowledgements for a lost peer; `None` if the answer of the witness ends the wait.
    pub pause_limit_ms: Option<u64>,
    /// Wait of an operation for a connected peer.
    pub answer_limit_ms: u64,
    /// Time without an answer of this node's disk after which the disk hangs; `None` if no thread watches the disk.
    #[serde(default)]
    pub disk_stall_limit_ms: Option<u64>,
    /// The times of a failover; `None` without a witness.
    pub failover: Option<FailoverTimesStatus>,
}

/// The times of a failover through the witness, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailoverTimesStatus {
    /// From the loss of the connection to the takeover by the secondary.
    pub takeover_ms: u64,
    /// From the loss of the connection to the primary's question whether it may serve alone.
    pub alone_ms: u64,
    /// Time for which an answered ping lets the primary serve.
    pub lease_ms: u64,
    /// Limit of one call of the witness.
    pub witness_call_ms: u64,
}

impl TimesStatus {
    /// The times of a configuration; `None` for an unmirrored datastore.
    fn of_configuration(config: &DatastoreConfig) -> Option<Self> {
        config.peer.as_ref()?;
        Some(Self {
            ping_ms: millis(config.beat()),
            peer_timeout_ms: millis(config.peer_timeout),
            pause_limit_ms: (!config.witness_ends_pause()).then(|| millis(config.pause_limit)),
            answer_limit_ms: millis(config.answer_limit),
            disk_stall_limit_ms: config.policies.disk_stall_limit.get().map(millis),
            failover: config.failover().map(|times| FailoverTimesStatus {
                takeover_ms: millis(times.takeover()),
                alone_ms: millis(times.alone()),
                lease_ms: millis(times.lease()),
                witness_call_ms: millis(times.call()),
            }),
        })
    }
}

/// Status of one datastore on this node. In JSON the fields of the first three parts stand beside the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatastoreStatus {
    /// Settings.
    #[serde(flatten)]
    pub settings: SettingsStatus,
    /// State.
    #[serde(flatten)]
    pub sync: SyncStatus,
    /// Operations in flight.
    #[serde(flatten)]
    pub work: WorkStatus,
    /// The failure of the store's disk, if there is one: nothing is promised until an operator acts.
    pub poisoned: Option<PoisonStatus>,
    /// The other node; `None` for an unmirrored datastore.
    pub peer: Option<PeerStatus>,
    /// The witness; `None` for a datastore without one.
    pub witness: Option<WitnessStatus>,
    /// The times in force; `None` for an unmirrored datastore.
    pub times: Option<TimesStatus>,
    /// Space on the disk of the store, if the disk answers.
    pub space: Option<SpaceStatus>,
    /// Progress of a resync, or of the recovery after a lost connection, while there is one. A secondary knows what the
    /// primary has told it.
    pub resync: Option<ResyncStatus>,
    /// Files in the mount directory itself, if there are any. They were written while nothing was mounted there.
    pub stray: Option<StrayStatus>,
    /// Result of the last comparison of both nodes since the start of the node; on the primary. A later resync makes
    /// the result void, but differences stay until everything is compared.
    pub verified: Option<VerifiedStatus>,
    /// The trash, on a primary that keeps one or still has something in it.
    pub trash: Option<TrashStatus>,
}

impl DatastoreStatus {
    /// The status of a datastore before it is opened: its configuration.
    pub fn of_configuration(config: &DatastoreConfig) -> Self {
        let resync = config.policies.resync;
        Self {
            settings: SettingsStatus {
                name: config.name.clone(),
                uuid: config.uuid.to_string(),
                role: config.role,
                mount: None,
                durability: config.policies.durability,
                on_peer_loss: config.policies.on_peer_loss,
                resync_bytes_per_second: resync.bytes_per_second.map(NonZeroU64::get),
                resync_pause_above_ms: resync.pause_above.map(millis),
            },
            sync: SyncStatus {
                state: String::new(),
                service: ServiceStatus::None,
                service_since_ms: 0,
                restart_within_ms: None,
                in_sync: false,
                copy: CopyStatus::default(),
                since_ms: 0,
                barrier_since_ms: None,
                reason: None,
                started: true,
                disk_stall: None,
                cluster: None,
            },
            work: WorkStatus {
                generation: 1,
                osn: "0.0".to_owned(),
                writes_in_flight: 0,
                metadata_in_flight: 0,
                kept_bytes: 0,
                waiting_requests: 0,
                paw: 0,
                saw: 0,
                slow_operation: None,
            },
            poisoned: None,
            peer: config.peer.as_ref().map(|peer| PeerStatus {
                address: peer.address.to_string(),
                connected: false,
                encryption: peer.encryption,
                disk_failed: false,
                obstacle: false,
                disk_silent_ms: None,
            }),
            times: TimesStatus::of_configuration(config),
            witness: config.failover_after.map(|_| WitnessStatus {
                address: String::new(),
                answers: false,
                protects: false,
                trouble: None,
                unaware: false,
            }),
            space: None,
            resync: None,
            stray: None,
            verified: None,
            trash: None,
        }
    }
}

/// Files in a mount directory that are no part of the datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrayStatus {
    /// The first names.
    pub names: Vec<String>,
    /// Whether there are more names.
    pub more: bool,
}

/// Result of the last comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedStatus {
    /// End of the comparison, in UTC by the clock of that machine.
    pub time: String,
    /// Whether both nodes held the same data.
    pub identical: bool,
    /// Number of differences.
    pub differences_total: u64,
    /// The first differences, in words.
    pub differences: Vec<String>,
    /// Only what the last resync has touched was compared.
    #[serde(default)]
    pub only_touched: bool,
    /// Number of files and directories that differed at the end of the last resync, and that it has sent again. The differences are
    /// those of before then.
    #[serde(default)]
    pub sent_again: u64,
}

/// The service for changes of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceStatus {
    /// A change is executed on both nodes.
    Mirrored,
    /// A change is executed on this node only.
    Alone,
    /// A write is executed on this node only; a change of names or attributes waits.
    WritesAlone,
    /// A change waits.
    Waiting,
    /// A change fails: the disk has failed.
    Refused,
    /// Every request waits: this node was the primary, and has to meet its peer, or to be promoted, before it serves.
    Undecided,
    /// There are no clients: this node is a secondary or about to become one, or has not started the datastore.
    None,
}

impl Choice for ServiceStatus {
    const ALL: &'static [(Self, &'static str)] = &[
        (Self::Mirrored, "mirrored"),
        (Self::Alone, "alone"),
        (Self::WritesAlone, "writes-alone"),
        (Self::Waiting, "waiting"),
        (Self::Refused, "refused"),
        (Self::Undecided, "undecided"),
        (Self::None, "none"),
    ];
}

/// A failure of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoisonStatus {
    /// The failed call, its file, and the error.
    pub reason: String,
    /// Time of the failure, in UTC by the clock of that machine.
    pub time: String,
}

/// The other node, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Configured address.
    pub address: String,
    /// Whether there is a connection.
    pub connected: bool,
    /// Whether the bytes between the nodes are encrypted.
    pub encryption: Encryption,
    /// Whether the peer's disk has failed, by the peer's own word: then the peer needs an operator.
    pub disk_failed: bool,
    /// Whether `reason` needs an operator: waiting for the other node does not help, as with a configuration that
    /// does not fit or a full disk.
    pub obstacle: bool,
    /// Time for which the peer's disk has not answered by the peer's word, in milliseconds, if that is longer than this
    /// node's limit for its own disk.
    #[serde(default)]
    pub disk_silent_ms: Option<u64>,
}

/// Space on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceStatus {
    /// Size of the disk, in bytes.
    pub total_bytes: u64,
    /// Available space, in bytes.
    pub available_bytes: u64,
}

/// The way in which both nodes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyMode {
    /// By the sums of the files. Content is read, as programs read it, only where the sums differ or say nothing.
    Sums,
    /// Content is read as programs read it: from memory, if the kernel has it there.
    Memory,
    /// Content is read from the disks, and compared with the sums of each node.
    Disk,
    /// The same, and the wrong side is repaired where the right one is known.
    Repair,
}

/// Progress of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyProgress {
    /// Number of compared inodes.
    pub inodes_compared: u64,
    /// Number of inodes, once known.
    pub inodes_total: Option<u64>,
    /// Bytes of content compared.
    pub bytes_compared: u64,
}

/// Result of a comparison, as `lockstep verify` prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Whether both nodes hold the same data.
    pub identical: bool,
    /// Number of compared inodes.
    pub inodes_compared: u64,
    /// Bytes of content compared.
    pub bytes_compared: u64,
    /// Number of differences.
    pub differences_total: u64,
    /// Number of the differences that were repaired.
    #[serde(default)]
    pub healed_total: u64,
    /// Blocks of 4 KiB of either node of whose bytes its sums say nothing, if the disks were read.
    #[serde(default)]
    pub unproved_blocks: u64,
    /// The folder, in the store of each node, with the versions of the blocks that were repaired, or of which no node knows
    /// the right one; `None` if nothing was to be repaired.
    #[serde(default)]
    pub kept_in: Option<String>,
    /// The first differences.
    pub differences: Vec<Difference>,
}

/// One difference between the nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The inode; zero if the difference belongs to no inode.
    pub inode: u64,
    /// A path to the inode from the root of the datastore, if one is known.
    pub path: Option<String>,
    /// The difference, in words.
    pub what: String,
    /// The blocks on the disks, if the difference is in them.
    #[serde(default)]
    pub blocks: Option<BlocksDifference>,
}

/// Blocks of a file that differ on the disks, or do not fit their sums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlocksDifference {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// The decision, as one word.
    pub verdict: String,
    /// The node with the wrong bytes or sums, if that is known.
    pub wrong_on: Option<Role>,
    /// Whether the blocks, or their sums, were repaired.
    pub healed: bool,
}

/// A change of roles, as the commands print it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleReport {
    /// Role of this node now.
    pub role: Role,
    /// Generation in which this node has the role.
    pub generation: u64,
    /// Time during which requests of clients waited, in milliseconds, as far as this node knows.
    pub pause_ms: u64,
    /// The departure of the cluster address before the change; `None` if no cluster address was on this server.
    #[serde(default)]
    pub address: Option<AddressDeparture>,
    /// For a promotion of a secondary: the moment at which its copy was last in sync, in UTC by the clock of that machine.
    #[serde(default)]
    pub as_of: Option<String>,
    /// The witness does not know of a forced promotion: the other node must not serve until it does.
    #[serde(default)]
    pub witness_unaware: bool,
    /// The answer to programs that go on at this node while the node does not serve.
    #[serde(default)]
    pub standby: Option<Standby>,
    /// For a planned failover: why the copies were not proved to be the same before; `None` if they were.
    #[serde(default)]
    pub unproved: Option<String>,
}

/// How the cluster address left this server before a planned failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressDeparture {
    /// Whether the address has left within the limit.
    pub left: bool,
    /// The wait, in milliseconds.
    pub waited_ms: u64,
}

/// A command that could not be executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{cause}\n  cure: {cure}")]
pub struct CommandFailure {
    /// The cause.
    pub cause: String,
    /// The cure.
    pub cure: String,
}

impl CommandFailure {
    /// A failure with its cause and its cure.
    pub fn new(cause: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            cure: cure.into(),
        }
    }
}
