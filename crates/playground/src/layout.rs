//! The files of a playground, and the configurations of its nodes.
//!
//! ```text
//! DIR/playground.json     the description of the running nodes
//! DIR/mount               the mounted datastore
//! DIR/a.log, DIR/b.log    the logs of the nodes
//! DIR/a, DIR/b            node.key, node.crt, node.toml, store, control.sock
//! ```
//!
//! A playground with a witness has more: `w` and `w.log` of the witness, and `a.hold.log` and `b.hold.log` of the holders. One whose
//! servers have disks of their own has `a.disk` and `b.disk`, which are mounted at `a` and `b`.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lockstep_config::{ConfigDraft, DatastoreConfig, DraftPeer, Policies, WitnessConfig};
use lockstep_link::{Fingerprint, Identity};
use lockstep_types::{DatastoreUuid, Role};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::config::{self, DATASTORE};
use crate::disk::ServerDisk;
use crate::network::{PlaygroundNetwork, Way};
use crate::options::{NODE_NAMES, PlaygroundOptions};
use crate::program::Program;
use crate::witness::PlaygroundWitness;
use crate::{mounts, ports, sockets};

/// Longest path of a Unix socket that Linux can bind, in bytes (`sun_path` less its NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Lines of a log that are shown when its node has failed.
const LOG_TAIL_LINES: usize = 20;

/// The files of a playground whose nodes do not run yet.
#[derive(Debug)]
pub(crate) struct PlaygroundLayout {
    pub(crate) dir: PathBuf,
    pub(crate) mount: PathBuf,
    /// The primary first.
    pub(crate) nodes: Vec<NodePlan>,
    pub(crate) witness: Option<PlaygroundWitness>,
    /// The disks of the servers, in the order of the nodes; none if they use the disk of this machine.
    disks: Vec<ServerDisk>,
    /// Held while the playground exists: a directory has one playground at a time.
    _lock: OwnedFd,
}

/// One node of a playground.
#[derive(Clone, Debug)]
pub(crate) struct NodePlan {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) store: PathBuf,
    pub(crate) mount: PathBuf,
    pub(crate) control: PathBuf,
    pub(crate) config: PathBuf,
    pub(crate) log: PathBuf,
    identity: PathBuf,
    listen: SocketAddr,
    /// Where the peer reaches this node: its own address, or that of a proxy before it.
    reached_at: SocketAddr,
    /// Where this node reaches the witness: the address of the witness, or that of a proxy before it.
    witness_at: Option<SocketAddr>,
}

impl PlaygroundLayout {
    /// Makes the directory, the identities and the configurations. A directory that holds an earlier playground keeps
    /// its identities and its datastore.
    pub(crate) fn prepare(options: &PlaygroundOptions) -> Result<Self> {
        let dir = make_root(options)?;
        let lock = lock(&dir)?;
        let earlier = earlier_uuid(&dir, options)?;
        let mut layout = Self::plan(dir, lock, options)?;
        layout.refuse_running()?;
        if options.own_disks {
            let disks = layout
                .nodes
                .iter()
                .map(|node| ServerDisk::make(&node.identity));
            // A machine that cannot make one has none.
            layout.disks = disks.collect::<Result<_>>().unwrap_or_default();
        }
        layout.unmount()?;
        let uuid = earlier.unwrap_or_else(DatastoreUuid::random);
        layout.write_configs(uuid, options)?;
        Ok(layout)
    }

    /// Makes the missing stores: a node does not make its store.
    pub(crate) fn make_stores(&self, program: &Program) -> Result<()> {
        let mut plans = self.nodes.iter();
        plans.try_for_each(|plan| program.create_store(&plan.config))
    }

    fn plan(dir: PathBuf, lock: OwnedFd, options: &PlaygroundOptions) -> Result<Self> {
        let names = NODE_NAMES.iter().take(if options.replica { 2 } else { 1 });
        let mut ports = ports::free_ports(1 + 3 * names.len())?.into_iter();
        let mut next_port = || ports.next().context("there are too few ports");
        let can_isolate = options.cluster.is_some_and(|cluster| cluster.can_isolate);
        let has_proxy = can_isolate || options.round_trip > Duration::ZERO;
        let mut witness = None;
        if options.cluster.is_some() {
            witness = Some(PlaygroundWitness::new(&dir, next_port()?));
        }
        let mut nodes = Vec::new();
        for name in names {
            let listen = next_port()?;
            let reached_at = if has_proxy { next_port()? } else { listen };
            let mut node = NodePlan::new(&dir, name, listen, reached_at);
            node.witness_at = witness.as_ref().map(|witness| witness.listen);
            if can_isolate {
                node.witness_at = Some(next_port()?);
            }
            nodes.push(node);
        }
        let mount = dir.join("mount");
        Ok(Self {
            dir,
            mount,
            nodes,
            witness,
            disks: Vec::new(),
            _lock: lock,
        })
    }

