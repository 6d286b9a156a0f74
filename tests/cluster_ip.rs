//! The cluster address, by real keepalived: two servers, a client and a witness at a bridge, each in a network namespace of
//! its own. `automatic` has the tests with the witness, where no operator acts.
//!
//! `machine` has a virtual machine whose disk lies on NFS at the address, and whose kernel mounts NFS there. `waits` measures how
//! long such a kernel waits.
//!
//! A client pings the address and writes through it all the time. An observer looks at both servers a thousand times a
//! second: the address is never on both. At the end every acknowledged write is in the datastore.
//!
//! Needs root, /dev/fuse, and the programs of `scripts/setup test`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "cluster_ip/automatic.rs"]
mod automatic;
#[cfg(target_arch = "x86_64")]
#[path = "cluster_ip/guest.rs"]
mod guest;
#[path = "cluster_ip/line.rs"]
mod line;
#[cfg(target_arch = "x86_64")]
#[path = "cluster_ip/machine.rs"]
mod machine;
#[path = "cluster_ip/network.rs"]
mod network;
#[cfg(target_arch = "x86_64")]
#[path = "cluster_ip/nfs_service.rs"]
mod nfs_service;
#[cfg(target_arch = "x86_64")]
#[path = "cluster_ip/guest/record.rs"]
mod record;
#[path = "cluster_ip/request.rs"]
mod request;
#[path = "cluster_ip/server.rs"]
mod server;
#[cfg(target_arch = "x86_64")]
#[path = "nfs/server_space.rs"]
mod server_space;
#[cfg(target_arch = "x86_64")]
#[path = "cluster_ip/waits.rs"]
mod waits;
#[path = "cluster_ip/watch.rs"]
mod watch;
#[path = "cluster_ip/witness.rs"]
mod witness;

use lockstep_testbed::{await_that, can_mount};
use lockstepfs::config::Role;
use rustix::process::Signal;
use tempfile::TempDir;

use line::{Client, assert_records};
use network::Host::{A, B, Client as C};
use network::{Host, Lan};
use server::Server;
use watch::Holder::{Nobody, One};
use watch::{Holder, Observer, Ping, has_now};
use witness::Witness;

/// A lost peer is waited for.
const PATIENT: &str = "pause_limit_ms = 600000\npeer_timeout_ms = 1000";
/// A primary that soon goes on alone.
const IMPATIENT: &str = "pause_limit_ms = 400\npeer_timeout_ms = 1000";

/// The secondary takes over soon, by the answer of the witness.
const AUTOMATIC: &str = "failover_after_ms = 1500\npeer_timeout_ms = 1000";
/// The secondary takes over after any restart of a process, also on a busy machine.
const UNHURRIED: &str = "failover_after_ms = 30000\npeer_timeout_ms = 1000";

/// Both servers, and the programs that use the address. The fields end in this order.
struct Site {
    observer: Observer,
    ping: Ping,
    client: Client,
    servers: [Server; 2],
    _witness: Option<Witness>,
    lan: Lan,
    _directory: TempDir,
}

impl Site {
    /// Both nodes in sync, with A as the primary and the address at A; `None` if this machine cannot mount.
    fn start(settings: &str) -> Option<Self> {
        Self::start_with(settings, false)
    }

    /// The same, with a witness that lets B take over, and with holders of the mounts.
    fn start_witnessed(settings: &str) -> Option<Self> {
        let site = Self::start_with(settings, true)?;
        site.await_protected(A);
        Some(site)
    }

