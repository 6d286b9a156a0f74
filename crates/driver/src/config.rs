//! The configuration of one datastore, as values. The program reads them from its configuration file; the simulator
//! makes them itself.

mod address;
mod changes;
mod handle;
mod resync_limits;
pub mod settings;
mod snapshot_hooks;
mod snapshot_schedule;
mod trash_policy;

use std::path::PathBuf;
use std::time::Duration;

use lockstep_fs::InoRanges;
use lockstep_link::Fingerprint;
use lockstep_roles::{Member, RoleRecord, RoleSettings, ServicePart};
use lockstep_types::settings::{
    CheckReads, Durability, Encryption, OnPeerLoss, OnPowerLoss, Role, ScrubEvery, Standby,
};
use lockstep_types::time::millis;
use lockstep_types::{DatastoreUuid, WitnessId};

pub use address::{NotAnAddress, PeerAddress};
pub use changes::{ConfigRefused, RefusedSetting};
pub use handle::ConfigHandle;
pub use resync_limits::ResyncLimits;
pub use snapshot_hooks::SnapshotHooks;
pub use snapshot_schedule::SnapshotSchedule;
pub use trash_policy::TrashPolicy;

/// The longest time between two pings.
const BEAT_MAX: Duration = Duration::from_millis(500);
/// Default of [`DatastoreConfig::fuse_threads`].
pub const FUSE_THREADS_DEFAULT: usize = settings::FUSE_THREADS.default_count();

/// One datastore of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatastoreConfig {
    /// Name of the datastore in commands and logs. The two nodes use the same name by custom only.
    pub name: String,
    /// Identity of the datastore, the same on both nodes.
    pub uuid: DatastoreUuid,
    /// Directory of the backing store on this node.
    pub store: PathBuf,
    /// Directory where the datastore is mounted. On a node that does not serve, the mount is in standby.
    pub mount: PathBuf,
    /// Role with which a new store of this node begins. After that the role file of the store has the role.
    pub role: Role,
    /// The promise to clients, and the behaviour in trouble.
    pub policies: Policies,
    /// The time that acknowledgements wait for a lost peer before [`Policies::on_peer_loss`] decides
    /// ([`settings::PAUSE_LIMIT`]).
    pub pause_limit: Duration,
    /// The time that the peer may be silent before the connection is treated as lost ([`settings::PEER_TIMEOUT`]).
    pub peer_timeout: Duration,
    /// The time that an operation waits for the answer of a connected peer before [`Policies::on_peer_loss`] decides
    /// ([`settings::ANSWER_LIMIT`]).
    pub answer_limit: Duration,
    /// Threads that serve the mount ([`settings::FUSE_THREADS`]).
    pub fuse_threads: usize,
    /// With a witness: the time from the loss of the connection to the takeover by the secondary. All times of a failover
    /// follow from this one ([`FailoverTimes`]). `None` without a witness. Bounds [`settings::FAILOVER_AFTER`].
    pub failover_after: Option<Duration>,
    /// The other node; `None` for a datastore that is deliberately not mirrored.
    pub peer: Option<PeerConfig>,
}

/// The time after which a disk that has not answered a probe hangs (rule R12; [`settings::DISK_STALL_LIMIT`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskStallLimit(Option<Duration>);

impl DiskStallLimit {
    /// No thread watches the disk.
    pub const OFF: Self = Self(None);

    /// A limit, or none.
    pub const fn new(limit: Option<Duration>) -> Self {
        Self(limit)
    }

    /// The limit; `None` if no thread watches the disk.
    pub const fn get(self) -> Option<Duration> {
        self.0
    }
}

impl Default for DiskStallLimit {
    fn default() -> Self {
        Self(Some(settings::DISK_STALL_LIMIT.default_time()))
    }
}

/// The longest time for which a connection must stand before it ends the time alone of a primary whose link comes and goes
/// (rule P23; [`settings::FLAP_WAIT_MAX`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlapWait(Option<Duration>);

impl FlapWait {
    /// A primary takes its secondary back at once.
    pub const OFF: Self = Self(None);

    /// A longest time, or none.
    pub const fn new(longest: Option<Duration>) -> Self {
        Self(longest)
    }

