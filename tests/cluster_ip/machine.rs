//! A virtual machine whose disk lies on NFS at the cluster address, and whose kernel mounts NFS there, through every kind of
//! failover.
//!
//! keepalived moves the address and has Ganesha restarted, by the configuration that the command prints. The test only
//! breaks servers and links, starts dead servers again, and gives the planned failovers.

use std::fs;
use std::path::PathBuf;

use lockstep_driver::report::DatastoreStatus;
use lockstepfs::config::Role;
use tempfile::TempDir;

use crate::guest::{Equipment, Guest, assert_saved};
use crate::network::Host::{self, A, B, Client as C, Witness as W};
use crate::network::{ADDRESS, GuestPort, Lan};
use crate::nfs_service::NfsService;
use crate::request::write_program;
use crate::server::{self, Server};
use crate::server_space::configuration;
use crate::watch::Holder::One;
use crate::watch::Observer;
use crate::without_gaps;
use crate::witness::{self, Witness};
use lockstep_testbed::await_that;

/// The virtual machine keeps both cores busy.
const SETTINGS: &str = "failover_after_ms = 2000\npeer_timeout_ms = 1500\nstandby = \"eagain\"";
/// The ports of rpcbind, NFS and MOUNT.
const PORTS: [u16; 3] = [111, 2049, 20_048];
/// The network of the clients.
const CLIENTS: [&str; 2] = ["--clients", "192.0.2.0/24"];

/// A change of the printed configuration of Ganesha.
pub type Change = dyn Fn(String) -> String;

/// Both servers with Ganesha and keepalived, and a witness. The fields end in this order.
pub struct NfsSite {
    observer: Observer,
    servers: [Server; 2],
    services: [Option<NfsService>; 2],
    _witness: Witness,
    lan: Lan,
    directory: TempDir,
}

impl NfsSite {
    fn start() -> Self {
        Self::start_with(&|printed| printed)
    }

    /// The same, with changed configurations of Ganesha.
    pub fn start_with(change: &Change) -> Self {
        let directory = tempfile::Builder::new().prefix("lsn.").tempdir().unwrap();
        let (lan, root) = (Lan::new(), directory.path());
        lan.plug_in_guests();
        let prints = server::identify(root);
        let section = witness::make(root, &prints);
        let servers = server::pair(root, &prints, SETTINGS, &section);
        let mut site = Self {
            _witness: Witness::start(&lan, root),
            observer: Observer::start(&lan),
            servers,
            services: [None, None],
            lan,
            directory,
        };
        for host in [A, B] {
            site.install(host, change);
            site.boot(host);
        }
        site.await_protected(A);
        site.observer.await_holder(One(A));
        await_that("the NFS service", || {
            let client = site.lan.of(C);
            PORTS
                .iter()
                .all(|port| client.connect((ADDRESS, *port).into()).is_ok())
        });
        site
    }

    fn place(&self, host: Host) -> PathBuf {
        self.directory.path().join(format!("{host:?}"))
    }

    fn install(&self, host: Host, change: &Change) {
        let (place, server) = (self.place(host), &self.servers[host as usize]);
        let program = server::program(self.directory.path());
        let text = configuration(
            &program,
            &place.join("node.toml"),
            &server.mount(),
            &CLIENTS,
        );
        fs::write(place.join("ganesha.conf"), change(text)).unwrap();
        write_program(&place);
    }

    /// Starts what a server starts when it boots.
    fn boot(&mut self, host: Host) {
        let place = self.place(host);
        let program = place.join("nfs-service").display().to_string();
        let server = &mut self.servers[host as usize];
        server.start_node(&self.lan);
        self.services[host as usize] = Some(NfsService::start(&self.lan, host, &place));
        server.start_keepalived_with(&self.lan, &[&format!("--ganesha={program}")]);
    }

    /// Waits until the nodes are in sync, and the witness lets the other node take over from this one.
    fn await_protected(&self, primary: Host) {
        let server = &self.servers[primary as usize];
        server.await_in_sync(Role::Primary);
        server.await_status("protection", |status| {
            status.witness.as_ref().is_some_and(|it| it.protects)
        });
    }

    /// The address comes to `host`, and the virtual machine goes on.
    fn assert_served_at(&self, host: Host, guest: &mut Guest) {
        self.observer.await_holder(One(host));
        guest.await_progress();
    }

