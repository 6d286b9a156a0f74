//! Both nodes of one datastore, with a faulty network between them: starting and stopping both, and waiting for their states.
//!
//! Invariant: when a [`Pair`] is dropped, its processes are gone and nothing is mounted, however the test ended.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use lockstep_driver::report::DatastoreStatus;
use tempfile::TempDir;

use crate::address::{own_address, release};
use crate::network::Network;
use crate::node::{Node, NodeConfig, NodeEnvironment, PeerConfig};
use crate::wait::await_that;

/// The log text of a primary that continues alone.
pub const OUT_OF_SYNC: &str = "state=\"out of sync\"";
/// Keeps the directory of a failed test.
const KEEP_VARIABLE: &str = "LOCKSTEP_FAULT_KEEP";

/// The settings that differ between the tests.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a primary waits for an absent peer.
    pub pause_limit_ms: u64,
    /// The silence after which a peer is lost.
    pub peer_timeout_ms: u64,
    /// The longest wait for an answer of a connected peer.
    pub answer_limit_ms: u64,
    /// The longest wait for a disk.
    pub disk_stall_limit_ms: u64,
    /// The longest time for which a link that was lost often must stand.
    pub flap_wait_max_ms: u64,
    /// Most bytes that a resync reads in a second; zero: no limit.
    pub resync_bytes_per_second: u64,
    /// `continue` or `freeze`.
    pub on_peer_loss: &'static str,
    /// `wait` or `serve`.
    pub on_power_loss: &'static str,
    /// `wait`, `erofs` or `eagain`.
    pub standby: &'static str,
    /// `on` or `off`.
    pub encryption: &'static str,
    /// `posix` or `always`.
    pub durability: &'static str,
    /// The rate of the network in each direction, if it is slow.
    pub bytes_per_sec: Option<u64>,
}

/// The peer may stay away for the whole test.
pub const PATIENT: Settings = Settings {
    pause_limit_ms: 600_000,
    peer_timeout_ms: 500,
    answer_limit_ms: 60_000,
    disk_stall_limit_ms: 30_000,
    flap_wait_max_ms: 0,
    resync_bytes_per_second: 0,
    on_peer_loss: "continue",
    on_power_loss: "wait",
    standby: "wait",
    encryption: "on",
    durability: "posix",
    bytes_per_sec: None,
};
/// An absent peer is soon given up.
pub const IMPATIENT: Settings = Settings {
    pause_limit_ms: 400,
    ..PATIENT
};

/// A primary that lost its power, or its disk, serves from its own copy.
pub const KEEPING: Settings = Settings {
    on_power_loss: "serve",
    ..PATIENT
};

/// The lowest configurable limit for an answer of a connected peer, in milliseconds.
pub const ANSWER_LIMIT_LEAST_MS: u64 = 1000;
/// Both an absent peer and a peer that does not answer are soon given up.
pub const HASTY: Settings = Settings {
    answer_limit_ms: ANSWER_LIMIT_LEAST_MS,
    ..IMPATIENT
};
/// No answer is better than one copy; the network is trusted to keep secrets.
pub const FREEZING: Settings = Settings {
    pause_limit_ms: 400,
    on_peer_loss: "freeze",
    encryption: "off",
    ..PATIENT
};

impl Settings {
    /// The lines of the datastore in the configuration of a node.
    fn lines(&self) -> String {
        let Self {
            pause_limit_ms,
            peer_timeout_ms,
            answer_limit_ms,
            disk_stall_limit_ms,
            flap_wait_max_ms,
            resync_bytes_per_second,
            on_peer_loss,
            on_power_loss,
            standby,
            durability,
            ..
        } = self;
        format!(
            "on_peer_loss = \"{on_peer_loss}\"\non_power_loss = \"{on_power_loss}\"\nstandby = \"{standby}\"\n\
             pause_limit_ms = {pause_limit_ms}\npeer_timeout_ms = {peer_timeout_ms}\nanswer_limit_ms = {answer_limit_ms}\n\
             disk_stall_limit_ms = {disk_stall_limit_ms}\nflap_wait_max_ms = {flap_wait_max_ms}\n\
             resync_bytes_per_second = {resync_bytes_per_second}\ndurability = \"{durability}\"\n"
        )
    }
}

/// One of the two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The node that is the primary at first.
    Primary,
    /// The node that is the secondary at first.
    Secondary,
}

