//! The own witness, in a process of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use lockstep_link::{Fingerprint, Identity};
use lockstep_roles::Witness;
use lockstep_types::DatastoreUuid;
use lockstep_witness::{
    WitnessClient, WitnessConfig, WitnessServer, WitnessServerOptions, WitnessStore,
};
use tempfile::TempDir;

use crate::child::{Process, own_address};
use crate::subject::{Nodes, Subject};

/// Variable with the directory of the process's witness.
const DIRECTORY: &str = "LOCKSTEP_TEST_WITNESS_DIRECTORY";
/// Variable with the process's address.
const LISTEN: &str = "LOCKSTEP_TEST_WITNESS_LISTEN";
/// Variable with the fingerprints of the nodes.
const NODES: &str = "LOCKSTEP_TEST_WITNESS_NODES";

pub struct OwnSubject {
    nodes: Nodes,
    directory: TempDir,
    listen: SocketAddr,
    fingerprint: Fingerprint,
    process: Process,
}

/// This witness needs no other program.
pub const fn is_installed() -> bool {
    true
}

pub fn start() -> OwnSubject {
    let (directory, nodes) = (tempfile::tempdir().unwrap(), Nodes::new());
    let identity = Identity::create(directory.path(), "witness").unwrap();
    drop(WitnessStore::create(directory.path()).unwrap());
    let listen = SocketAddr::from((own_address(), 7400));
    OwnSubject {
        process: start_process(directory.path(), listen, &nodes),
        nodes,
        directory,
        listen,
        fingerprint: identity.fingerprint(),
    }
}

fn start_process(directory: &Path, listen: SocketAddr, nodes: &Nodes) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_process_of_a_witness"]);
    command.env(DIRECTORY, directory);
    command.env(LISTEN, listen.to_string());
    command.env(NODES, nodes.known().map(|node| node.to_string()).join(","));
    Process::start(&command)
}

/// The process of a witness, if this process was started as one.
pub fn serve_if_asked() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let nodes = std::env::var(NODES).unwrap();
    let options = WitnessServerOptions {
        identity: Identity::load(Path::new(&directory)).unwrap(),
        listen: std::env::var(LISTEN).unwrap().parse().unwrap(),
        nodes: nodes.split(',').map(|node| node.parse().unwrap()).collect(),
    };
    let store = WitnessStore::open(Path::new(&directory)).unwrap();
    let _server = WitnessServer::start(options, store).unwrap();
    loop {
        std::thread::park();
    }
}

impl Subject for OwnSubject {
    fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    fn witness(&self, node: &Identity, peer: &Identity, uuid: DatastoreUuid) -> Box<dyn Witness> {
        let config = WitnessConfig::Own {
            address: self.listen.into(),
            fingerprint: self.fingerprint,
        };
        let client = WitnessClient::new(&config, node).unwrap();
        client.datastore(uuid, peer.fingerprint()).unwrap()
    }

    fn kill(&mut self) {
        self.process.kill();
    }

    fn start_again(&mut self) {
        self.process = start_process(self.directory.path(), self.listen, &self.nodes);
    }

    fn kills(&self) -> usize {
        12
    }
}
