//! One node as a process of this machine: its files, its configuration, its status and its log.
//!
//! Nothing here reads content.
//!
//! Invariant: when a [`Node`] is dropped, its process is gone and its mount is unmounted.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use lockstep_driver::report::DatastoreStatus;
use lockstep_link::{Fingerprint, Identity};
use lockstepfs::control::ControlClient;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::mount::UnmountFlags;
use rustix::process::Signal;

use crate::process::{Process, Spawn, logged_command};
use crate::program::program;
use crate::wait::await_that;

/// Name of the datastore.
pub const DATASTORE: &str = "data";
/// Identity of the datastore.
pub const UUID: &str = "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001";
/// Name of the directory of a store on its disk.
pub const STORE: &str = "store";
/// Lines of a log that a failed test prints.
const LOG_TAIL_LINES: usize = 40;

/// The disk of a node, and the way to start its processes.
#[derive(Clone)]
pub struct NodeEnvironment {
    /// The directory in which the store is made; by default a directory of the test.
    pub disk: Option<PathBuf>,
    /// How its processes are started.
    pub spawn: Spawn,
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

/// The configuration of a node with one datastore, but for the places of its files.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// `primary` or `secondary`.
    pub role: &'static str,
    /// Lines of the datastore.
    pub settings: String,
    /// The other node, if there is one.
    pub peer: Option<PeerConfig>,
}

/// The configuration of the connection with the other node.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// The address at which this node listens.
    pub listen: SocketAddr,
    /// The address at which this node reaches the other one.
    pub address: SocketAddr,
    /// The fingerprint of the other node.
    pub fingerprint: Fingerprint,
    /// `on` or `off`.
    pub encryption: &'static str,
}

/// One node.
pub struct Node {
    name: String,
    dir: PathBuf,
    store: PathBuf,
    spawn: Spawn,
    process: Option<Process>,
    /// Length of the log when the process was started.
    logged_before: usize,
}

impl Node {
    /// Makes the directory of a node in `root`, by its name. The node has no configuration yet.
    pub fn make(root: &Path, name: &str, environment: NodeEnvironment) -> Self {
        let dir = root.join(name);
        fs::create_dir_all(dir.join("mount")).unwrap();
        let disk = environment.disk.unwrap_or_else(|| dir.clone());
        Self {
            name: name.to_owned(),
            store: disk.join(STORE),
            dir,
            spawn: environment.spawn,
            process: None,
            logged_before: 0,
        }
    }

    /// Makes the identity of the node, and returns its fingerprint.
    pub fn identify(&self) -> Fingerprint {
        Identity::create(&self.dir, &self.name)
            .unwrap()
            .fingerprint()
    }

    /// Writes the configuration.
    pub fn configure(&self, config: &NodeConfig) {
        let NodeConfig {
            role,
            settings,
            peer,
        } = config;
        let (dir, store, name) = (self.dir.display(), self.store.display(), &self.name);
        let identity = peer.as_ref().map_or_else(String::new, |peer| {
            format!("identity = \"{dir}\"\nlisten = \"{}\"\n", peer.listen)
        });
        let peer = peer.as_ref().map_or_else(String::new, |peer| {
            format!(
                "\n[datastore.peer]\nencryption = \"{}\"\naddress = \"{}\"\nfingerprint = \"{}\"\n",
                peer.encryption, peer.address, peer.fingerprint
            )
        });
        let text = format!(
            "[node]\nname = \"{name}\"\n{identity}control = \"{dir}/control.sock\"\n\n\
             [[datastore]]\nname = \"{DATASTORE}\"\nuuid = \"{UUID}\"\nrole = \"{role}\"\n\
             store = \"{store}\"\nmount = \"{dir}/mount\"\n{settings}{peer}"
        );
        fs::write(self.config(), text).unwrap();
    }

    /// Adds lines to the end of the configuration.
    pub fn add_to_config(&self, lines: &str) {
        let text = fs::read_to_string(self.config()).unwrap();
        fs::write(self.config(), text + lines).unwrap();
    }

    /// Adds lines to the section of the datastore, before those of its peer.
    pub fn add_to_datastore(&self, lines: &str) {
        let text = fs::read_to_string(self.config()).unwrap();
        let peer = text.find("\n[datastore.peer]").unwrap_or(text.len());
        let (datastore, rest) = text.split_at(peer);
        fs::write(
            self.config(),
            format!("{datastore}{}\n{rest}", lines.trim()),
        )
        .unwrap();
    }

    /// The name of the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of the node.
    pub fn dir(&self) -> &Path {
        &self.dir
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

    /// The file of the log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("node.log")
    }