    fn start_with(settings: &str, is_witnessed: bool) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let directory = tempfile::Builder::new().prefix("lsv.").tempdir().unwrap();
        let lan = Lan::new();
        let root = directory.path();
        let prints = server::identify(root);
        let section = is_witnessed.then(|| witness::make(root, &prints));
        let mut servers = server::pair(root, &prints, settings, &section.unwrap_or_default());
        let witness = is_witnessed.then(|| Witness::start(&lan, root));
        let observer = Observer::start(&lan);
        for server in &mut servers {
            if is_witnessed {
                server.start_holder(&lan);
            }
            server.start_node(&lan);
            server.start_keepalived(&lan);
        }
        servers[0].await_in_sync(Role::Primary);
        line::prepare(&servers[0].mount());
        for (server, host) in servers.iter().zip([A, B]) {
            line::serve(&lan, host, server.mount());
        }
        let site = Self {
            observer,
            ping: Ping::start(&lan, directory.path()),
            client: Client::start(&lan),
            servers,
            _witness: witness,
            lan,
            _directory: directory,
        };
        site.await_in_sync(A);
        site.assert_served_at(A);
        Some(site)
    }

    fn server(&self, host: Host) -> &Server {
        &self.servers[host as usize]
    }

    fn server_mut(&mut self, host: Host) -> &mut Server {
        &mut self.servers[host as usize]
    }

    fn await_in_sync(&self, primary: Host) {
        let other = if primary == A { B } else { A };
        self.server(primary).await_in_sync(Role::Primary);
        self.server(other).await_in_sync(Role::Secondary);
    }

    /// The address comes to `host`, and the client reaches the service there.
    fn assert_served_at(&self, host: Host) {
        self.observer.await_holder(One(host));
        self.client.await_progress();
        self.ping.await_answers();
        self.observer.await_holder(One(host));
        assert_eq!(self.server(host).health(), Some(0));
    }

    /// Gives the role from one node to the other, which runs.
    fn fail_over(&self, from: Host, to: Host) {
        // The announcements are counted from here on.
        self.lan.cut(&[]);
        self.server(from).fail_over(&self.lan);
        self.assert_served_at(to);
        assert!(self.lan.has_announced(to), "the network hears of the move");
        self.await_in_sync(to);
        assert_eq!(self.server(from).health(), Some(1));
        await_that("the end of the address's connections", || {
            !self.lan.has_connections(from)
        });
    }

    /// Waits until the nodes are in sync, and the witness lets the other node take over from this one.
    fn await_protected(&self, primary: Host) {
        self.await_in_sync(primary);
        self.server(primary).await_status("protection", |status| {
            status.witness.as_ref().is_some_and(|it| it.protects)
        });
    }

    /// Checks every acknowledged write at the primary, and that both nodes hold the same. Returns where the address was.
    fn finish(self, primary: Host) -> Vec<Holder> {
        let holders = self.observer.finish();
        let acknowledged = self.client.finish();
        println!("{acknowledged} acknowledged");
        let server = &self.servers[primary as usize];
        assert_records(&server.mount(), acknowledged);
        let verified = server.lockstep("verify", &[]);
        assert!(verified.status.success(), "{verified:?}");
        holders
    }
}

/// The servers that had the address one after the other.
fn without_gaps(holders: Vec<Holder>) -> Vec<Holder> {
    let mut servers = holders;
    servers.retain(|holder| *holder != Nobody);
    servers.dedup();
    servers
}

#[test]
fn the_address_follows_a_planned_failover_there_and_back() {
    let Some(site) = Site::start(PATIENT) else {
        return;
    };
    site.fail_over(A, B);
    site.fail_over(B, A);
    assert_eq!(without_gaps(site.finish(A)), [One(A), One(B), One(A)]);
}

#[test]
fn a_node_says_that_the_address_has_not_followed_because_keepalived_hangs() {
    let Some(site) = Site::start(PATIENT) else {
        return;
    };
    site.server(B).signal_keepalived(Signal::STOP);
    site.server(A).fail_over(&site.lan);
    let says = |command: &str, text: &str| {
        let asked = site.server(B).lockstep(command, &[]);
        let output = String::from_utf8(asked.stdout).unwrap();
        (output.contains(text), asked.status.code())
    };
    let missing = "NOT HERE, although this node serves";
    await_that("a warning", || says("status", missing) == (true, Some(1)));
    assert!(says("why", missing).0);
    site.server(B).signal_keepalived(Signal::CONT);
    site.assert_served_at(B);
    site.await_in_sync(B);
    await_that("the end of the warning", || {
        says("status", "192.0.2.10, here") == (true, Some(0))
    });
    assert_eq!(without_gaps(site.finish(B)), [One(A), One(B)]);
}