    fn cut_off(&self, host: Host) {
        let pairs = [A, B, C, W].map(|other| (host, other));
        let others: Vec<_> = pairs
            .into_iter()
            .filter(|(_, other)| *other != host)
            .collect();
        self.lan.cut(&others);
    }

    /// The options of the mounts that the printed configuration names, by version.
    pub fn mount_options(&self) -> Vec<(String, String)> {
        let printed = fs::read_to_string(self.place(A).join("ganesha.conf")).unwrap();
        let options = |line: &str| {
            let options = line.strip_prefix("#   mount -t nfs -o ")?;
            Some(options.split(' ').next().unwrap().to_owned())
        };
        let name = |options: &str| match options {
            it if it.starts_with("vers=3,") => "v3",
            it if it.starts_with("vers=4.") => "v4",
            it => panic!("mount options {it}"),
        };
        let found = printed.lines().filter_map(options);
        let found: Vec<_> = found.map(|it| (name(&it).to_owned(), it)).collect();
        assert_eq!(found.len(), 2, "{printed}");
        found
    }

    /// Starts a virtual machine.
    pub fn start_guest(&self, equipment: &Equipment) -> Guest {
        let name = equipment.port.name();
        let place = tempfile::Builder::new()
            .prefix(name)
            .tempdir_in(self.directory.path());
        Guest::start(&self.lan, &place.unwrap().keep(), equipment)
    }

    /// The server of the primary loses its power, and its network with it.
    pub fn kill(&mut self, host: Host, guest: &mut Guest) {
        self.cut_off(host);
        let server = &mut self.servers[host as usize];
        server.kill_keepalived();
        self.services[host as usize] = None;
        server.kill_node();
        let successor = other(host);
        self.assert_served_at(successor, guest);
        self.boot(host);
        self.heal(successor);
    }

    /// The server of the primary reaches nobody, and works on.
    pub fn isolate(&self, host: Host, guest: &mut Guest) {
        self.cut_off(host);
        let successor = other(host);
        self.assert_served_at(successor, guest);
        self.heal(successor);
    }

    fn heal(&self, primary: Host) {
        self.lan.cut(&[]);
        self.await_protected(primary);
    }

    /// An operator gives the role to the other node.
    pub fn fail_over(&self, from: Host, guest: &mut Guest) {
        self.servers[from as usize].fail_over(&self.lan);
        self.assert_served_at(other(from), guest);
        self.await_protected(other(from));
    }
}

/// The other server.
pub const fn other(host: Host) -> Host {
    match host {
        Host::A => B,
        _ => A,
    }
}

/// keepalived has a Ganesha that answers nothing started anew, and the address comes back to the node that serves.
pub fn a_hung_ganesha_starts_anew() {
    let site = NfsSite::start();
    let service = site.services[A as usize].as_ref().unwrap();
    let server = &site.servers[A as usize];
    let answers = |status: &DatastoreStatus| {
        let cluster = status.sync.cluster.as_ref();
        cluster.is_some_and(|cluster| cluster.here && cluster.nfs_silent_ms == Some(0))
    };
    server.await_status("an NFS server that answers", answers);
    let before = service.starts();
    service.suspend();
    await_that("another start of Ganesha", || service.starts() > before);
    site.observer.await_holder(One(A));
    server.await_status("an NFS server that answers again", answers);
}

/// Five failovers, without an error in the virtual machine and without a lost record, lock or name.
pub fn a_guest_survives() {
    let mut site = NfsSite::start();
    let equipment = Equipment {
        has_disk: true,
        port: GuestPort::First,
        mounts: site.mount_options(),
    };
    let mut guest = site.start_guest(&equipment);
    site.fail_over(A, &mut guest);
    site.kill(B, &mut guest);
    site.isolate(A, &mut guest);
    site.fail_over(B, &mut guest);
    site.kill(A, &mut guest);
    guest.await_progress();
    println!("pauses: {:?}", guest.pauses_since(0));
    let last = guest.end();
    println!("records: {last:?}");
    let NfsSite {
        observer, servers, ..
    } = &site;
    assert_saved(&servers[B as usize].mount(), &equipment, &last);
    let verified = servers[B as usize].lockstep("verify", &[]);
    assert!(verified.status.success(), "{verified:?}");
    let holders = observer.holders();
    assert_eq!(
        without_gaps(holders),
        [One(A), One(B), One(A), One(B), One(A), One(B)]
    );
}
