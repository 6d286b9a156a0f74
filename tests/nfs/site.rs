//! Two servers, each with a node and NFS-Ganesha, and the address under which clients reach the server that serves.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use lockstepfs::config::Role;

use crate::cluster_address::ClusterAddress;
use crate::ganesha::{EXPORT, Ganesha};
use crate::nodes::{
    Node, NodeEnvironment, PROGRAM, Pair, Settings, Which, await_that, repetitions,
};
use crate::operator::{await_status, change, cut, other, role};
use crate::version3::{self, Client, Handle};
use crate::witnessed::Witness;

/// The secondary takes over so long after the loss of the connection. The virtual machine lets a busy machine pause.
const FAILOVER_AFTER_MS: u64 = 2000;
/// The log text of a node whose mount is kept.
const OUTLIVES: &str = "the mount outlives a crash of this process";

/// See the head of this file.
pub struct Site {
    // Dropped first: Ganesha uses the mounts.
    pub on_a: Ganesha,
    pub on_b: Ganesha,
    pub address: ClusterAddress,
    pub pair: Pair,
    /// `None`: an operator decides which node serves.
    pub witness: Option<Witness>,
    /// Keeps the mount of A while its node is away.
    #[allow(dead_code)] // its drop is its use
    holder: Holder,
}

/// The process that keeps the mounts of a node.
struct Holder(Option<Child>);

impl Holder {
    fn start(node: &Node) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", PROGRAM, "hold", "--config"]);
        command.arg(node.config()).stderr(Stdio::null());
        let process = command.spawn().unwrap();
        let socket = PathBuf::from(format!("{}.hold", node.control().display()));
        await_that("the holder", || socket.exists());
        Self(Some(process))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if let Some(mut process) = self.0.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The way of a move of the service to the other server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// The operator has the serving node give its role away.
    Planned,
    /// The serving server is dead or cut off, and the other node takes over by the word of the witness.
    Automatic,
}

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
        let site = Self::start_pair(pair, None, holder);
        if site.pair.primary.times_logged(OUTLIVES) == 0 {
            eprintln!("skipped: needs Linux 6.9, for a mount that outlives its node");
            return None;
        }
        Some(site)
    }

    /// The same, with a witness that lets B take over.
    pub fn start_witnessed(settings: Settings) -> Option<Self> {
        repetitions("LOCKSTEP_FAILOVER_ROUNDS", 1)?;
        let pair = Pair::prepare(settings, Default::default());
        let witness = Witness::start(&pair, FAILOVER_AFTER_MS);
        let site = Self::start_pair(pair, Some(witness), Holder(None));
        site.await_protected(Which::Primary);
        Some(site)
    }

    /// Both servers, on these machines.
    pub fn start_on(settings: Settings, machines: [NodeEnvironment; 2]) -> Option<Self> {
        repetitions("LOCKSTEP_FAILOVER_ROUNDS", 1)?;
        let pair = Pair::prepare(settings, machines);
        Some(Self::start_pair(pair, None, Holder(None)))
    }

    fn start_pair(mut pair: Pair, witness: Option<Witness>, holder: Holder) -> Self {
        pair.start();
        let ganesha = |which| {
            let node = pair.node(which);
            let mut ganesha = Ganesha::new(node, pair.outside(&format!("nfs-{which:?}")), "3,4");
            ganesha.start(&node.mount());
            ganesha
        };
        let (on_a, on_b) = (ganesha(Which::Primary), ganesha(Which::Secondary));
        let address = ClusterAddress::new();
        let site = Self {
            on_a,
            on_b,
            address,
            pair,
            witness,
            holder,
        };
        site.route_to(Which::Primary);
        site
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
        let ganesha = self.ganesha_mut(which);
        ganesha.kill();
        ganesha.start(&mount);
    }

    /// Moves the service from a node to the other one.
    pub fn move_from(&mut self, from: Which, way: Move) {
        self.move_role(from, way);
        self.route_to(other(from));
    }

    /// Waits until the witness lets the other node take over from this one.
    pub fn await_protected(&self, primary: Which) {
        await_status(self.pair.node(primary), "protection", |status| {
            status.witness.as_ref().is_some_and(|it| it.protects)
        });
    }

    /// Cuts a node from the other one and from the witness, or heals that.
    pub fn isolate(&self, which: Which, is_cut: bool) {
        let witness = self.witness.as_ref().expect("a witness");
        witness.cut(which, is_cut);
        cut(&self.pair, is_cut);
    }

    /// Makes the other node the primary, or waits until it has become that by itself.
    pub fn move_role(&mut self, from: Which, way: Move) {
        let to = other(from);
        if way == Move::Planned {
            self.address.move_to(None);
            change(self.pair.node(from), "failover", &[]);
        } else {
            await_status(self.pair.node(to), "a takeover", |status| {
                role(status).0 == Role::Primary
            });
        }
        let status = self.pair.node(to).status().unwrap();
        assert_eq!(role(&status).0, Role::Primary, "{to:?}");
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

    /// A client of the server of a node, whichever node serves.
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
