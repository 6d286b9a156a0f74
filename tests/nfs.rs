//! NFS: two nodes, NFS-Ganesha beside each, and clients that follow an address from one server to the other.
//!
//! Each server is a set of processes in a network namespace, with the configuration that `lockstep ganesha-config`
//! prints. The clients are libnfs, QEMU's tools, and clients of the test that see handles, verifiers and states. Needs
//! root, /dev/fuse, and the packages of `scripts/setup test`.
//!
//! *A* is the node that begins as the primary, and *B* is the other one. `LOCKSTEP_FAULT_KEEP` keeps the directory of a
//! failed test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[allow(dead_code)] // the test uses a part
#[path = "nfs/cluster_address.rs"]
mod cluster_address;
#[path = "nfs/ganesha.rs"]
mod ganesha;
#[allow(dead_code)] // the test uses a part
#[path = "nfs/rpc.rs"]
mod rpc;
#[path = "nfs/server_space.rs"]
mod server_space;
#[path = "nfs/site.rs"]
mod site;
#[path = "nfs/tools.rs"]
mod tools;
#[path = "nfs/version3.rs"]
mod version3;
#[path = "nfs/version4.rs"]
mod version4;

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::chance::Chance;
use lockstep_testbed::operator;
use lockstep_testbed::operator::{assert_identical, await_in_sync};
use lockstep_testbed::server;
use lockstep_testbed::server::Server;
use lockstep_testbed::{NodeEnvironment, PATIENT, Settings, await_that};

use site::Site;
use version3::{Stable, Written};

lockstep_testbed::network_process!();

/// A peer that is silent for long is still waited for.
const EXPORTED: Settings = Settings {
    standby: "eagain",
    peer_timeout_ms: 10_000,
    ..PATIENT
};
/// How long the tests look for an answer that must not come.
const NO_ANSWER_FOR: Duration = Duration::from_millis(300);
/// The longest handle that `VMware`'s client of NFS version 3 takes, in bytes.
const VMWARE_HANDLE_BYTES: usize = 56;

/// Ganesha runs on, on both servers.
#[test]
fn a_handle_opens_the_same_file_on_both_servers_whichever_serves() {
    let Some(mut site) = Site::start(EXPORTED) else {
        return;
    };
    let root = site.root_of(A);
    assert_eq!(
        site.root_of(B),
        root,
        "both servers export the same directory"
    );
    let mut client = site.client();
    let file = client.create(&root, "file");
    client.create(&root, "gone");
    assert!(file.len() <= VMWARE_HANDLE_BYTES, "{} bytes", file.len());
    client.write(&file, 0, b"from A", Stable::FileSync);
    let seen = client.attributes(&file);
    site.snapshot(A, "one");
    let path = [".lockstep", "snapshots", "one", "file"];
    let step = |directory, name| client.lookup(&directory, name).unwrap();
    let past = path.into_iter().fold(root.clone(), step);
    assert!(past.len() <= VMWARE_HANDLE_BYTES, "{} bytes", past.len());

    site.move_from(A);
    let mut client = site.client();
    assert_eq!(client.attributes(&file), seen);
    assert_eq!(client.lookup(&root, "file"), Some(file.clone()));
    assert_eq!(client.read(&file, 0, 100), b"from A");
    assert_eq!(client.read(&past, 0, 100), b"from A");
    client.write(&file, 5, b"B, longer", Stable::FileSync);
    client.remove(&root, "gone");
    let new = client.create(&root, "new");

    await_in_sync(&mut site.pair, B, 2);
    site.move_from(B);
    let mut client = site.client();
    assert_eq!(client.read(&file, 0, 100), b"from B, longer");
    assert_eq!(client.attributes(&file).size, 14);
    assert_eq!(client.lookup(&root, "gone"), None);
    assert_eq!(client.lookup(&root, "new"), Some(new));

    // Neither Ganesha nor the kernel knows the file any more.
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    site.restart_ganesha(A);
    let mut client = site.client();
    assert_eq!(client.read(&file, 0, 100), b"from B, longer");
    assert_eq!(client.read(&past, 0, 100), b"from A", "of the snapshot");
}

/// The content of a file, below the directory of the store.
fn content_file(number: u64) -> String {
    lockstep_fs::paths::content_path(lockstep_types::Ino::new(number).unwrap())
}

/// Two servers whose disks can hang and lose power, and the machines for their nodes.
fn disks() -> ([Server; 2], [NodeEnvironment; 2]) {
    server::isolate();
    let servers = [Server::start(), Server::start()];
    let machines = servers.each_ref().map(Server::environment);
    (servers, machines)
}

/// Starts two servers whose disks can hang and lose power.
fn start_on_disks() -> Option<(Site, [Server; 2])> {
    let (servers, machines) = disks();
    Some((Site::start_on(EXPORTED, machines)?, servers))
}

