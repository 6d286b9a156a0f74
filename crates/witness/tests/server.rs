//! The own witness and its client, in one process: the errors of a wrong, silent, failed or replaced witness.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use lockstep_link::{Fingerprint, Identity};
use lockstep_roles::{Claim, InSyncSet, Member, Witness, WitnessRecord};
use lockstep_types::{DatastoreUuid, Generation};
use lockstep_witness::{
    WitnessClient, WitnessConfig, WitnessOperator, WitnessServer, WitnessServerError,
    WitnessServerOptions, WitnessSetupError, WitnessStore,
};

/// Longer than any call takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Long enough for a call that must fail.
const SHORT: Duration = Duration::from_millis(200);

const ANY_PORT: &str = "127.0.0.1:0";

/// A witness, and two nodes that it knows.
struct Setting {
    witness: Identity,
    nodes: [Identity; 2],
    uuid: DatastoreUuid,
    directory: tempfile::TempDir,
}

impl Setting {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        drop(WitnessStore::create(directory.path()).unwrap());
        Self {
            witness: Identity::ephemeral("witness").unwrap(),
            nodes: ["a", "b"].map(|name| Identity::ephemeral(name).unwrap()),
            uuid: DatastoreUuid::random(),
            directory,
        }
    }

    fn start(&self) -> WitnessServer {
        self.start_on(self.directory.path()).unwrap()
    }

    fn start_on(&self, store: &Path) -> Result<WitnessServer, WitnessServerError> {
        let options = WitnessServerOptions {
            identity: self.witness.clone(),
            listen: ANY_PORT.parse().unwrap(),
            nodes: self.nodes.iter().map(Identity::fingerprint).collect(),
        };
        WitnessServer::start(options, WitnessStore::open(store).unwrap())
    }

    fn client(&self, address: SocketAddr, pinned: Fingerprint) -> Box<dyn Witness> {
        let config = WitnessConfig::Own {
            address: address.into(),
            fingerprint: pinned,
        };
        let [node, peer] = &self.nodes;
        let client = WitnessClient::new(&config, node).unwrap();
        client.datastore(self.uuid, peer.fingerprint()).unwrap()
    }

    fn node(&self, address: SocketAddr) -> Box<dyn Witness> {
        self.client(address, self.witness.fingerprint())
    }
}

fn change(witness: &dyn Witness, expected: Option<WitnessRecord>) -> Option<WitnessRecord> {
    let new = WitnessRecord {
        change: expected.map_or(0, |known| known.change + 1),
        generation: Generation::FIRST,
        primary: Member::Second,
        in_sync: InSyncSet::Both,
        sync: None,
    };
    let after = witness.claim(&Claim { expected, new }, LIMIT).unwrap();
    assert_eq!(after, Some(new));
    after
}

#[test]
fn a_witness_with_another_certificate_is_refused() {
    let setting = Setting::new();
    let server = setting.start();
    let pinned = Identity::ephemeral("other").unwrap().fingerprint();
    let error = setting
        .client(server.address(), pinned)
        .read(LIMIT)
        .unwrap_err();
    let text = error.to_string();
    assert!(!error.is_unreachable(), "{text}");
    for part in [pinned, setting.witness.fingerprint()] {
        assert!(text.contains(&part.to_string()), "{text}");
    }
}

#[test]
fn a_program_that_is_no_witness_is_refused_or_unreachable() {
    let setting = Setting::new();
    // The program says something in the place of TLS, and ends the connection.
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut request = [0; 16];
        let _ = socket.read(&mut request);
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let error = setting.node(address).read(LIMIT).unwrap_err();
    assert!(error.to_string().contains("\n  cure: "), "{error}");
    answering.join().unwrap();
}

#[test]
fn a_silent_witness_is_an_error_at_the_limit() {
    let setting = Setting::new();
    // The kernel accepts the connections. No program answers.
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let witness = setting.node(listener.local_addr().unwrap());
    for _ in 0..3 {
        let error = witness.read(SHORT).unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert!(error.to_string().contains("200 ms"), "{error}");
    }
}

#[test]
fn strangers_do_not_keep_a_witness_from_its_nodes() {
    let setting = Setting::new();
    let server = setting.start();
    // Connections that say nothing, and connections that say nonsense. All have the address of the node.
    let silent: Vec<_> = (0..200)
        .map(|_| TcpStream::connect(server.address()).unwrap())
        .collect();
    for _ in 0..20 {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        let _ = socket.write_all(&[0x5a; 300]);
    }
    let witness = setting.node(server.address());
    // Shorter than the limit of a greeting.
    let read = witness.read(Duration::from_secs(4)).unwrap();
    assert_eq!(read, None);
    let known = change(&*witness, None);
    assert_eq!(witness.read(LIMIT).unwrap(), known);
    drop(silent);
}