    fn refuse_running(&self) -> Result<()> {
        for node in &self.nodes {
            if let Some(pid) = sockets::listener(&node.control) {
                bail!(
                    "node {} of a playground in {} is still running, as process {}\n  \
                     cure: stop that playground, or choose another --dir",
                    node.name,
                    self.dir.display(),
                    pid.as_raw_nonzero()
                );
            }
        }
        Ok(())
    }

    fn write_configs(&self, uuid: DatastoreUuid, options: &PlaygroundOptions) -> Result<()> {
        let fingerprints = self.nodes.iter().map(NodePlan::fingerprint);
        let fingerprints: Vec<Fingerprint> = fingerprints.collect::<Result<_>>()?;
        let known = || self.nodes.iter().map(|node| node.name).zip(&fingerprints);
        let mut witness = None;
        if let Some(plan) = &self.witness {
            witness = Some(plan.make(&options.program, known())?);
        }
        for node in &self.nodes {
            let mut nodes = self.nodes.iter().zip(&fingerprints);
            let peer = nodes.find(|(other, _)| other.name != node.name);
            let peer = match peer {
                Some((peer, fingerprint)) => Some(DraftPeer {
                    address: Some(peer.reached_at.to_string().parse()?),
                    fingerprint: Some(*fingerprint),
                    encryption: options.encryption,
                }),
                None => None,
            };
            let asked = match node.witness_at.zip(witness) {
                Some((address, fingerprint)) => Some(WitnessConfig::Own {
                    address: address.to_string().parse()?,
                    fingerprint,
                }),
                None => None,
            };
            fs::create_dir_all(&node.mount)
                .with_context(|| format!("cannot make {}", node.mount.display()))?;
            config::write(&node.draft(uuid, options, peer, asked), &node.config)?;
        }
        Ok(())
    }

    /// Starts the proxies: one before each node, so that a delay is there whichever node connects, and one between each
    /// node and the witness. A way whose two ends are the same address has none.
    pub(crate) fn start_network(&self, round_trip: Duration) -> Result<PlaygroundNetwork> {
        let to_nodes = self
            .nodes
            .iter()
            .map(|node| (Way::Nodes, node.reached_at, node.listen));
        let witness = self.witness.iter();
        let to_witness = witness.flat_map(|witness| {
            let nodes = self.nodes.iter().enumerate();
            nodes.filter_map(|(number, node)| {
                Some((Way::Witness(number), node.witness_at?, witness.listen))
            })
        });
        PlaygroundNetwork::start(to_nodes.chain(to_witness), round_trip)
    }

    /// Whether the servers have disks of their own.
    pub(crate) fn has_disks(&self) -> bool {
        !self.disks.is_empty()
    }

    /// The disk of the server with this number loses its power. No process may use the disk. Returns the beginning of a command
    /// that starts a process of the server ([`ServerDisk::lose_power`]).
    pub(crate) fn lose_power(&self, node: usize) -> Result<Vec<String>> {
        unmount_of(self.nodes.get(node))?;
        let disk = self.disks.get(node);
        disk.context("the server has no disk of its own")?
            .lose_power()
    }

    /// Removes the mounts that dead nodes have left behind.
    pub(crate) fn unmount(&self) -> Result<()> {
        unmount_of(&self.nodes)
    }
}

/// Removes the mounts of dead nodes.
fn unmount_of<'a>(nodes: impl IntoIterator<Item = &'a NodePlan>) -> Result<()> {
    nodes.into_iter().try_for_each(|node| {
        mounts::unmount_all(&node.mount)
            .with_context(|| format!("cannot unmount {}", node.mount.display()))
    })
}

/// The directory before the start of a playground. A playground that cannot start removes what it has made.
#[derive(Debug)]
pub(crate) struct NewRoot {
    dir: PathBuf,
    existed: bool,
    was_empty: bool,
}

impl NewRoot {
    /// Examines the directory before anything is made in it.
    pub(crate) fn look(dir: &Path) -> Result<Self> {
        let dir = std::path::absolute(dir)?;
        let mut entries = fs::read_dir(&dir);
        Ok(Self {
            existed: dir.symlink_metadata().is_ok(),
            was_empty: entries
                .as_mut()
                .is_ok_and(|entries| entries.next().is_none()),
            dir,
        })
    }

