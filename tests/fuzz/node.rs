//! A real node process under attack: the secondary of a datastore, its port, and the true peer, which must be able to
//! sync with it afterwards.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockstep_driver::report::DatastoreStatus;
use lockstep_link::{Connection, Fingerprint, Identity, LinkError, LinkOptions, dial};
use lockstep_testbed::address::own_address;
use lockstep_testbed::{Node, NodeConfig, NodeEnvironment, PeerConfig, await_that};
use lockstep_types::{StoreId, SyncId, SyncNames};
use lockstepfs::config::{Encryption, Role};
use tempfile::TempDir;

use crate::client::Client;
use crate::dialer::LinkDialer;
use crate::store::{self, Running};

/// Most memory of a node under attack, in bytes: for as many unauthenticated peers as it serves at once, for one peer,
/// and for the allocator's reserve.
const MEMORY_BYTES_MAX: u64 = 256 << 20;
/// Threads of a node with one datastore and as many unauthenticated peers as it serves at once.
const THREADS_MAX: usize = 200;
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
    node: Node,
    dir: TempDir,
    /// The most memory that the node has held, in bytes.
    pub peak_bytes: u64,
}

impl AttackedNode {
    /// Makes and starts a node that has met its true peer once.
    pub fn start(encryption: Encryption) -> Self {
        let dir = tempfile::Builder::new().prefix("lsz.").tempdir().unwrap();
        let address = free_port(own_address());
        let own = Node::make(dir.path(), "besieged", NodeEnvironment::default());
        let fingerprint = own.identify();
        let mut node = Self {
            address,
            control: own.control(),
            encryption,
            identity: Arc::new(Identity::ephemeral("true-peer").unwrap()),
            fingerprint,
            node: own,
            dir,
            peak_bytes: 0,
        };
        store::make(node.node.store());
        node.configure();
        node.make_true_peer();
        node.start_process();
        assert!(
            node.connect_true_peer(),
            "a new store refuses the true peer"
        );
        node
    }

    fn configure(&self) {
        self.node.configure(&NodeConfig {
            role: "secondary",
            settings: String::new(),
            peer: Some(PeerConfig {
                listen: self.address,
                address: SocketAddr::from(([127, 0, 0, 1], 1)),
                fingerprint: self.identity.fingerprint(),
                encryption: match self.encryption {
                    Encryption::On => "on",
                    Encryption::Off => "off",
                },
            }),
        });
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
        // Each refusal is a warning: too many to keep.
        self.node
            .start_by(|command| command.args(["--log", "error"]).spawn());
        await_that("the node to answer", || {
            self.node.assert_alive();
            self.node.status().is_some()
        });
    }

    /// The node's status of the datastore; `None` if the node does not answer.
    pub fn status(&self) -> Option<DatastoreStatus> {
        self.node.status()
    }

    /// The store that the node has a copy of, and the last resync that it has met.
    pub fn names(&self) -> (StoreId, Option<SyncId>) {
        names(self.node.store())
    }

    /// Checks that the node runs, answers, and stays within its bounds.
    pub fn assert_in_order(&mut self) {
        self.node.assert_alive();
        assert!(self.status().is_some(), "the node does not answer");
        let (memory, threads) = (self.node.most_resident_bytes(), self.node.threads());
        self.peak_bytes = self.peak_bytes.max(memory);
        assert!(
            memory < MEMORY_BYTES_MAX,
            "the node has held {memory} bytes"
        );
        assert!(threads < THREADS_MAX, "the node has {threads} threads");
        let files = self.node.open_files().len();
        assert!(files < OPEN_FILES_MAX, "the node has {files} open files");
    }

    /// Stops the node with SIGTERM, and starts it again on its store.
    pub fn restart(&mut self) {
        self.node.stop();
        self.start_process();
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
    /// a table, so each sync compares everything. A node that has become a copy of another store, or has operations that the
    /// peer lacks, must refuse the peer; then the node gets an empty store.
    pub fn sync_with_true_peer(&mut self) {
        let dir = self.true_store();
        let (store, sync) = names(&dir);
        let (followed, met) = self.names();
        if followed != store || met.is_some_and(|met| met.is_unknown_to(sync)) {
            self.give_empty_store();
        }
        fs::remove_file(dir.join("tables/paw")).unwrap();
        if !self.connect_true_peer() {
            self.give_empty_store();
            assert!(
                self.connect_true_peer(),
                "an empty store refuses the true peer"
            );
        }
    }

    /// Gives the node an empty store.
    fn give_empty_store(&mut self) {
        self.node.stop();
        fs::remove_dir_all(self.node.store()).unwrap();
        store::make(self.node.store());
        self.start_process();
    }

    /// Returns false if the node refuses the peer, as an older copy.
    fn connect_true_peer(&self) -> bool {
        let dir = self.true_store();
        let config = store::config(&dir, Role::Primary, self.fingerprint, self.encryption);
        let dialer = LinkDialer {
            address: self.address,
            identity: Arc::clone(&self.identity),
            fingerprint: self.fingerprint,
            options: self.options(),
        };
        let running = Running::start(store::open(&config).unwrap(), Some(Box::new(dialer)));
        let is_in_sync = running.await_sync();
        if is_in_sync {
            running.assert_identical();
        }
        running.stop();
        is_in_sync
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

fn free_port(host: IpAddr) -> SocketAddr {
    let listener = TcpListener::bind((host, 0)).unwrap();
    listener.local_addr().unwrap()
}