    /// The longest time; zero if a primary takes its secondary back at once.
    pub fn get(self) -> Duration {
        self.0.unwrap_or_default()
    }
}

impl Default for FlapWait {
    fn default() -> Self {
        Self(Some(settings::FLAP_WAIT_MAX.default_time()))
    }
}

/// The promise of a datastore to its clients, and its behaviour in trouble.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// When an acknowledged write must be on stable storage. Default [`Durability::Posix`].
    pub durability: Durability,
    /// Policy for the time after [`DatastoreConfig::pause_limit`]. Default [`OnPeerLoss::Continue`].
    pub on_peer_loss: OnPeerLoss,
    /// Behaviour of a primary that starts without its peer. Default [`OnPowerLoss::Wait`].
    pub on_power_loss: OnPowerLoss,
    /// Answer to requests on a mount in standby. Default [`Standby::Erofs`].
    pub standby: Standby,
    /// When the disk of this node hangs. Default [`DiskStallLimit::default`].
    pub disk_stall_limit: DiskStallLimit,
    /// How long a connection must stand at most after losses of earlier ones. Default [`FlapWait::default`].
    pub flap_wait_max: FlapWait,
    /// How far a resync gives way to clients. Default: not at all.
    pub resync: ResyncLimits,
    /// How often the disks are compared with the sums in the background. Default [`ScrubEvery::Off`].
    pub scrub_every: ScrubEvery,
    /// Whether each read is compared with the sums of its blocks. Default [`CheckReads::Off`].
    pub check_reads: CheckReads,
    /// How long deleted files are kept, and up to how many bytes. Default: not at all.
    pub trash: TrashPolicy,
    /// The snapshots that the primary makes by itself. Default: none.
    pub snapshots: SnapshotSchedule,
    /// The commands of the operator around each snapshot. Default: none.
    pub snapshot_hooks: SnapshotHooks,
}

impl DatastoreConfig {
    /// A datastore without a peer, in these places. Every other setting has its default.
    pub fn new(name: &str, uuid: DatastoreUuid, [store, mount]: [PathBuf; 2], role: Role) -> Self {
        Self {
            name: name.to_owned(),
            uuid,
            store,
            mount,
            role,
            policies: Policies::default(),
            pause_limit: settings::PAUSE_LIMIT.default_time(),
            peer_timeout: peer_timeout_default(None),
            answer_limit: settings::ANSWER_LIMIT.default_time(),
            fuse_threads: FUSE_THREADS_DEFAULT,
            failover_after: None,
            peer: None,
        }
    }

    /// The same datastore with that [`Self::failover_after`], and the default of [`Self::peer_timeout`] that follows from it.
    #[must_use]
    pub fn with_failover_after(self, after: Duration) -> Self {
        Self {
            failover_after: Some(after),
            peer_timeout: peer_timeout_default(Some(after)),
            ..self
        }
    }

    /// Time between two pings.
    pub fn beat(&self) -> Duration {
        let beat = BEAT_MAX.min(self.peer_timeout / 4);
        self.failover().map_or(beat, |times| beat.min(times.beat()))
    }

    /// The ranges of inode numbers in which this node goes on after a promotion.
    pub fn ino_ranges(&self) -> InoRanges {
        let peer = self.peer.as_ref();
        peer.map(|peer| peer.ino_ranges).unwrap_or_default()
    }

    /// The witness that this node asks.
    pub fn witness_id(&self) -> Option<WitnessId> {
        self.peer.as_ref().and_then(|peer| peer.witness)
    }

    /// Whether this node asks a witness.
    pub const fn has_witness(&self) -> bool {
        self.peer.is_some() && self.failover_after.is_some()
    }

    /// Whether the answer of the witness ends the wait of acknowledgements for a lost peer, in place of
    /// [`Self::pause_limit`] (rule R1).
    pub fn witness_ends_pause(&self) -> bool {
        self.has_witness() && self.policies.on_peer_loss == OnPeerLoss::Continue
    }

    /// [`Self::failover_after`] in milliseconds.
    pub fn failover_after_ms(&self) -> Option<u64> {
        self.failover_after.map(millis)
    }