#[test]
fn a_stable_write_and_a_commit_wait_for_the_disks_of_both_nodes() {
    let Some((site, servers)) = start_on_disks() else {
        return;
    };
    let root = site.root_of(A);
    let mut client = site.client();
    let file = client.create(&root, "file");
    let Written { verifier, .. } = client.write(&file, 0, &[1; 4096], Stable::FileSync);
    let content = content_file(client.attributes(&file).number);
    for server in &servers {
        let hang = server.hang_on(&content);
        let written = client.write(&file, 0, &[2; 4096], Stable::Unstable);
        assert_eq!(written.committed, Stable::Unstable as u32);
        assert_eq!(hang.waiting(), 0, "nobody has asked for a sync");
        client.send_commit(&file);
        await_that("the commit to wait for the disk", || hang.waiting() > 0);
        assert!(!client.awaits_answer(NO_ANSWER_FOR));
        drop(hang);
        assert_eq!(client.receive_commit(), verifier);

        for stable in [Stable::DataSync, Stable::FileSync] {
            let hang = server.hang_on(&content);
            client.send_write(&file, 0, &[3; 4096], stable);
            await_that("the write to wait for the disk", || hang.waiting() > 0);
            assert!(!client.awaits_answer(NO_ANSWER_FOR));
            drop(hang);
            let expected = Written {
                count: 4096,
                committed: Stable::FileSync as u32,
                verifier,
            };
            assert_eq!(client.receive_write(), expected);
        }
    }
}

/// A request that reaches Ganesha on a server that has given its role away must not run when that server serves again:
/// the client has got no answer, has asked the other server, and has gone on there.
#[test]
fn no_write_runs_after_the_client_has_asked_the_other_server() {
    let Some(mut site) = Site::start(EXPORTED) else {
        return;
    };
    let root = site.root_of(A);
    let mut client = site.client();
    let file = client.create(&root, "file");
    client.write(&file, 0, b"first", Stable::FileSync);
    let mut late = site.client_of(A);
    site.move_from(A);
    late.send_write(&file, 0, b"late!", Stable::FileSync);
    assert!(
        !late.awaits_answer(NO_ANSWER_FOR),
        "an answer is an error for the guest"
    );

    let mut client = site.client();
    client.write(&file, 0, b"late!", Stable::FileSync);
    client.write(&file, 0, b"newer", Stable::FileSync);
    await_in_sync(&mut site.pair, B, 2);
    site.move_from(B);
    assert!(!late.awaits_answer(NO_ANSWER_FOR));
    let mut client = site.client();
    assert_eq!(client.read(&file, 0, 100), b"newer");
    await_in_sync(&mut site.pair, A, 3);
    assert_identical(site.pair.node(A));
}

#[test]
fn programs_of_libnfs_find_their_files_on_both_servers() {
    if let Some(mut site) = Site::start(EXPORTED) {
        tools::copy_and_list(&mut site);
    }
}

#[test]
fn an_image_that_qemu_has_open_stays_open_over_failovers() {
    if let Some(mut site) = Site::start(EXPORTED) {
        tools::images(&mut site);
    }
}

/// Nothing is lost, so no client has to send anything again.
#[test]
fn a_crash_of_the_node_process_is_a_wait_for_clients_and_changes_no_verifier() {
    let Some(mut site) = Site::start_held(EXPORTED) else {
        return;
    };
    let root = site.root_of(A);
    let mut client = site.client();
    let file = client.create(&root, "file");
    let written = client.write(&file, 0, b"before", Stable::Unstable);
    site.pair.node_mut(A).kill();
    client.send_write(&file, 0, b"during", Stable::FileSync);
    assert!(!client.awaits_answer(NO_ANSWER_FOR));
    site.pair.node_mut(A).start();
    assert_eq!(client.receive_write().verifier, written.verifier);
    assert_eq!(client.commit(&file), written.verifier);
    assert_eq!(client.read(&file, 0, 100), b"during");
    await_in_sync(&mut site.pair, A, 1);
    assert_identical(site.pair.node(A));
}

/// Ganesha is started again on the server that begins to serve, as `docs/hypervisors.md` says.
#[test]
fn a_client_of_version_4_takes_its_open_file_back_on_the_other_server() {
    let Some(mut site) = Site::start(EXPORTED) else {
        return;
    };
    let connect =
        |site: &Site, name: &str| version4::Client::new(|port| site.address.connect(port), name);
    let root = site.root_of(A);
    site.client().create(&root, "file");
    let path = ["srv", "data"];
    let (file, mut state) = connect(&site, "holder").open(&path, "file").unwrap();
    for (from, to, generation) in [(A, B, 2), (B, A, 3)] {
        site.move_role(from);
        site.restart_ganesha(to);
        site.route_to(to);
        let mut stranger = connect(&site, &format!("stranger-{generation}"));
        assert_eq!(stranger.open(&path, "file").err(), Some(version4::GRACE));
        let refused = stranger.reclaim(&file).err().unwrap();
        assert!(
            [version4::RECLAIM_BAD, version4::NO_GRACE].contains(&refused),
            "{refused}"
        );
        let mut holder = connect(&site, "holder");
        assert!(holder.write(&file, &state, b"not yet").is_err());
        state = holder.reclaim(&file).unwrap();
        holder.write(&file, &state, b"again").unwrap();
        assert_eq!(
            site.client().read(&file_of_version_3(&site, &root), 0, 9),
            b"again"
        );
        await_in_sync(&mut site.pair, to, generation);
    }
}

