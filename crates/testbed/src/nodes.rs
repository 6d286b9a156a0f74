//! Both nodes of one datastore as processes of this machine, with a faulty network between them: starting, killing,
//! stopping and freezing them, and their status and logs.
//!
//! Nothing here reads content: `check` does that.
//!
//! Invariant: when a [`Pair`] is dropped, its processes are gone and nothing is mounted, however the test ended. The
//! kernel kills the nodes if the test itself is killed.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_driver::report::DatastoreStatus;
use lockstep_link::identity::Identity;
use lockstepfs::control::ControlClient;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::address::own_address;
use crate::network::Network;
use crate::program::{can_mount, program};

/// Name of the datastore.
pub const DATASTORE: &str = "data";
/// Identity of the datastore.
pub const UUID: &str = "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001";
/// Name of the directory of a store on its disk.
pub const STORE: &str = "store";
/// The log text of a primary that continues alone.
pub const OUT_OF_SYNC: &str = "state=\"out of sync\"";
/// The user id and the group id of `nobody`.
const NOBODY: &str = "65534";
/// Keeps the directory of a failed test.
const KEEP_VARIABLE: &str = "LOCKSTEP_FAULT_KEEP";

/// Longest wait for an expected event.
pub const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Pause between two checks for the event.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Lines of each log that a failed test prints.
const LOG_TAIL_LINES: usize = 40;

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

/// Starts a process.
type Spawn = dyn Fn(&mut Command) -> io::Result<Child> + Send + Sync;

/// The disk of a node, and the way to start its processes.
#[derive(Clone)]
pub struct NodeEnvironment {
    /// The directory in which the store is made; by default a directory of the test.
    pub disk: Option<PathBuf>,
    /// How its processes are started.
    pub spawn: Arc<Spawn>,
}

impl Default for NodeEnvironment {
    /// This machine, unchanged.
    fn default() -> Self {
        Self {
            disk: None,
            spawn: Arc::new(Command::spawn),
        }
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

/// One node.
pub struct Node {
    which: Which,
    dir: PathBuf,
    store: PathBuf,
    spawn: Arc<Spawn>,
    process: Option<Child>,
}

impl Node {
    fn new(root: &Path, which: Which, environment: NodeEnvironment) -> Self {
        let mut node = Self {
            which,
            dir: PathBuf::new(),
            store: PathBuf::new(),
            spawn: environment.spawn,
            process: None,
        };
        node.dir = root.join(node.word());
        node.store = environment
            .disk
            .unwrap_or_else(|| node.dir.clone())
            .join(STORE);
        fs::create_dir_all(node.dir.join("mount")).unwrap();
        node
    }

    fn word(&self) -> &'static str {
        match self.which {
            Which::Primary => "primary",
            Which::Secondary => "secondary",
        }
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir.join("node.toml")
    }

    /// The control socket.
    pub fn control(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// The directory of the store.
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// The mount of the datastore on this node.
    pub fn mount(&self) -> PathBuf {
        self.dir.join("mount")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("node.log")
    }

    /// The log over all lives of the node.
    pub fn logged(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log()).unwrap_or_default()).into_owned()
    }

    /// How often this text is in the log.
    pub fn times_logged(&self, text: &str) -> usize {
        self.logged().matches(text).count()
    }

    /// The node's status of the datastore; `None` if the node does not answer.
    pub fn status(&self) -> Option<DatastoreStatus> {
        let mut client = ControlClient::connect(&self.control()).ok()?;
        client.status().ok()?.datastores.pop()
    }

    /// Makes a missing store, as an operator would.
    fn make_store(&self) {
        if self.store.join("format.json").exists() {
            return;
        }
        let mut command = Command::new(program());
        let command = command.args(["create-store", DATASTORE, "--config"]);
        let made = self.run(command.arg(self.config()));
        assert!(made.status.success(), "{made:?}");
    }