    /// Removes the files of the playground, unless the directory held files before or still holds a mount.
    pub(crate) fn remove(&self) {
        let mounts = ["mount", "b/mount"].map(|path| mounts::is_mounted(&self.dir.join(path)));
        let is_mounted = mounts.iter().any(|mounted| !matches!(mounted, Ok(false)));
        if is_mounted || self.existed && !self.was_empty {
            return;
        }
        for part in ["a", "b", "w", "mount"] {
            // Directories that cannot be removed stay.
            let _ = fs::remove_dir_all(self.dir.join(part));
        }
        let logs = ["a.log", "b.log", "w.log", "a.hold.log", "b.hold.log"];
        for file in logs.into_iter().chain(["playground.json"]) {
            // The file may not exist.
            let _ = fs::remove_file(self.dir.join(file));
        }
        if !self.existed {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

fn make_root(options: &PlaygroundOptions) -> Result<PathBuf> {
    let dir = &options.dir;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let dir = dir
        .canonicalize()
        .with_context(|| format!("cannot find {}", dir.display()))?;
    // A holder binds its socket under a longer name, and renames it.
    let longest = match options.cluster {
        Some(_) => "a/control.sock.hold.new",
        None => "a/control.sock",
    };
    let socket_length = dir.join(longest).as_os_str().len();
    ensure!(
        socket_length <= SOCKET_PATH_BYTES_MAX,
        "{} is too long a path: the control sockets in it would have {socket_length} bytes, and \
         Linux binds up to {SOCKET_PATH_BYTES_MAX}\n  cure: choose a shorter --dir",
        dir.display()
    );
    Ok(dir)
}

fn lock(dir: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(dir, flags, Mode::empty())
        .with_context(|| format!("cannot open {}", dir.display()))?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(opened),
        Err(Errno::WOULDBLOCK) => bail!(
            "a playground is running in {}\n  cure: stop it, or choose another --dir",
            dir.display()
        ),
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", dir.display())),
    }
}

/// The identity of the datastore of an earlier playground in `dir`; an error if `dir` holds foreign files.
fn earlier_uuid(dir: &Path, options: &PlaygroundOptions) -> Result<Option<DatastoreUuid>> {
    let config = dir.join("a/node.toml");
    if !config.exists() {
        let mut entries =
            fs::read_dir(dir).with_context(|| format!("cannot look into {}", dir.display()))?;
        ensure!(
            entries.next().is_none(),
            "{} is not empty and holds no playground\n  cure: choose an empty or new --dir",
            dir.display()
        );
        return Ok(None);
    }
    let earlier = config::read(&config)?;
    let mirrored = earlier.peer.is_some();
    ensure!(
        mirrored == options.replica,
        "{} holds a playground {} a replica\n  cure: choose another --dir",
        dir.display(),
        if mirrored { "with" } else { "without" }
    );
    Ok(Some(earlier.uuid))
}

impl NodePlan {
    fn new(dir: &Path, name: &'static str, listen: SocketAddr, reached_at: SocketAddr) -> Self {
        let identity = dir.join(name);
        let is_primary = name == "a";
        Self {
            name,
            role: if is_primary {
                Role::Primary
            } else {
                Role::Secondary
            },
            store: identity.join("store"),
            mount: if is_primary {
                dir.join("mount")
            } else {
                identity.join("mount")
            },
            control: dir.join(name).join("control.sock"),
            config: identity.join("node.toml"),
            log: dir.join(format!("{name}.log")),
            identity,
            listen,
            reached_at,
            witness_at: None,
        }
    }

    /// The log of the holder.
    pub(crate) fn holder_log(&self) -> PathBuf {
        self.log.with_extension("hold.log")
    }

    fn fingerprint(&self) -> Result<Fingerprint> {
        fs::create_dir_all(&self.identity)
            .with_context(|| format!("cannot make {}", self.identity.display()))?;
        let identity = if self.identity.join("node.key").exists() {
            Identity::load(&self.identity)?
        } else {
            Identity::create(&self.identity, self.name)?
        };
        Ok(identity.fingerprint())
    }

    fn draft(
        &self,
        uuid: DatastoreUuid,
        options: &PlaygroundOptions,
        peer: Option<DraftPeer>,
        witness: Option<WitnessConfig>,
    ) -> ConfigDraft {
        let places = [self.store.clone(), self.mount.clone()];
        let datastore = DatastoreConfig {
            policies: Policies {
                durability: options.durability,
                on_peer_loss: options.on_peer_loss,
                ..Policies::default()
            },
            pause_limit: Duration::from_millis(options.pause_limit_ms),
            ..DatastoreConfig::new(DATASTORE, uuid, places, self.role)
        };
        let after = options.cluster.map(|cluster| cluster.failover_after_ms);
        ConfigDraft {
            datastore: match after {
                Some(after) => datastore.with_failover_after(Duration::from_millis(after)),
                None => datastore,
            },
            witness,
            peer,
            ..ConfigDraft::new(self.name, &self.identity, &self.control, self.listen)
        }
    }

    /// The end of the node's log, for an error message.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let skipped = lines.len().saturating_sub(LOG_TAIL_LINES);
        let tail = lines.get(skipped..).unwrap_or_default().join("\n  | ");
        if tail.is_empty() {
            format!("\n  {} is empty", self.log.display())
        } else {
            format!("\n  the end of {}:\n  | {tail}", self.log.display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dir: &Path) -> PlaygroundOptions {
        PlaygroundOptions::new(dir).unwrap()
    }

    fn load(layout: &PlaygroundLayout, index: usize) -> DatastoreConfig {
        config::read(&layout.nodes[index].config).unwrap()
    }

    #[test]
    fn the_nodes_know_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let layout = PlaygroundLayout::prepare(&options(dir.path())).unwrap();
        let (a, b) = (load(&layout, 0), load(&layout, 1));
        assert_eq!(a.uuid, b.uuid);
        assert_eq!((a.role, b.role), (Role::Primary, Role::Secondary));
        let (to_b, to_a) = (a.peer.unwrap(), b.peer.unwrap());
        assert_eq!(to_b.address.to_string(), layout.nodes[1].listen.to_string());
        assert_eq!(to_a.fingerprint, layout.nodes[0].fingerprint().unwrap());
        assert_eq!(to_b.fingerprint, layout.nodes[1].fingerprint().unwrap());
    }

    #[test]
    fn a_delay_stands_between_the_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let delayed = PlaygroundOptions {
            round_trip: Duration::from_millis(4),
            ..options(dir.path())
        };
        let layout = PlaygroundLayout::prepare(&delayed).unwrap();
        let to_b = load(&layout, 0).peer.unwrap().address.to_string();
        assert_eq!(to_b, layout.nodes[1].reached_at.to_string());
        assert_ne!(to_b, layout.nodes[1].listen.to_string());
        assert_eq!(
            layout.start_network(delayed.round_trip).unwrap().proxies(),
            2
        );
    }

    #[test]
    fn without_a_delay_nothing_stands_between_the_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let layout = PlaygroundLayout::prepare(&options(dir.path())).unwrap();
        let a = load(&layout, 0);
        assert!(!a.has_witness());
        let to_b = a.peer.unwrap().address.to_string();
        assert_eq!(to_b, layout.nodes[1].listen.to_string());
        assert_eq!(layout.start_network(Duration::ZERO).unwrap().proxies(), 0);
    }