fn file_of_version_3(site: &Site, root: &version3::Handle) -> version3::Handle {
    site.client().lookup(root, "file").unwrap()
}

/// The seconds of the clock, from which Ganesha makes its verifier.
fn seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

#[test]
fn saved_writes_survive_a_power_loss_of_both_servers_and_unsaved_ones_are_asked_for_again() {
    let Some((mut site, servers)) = start_on_disks() else {
        return;
    };
    let root = site.root_of(A);
    let mut client = site.client();
    let file = client.create(&root, "file");
    let first = client
        .write(&file, 0, &[1; 8192], Stable::FileSync)
        .verifier;
    let again = client.write(&file, 8192, &[2; 8192], Stable::Unstable);
    assert_eq!((again.verifier, client.commit(&file)), (first, first));
    let unsaved = client.write(&file, 0, &[3; 4096], Stable::Unstable);
    assert_eq!(unsaved.verifier, first);

    let started = seconds();
    site.address.move_to(None);
    site.on_a.kill();
    site.on_b.kill();
    for which in [A, B] {
        site.pair.node_mut(which).kill();
    }
    let mut chance = Chance::of_run();
    for server in &servers {
        server.lose_power(&mut chance);
    }
    site.pair.start();
    await_that("the next second", || seconds() > started);
    for which in [A, B] {
        site.restart_ganesha(which);
    }
    site.route_to(A);

    let mut client = site.client();
    let found = client.read(&file, 0, 16_384);
    let saved = [vec![1; 4096], vec![2; 8192]].concat();
    assert!(found[4096..] == saved, "a saved write is lost");
    assert!([1, 3].contains(&found[0]), "{}", found[0]);
    assert_ne!(
        client.commit(&file),
        first,
        "the client does not learn of the loss"
    );
}

/// Ganesha makes no verifier of its own here, so a client learns from each answer whether unsaved writes may be lost.
#[test]
fn unsaved_writes_keep_their_verifier_until_they_may_be_lost() {
    let ([of_a, of_b], machines) = disks();
    let Some(mut site) = Site::start_version_3_on(EXPORTED, machines) else {
        return;
    };
    let root = site.root_of(A);
    let file = site.client().create(&root, "file");
    let unsaved = |site: &Site, byte: u8| {
        let mut client = site.client();
        client
            .write(&file, 0, &[byte; 4096], Stable::Unstable)
            .verifier
    };
    let saved = |site: &Site, byte: u8| {
        let mut client = site.client();
        assert!(
            client.read(&file, 0, 8192) == [byte; 4096],
            "a write is lost"
        );
        client.commit(&file)
    };
    let first = unsaved(&site, 1);
    assert_eq!(u64::from_ne_bytes(first).to_string(), site.verifier_of(A));
    let refused = operator::run(site.pair.node(B), "write-verifier", &[]);
    assert_eq!(
        refused.code,
        Some(1),
        "B does not serve: {}",
        refused.output
    );

    site.move_server(A);
    assert_eq!(saved(&site, 1), first, "a planned failover loses nothing");

    await_in_sync(&mut site.pair, B, 2);
    assert_eq!(unsaved(&site, 2), first);
    site.on_b.kill();
    site.pair.node_mut(B).kill();
    site.pair.node_mut(B).start();
    await_in_sync(&mut site.pair, B, 2);
    site.restart_ganesha(B);
    assert_eq!(saved(&site, 2), first, "a crash of the node loses nothing");

    let mut chance = Chance::of_run();
    assert_eq!(unsaved(&site, 3), first);
    site.pair.node_mut(A).kill();
    of_a.lose_power(&mut chance);
    site.pair.node_mut(A).start();
    await_in_sync(&mut site.pair, B, 2);
    site.move_server(B);
    assert_eq!(saved(&site, 3), first, "the other node has kept everything");

    await_in_sync(&mut site.pair, A, 3);
    site.on_a.kill();
    site.pair.node_mut(A).kill();
    operator::change(site.pair.node(B), "promote", &[]);
    site.restart_ganesha(B);
    site.route_to(B);
    let promoted = unsaved(&site, 4);
    assert_ne!(promoted, first, "A may have gone on alone");

    site.on_b.kill();
    site.pair.node_mut(B).kill();
    of_b.lose_power(&mut chance);
    site.pair.node_mut(B).start();
    await_that("B to serve", || {
        operator::run(site.pair.node(B), "write-verifier", &[]).code == Some(0)
    });
    site.restart_ganesha(B);
    assert_ne!(site.client().commit(&file), promoted, "B was alone");
}
