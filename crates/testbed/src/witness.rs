//! A witness for two nodes, and a faulty network between each node and the witness.
//!
//! Invariant: the witness ends with the test.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use lockstep_link::identity::Identity;
use lockstep_roles::{Member, WitnessRecord};
use lockstep_types::DatastoreUuid;
use lockstep_witness::{
    NodePair, WitnessClient, WitnessConfig, WitnessServer, WitnessServerOptions, WitnessStore,
};
use tempfile::TempDir;

use crate::address::{own_address, release};
use crate::network::{Fault, Network};
use crate::node::UUID;
use crate::operator::{await_status, cut};
use crate::pair::{Pair, Which};
use crate::wait::{WAIT_LIMIT, await_that};

const BOTH: [Which; 2] = [Which::Primary, Which::Secondary];

/// Waits until the witness lets the other node take over from this one.
pub fn await_protected(pair: &Pair, primary: Which) {
    await_status(pair.node(primary), "protection by the witness", |status| {
        let witness = status.witness.as_ref();
        witness.is_some_and(|witness| witness.protects)
    });
}

/// Cuts the way between a node and both others, or heals it.
pub fn isolate(pair: &Pair, witness: &Witness, which: Which, is_cut: bool) {
    witness.cut(which, is_cut);
    cut(pair, is_cut);
}

/// The witness of a pair.
pub struct Witness {
    dir: TempDir,
    identity: Identity,
    listen: SocketAddr,
    server: Option<WitnessServer>,
    nodes: [Identity; 2],
    /// The network between each node and the witness.
    ways: [Network; 2],
    /// Number of the storage.
    storage: u32,
}

impl Witness {
    /// Starts a witness, and writes it into the configuration of both nodes, which do not run yet. The secondary takes over
    /// `failover_after_ms` after the loss of the connection.
    pub fn start(pair: &Pair, failover_after_ms: u64) -> Self {
        Self::start_on(pair, failover_after_ms, &std::env::temp_dir())
    }

    /// The same, with the store of the witness below this directory.
    pub fn start_on(pair: &Pair, failover_after_ms: u64, place: &Path) -> Self {
        let witness = Self::made_on(pair, place);
        for (which, way) in BOTH.iter().zip(&witness.ways) {
            witness.configure(pair, *which, way.address(), failover_after_ms);
        }
        witness
    }

    /// Starts a witness that accepts both nodes, and of which they do not know.
    pub fn beside(pair: &Pair) -> Self {
        Self::made_on(pair, &std::env::temp_dir())
    }

    fn made_on(pair: &Pair, place: &Path) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("lsw.")
            .tempdir_in(place)
            .unwrap();
        let host = own_address();
        // Held until the networks have their own ports, so that all differ.
        let held = TcpListener::bind((host, 0)).unwrap();
        let listen = held.local_addr().unwrap();
        let nodes = BOTH.map(|which| {
            let dir = pair.node(which).config();
            Identity::load(dir.parent().unwrap()).unwrap()
        });
        let mut witness = Self {
            identity: Identity::create(dir.path(), "witness").unwrap(),
            dir,
            listen,
            server: None,
            nodes,
            ways: [(); 2].map(|()| Network::start(host, listen, None)),
            storage: 0,
        };
        release(held);
        witness.make_store();
        witness.resume();
        witness
    }

    fn store(&self) -> std::path::PathBuf {
        self.dir.path().join(format!("store{}", self.storage))
    }

    fn make_store(&self) {
        fs::create_dir(self.store()).unwrap();
        WitnessStore::create(&self.store()).unwrap();
    }

    /// Writes the witness into the configuration of one node, which asks it after its next start.
    pub fn add_to(&self, pair: &Pair, which: Which, failover_after_ms: u64) {
        let way = &self.ways[usize::from(which == Which::Secondary)];
        self.configure(pair, which, way.address(), failover_after_ms);
    }

    fn configure(&self, pair: &Pair, which: Which, address: SocketAddr, failover_after_ms: u64) {
        let path = pair.node(which).config();
        let text = fs::read_to_string(&path).unwrap();
        let kept = |line: &&str| !line.starts_with("pause_limit_ms");
        let lines: Vec<&str> = text.lines().filter(kept).collect();
        let text = lines.join("\n").replace(
            "answer_limit_ms",
            &format!("failover_after_ms = {failover_after_ms}\nanswer_limit_ms"),
        );
        let fingerprint = self.identity.fingerprint();
        let section = format!(
            "\n\n[datastore.witness]\naddress = \"{address}\"\nfingerprint = \"{fingerprint}\"\n"
        );
        fs::write(path, text + &section).unwrap();
    }

    /// Writes this witness into the configuration of a node, in the place of another one.
    pub fn configure_instead_of(&self, other: &Self, pair: &Pair, which: Which) {
        let path = pair.node(which).config();
        let text = fs::read_to_string(&path).unwrap();
        let names = |witness: &Self| {
            let address = witness.ways[usize::from(which == Which::Secondary)].address();
            let fingerprint = witness.identity.fingerprint();
            [address.to_string(), fingerprint.to_string()]
        };
        let replaced = names(other).into_iter().zip(names(self));
        let text = replaced.fold(text, |text, (from, to)| text.replace(&from, &to));
        fs::write(path, text).unwrap();
    }

    /// The address of the witness itself.
    pub const fn address(&self) -> SocketAddr {
        self.listen
    }

    /// Stops the witness.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// Starts the stopped witness with its records.
    pub fn resume(&mut self) {
        let options = WitnessServerOptions {
            identity: self.identity.clone(),
            listen: self.listen,
            nodes: self.nodes.iter().map(Identity::fingerprint).collect(),
        };
        let mut store = None;
        // A process that another test starts has a copy of the lock for a moment.
        await_that("the store of the witness", || {
            store = WitnessStore::open(&self.store()).ok();
            store.is_some()
        });
        let store = store.unwrap();
        self.server = Some(WitnessServer::start(options, store).unwrap());
    }

    /// Replaces the witness by a new one without records.
    pub fn replace(&mut self) {
        self.stop();
        self.storage += 1;
        self.make_store();
        self.resume();
    }

    /// Takes the space from the store of the stopped witness that it does not use yet.
    pub fn take_space(&self) {
        let path = self.store().join("records");
        let bytes = fs::read(&path).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(used as u64).unwrap();
        file.sync_all().unwrap();
    }

    /// Cuts the network between a node and the witness, or heals it.
    pub fn cut(&self, which: Which, is_cut: bool) {
        let way = &self.ways[usize::from(which == Which::Secondary)];
        if is_cut {
            way.apply_fault(Fault::Cut);
        } else {
            way.heal();
        }
    }

    /// The record of the datastore.
    pub fn record(&self) -> Option<WitnessRecord> {
        let config = WitnessConfig::Own {
            address: self.listen.into(),
            fingerprint: self.identity.fingerprint(),
        };
        let [a, b] = &self.nodes;
        let client = WitnessClient::new(&config, a).unwrap();
        let uuid: DatastoreUuid = UUID.parse().unwrap();
        let witness = client.datastore(uuid, b.fingerprint()).unwrap();
        witness.read(WAIT_LIMIT).unwrap()
    }

    /// The name of a node in the records.
    pub fn member(&self, which: Which) -> Member {
        let [a, b] = self.nodes.each_ref().map(Identity::fingerprint);
        let of = if which == Which::Primary { a } else { b };
        NodePair::new(a, b).unwrap().member(of).unwrap()
    }
}