    /// Starts the process.
    pub fn start(&mut self) {
        self.make_store();
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log());
        let log = log.unwrap();
        // `setpriv` becomes the node: the node dies with the test, however the test ends.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", program(), "node", "--config"])
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let process = (self.spawn)(&mut command).unwrap();
        assert!(self.process.replace(process).is_none());
    }

    /// Resident memory, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most resident memory so far, in bytes.
    pub fn most_resident_bytes(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, what: &str) -> u64 {
        let status = fs::read_to_string(self.proc().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(what));
        let kib = line.unwrap().trim().trim_end_matches(" kB");
        kib.parse::<u64>().unwrap() * 1024
    }

    fn proc(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.pid().as_raw_nonzero()))
    }

    /// The open files, also those without a name.
    pub fn open_files(&self) -> Vec<(PathBuf, fs::Metadata)> {
        let open = fs::read_dir(self.proc().join("fd")).unwrap();
        // A file that is closed meanwhile is left out.
        let file = |entry: io::Result<fs::DirEntry>| {
            let path = entry.ok()?.path();
            Some((fs::read_link(&path).ok()?, fs::metadata(&path).ok()?))
        };
        open.filter_map(file).collect()
    }

    /// The number of threads with this name that wait at this place in the kernel.
    pub fn threads_in(&self, name: &str, place: &str) -> usize {
        let threads = fs::read_dir(self.proc().join("task")).unwrap();
        let is_there = |entry: &io::Result<fs::DirEntry>| {
            let thread = entry.as_ref().unwrap().path();
            let read = |what: &str| fs::read_to_string(thread.join(what)).unwrap_or_default();
            read("comm").starts_with(name) && read("wchan").contains(place)
        };
        threads.filter(is_there).count()
    }

    /// Runs another program on the node's environment, to its end.
    pub fn run(&self, command: &mut Command) -> Output {
        let command = command.stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = (self.spawn)(command).unwrap();
        process.wait_with_output().unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.process.as_ref().expect("the node runs"))
    }

    /// Ends the node with SIGKILL, as a crash does.
    pub fn kill(&mut self) {
        kill_process(self.pid(), Signal::KILL).unwrap();
        let status = self.process.take().unwrap().wait().unwrap();
        let killed = status.signal() == Some(9);
        assert!(killed, "the {} ended by itself: {status}", self.word());
    }

    /// Ends the node with SIGTERM, as an administrator does.
    pub fn stop(&mut self) {
        kill_process(self.pid(), Signal::TERM).unwrap();
        let mut process = self.process.take().unwrap();
        await_that(&format!("the {} to stop", self.word()), || {
            process.try_wait().unwrap().is_some()
        });
        let status = process.wait().unwrap();
        assert!(status.success(), "the {} stopped: {status}", self.word());
    }

    /// Waits until the node has ended by itself, with an error.
    pub fn await_end(&mut self) {
        let what = format!("the {} to end by itself", self.word());
        let process = self.process.as_mut().unwrap();
        await_that(&what, || process.try_wait().unwrap().is_some());
        let status = self.process.take().unwrap().wait().unwrap();
        assert_eq!(status.code(), Some(2), "{what}");
    }

    /// Stops the process with SIGSTOP: it keeps its locks and connections.
    pub fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
    }

    /// Continues the process with SIGCONT.
    pub fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    fn assert_alive(&mut self) {
        let ended = self.process.as_mut().map(Child::try_wait);
        if let Some(Ok(Some(status))) = ended {
            self.process = None;
            panic!("the {} ended by itself: {status}", self.word());
        }
    }

    fn configure(&self, own: &str, peer: &str, fingerprint: &str, rest: &str) {
        let (dir, store, name) = (self.dir.display(), self.store.display(), self.word());
        let text = format!(
            "[node]\nname = \"{name}\"\nidentity = \"{dir}\"\nlisten = \"{own}\"\n\
             control = \"{dir}/control.sock\"\n\n\
             [[datastore]]\nname = \"{DATASTORE}\"\nrole = \"{name}\"\n\
             store = \"{store}\"\nmount = \"{dir}/mount\"\n{rest}\n\
             address = \"{peer}\"\nfingerprint = \"{fingerprint}\"\n"
        );
        fs::write(self.config(), text).unwrap();
    }
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
            primary: Node::new(dir.path(), Which::Primary, of_primary),
            secondary: Node::new(dir.path(), Which::Secondary, of_secondary),
            network: Network::start(host, listens[1], settings.bytes_per_sec),
            way_back: Network::start(host, listens[0], settings.bytes_per_sec),
            dir,
            ended: false,
        };
        drop(held);
        pair.configure(settings, listens);
        pair
    }

    fn configure(&self, settings: Settings, listens: [SocketAddr; 2]) {
        let rest = format!(
            "uuid = \"{UUID}\"\n\
             on_peer_loss = \"{}\"\non_power_loss = \"{}\"\nstandby = \"{}\"\npause_limit_ms = {}\npeer_timeout_ms = {}\n\
             answer_limit_ms = {}\ndisk_stall_limit_ms = {}\nflap_wait_max_ms = {}\n\
             durability = \"{}\"\n\n\
             [datastore.peer]\nencryption = \"{}\"",
            settings.on_peer_loss,
            settings.on_power_loss,
            settings.standby,
            settings.pause_limit_ms,
            settings.peer_timeout_ms,
            settings.answer_limit_ms,
            settings.disk_stall_limit_ms,
            settings.flap_wait_max_ms,
            settings.durability,
            settings.encryption
        );
        let identity = |node: &Node| Identity::create(&node.dir, node.word()).unwrap();
        let of_primary = identity(&self.primary).fingerprint().to_string();
        let of_secondary = identity(&self.secondary).fingerprint().to_string();
        let [primary, secondary] = listens.map(|address| address.to_string());
        let reached = [&self.network, &self.way_back].map(|way| way.address().to_string());
        self.primary
            .configure(&primary, &reached[0], &of_secondary, &rest);
        self.secondary
            .configure(&secondary, &reached[1], &of_primary, &rest);
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
        if self.ended {
            return;
        }
        self.ended = true;
        if std::thread::panicking() {
            self.report();
        }
        for node in [&mut self.primary, &mut self.secondary] {
            if let Some(mut process) = node.process.take() {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
        // A killed node leaves a dead mount; a stopped one leaves none.
        for mount in [self.primary.mount(), self.secondary.mount()] {
            while rustix::mount::unmount(&mount, UnmountFlags::DETACH).is_ok() {}
        }
    }

    fn report(&mut self) {
        for node in [&self.primary, &self.secondary] {
            let log = node.logged();
            let skipped = log.lines().count().saturating_sub(LOG_TAIL_LINES);
            let tail: Vec<&str> = log.lines().skip(skipped).collect();
            let (name, status) = (node.word(), node.status());
            println!(
                "status of the {name}: {status:#?}\nend of its log:\n{}",
                tail.join("\n")
            );
        }
        if std::env::var_os(KEEP_VARIABLE).is_some() {
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

/// The number in an environment variable, or else the default; `None` if this machine cannot mount.
pub fn repetitions(variable: &str, default: u64) -> Option<u64> {
    if !can_mount() {
        return None;
    }
    let given = std::env::var(variable);
    Some(given.map_or(default, |text| text.parse().expect(variable)))
}

/// A command that runs its arguments as the user and the group `nobody`.
pub fn as_nobody() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    command
}

/// Waits until `done` returns true.
pub fn await_that(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(LOOK_INTERVAL);
    }
}