    /// The settings that decide about the role. The node has no name for a witness yet.
    pub(crate) fn role_settings(&self) -> RoleSettings {
        RoleSettings {
            me: Member::First,
            has_witness: self.has_witness(),
            witness: self.witness_id(),
            failover_after_ms: self.failover_after_ms(),
            on_power_loss: self.policies.on_power_loss,
            on_peer_loss: self.policies.on_peer_loss,
        }
    }

    /// The part of a node that starts with a record.
    pub(crate) fn first_part(&self, record: RoleRecord) -> ServicePart {
        lockstep_roles::first_part(&self.role_settings(), self.peer.is_some(), record)
    }

    /// Whether a node that starts with a record is a primary that does not wait for its peer.
    pub(crate) fn needs_no_peer(&self, record: RoleRecord) -> bool {
        lockstep_roles::needs_no_peer(&self.role_settings(), self.peer.is_some(), record)
    }

    /// The times of a failover; `None` without a witness.
    pub fn failover(&self) -> Option<FailoverTimes> {
        self.failover_after.map(FailoverTimes)
    }

    /// [`Self::answer_limit`] in beats, the signs of life of the peer. One beat is added, because the first beat may
    /// answer an earlier ping.
    pub fn answer_limit_beats(&self) -> u64 {
        let beats = self.answer_limit.as_nanos() / self.beat().as_nanos().max(1);
        u64::try_from(beats).unwrap_or(u64::MAX).saturating_add(1)
    }
}

/// The default of [`DatastoreConfig::peer_timeout`]: with a witness, twice [`DatastoreConfig::failover_after`].
pub fn peer_timeout_default(failover_after: Option<Duration>) -> Duration {
    let limit = settings::PEER_TIMEOUT;
    failover_after.map_or(limit.default_time(), |after| limit.clamp(after * 2))
}

/// The times of a failover through the witness. Each follows from the time `F` from the loss of the connection to the
/// takeover.
///
/// | time | value |
/// |---|---|
/// | the secondary asks the witness to take over | `F` after the loss of the connection |
/// | the primary asks to serve alone | `F / 2` after the loss of the connection |
/// | a lease | `0.8 F` from the moment at which the primary sent the `Ping` |
/// | two pings | at most `F / 5` |
/// | one call of the witness | at most `F / 2` |
///
/// A secondary that has answered a `Ping` takes over `F` after its answer at the earliest: the connection is lost after
/// the answer. So the lease ends first, by a fifth of `F` if the clocks of the nodes run alike, and by a tenth while their
/// rates differ by 10 %. In this time the kernel of the old primary drops its caches (`role/lease_expiry.rs`). A primary asks
/// to serve alone seven tenths of `F` after the last answered `Ping` at the latest, if the connection ends at once: before the
/// end of its lease. The lease lasts for four pings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailoverTimes(Duration);

impl FailoverTimes {
    /// From the loss of the connection to the takeover.
    pub const fn takeover(self) -> Duration {
        self.0
    }

    /// From the loss of the connection to the primary's wish to serve alone.
    pub fn alone(self) -> Duration {
        self.0 / 2
    }

    /// The time for which an answered `Ping` lets the primary serve, from the moment of the `Ping`.
    pub fn lease(self) -> Duration {
        self.0 * 8 / 10
    }

    /// The longest time between two pings.
    pub fn beat(self) -> Duration {
        self.0 / 5
    }

    /// Limit of one call of the witness.
    pub fn call(self) -> Duration {
        self.0 / 2
    }
}

/// The other node of a datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Address at which the peer accepts connections.
    pub address: PeerAddress,
    /// Fingerprint of the certificate that the peer must show.
    pub fingerprint: Fingerprint,
    /// Whether the bytes between the nodes are encrypted. Default [`Encryption::On`].
    pub encryption: Encryption,
    /// The ranges of inode numbers in which this node goes on after a promotion. The peer has the other ones: the fingerprints
    /// of both nodes decide, and the node sets the ranges once it has read its identity.
    pub ino_ranges: InoRanges,
    /// The witness that this node asks, and the peer must ask; `None` without a witness.
    pub witness: Option<WitnessId>,
}