    /// The log over all lives of the node.
    pub fn logged(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log()).unwrap_or_default()).into_owned()
    }

    /// The log since the last start.
    pub fn logged_since_start(&self) -> String {
        self.logged().split_off(self.logged_before)
    }

    /// Waits until the running process has logged a text.
    pub fn await_logged(&mut self, text: &str) {
        await_that(&format!("\"{text}\" in a log"), || {
            self.assert_alive();
            self.logged_since_start().contains(text)
        });
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
    pub fn make_store(&self) {
        if self.store.join("format.json").exists() {
            return;
        }
        let mut command = Command::new(program());
        let command = command.args(["create-store", DATASTORE, "--config"]);
        let made = self.run(command.arg(self.config()));
        assert!(made.status.success(), "{made:?}");
    }

    /// Starts the process. Makes the store first, if there is none.
    pub fn start(&mut self) {
        let spawn = Arc::clone(&self.spawn);
        self.start_by(|command| spawn(command));
    }

    /// Starts the process in another way. Makes the store first, if there is none.
    pub fn start_by(&mut self, spawn: impl FnOnce(&mut Command) -> io::Result<Child>) {
        assert!(self.process.is_none(), "the {} runs", self.name);
        self.make_store();
        self.logged_before = self.logged().len();
        let mut command = logged_command(program(), &self.log());
        command.args(["node", "--config"]).arg(self.config());
        let child = spawn(&mut command).unwrap();
        self.process = Some(Process::of(&self.name, child));
    }

    /// Runs another program on the node's environment, to its end.
    pub fn run(&self, command: &mut Command) -> Output {
        let command = command.stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = (self.spawn)(command).unwrap();
        process.wait_with_output().unwrap()
    }

    /// The running process.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("the node runs")
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
        let status = fs::read_to_string(self.process().proc().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(what));
        let kib = line.unwrap().trim().trim_end_matches(" kB");
        kib.parse::<u64>().unwrap() * 1024
    }

    /// The open files, also those without a name.
    pub fn open_files(&self) -> Vec<(PathBuf, fs::Metadata)> {
        let open = fs::read_dir(self.process().proc().join("fd")).unwrap();
        // A file that is closed meanwhile is left out.
        let file = |entry: io::Result<fs::DirEntry>| {
            let path = entry.ok()?.path();
            Some((fs::read_link(&path).ok()?, fs::metadata(&path).ok()?))
        };
        open.filter_map(file).collect()
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        fs::read_dir(self.process().proc().join("task"))
            .unwrap()
            .count()
    }

    /// The number of threads with this name that wait at this place in the kernel.
    pub fn threads_in(&self, name: &str, place: &str) -> usize {
        let threads = fs::read_dir(self.process().proc().join("task")).unwrap();
        let is_there = |entry: &io::Result<fs::DirEntry>| {
            let thread = entry.as_ref().unwrap().path();
            let read = |what: &str| fs::read_to_string(thread.join(what)).unwrap_or_default();
            read("comm").starts_with(name) && read("wchan").contains(place)
        };
        threads.filter(is_there).count()
    }

    fn end(&mut self) -> Process {
        self.process.take().expect("the node runs")
    }

    /// Ends the node with SIGKILL, as a crash does.
    ///
    /// A thread of the node may wait for its own mount. Then the node does not end before the connection of the mount to the
    /// kernel is aborted (gap 20 in docs/protocol/gaps.md).
    pub fn kill(&mut self) {
        let mount = self.mount();
        self.end().kill_or(|| {
            let _ = rustix::mount::unmount(mount, UnmountFlags::FORCE);
        });
    }

    /// Ends the node with SIGTERM, as an administrator does.
    pub fn stop(&mut self) {
        self.end().stop();
    }

    /// Waits until the node has ended by itself, with an error.
    pub fn await_end(&mut self) {
        self.end().await_failure();
    }

    /// Stops the process with SIGSTOP: it keeps its locks and connections.
    pub fn freeze(&self) {
        self.process().signal(Signal::STOP);
    }

    /// Continues the process with SIGCONT.
    pub fn thaw(&self) {
        self.process().signal(Signal::CONT);
    }

    /// Fails if the node has ended.
    pub fn assert_alive(&mut self) {
        let ended = self.process.as_mut().and_then(Process::ended);
        if let Some(status) = ended {
            self.process = None;
            panic!("the {} ended by itself: {status}", self.name);
        }
    }

    /// Kills the process, if there is one, and removes the mount. Prints a report first if the test has failed.
    pub fn clear(&mut self) {
        if std::thread::panicking() && self.dir.exists() {
            self.report();
        }
        self.process = None;
        // A killed node leaves a dead mount; a stopped one leaves none.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        while rustix::mount::unmount(self.mount(), flags).is_ok() {}
        self.unseal_mount();
    }

    /// Ends the protection of the directory of the mount, which `create-store` has made immutable. Otherwise it outlives the test.
    fn unseal_mount(&self) {
        let Ok(directory) = File::open(self.mount()) else {
            return;
        };
        // A file system without such flags has protected nothing.
        if let Ok(flags) = ioctl_getflags(&directory) {
            let _ = ioctl_setflags(&directory, flags - IFlags::IMMUTABLE);
        }
    }

    fn report(&self) {
        let log = self.logged();
        let skipped = log.lines().count().saturating_sub(LOG_TAIL_LINES);
        let tail: Vec<&str> = log.lines().skip(skipped).collect();
        let (name, status) = (&self.name, self.status());
        println!(
            "status of the {name}: {status:#?}\nend of its log:\n{}",
            tail.join("\n")
        );
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.clear();
    }
}
