//! The cluster address, by real keepalived: two servers and a client at a bridge, each in a network namespace of its own.
//!
//! A client pings the address and writes through it all the time. An observer looks at both servers a thousand times a
//! second: the address is never on both. At the end every acknowledged write is in the datastore.
//!
//! Needs root, /dev/fuse, and the programs of `scripts/setup test`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "cluster_ip/line.rs"]
mod line;
#[path = "cluster_ip/network.rs"]
mod network;
#[path = "cluster_ip/server.rs"]
mod server;
#[path = "cluster_ip/watch.rs"]
mod watch;

use std::path::Path;
use std::time::{Duration, Instant};

use lockstepfs::config::Role;
use rustix::process::Signal;
use tempfile::TempDir;

use line::{Client, assert_records};
use network::Host::{A, B, Client as C};
use network::{Host, Lan};
use server::Server;
use watch::Holder::{Nobody, One};
use watch::{Observer, Ping};

/// Longest wait for an expected event.
pub const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Pause between two checks for the event.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A lost peer is waited for.
const PATIENT: &str = "pause_limit_ms = 600000\npeer_timeout_ms = 1000";
/// A primary that soon goes on alone.
const IMPATIENT: &str = "pause_limit_ms = 400\npeer_timeout_ms = 1000";

/// Waits until `done` returns true.
pub fn await_that(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Both servers, and the programs that use the address. The fields end in this order.
struct Site {
    observer: Observer,
    ping: Ping,
    client: Client,
    servers: [Server; 2],
    lan: Lan,
    _directory: TempDir,
}

impl Site {
    /// Both nodes in sync, with A as the primary and the address at A; `None` if this machine cannot mount.
    fn start(settings: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: needs root and /dev/fuse");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("lsv.").tempdir().unwrap();
        let lan = Lan::new();
        let mut servers = server::pair(directory.path(), settings);
        let observer = Observer::start(&lan);
        for server in &mut servers {
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
        self.server(from).change_role("failover");
        self.assert_served_at(to);
        assert!(self.lan.has_announced(to), "the network hears of the move");
        self.await_in_sync(to);
        assert_eq!(self.server(from).health(), Some(1));
        await_that("the end of the address's connections", || {
            !self.lan.has_connections(from)
        });
    }

    /// Waits until a node has lost its connection with the other one.
    fn await_cut_off(&self, host: Host) {
        await_that("the loss of the connection", || {
            let status = self.server(host).status();
            status.is_some_and(|status| status.peer.is_some_and(|peer| !peer.connected))
        });
    }

    /// Has a node serve whose peer is dead. Here an operator decides that.
    fn take_over(&self, host: Host) {
        self.server(host).change_role("promote");
        self.assert_served_at(host);
    }

    /// Checks every acknowledged write at the primary, and that both nodes hold the same. Returns where the address was.
    fn finish(self, primary: Host) -> Vec<watch::Holder> {
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

#[test]
fn the_address_follows_a_planned_failover_there_and_back() {
    let Some(site) = Site::start(PATIENT) else {
        return;
    };
    site.fail_over(A, B);
    site.fail_over(B, A);
    let holders = site.finish(A);
    let without_gaps: Vec<_> = holders.into_iter().filter(|it| *it != Nobody).collect();
    assert_eq!(without_gaps, [One(A), One(B), One(A)]);
}

#[test]
fn the_address_leaves_a_dead_primary_and_comes_to_the_node_that_takes_over() {
    let Some(mut site) = Site::start(PATIENT) else {
        return;
    };
    site.server_mut(A).kill_node();
    site.observer.await_holder(Nobody);
    assert_eq!(site.server(A).health(), Some(2));
    site.take_over(B);

    let Site { servers, lan, .. } = &mut site;
    servers[0].start_node(lan);
    site.await_in_sync(B);
    site.assert_served_at(B);
    site.fail_over(B, A);
    let holders = site.finish(A);
    let without_gaps: Vec<_> = holders.into_iter().filter(|it| *it != Nobody).collect();
    assert_eq!(without_gaps, [One(A), One(B), One(A)]);
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

/// The old primary believes that it serves, until it meets the new one. It hears who has the address.
#[test]
fn a_primary_that_hung_does_not_take_the_address_back_from_its_successor() {
    let Some(site) = Site::start(PATIENT) else {
        return;
    };
    site.server(A).signal(Signal::STOP);
    site.observer.await_holder(Nobody);
    site.await_cut_off(B);
    site.take_over(B);
    site.server(A).signal(Signal::CONT);
    site.await_in_sync(B);
    site.assert_served_at(B);
    assert_eq!(site.server(A).health(), Some(1));
    assert_eq!(site.finish(B), [Nobody, One(A), Nobody, One(B)]);
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
            .is_some_and(|status| !status.sync.marked_in_sync)
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

#[test]
fn a_primary_that_is_cut_off_and_stopped_is_replaced() {
    let Some(mut site) = Site::start(PATIENT) else {
        return;
    };
    site.lan.cut(&[(A, B), (A, C)]);
    site.await_cut_off(B);
    // The nodes do not hear each other, and still only one of them has the address.
    assert_eq!(site.server(B).health(), Some(1));
    site.server_mut(A).kill_node();
    site.observer.await_holder(Nobody);
    site.take_over(B);

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