    #[test]
    fn an_earlier_playground_is_carried_on() {
        let dir = tempfile::tempdir().unwrap();
        let first = PlaygroundLayout::prepare(&options(dir.path())).unwrap();
        let uuid = load(&first, 0).uuid;
        drop(first);
        let second = PlaygroundLayout::prepare(&options(dir.path())).unwrap();
        assert_eq!(load(&second, 0).uuid, uuid);
        drop(second);
        let single = PlaygroundOptions {
            replica: false,
            ..options(dir.path())
        };
        let error = PlaygroundLayout::prepare(&single).unwrap_err().to_string();
        assert!(error.contains("with a replica"), "{error}");
    }

    #[test]
    fn a_limit_of_resyncs_is_in_the_configuration_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let layout = PlaygroundLayout::prepare(&options(dir.path())).unwrap();
        assert_eq!(load(&layout, 0).policies.resync.bytes_per_second, None);
        let limit = 1 << 20;
        config::limit_resync(&layout.nodes[0].config, limit).unwrap();
        let limited = load(&layout, 0).policies.resync.bytes_per_second;
        assert_eq!(limited.map(std::num::NonZeroU64::get), Some(limit));
    }

    #[test]
    fn there_is_one_playground_in_a_directory_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let _first = PlaygroundLayout::prepare(&options(dir.path())).unwrap();
        let error = PlaygroundLayout::prepare(&options(dir.path()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("a playground is running"), "{error}");
    }

    #[test]
    fn a_directory_that_holds_something_else_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("precious"), "").unwrap();
        let error = PlaygroundLayout::prepare(&options(dir.path()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("not empty"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_path_too_long_for_sockets_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(100));
        let error = PlaygroundLayout::prepare(&options(&long))
            .unwrap_err()
            .to_string();
        assert!(error.contains("shorter"), "{error}");
    }
}
