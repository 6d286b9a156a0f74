//! NFS: two nodes, NFS-Ganesha beside each, and clients that follow an address from one server to the other.
//!
//! Each server is a set of processes in a network namespace, with the configuration that `lockstep ganesha-config`
//! prints. The clients are libnfs, QEMU's tools, and an NFSv3 client of the test that sees handles and verifiers. Needs
//! root, /dev/fuse, and the packages of `scripts/setup test`.
//!
//! *A* is the node that begins as the primary, and *B* is the other one. `LOCKSTEP_FAULT_KEEP` keeps the directory of a
//! failed test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "faults/address.rs"]
mod address;
#[path = "nfs/cluster_address.rs"]
mod cluster_address;
#[path = "nfs/ganesha.rs"]
mod ganesha;
#[path = "nfs/namespace.rs"]
mod namespace;
#[path = "faults/network.rs"]
mod network;
#[path = "faults/nodes.rs"]
mod nodes;
#[path = "failover/operator.rs"]
mod operator;
#[path = "nfs/site.rs"]
mod site;
#[path = "nfs/version3.rs"]
mod version3;

use std::fs;

use nodes::Which::{Primary as A, Secondary as B};
use nodes::{PATIENT, Settings};
use operator::await_in_sync;
use site::{Move, Site, url};
use version3::Stable;

/// A peer that is silent for long is still waited for.
const EXPORTED: Settings = Settings {
    standby: "eagain",
    peer_timeout_ms: 10_000,
    ..PATIENT
};
/// The longest handle that VMware's NFSv3 client takes, in bytes.
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

    site.move_from(A, Move::Planned);
    let mut client = site.client();
    assert_eq!(client.attributes(&file), seen);
    assert_eq!(client.lookup(&root, "file"), Some(file.clone()));
    assert_eq!(client.read(&file, 0, 100), b"from A");
    client.write(&file, 5, b"B, longer", Stable::FileSync);
    client.remove(&root, "gone");
    let new = client.create(&root, "new");

    await_in_sync(&mut site.pair, B, 2);
    site.move_from(B, Move::Planned);
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
}
