//! Two servers, each with a node and NFS-Ganesha, and the address under which clients reach the server that serves.

use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use lockstep_testbed::holder::Holder;
use lockstep_testbed::operator::{change, other, role, run};
use lockstep_testbed::{DATASTORE, NodeEnvironment, Pair, Settings, Which, repetitions};
use lockstepfs::config::Role;

use crate::cluster_address::ClusterAddress;
use crate::ganesha::Ganesha;
use crate::server_space::EXPORT;
use crate::version3::{self, Client, Handle};

/// The log text of a node whose mount is kept.
const OUTLIVES: &str = "the mount outlives a crash of this process";

/// See the head of this file.
pub struct Site {
    // Dropped first: Ganesha uses the mounts.
    pub on_a: Ganesha,
    pub on_b: Ganesha,
    pub address: ClusterAddress,
    pub pair: Pair,
    /// Keeps the mount of A while its node is away.
    #[allow(dead_code)] // its drop is its use
    holder: Option<Holder>,
    versions: &'static str,
}

/// The versions of NFS.
const BOTH_VERSIONS: &str = "3,4";
/// Then the write verifier comes from the node.
const VERSION_3: &str = "3";

impl Site {
    /// Both servers, in sync, with the address on A; `None` if this machine cannot mount.
    pub fn start(settings: Settings) -> Option<Self> {
        Self::start_on(settings, Default::default())
    }

    /// The same, and the mount of A outlives its node; `None` if the kernel has no such mounts.
    pub fn start_held(settings: Settings) -> Option<Self> {
        repetitions("LOCKSTEP_FAILOVER_ROUNDS", 1)?;
        let pair = Pair::prepare(settings, Default::default());
        let holder = Holder::start(&pair.primary);
        let site = Self::start_pair(pair, Some(holder), BOTH_VERSIONS);
        if site.pair.primary.times_logged(OUTLIVES) == 0 {
            eprintln!("skipped: needs Linux 6.9, for a mount that outlives its node");
            return None;
        }
        Some(site)
    }

    /// Both servers, on these machines.
    pub fn start_on(settings: Settings, machines: [NodeEnvironment; 2]) -> Option<Self> {
        Self::start_versions_on(settings, machines, BOTH_VERSIONS)
    }

    /// The same, for clients of NFS version 3 only. Ganesha runs on the server that serves, with the write verifier of its node.
    pub fn start_version_3_on(settings: Settings, machines: [NodeEnvironment; 2]) -> Option<Self> {
        Self::start_versions_on(settings, machines, VERSION_3)
    }

    fn start_versions_on(
        settings: Settings,
        machines: [NodeEnvironment; 2],
        versions: &'static str,
    ) -> Option<Self> {
        repetitions("LOCKSTEP_FAILOVER_ROUNDS", 1)?;
        let pair = Pair::prepare(settings, machines);
        Some(Self::start_pair(pair, None, versions))
    }

    fn start_pair(mut pair: Pair, holder: Option<Holder>, versions: &'static str) -> Self {
        pair.start();
        let ganesha = |which| {
            let place = pair.outside(&format!("nfs-{which:?}"));
            Ganesha::new(pair.node(which), place, versions)
        };
        let (on_a, on_b) = (ganesha(Which::Primary), ganesha(Which::Secondary));
        let address = ClusterAddress::new();
        let mut site = Self {
            on_a,
            on_b,
            address,
            pair,
            holder,
            versions,
        };
        site.restart_ganesha(Which::Primary);
        if versions != VERSION_3 {
            site.restart_ganesha(Which::Secondary);
        }
        site.route_to(Which::Primary);
        site
    }

    /// The write verifier of a node, as its command prints it.
    pub fn verifier_of(&self, which: Which) -> String {
        let printed = run(self.pair.node(which), "write-verifier", &[]);
        assert_eq!(printed.code, Some(0), "{}", printed.error);
        printed.output.trim().to_owned()
    }

    /// Ganesha beside a node.
    pub fn ganesha(&self, which: Which) -> &Ganesha {
        match which {
            Which::Primary => &self.on_a,
            Which::Secondary => &self.on_b,
        }
    }

    /// The same.
    pub const fn ganesha_mut(&mut self, which: Which) -> &mut Ganesha {
        match which {
            Which::Primary => &mut self.on_a,
            Which::Secondary => &mut self.on_b,
        }
    }

    /// Ends Ganesha beside a node, and starts it again.
    pub fn restart_ganesha(&mut self, which: Which) {
        let mount = self.pair.node(which).mount();
        let verifier = (self.versions == VERSION_3).then(|| self.verifier_of(which));
        let ganesha = self.ganesha_mut(which);
        ganesha.kill();
        ganesha.start(&mount, verifier.as_deref());
    }

    /// Moves the service from a node to the other one.
    pub fn move_from(&mut self, from: Which) {
        self.move_role(from);
        self.route_to(other(from));
    }

    /// Moves the service from a node to the other one. Ganesha follows, and starts anew.
    pub fn move_server(&mut self, from: Which) {
        self.move_role(from);
        self.ganesha_mut(from).kill();
        let to = other(from);
        self.restart_ganesha(to);
        self.route_to(to);
    }

    /// Makes the other node the primary.
    pub fn move_role(&mut self, from: Which) {
        self.address.move_to(None);
        change(self.pair.node(from), "failover", &[]);
        let to = other(from);
        let status = self.pair.node(to).status().unwrap();
        assert_eq!(role(&status).0, Role::Primary, "{to:?}");
    }

    /// Makes a snapshot on the node that serves.
    pub fn snapshot(&self, which: Which, name: &str) {
        let node = self.pair.node(which);
        let mut command = Command::new(lockstep_testbed::program());
        command.args(["snapshot", "create", DATASTORE, name]);
        command.arg("--control").arg(node.control());
        let made = command.output().unwrap();
        assert!(made.status.success(), "{made:?}");
    }

    /// Gives the address to the server of a node.
    pub fn route_to(&self, which: Which) {
        let network = Arc::clone(&self.ganesha(which).network);
        self.address.move_to(Some(network));
    }

    /// A client of the address.
    pub fn client(&self) -> Client {
        Client::new(|port| self.address.connect(port))
    }

    /// A client of the server on the node that serves.
    pub fn client_of(&self, which: Which) -> Client {
        Client::new(|port| self.connect_to(which, port))
    }

    fn connect_to(&self, which: Which, port: u16) -> TcpStream {
        let address = (std::net::Ipv4Addr::LOCALHOST, port).into();
        self.ganesha(which).network.connect(address).unwrap()
    }

    /// The handle of the export on the server of a node.
    pub fn root_of(&self, which: Which) -> Handle {
        version3::mount(|port| self.connect_to(which, port), EXPORT)
    }

    /// Runs a program of a client to its end, and returns its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let done = self.program(program, arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (output, error) = (text(&done.stdout), text(&done.stderr));
        assert!(
            done.status.success(),
            "{program} {arguments:?}: {output}{error}"
        );
        output
    }

    /// A program of a client.
    pub fn program(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.address.clients.command();
        command.arg(program).args(arguments);
        command
    }
}

/// The address of a file for a program.
pub fn url(name: &str) -> String {
    format!("nfs://127.0.0.1{EXPORT}/{name}")
}