#[test]
fn only_its_operator_lists_and_removes_records() {
    let setting = Setting::new();
    let server = setting.start();
    let witness = setting.node(server.address());
    let known = change(&*witness, None);
    let known = change(&*witness, known);
    let operator = WitnessOperator::new(server.address(), &setting.witness, LIMIT).unwrap();
    let listing = operator.list().unwrap();
    let [(uuid, entry)] = &listing.datastores[..] else {
        panic!("{listing:?}");
    };
    assert_eq!((*uuid, Some(entry.record)), (setting.uuid, known));
    let nodes: BTreeSet<_> = setting.nodes.iter().map(Identity::fingerprint).collect();
    assert_eq!(
        entry.pair.both().into_iter().collect::<BTreeSet<_>>(),
        nodes
    );
    // A node cannot even pretend: it does not have the certificate of the witness.
    let node = WitnessOperator::new(server.address(), &setting.nodes[0], LIMIT).unwrap();
    let error = node.list().unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(node.forget(setting.uuid).is_err());
    assert!(operator.forget(setting.uuid).unwrap());
    assert!(!operator.forget(setting.uuid).unwrap());
    assert!(operator.list().unwrap().datastores.is_empty());
    // A node that has seen the record does not take its removal for a loss, and may begin again.
    assert_eq!(witness.read(LIMIT).unwrap(), None);
    change(&*witness, None);
}

#[test]
fn a_witness_that_was_set_back_is_refused() {
    let setting = Setting::new();
    let copy = tempfile::tempdir().unwrap();
    let server = setting.start();
    let address = server.address();
    let witness = setting.node(address);
    let first = change(&*witness, None);
    drop(server);
    std::fs::copy(
        setting.directory.path().join("records"),
        copy.path().join("records"),
    )
    .unwrap();
    let options = |store: &Path| {
        let options = WitnessServerOptions {
            identity: setting.witness.clone(),
            listen: address,
            nodes: setting.nodes.iter().map(Identity::fingerprint).collect(),
        };
        WitnessServer::start(options, WitnessStore::open(store).unwrap()).unwrap()
    };
    let server = options(setting.directory.path());
    let second = change(&*witness, first);
    drop(server);
    // The older copy has the identity of the store, and not its last change.
    let _server = options(copy.path());
    for _ in 0..2 {
        let error = witness.read(LIMIT).unwrap_err();
        assert!(!error.is_unreachable(), "{error}");
        assert!(error.to_string().contains("lost records"), "{error}");
    }
    assert_ne!(first, second);
}

#[test]
fn a_new_store_may_begin_again() {
    let setting = Setting::new();
    let server = setting.start();
    let address = server.address();
    let witness = setting.node(address);
    let first = change(&*witness, None);
    change(&*witness, first);
    drop(server);
    let new = tempfile::tempdir().unwrap();
    let options = WitnessServerOptions {
        identity: setting.witness.clone(),
        listen: address,
        nodes: setting.nodes.iter().map(Identity::fingerprint).collect(),
    };
    let store = WitnessStore::create(new.path()).unwrap();
    let _server = WitnessServer::start(options, store).unwrap();
    assert_eq!(witness.read(LIMIT).unwrap(), None);
    change(&*witness, None);
}

#[test]
fn a_stopped_server_frees_its_address_and_its_store() {
    let setting = Setting::new();
    let server = setting.start();
    let taken = WitnessServerOptions {
        identity: setting.witness.clone(),
        listen: server.address(),
        nodes: BTreeSet::new(),
    };
    let other = tempfile::tempdir().unwrap();
    let store = WitnessStore::create(other.path()).unwrap();
    let error = WitnessServer::start(taken, store).unwrap_err();
    assert!(
        matches!(error, WitnessServerError::Listen { .. }),
        "{error}"
    );
    assert_eq!(server.failure(), None);
    // A connected node does not delay the stop.
    let witness = setting.node(server.address());
    change(&*witness, None);
    drop(server);
    assert!(witness.read(SHORT).unwrap_err().is_unreachable());
    setting.start();
}

#[test]
fn a_node_is_not_its_own_peer() {
    let setting = Setting::new();
    let config = WitnessConfig::Own {
        address: SocketAddr::from(([127, 0, 0, 1], 1)).into(),
        fingerprint: setting.witness.fingerprint(),
    };
    let client = WitnessClient::new(&config, &setting.nodes[0]).unwrap();
    let error = client
        .datastore(setting.uuid, setting.nodes[0].fingerprint())
        .err();
    assert!(
        matches!(error, Some(WitnessSetupError::OneNode(_))),
        "{error:?}"
    );
}