/// Both nodes.
pub struct Pair {
    /// The node that is the primary at first.
    pub primary: Node,
    /// The node that is the secondary at first.
    pub secondary: Node,
    /// The network in front of the secondary.
    pub network: Network,
    /// The network in front of the primary, for a secondary that dials.
    pub way_back: Network,
    dir: TempDir,
    ended: bool,
}

impl Pair {
    /// Makes configurations and identities of a primary and a secondary, and starts no node.
    pub fn prepare(settings: Settings, [of_primary, of_secondary]: [NodeEnvironment; 2]) -> Self {
        let dir = tempfile::Builder::new().prefix("lsf.").tempdir().unwrap();
        let host = own_address();
        // Held until the network has its own ports, so that all differ.
        let held = [(); 2].map(|()| TcpListener::bind((host, 0)).unwrap());
        let listens = held.each_ref().map(|port| port.local_addr().unwrap());
        let pair = Self {
            primary: Node::make(dir.path(), "primary", of_primary),
            secondary: Node::make(dir.path(), "secondary", of_secondary),
            network: Network::start(host, listens[1], settings.bytes_per_sec),
            way_back: Network::start(host, listens[0], settings.bytes_per_sec),
            dir,
            ended: false,
        };
        held.into_iter().for_each(release);
        pair.configure(settings, listens);
        pair
    }

    fn configure(&self, settings: Settings, listens: [SocketAddr; 2]) {
        let fingerprints = [&self.primary, &self.secondary].map(Node::identify);
        let reached = [&self.network, &self.way_back].map(Network::address);
        for (own, role) in ["primary", "secondary"].into_iter().enumerate() {
            let which = [Which::Primary, Which::Secondary][own];
            self.node(which).configure(&NodeConfig {
                role,
                settings: settings.lines(),
                peer: Some(PeerConfig {
                    listen: listens[own],
                    address: reached[own],
                    fingerprint: fingerprints[1 - own],
                    encryption: settings.encryption,
                }),
            });
        }
    }

    /// The mount of the datastore.
    pub fn mount(&self) -> PathBuf {
        self.primary.mount()
    }

    /// A directory of that name outside the mount.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The node.
    pub fn node(&self, which: Which) -> &Node {
        match which {
            Which::Primary => &self.primary,
            Which::Secondary => &self.secondary,
        }
    }

    /// The node.
    pub fn node_mut(&mut self, which: Which) -> &mut Node {
        match which {
            Which::Primary => &mut self.primary,
            Which::Secondary => &mut self.secondary,
        }
    }

    /// Starts both and waits until they are in sync.
    pub fn start(&mut self) {
        self.secondary.start();
        self.primary.start();
        self.await_in_sync();
    }

    /// Stops both cleanly.
    pub fn stop(&mut self) {
        self.primary.stop();
        self.secondary.stop();
    }

    /// Waits until both nodes report that they are connected and in sync.
    pub fn await_in_sync(&mut self) {
        self.await_both("in sync", |status| {
            status.sync.state == "synced and connected"
        });
    }

    /// Waits until the primary reports this state.
    pub fn await_state(&mut self, state: &str) {
        self.await_status(state, |status| status.sync.state == state);
    }

    /// Waits until the primary reports a status for which `is` holds.
    pub fn await_status(&mut self, what: &str, is: impl Fn(&DatastoreStatus) -> bool) {
        await_that(&format!("the primary: {what}"), || {
            self.assert_alive();
            self.primary.status().is_some_and(|status| is(&status))
        });
    }

    fn await_both(&mut self, what: &str, is: impl Fn(&DatastoreStatus) -> bool) {
        await_that(&format!("both nodes: {what}"), || {
            self.assert_alive();
            let nodes = [&self.primary, &self.secondary];
            nodes
                .iter()
                .all(|node| node.status().is_some_and(|status| is(&status)))
        });
    }

    fn assert_alive(&mut self) {
        self.primary.assert_alive();
        self.secondary.assert_alive();
    }

    /// Kills the running nodes and unmounts. Prints a report first if the test has failed.
    pub fn end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.primary.clear();
        self.secondary.clear();
        if std::thread::panicking() && std::env::var_os(KEEP_VARIABLE).is_some() {
            self.dir.disable_cleanup(true);
            println!("kept {}", self.dir.path().display());
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.end();
    }
}
