//! A real node process under attack: the secondary of a datastore, its port, and the true peer, which must be able to
//! sync with it afterwards.
//!
//! Invariant: the process is gone when the value is dropped. The kernel kills the process if the test itself is
//! killed.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_driver::report::DatastoreStatus;
use lockstep_link::{Connection, Fingerprint, Identity, LinkError, LinkOptions, dial};
use lockstep_repl::state::State;
use lockstep_testbed::address::own_address;
use lockstep_types::{StoreId, SyncId, SyncNames};
use lockstepfs::config::{Encryption, Role};
use lockstepfs::control::ControlClient;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::client::Client;
use crate::dialer::LinkDialer;
use crate::store::{self, Running};

/// Longest wait for an expected event.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Most memory of a node under attack, in KiB: for as many unauthenticated peers as it serves at once, for one peer,
/// and for the allocator's reserve.
const MEMORY_KIB_MAX: u64 = 256 << 10;
/// Threads of a node with one datastore and as many unauthenticated peers as it serves at once.
const THREADS_MAX: u64 = 200;
/// Open files of the same node.
const OPEN_FILES_MAX: usize = 400;

/// The node, and the true peer.
pub struct AttackedNode {
    pub address: SocketAddr,
    pub control: PathBuf,
    pub encryption: Encryption,
    /// The identity of the true peer.
    pub identity: Arc<Identity>,
    /// The fingerprint of the node.
    pub fingerprint: Fingerprint,
    dir: TempDir,
    /// The most memory that the node has held, in KiB.
    pub peak_kib: u64,
    process: Option<Child>,
}

impl AttackedNode {
    /// Makes and starts a node that has met its true peer once.
    pub fn start(encryption: Encryption) -> Self {
        let dir = tempfile::Builder::new().prefix("lsz.").tempdir().unwrap();
        let own = Identity::create(dir.path(), "besieged").unwrap();
        let address = free_port(own_address());
        let mut node = Self {
            address,
            control: dir.path().join("control.sock"),
            encryption,
            identity: Arc::new(Identity::ephemeral("true-peer").unwrap()),
            fingerprint: own.fingerprint(),
            dir,
            peak_kib: 0,
            process: None,
        };
        store::make(&node.dir.path().join("store"));
        fs::create_dir(node.mount()).unwrap();
        node.configure();
        node.make_true_peer();
        node.start_process();
        node.connect_true_peer();
        node
    }

    fn configure(&self) {
        let (dir, address) = (self.dir.path().display(), self.address);
        let (uuid, fingerprint) = (store::UUID, self.identity.fingerprint());
        let text = format!(
            "[node]\nname = \"besieged\"\nidentity = \"{dir}\"\nlisten = \"{address}\"\n\
             control = \"{dir}/control.sock\"\n[[datastore]]\nname = \"data\"\nuuid = \"{uuid}\"\n\
             role = \"secondary\"\nstore = \"{dir}/store\"\nmount = \"{dir}/mount\"\n\
             [datastore.peer]\naddress = \"127.0.0.1:1\"\nfingerprint = \"{fingerprint}\"\n\
             encryption = \"{}\"\n",
            self.encryption
        );
        fs::write(self.dir.path().join("node.toml"), text).unwrap();
    }

    /// Fills the true peer's store.
    fn make_true_peer(&self) {
        let dir = self.true_store();
        store::make(&dir);
        let config = store::config(&dir, Role::Primary, self.fingerprint, self.encryption);
        let running = Running::start(store::open(&config).unwrap(), None);
        Client::of(&running.datastore).fill();
        running.stop();
    }

    fn true_store(&self) -> PathBuf {
        self.dir.path().join("true-peer")
    }

