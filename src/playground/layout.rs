//! Which files a playground has, and the configurations of its nodes.
//!
//! ```text
//! DIR/playground.json     what runs
//! DIR/mount               the datastore, mounted
//! DIR/a/control.sock, DIR/b/control.sock  control sockets
//! DIR/a.log, DIR/b.log    what the nodes log
//! DIR/a, DIR/b            node.key, node.crt, node.toml, store
//! ```

use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lockstep_driver::make_store_on_this_machine;
use lockstep_link::DelayProxy;
use lockstep_link::{Fingerprint, Identity};
use lockstep_types::DatastoreUuid;
use lockstepfs::config::{
    self, DatastoreConfig, Draft, DraftPeer, PeerAddress, Role, SOCKET_PATH_BYTES_MAX, draft_text,
};
use lockstepfs::control::ControlClient;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::{DATASTORE, Options, mounts, ports};

/// The nodes a playground may have, the primary first.
pub(super) const NAMES: [&str; 2] = ["a", "b"];

/// Lines of a log that are shown when its node has failed.
const LOG_TAIL_LINES: usize = 20;

/// Everything a playground consists of, on disk and not yet running.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) dir: PathBuf,
    pub(super) mount: PathBuf,
    /// The primary first.
    pub(super) nodes: Vec<NodePlan>,
    /// Held as long as the playground exists: there is one in a directory at a time.
    _lock: OwnedFd,
}

/// One node of a playground.
#[derive(Clone, Debug)]
pub(super) struct NodePlan {
    pub(super) name: &'static str,
    pub(super) role: Role,
    pub(super) store: PathBuf,
    pub(super) mount: PathBuf,
    pub(super) control: PathBuf,
    pub(super) config: PathBuf,
    pub(super) log: PathBuf,
    identity: PathBuf,
    listen: SocketAddr,
    /// Where the peer reaches this node: its own address, or that of a proxy before it.
    reached_at: SocketAddr,
}

impl Layout {
    /// Makes the directory, the identities and the configurations, or takes over those of an
    /// earlier playground in the same directory.
    pub(super) fn prepare(options: &Options) -> Result<Self> {
        let dir = make_root(&options.dir)?;
        let lock = lock(&dir)?;
        let earlier = earlier_datastore(&dir, options)?;
        let layout = Self::plan(dir, lock, options)?;
        layout.refuse_running()?;
        layout.unmount()?;
        let uuid = earlier.map_or_else(DatastoreUuid::random, |datastore| datastore.uuid);
        layout.write_configs(uuid, options)?;
        layout.make_stores()?;
        Ok(layout)
    }

    fn plan(dir: PathBuf, lock: OwnedFd, options: &Options) -> Result<Self> {
        let names = NAMES.iter().take(if options.replica { 2 } else { 1 });
        let mut ports = ports::free_ports(2 * names.len())?.into_iter();
        let mut next_port = || ports.next().context("there are too few ports");
        let delayed = options.round_trip > Duration::ZERO;
        let mut nodes = Vec::new();
        for name in names {
            let listen = next_port()?;
            let reached_at = if delayed { next_port()? } else { listen };
            nodes.push(NodePlan::new(&dir, name, listen, reached_at));
        }
        let mount = dir.join("mount");
        Ok(Self {
            dir,
            mount,
            nodes,
            _lock: lock,
        })
    }

    fn refuse_running(&self) -> Result<()> {
        for node in &self.nodes {
            if let Ok(status) = ControlClient::connect(&node.control).and_then(|mut c| c.status()) {
                bail!(
                    "node {} of a playground in {} is still running, as process {}\n  \
                     cure: stop that playground, or choose another --dir",
                    node.name,
                    self.dir.display(),
                    status.pid
                );
            }
        }
        Ok(())
    }

    fn write_configs(&self, uuid: DatastoreUuid, options: &Options) -> Result<()> {
        let fingerprints = self.nodes.iter().map(NodePlan::fingerprint);
        let fingerprints: Vec<Fingerprint> = fingerprints.collect::<Result<_>>()?;
        for node in &self.nodes {
            let peer = self
                .nodes
                .iter()
                .zip(&fingerprints)
                .find(|(other, _)| other.name != node.name);
            let draft = node.draft(uuid, options, peer)?;
            fs::create_dir_all(&node.mount)
                .with_context(|| format!("cannot make {}", node.mount.display()))?;
            fs::write(&node.config, draft_text(&draft)?)
                .with_context(|| format!("cannot write {}", node.config.display()))?;
        }
        Ok(())
    }

    /// Makes the stores that there are none of yet: a node does not.
    fn make_stores(&self) -> Result<()> {
        for node in &self.nodes {
            for datastore in &config::load(&node.config)?.datastores {
                make_store_on_this_machine(datastore)?;
            }
        }
        Ok(())
    }

    /// Starts a delay before each node, so that it does not matter which one connects.
    pub(super) fn start_proxies(&self, round_trip: Duration) -> Result<Vec<DelayProxy>> {
        let delayed = self
            .nodes
            .iter()
            .filter(|node| node.reached_at != node.listen);
        delayed
            .map(|node| {
                DelayProxy::start(node.reached_at, node.listen, round_trip, None)
                    .with_context(|| format!("cannot start the delay before node {}", node.name))
            })
            .collect()
    }