/// Killed, keepalived leaves the address behind: the next one removes it.
#[test]
fn a_keepalived_that_hangs_starts_anew_and_the_address_follows_the_role() {
    let Some(mut site) = Site::start(PATIENT) else {
        return;
    };
    site.server_mut(A).signal_keepalived(Signal::STOP);
    site.server(A).change_role("failover");
    let Site { servers, lan, .. } = &mut site;
    await_that("the address to be on both", || {
        [A, B].iter().all(|host| has_now(lan, *host))
    });
    servers[0].start_watch(lan);
    servers[0].restart_keepalived_as_asked(lan);
    await_that("the address to leave A", || !has_now(lan, A));
    site.client.await_progress();
    site.await_in_sync(B);
    // The other way: no server gets the address.
    site.server(A).signal_keepalived(Signal::STOP);
    site.server(B).fail_over(&site.lan);
    let Site { servers, lan, .. } = &mut site;
    assert!(!has_now(lan, A), "keepalived hangs");
    servers[0].restart_keepalived_as_asked(lan);
    await_that("the address to come to A", || has_now(lan, A));
    site.client.await_progress();
    let acknowledged = site.client.finish();
    assert_records(&site.servers[0].mount(), acknowledged);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn an_nfs_server_that_hangs_starts_anew_at_the_node_that_serves() {
    if can_mount() {
        machine::a_hung_ganesha_starts_anew();
    }
}

/// The kernel of the virtual machine is one for x86-64.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_virtual_machine_on_nfs_at_the_address_goes_on_through_five_failovers() {
    if can_mount() {
        machine::a_guest_survives();
    }
}

/// Prints a table for docs/hypervisors.md. `LOCKSTEP_NFS_TIMES` has values of `Lease_Lifetime` and `Grace_Period`
/// (`10/20,4/8`), and `LOCKSTEP_NFS_ROUNDS` is the number of failovers of each kind.
#[test]
#[ignore = "a measurement of some minutes: it has no limit that could be missed"]
#[cfg(target_arch = "x86_64")]
fn how_long_a_kernel_client_waits_in_failovers() {
    if can_mount() {
        waits::measure();
    }
}

#[test]
fn a_primary_that_hangs_loses_the_address_until_it_goes_on() {
    let Some(site) = Site::start(PATIENT) else {
        return;
    };
    site.server(A).signal(Signal::STOP);
    site.observer.await_holder(Nobody);
    assert_eq!(site.server(A).health(), Some(2));
    assert_eq!(site.server(B).health(), Some(1));
    site.server(A).signal(Signal::CONT);
    site.await_in_sync(A);
    site.assert_served_at(A);
    assert_eq!(site.finish(A), [Nobody, One(A), Nobody, One(A)]);
}

#[test]
fn a_server_without_keepalived_has_no_address() {
    let Some(mut site) = Site::start(PATIENT) else {
        return;
    };
    site.server_mut(A).stop_keepalived();
    site.observer.await_holder(Nobody);
    let Site { servers, lan, .. } = &mut site;
    servers[0].start_keepalived(lan);
    site.assert_served_at(A);
    assert_eq!(site.finish(A), [Nobody, One(A), Nobody, One(A)]);
}

#[test]
fn a_cut_link_between_any_two_does_not_move_the_address() {
    let Some(site) = Site::start(IMPATIENT) else {
        return;
    };
    // The primary goes on alone.
    site.lan.cut(&[(A, B)]);
    await_that("A to go on alone", || {
        site.server(A)
            .status()
            .is_some_and(|status| !status.sync.copy.marked_in_sync)
    });
    site.assert_served_at(A);
    // The secondary is cut off from everything.
    site.lan.cut(&[(A, B), (B, C)]);
    site.assert_served_at(A);
    // The client is cut off from everything.
    site.lan.cut(&[(A, C), (B, C)]);
    site.await_in_sync(A);
    // Only the client does not reach the primary.
    site.lan.cut(&[(A, C)]);
    site.await_in_sync(A);
    site.lan.cut(&[(B, C)]);
    site.assert_served_at(A);
    site.lan.cut(&[]);
    site.assert_served_at(A);
    assert_eq!(site.finish(A), [Nobody, One(A)]);
}

/// Here an operator decides.
#[test]
fn a_primary_that_is_cut_off_and_stopped_is_replaced_by_an_operator() {
    let Some(mut site) = Site::start(PATIENT) else {
        return;
    };
    site.lan.cut(&[(A, B), (A, C)]);
    site.server(B).await_cut_off();
    // The nodes do not hear each other, and still only one of them has the address.
    assert_eq!(site.server(B).health(), Some(1));
    site.server_mut(A).kill_node();
    site.observer.await_holder(Nobody);
    site.server(B).change_role("promote");
    site.assert_served_at(B);

    let Site { servers, lan, .. } = &mut site;
    servers[0].start_node(lan);
    await_that("A to wait for its peer", || {
        site.server(A).health() == Some(1)
    });
    site.lan.cut(&[]);
    site.await_in_sync(B);
    site.assert_served_at(B);
    assert_eq!(site.finish(B), [Nobody, One(A), Nobody, One(B)]);
}