    fn start_process(&mut self) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log());
        let log = log.unwrap();
        // `setpriv` becomes the node: the node dies with the test, however the test ends.
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_lockstep")])
            // Each refusal is a warning: too many to keep.
            .args(["node", "--log", "error", "--config"])
            .arg(self.dir.path().join("node.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.process = Some(process.unwrap());
        self.await_that("the node to answer", |node| node.status().is_some());
    }

    fn mount(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("node.log")
    }

    fn await_that(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + WAIT_LIMIT;
        while !done(self) {
            self.assert_alive();
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The node's status of the datastore; `None` if the node does not answer.
    pub fn status(&self) -> Option<DatastoreStatus> {
        let mut client = ControlClient::connect(&self.control).ok()?;
        client.status().ok()?.datastores.pop()
    }

    /// The store that the node has a copy of, and the last resync that it has met.
    pub fn names(&self) -> (StoreId, Option<SyncId>) {
        names(&self.dir.path().join("store"))
    }

    /// Checks that the node runs, answers, and stays within its bounds.
    pub fn assert_in_order(&mut self) {
        self.assert_alive();
        assert!(self.status().is_some(), "the node does not answer");
        let (memory, threads) = (self.proc_status("VmHWM:"), self.proc_status("Threads:"));
        self.peak_kib = self.peak_kib.max(memory);
        assert!(memory < MEMORY_KIB_MAX, "the node has held {memory} KiB");
        assert!(threads < THREADS_MAX, "the node has {threads} threads");
        let files = self.open_files();
        assert!(files < OPEN_FILES_MAX, "the node has {files} open files");
    }

    fn proc_status(&self, field: &str) -> u64 {
        let pid = self.process.as_ref().unwrap().id();
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = text.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// The number of open files of the process.
    fn open_files(&self) -> usize {
        let pid = self.process.as_ref().unwrap().id();
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
    }

    fn assert_alive(&mut self) {
        let ended = self
            .process
            .as_mut()
            .and_then(|process| process.try_wait().unwrap());
        if let Some(status) = ended {
            self.process = None;
            panic!("the node ended by itself: {status}");
        }
    }

    /// Stops the node with SIGTERM, and starts it again on its store.
    pub fn restart(&mut self) {
        self.stop_process();
        self.start_process();
    }

    fn stop_process(&mut self) {
        self.assert_alive();
        let mut process = self.process.take().unwrap();
        kill_process(Pid::from_child(&process), Signal::TERM).unwrap();
        let deadline = Instant::now() + WAIT_LIMIT;
        let status = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let _ = process.kill();
                let _ = process.wait();
                panic!("the node does not stop");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "the node stopped: {status}");
    }

    /// The options of every connection to the node.
    pub fn options(&self) -> LinkOptions {
        LinkOptions {
            encryption: self.encryption,
            greeting_timeout: Duration::from_secs(60),
            ..LinkOptions::default()
        }
    }

    /// Connects as the true peer.
    pub fn dial(&self, address: SocketAddr) -> Result<Connection, LinkError> {
        dial(address, &self.identity, self.fingerprint, &self.options())
    }

    /// Lets the true peer connect: the peer makes the node equal to itself, and both are compared. The peer has lost
    /// a table, so each sync compares everything. A node that has become a copy of another store must refuse the
    /// peer; then the node gets an empty store first.
    pub fn sync_with_true_peer(&mut self) {
        let dir = self.true_store();
        let (store, sync) = names(&dir);
        let (followed, met) = self.names();
        if followed != store || met.is_some_and(|met| met.is_unknown_to(sync)) {
            self.stop_process();
            let own = self.dir.path().join("store");
            fs::remove_dir_all(&own).unwrap();
            store::make(&own);
            self.start_process();
        }
        fs::remove_file(dir.join("tables/paw")).unwrap();
        self.connect_true_peer();
    }

    fn connect_true_peer(&self) {
        let dir = self.true_store();
        let config = store::config(&dir, Role::Primary, self.fingerprint, self.encryption);
        let dialer = LinkDialer {
            address: self.address,
            identity: Arc::clone(&self.identity),
            fingerprint: self.fingerprint,
            options: self.options(),
        };
        let running = Running::start(store::open(&config).unwrap(), Some(Box::new(dialer)));
        running.await_state(State::Synced);
        running.assert_identical();
        running.stop();
    }
}

impl Drop for AttackedNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            print_end(&self.log());
        }
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        // A killed node leaves its mount.
        let _ = unmount(self.mount(), UnmountFlags::DETACH);
    }
}

/// The store id and the last resync in the role file of a store.
fn names(store: &Path) -> (StoreId, Option<SyncId>) {
    let role = fs::read(store.join("role.json")).unwrap();
    // Both slots hold the same.
    let role: serde_json::Value = serde_json::from_slice(&role[..role.len() / 2]).unwrap();
    let lineage = &role["state"]["lineage"];
    let store = serde_json::from_value(lineage["store"].clone()).unwrap();
    let names: SyncNames = serde_json::from_value(lineage["sync"].clone()).unwrap();
    (store, names.newest())
}

fn print_end(log: &Path) {
    let log = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = log.lines().collect();
    let tail = &lines[lines.len().saturating_sub(30)..];
    println!("end of the log of the node:\n{}", tail.join("\n"));
}

fn free_port(host: IpAddr) -> SocketAddr {
    let listener = TcpListener::bind((host, 0)).unwrap();
    listener.local_addr().unwrap()
}
