//! A real etcd, with one member.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use lockstep_link::Identity;
use lockstep_roles::Witness;
use lockstep_types::DatastoreUuid;
use lockstep_witness::{WitnessClient, WitnessConfig};
use tempfile::TempDir;

use crate::child::{Process, own_address};
use crate::subject::{Nodes, Subject};

pub struct EtcdSubject {
    nodes: Nodes,
    directory: TempDir,
    address: Ipv4Addr,
    process: Process,
}

pub fn is_installed() -> bool {
    Command::new("etcd").arg("--version").output().is_ok()
}

pub fn start() -> EtcdSubject {
    let directory = tempfile::tempdir().unwrap();
    let address = own_address();
    EtcdSubject {
        nodes: Nodes::new(),
        process: start_process(directory.path(), address),
        directory,
        address,
    }
}

fn start_process(directory: &Path, address: Ipv4Addr) -> Process {
    let (clients, members) = (
        format!("http://{address}:2379"),
        format!("http://{address}:2380"),
    );
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(directory);
    command.args(["--name", "only"]);
    command.args(["--listen-client-urls", &clients]);
    command.args(["--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &members]);
    command.args(["--initial-advertise-peer-urls", &members]);
    command.args(["--initial-cluster", &format!("only={members}")]);
    command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
    Process::start(&command)
}

impl Subject for EtcdSubject {
    fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    fn witness(&self, node: &Identity, peer: &Identity, uuid: DatastoreUuid) -> Box<dyn Witness> {
        // No program listens at the second endpoint: the client passes it over.
        let endpoints = [
            format!("http://{}:2379", self.address),
            format!("http://{}:2377", self.address),
        ];
        let config = WitnessConfig::Etcd {
            endpoints: endpoints.map(|endpoint| endpoint.parse().unwrap()).into(),
        };
        let client = WitnessClient::new(&config, node).unwrap();
        client.datastore(uuid, peer.fingerprint()).unwrap()
    }

    fn kill(&mut self) {
        self.process.kill();
    }

    fn start_again(&mut self) {
        self.process = start_process(self.directory.path(), self.address);
    }

    fn kills(&self) -> usize {
        3
    }
}
