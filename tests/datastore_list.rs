//! The list of datastores of running nodes: a second datastore is added to a running pair, used, changed, taken off and added again,
//! while the first one goes on. Nothing of a datastore is left once it is off.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_driver::make_store_on_this_machine;
use lockstep_driver::report::DatastoreStatus;
use lockstep_fs::InoRanges;
use lockstep_link::{Fingerprint, Identity};
use lockstep_testbed::address::own_address;
use lockstep_testbed::{await_that, can_mount};
use lockstep_types::DatastoreUuid;
use lockstepfs::config::{DatastoreConfig, Encryption, LinkConfig, NodeConfig, PeerConfig, Role};
use lockstepfs::control::ControlClient;
use lockstepfs::node::{RegistryError, RunningNode};
use lockstepfs::signals::ShutdownRequests;
use tempfile::TempDir;

/// One node in this process.
struct Server {
    dir: TempDir,
    role: Role,
    listen: SocketAddr,
    fingerprint: Fingerprint,
    node: Option<RunningNode>,
}

impl Server {
    fn make(role: Role) -> Self {
        let dir = tempfile::Builder::new().prefix("lsl.").tempdir().unwrap();
        let identity = Identity::create(dir.path(), "n").unwrap();
        let free = TcpListener::bind((own_address(), 0)).unwrap();
        Self {
            role,
            listen: free.local_addr().unwrap(),
            fingerprint: identity.fingerprint(),
            node: None,
            dir,
        }
    }

    fn path(&self, parts: &[&str]) -> PathBuf {
        let parts: PathBuf = parts.iter().collect();
        self.dir.path().join(parts)
    }

    fn mount(&self, name: &str) -> PathBuf {
        self.path(&[name, "mount"])
    }

    /// The configuration of a datastore that this node shares with another one. Makes its directories and its store.
    fn datastore(&self, name: &str, uuid: u8, other: &Self) -> DatastoreConfig {
        let places = [self.path(&[name, "store"]), self.mount(name)];
        fs::create_dir_all(&places[1]).unwrap();
        let config = DatastoreConfig {
            peer: Some(PeerConfig {
                address: other.listen.to_string().parse().unwrap(),
                fingerprint: other.fingerprint,
                encryption: Encryption::On,
                ino_ranges: InoRanges::default(),
                witness: None,
            }),
            ..DatastoreConfig::new(
                name,
                DatastoreUuid::from_bytes([uuid; 16]),
                places,
                self.role,
            )
        };
        make_store_on_this_machine(&config).unwrap();
        config
    }

    fn start(&mut self, datastore: DatastoreConfig) {
        let config = NodeConfig {
            name: "n".to_owned(),
            control: self.path(&["control.sock"]),
            link: Some(LinkConfig {
                identity: self.dir.path().to_owned(),
                listen: self.listen,
            }),
            datastores: vec![datastore],
            witnesses: Vec::new(),
        };
        let requests = ShutdownRequests::of(Vec::new()).unwrap();
        self.node = Some(RunningNode::start(&config, &requests.waker()).unwrap());
    }

    fn node(&self) -> &RunningNode {
        self.node.as_ref().unwrap()
    }

    fn add(&self, config: &DatastoreConfig) -> Result<(), RegistryError> {
        self.node().registry().add(config.clone(), None)
    }

    /// The status that a command gets.
    fn status(&self) -> Vec<DatastoreStatus> {
        let mut client = ControlClient::connect(&self.path(&["control.sock"])).unwrap();
        client.status().unwrap().datastores
    }

    fn names(&self) -> Vec<String> {
        let status = self.status().into_iter();
        status.map(|it| it.settings.name).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            let stopped = node.stop();
            assert!(std::thread::panicking() || stopped.is_ok(), "{stopped:?}");
        }
    }
}

fn await_in_sync(servers: [&Server; 2], name: &str) {
    await_that(&format!("{name} in sync"), || {
        let is_in_sync = |server: &&Server| {
            let status = server.status().into_iter();
            let mut of_name = status.filter(|it| it.settings.name == name);
            of_name.any(|it| it.sync.in_sync && it.peer.is_some_and(|peer| peer.connected))
        };
        servers.iter().all(is_in_sync)
    });
}

fn write(server: &Server, name: &str, file: &str, text: &str) {
    let path = server.mount(name).join(file);
    fs::write(&path, text).unwrap();
    assert_eq!(fs::read_to_string(path).unwrap(), text);
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.contains(path.to_str().unwrap())
}

/// The number of threads of this process.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn a_datastore_comes_and_goes_while_another_one_goes_on() {
    if !can_mount() {
        return;
    }
    let (mut a, mut b) = (Server::make(Role::Primary), Server::make(Role::Secondary));
    let first = [a.datastore("one", 1, &b), b.datastore("one", 1, &a)];
    let [of_a, of_b] = first;
    b.start(of_b);
    a.start(of_a);
    await_in_sync([&a, &b], "one");
    write(&a, "one", "before", "1");
    let threads_before = threads();

    let second = [a.datastore("two", 2, &b), b.datastore("two", 2, &a)];
    for round in 0..2 {
        b.add(&second[1]).unwrap();
        a.add(&second[0]).unwrap();
        assert_eq!(a.names(), ["one", "two"]);
        await_in_sync([&a, &b], "two");
        assert!(is_mounted(&a.mount("two")) && is_mounted(&b.mount("two")));
        // The data from before is there.
        assert_eq!(fs::read_dir(a.mount("two")).unwrap().count(), round);
        write(&a, "two", &format!("file {round}"), "2");
        write(&a, "one", &format!("file {round}"), "1");
        change(&a, &second[0]);

        for server in [&a, &b] {
            server.node().registry().remove("two").unwrap();
            assert_eq!(server.names(), ["one"]);
            assert!(!is_mounted(&server.mount("two")));
        }
        await_that("the end of all threads of the datastore", || {
            threads() <= threads_before
        });
        await_in_sync([&a, &b], "one");
        write(&a, "one", &format!("after {round}"), "1");
    }
}

/// A running datastore follows a change that it can follow, and refuses another one.
fn change(server: &Server, config: &DatastoreConfig) {
    let registry = server.node().registry();
    let shown = || {
        let status = server.status().pop().unwrap();
        status.times.unwrap().pause_limit_ms
    };
    let mut changed = config.clone();
    changed.pause_limit = Duration::from_secs(7);
    registry.reconfigure(changed.clone(), None).unwrap();
    assert_eq!(shown(), Some(7000));
    changed.pause_limit = Duration::from_secs(8);
    changed.fuse_threads = 3;
    let refused = registry.reconfigure(changed, None).unwrap_err().to_string();
    assert!(
        refused.contains("fuse_threads of two cannot change"),
        "{refused}"
    );
    assert_eq!(shown(), Some(7000));
}