    /// Unmounts whatever a dead node has left behind.
    pub(super) fn unmount(&self) -> Result<()> {
        for node in &self.nodes {
            mounts::unmount_all(&node.mount)
                .with_context(|| format!("cannot unmount {}", node.mount.display()))?;
        }
        Ok(())
    }
}

/// What a playground that could not start leaves behind: nothing, where there was nothing before.
#[derive(Debug)]
pub(super) struct NewRoot {
    dir: PathBuf,
    existed: bool,
    was_empty: bool,
}

impl NewRoot {
    /// Looks at the directory before anything is made in it.
    pub(super) fn look(dir: &Path) -> Result<Self> {
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

    /// Removes all of it, unless something was there before, or is still mounted in it.
    pub(super) fn remove(&self) {
        let mounts = ["mount", "b/mount"].map(|path| mounts::is_mounted(&self.dir.join(path)));
        let is_mounted = mounts.iter().any(|mounted| !matches!(mounted, Ok(false)));
        if is_mounted || self.existed && !self.was_empty {
            return;
        }
        for part in ["a", "b", "mount"] {
            remove_made(&self.dir.join(part));
        }
        for file in ["a.log", "b.log", "playground.json"] {
            // It may not have been made.
            let _ = fs::remove_file(self.dir.join(file));
        }
        if !self.existed {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// Removes a directory that a playground has made. What cannot be removed stays.
fn remove_made(dir: &Path) {
    let _ = fs::remove_dir_all(dir);
}

fn make_root(dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let dir = dir
        .canonicalize()
        .with_context(|| format!("cannot find {}", dir.display()))?;
    let socket_length = dir.join("a/control.sock").as_os_str().len();
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

/// The datastore of an earlier playground in `dir`; an error if `dir` holds something else.
fn earlier_datastore(dir: &Path, options: &Options) -> Result<Option<DatastoreConfig>> {
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
    let earlier = config::load(&config)?.datastores.into_iter().next();
    let mirrored = earlier
        .as_ref()
        .is_some_and(|datastore| datastore.peer.is_some());
    ensure!(
        mirrored == options.replica,
        "{} holds a playground {} a replica\n  cure: choose another --dir",
        dir.display(),
        if mirrored { "with" } else { "without" }
    );
    Ok(earlier)
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
        }
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
        options: &Options,
        peer: Option<(&Self, &Fingerprint)>,
    ) -> Result<Draft> {
        let known = peer.map(|(peer, fingerprint)| {
            let address: PeerAddress = peer.reached_at.to_string().parse()?;
            anyhow::Ok(DraftPeer {
                address: Some(address),
                fingerprint: Some(*fingerprint),
                encryption: options.encryption,
            })
        });
        Ok(Draft {
            datastore: DATASTORE.to_owned(),
            uuid,
            store: self.store.clone(),
            mount: self.mount.clone(),
            role: self.role,
            durability: options.durability,
            on_peer_loss: options.on_peer_loss,
            pause_limit: options.pause_limit,
            peer: known.transpose()?,
            ..Draft::new(self.name, &self.identity, &self.control, self.listen)
        })
    }

    /// The end of the node's log, as an error shows it.
    pub(super) fn log_tail(&self) -> String {
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

    fn options(dir: &Path) -> Options {
        Options::new(dir).unwrap()
    }

    fn load(layout: &Layout, index: usize) -> DatastoreConfig {
        config::load(&layout.nodes[index].config)
            .unwrap()
            .datastores
            .remove(0)
    }

    #[test]
    fn the_nodes_know_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::prepare(&options(dir.path())).unwrap();
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
        let delayed = Options {
            round_trip: Duration::from_millis(4),
            ..options(dir.path())
        };
        let layout = Layout::prepare(&delayed).unwrap();
        let to_b = load(&layout, 0).peer.unwrap().address.to_string();
        assert_eq!(to_b, layout.nodes[1].reached_at.to_string());
        assert_ne!(to_b, layout.nodes[1].listen.to_string());
        assert_eq!(layout.start_proxies(delayed.round_trip).unwrap().len(), 2);
    }

    #[test]
    fn an_earlier_playground_is_carried_on() {
        let dir = tempfile::tempdir().unwrap();
        let first = Layout::prepare(&options(dir.path())).unwrap();
        let uuid = load(&first, 0).uuid;
        drop(first);
        let second = Layout::prepare(&options(dir.path())).unwrap();
        assert_eq!(load(&second, 0).uuid, uuid);
        drop(second);
        let single = Options {
            replica: false,
            ..options(dir.path())
        };
        let error = Layout::prepare(&single).unwrap_err().to_string();
        assert!(error.contains("with a replica"), "{error}");
    }

    #[test]
    fn there_is_one_playground_in_a_directory_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Layout::prepare(&options(dir.path())).unwrap();
        let error = Layout::prepare(&options(dir.path()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("a playground is running"), "{error}");
    }

    #[test]
    fn a_directory_that_holds_something_else_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("precious"), "").unwrap();
        let error = Layout::prepare(&options(dir.path()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("not empty"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_path_too_long_for_sockets_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(100));
        let error = Layout::prepare(&options(&long)).unwrap_err().to_string();
        assert!(error.contains("shorter"), "{error}");
    }
}
