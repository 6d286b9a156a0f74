//! A primary whose mount outlives it, as processes of this machine: with a holder or with a service manager, alone or
//! with a secondary.
//!
//! Invariant: when a [`Site`] is dropped, its processes are gone and nothing is mounted, however the test ended. The
//! kernel kills the processes if the test itself is killed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use lockstep_link::Identity;
use rustix::mount::UnmountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::address::own_address;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_lockstep");
const UUID: &str = "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a00b";
/// Pause between two looks at the log of a node.
pub const LOOK: Duration = Duration::from_millis(5);
/// The first Linux that can send requests again.
const RESEND_SINCE: (u32, u32) = (6, 9);

/// Whether this machine can let a mount outlive its process; prints the reason if not.
pub fn can_resume() -> bool {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return false;
    }
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
    let has_resend = number().zip(number()) >= Some(RESEND_SINCE);
    if !has_resend {
        eprintln!("skipped: needs Linux 6.9, which can send requests again; this is {release}");
    }
    has_resend
}

/// The process that keeps the mount.
enum Keeping {
    Nowhere,
    Holder(Child),
    Manager(Manager),
}

/// Plays the part of systemd: keeps descriptors, and gives them to the next process.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    kept: Vec<OwnedFd>,
    name: String,
}

/// One node and its files.
struct Node {
    dir: PathBuf,
    process: Option<Child>,
    /// Length of the log when the process was started.
    logged: usize,
}

/// See the head of this file.
pub struct Site {
    primary: Node,
    secondary: Option<Node>,
    keeping: Keeping,
    _dir: TempDir,
}

fn log_file(dir: &Path, name: &str) -> File {
    let mut options = File::options();
    options.create(true).append(true);
    options.open(dir.join(name)).unwrap()
}

fn command(dir: &Path, verb: &str, log: &str) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", PROGRAM, verb, "--config"])
        .arg(dir.join("node.toml"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log_file(dir, log));
    command
}

impl Node {
    fn new(dir: PathBuf, text: &str) -> Self {
        fs::create_dir_all(dir.join("mount")).unwrap();
        let text = text.replace("DIR", dir.to_str().unwrap());
        fs::write(dir.join("node.toml"), text).unwrap();
        let mut create = Command::new(PROGRAM);
        let create = create.args(["create-store", "x", "--config"]);
        let output = create.arg(dir.join("node.toml")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self {
            dir,
            process: None,
            logged: 0,
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Starts the process; does not wait until it runs.
    fn begin(&mut self, keeping: &mut Keeping) {
        self.logged = self.log().len();
        let process = match keeping {
            Keeping::Manager(manager) => manager.start(&self.dir),
            _ => command(&self.dir, "node", "log").spawn().unwrap(),
        };
        self.process = Some(process);
    }

    fn await_running(&mut self) {
        self.await_log(" running node=");
    }

    /// Waits until the process has logged a text.
    fn await_log(&mut self, text: &str) {
        while !self.log()[self.logged..].contains(text) {
            self.assert_alive();
            sleep(LOOK);
        }
    }

    fn assert_alive(&mut self) {
        let ended = self.process.as_mut().unwrap().try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}\n{}", self.log());
    }

    fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        let status = process.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{}", self.log());
    }

    fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        kill_process(Pid::from_child(&process), Signal::TERM).unwrap();
        let status = process.wait().unwrap();
        assert!(status.success(), "{status}\n{}", self.log());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        while rustix::mount::unmount(self.dir.join("mount"), flags).is_ok() {}
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

impl Manager {
    fn new(dir: &Path) -> Self {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            path,
            kept: Vec::new(),
            name: String::new(),
        }
    }

    /// Starts a node with the environment and the descriptors of a unit.
    fn start(&mut self, dir: &Path) -> Child {
        self.receive();
        // Numbers above those that the process is to have.
        let dup = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 500).unwrap();
        let high: Vec<_> = self.kept.iter().map(dup).collect();
        let mut script = "export LISTEN_PID=$$".to_owned();
        for (number, descriptor) in (3..).zip(&high) {
            rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty()).unwrap();
            let high = descriptor.as_raw_fd();
            write!(script, "; exec {number}<&{high}; exec {high}<&-").unwrap();
        }
        script += "; exec \"$@\"";
        let node = command(dir, "node", "log");
        let mut unit = Command::new("bash");
        unit.args(["-c", &script, "unit"])
            .arg(node.get_program())
            .args(node.get_args())
            .env("NOTIFY_SOCKET", &self.path)
            .env("FDSTORE", "64")
            .env("LISTEN_FDS", self.kept.len().to_string())
            .env(
                "LISTEN_FDNAMES",
                vec![self.name.as_str(); high.len()].join(":"),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log_file(dir, "log"));
        unit.spawn().unwrap()
    }

    /// Takes up the messages that have come.
    fn receive(&mut self) {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut text = [0; 4096];
            let parts = &mut [IoSliceMut::new(&mut text)];
            let Ok(received) = recvmsg(&self.socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)
            else {
                return;
            };
            let text = String::from_utf8(text[..received.bytes].to_vec()).unwrap();
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
            if text.starts_with("FDSTOREREMOVE=1") {
                self.kept.clear();
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    assert!(text.contains("FDSTORE=1") && text.contains("FDPOLL=0"));
                    name.unwrap().clone_into(&mut self.name);
                    self.kept.extend(rights);
                }
            }
        }
    }
}

/// A configuration of a node whose files are in `DIR`.
fn configuration(node: &str, datastore: &str) -> String {
    format!(
        "[node]\nname = \"n\"\ncontrol = \"DIR/a.sock\"\n{node}[[datastore]]\nname = \"x\"\n\
         uuid = \"{UUID}\"\nstore = \"DIR/store\"\nmount = \"DIR/mount\"\n{datastore}"
    )
}

/// The configurations of a primary and a secondary.
fn pair(dir: &Path) -> [String; 2] {
    let host = own_address();
    let free = || TcpListener::bind((host, 0)).unwrap();
    let listeners = [free(), free()];
    let addresses = listeners.map(|listener| listener.local_addr().unwrap());
    let identities = ["primary", "secondary"].map(|name| {
        let keys = dir.join(name);
        fs::create_dir_all(&keys).unwrap();
        Identity::create(&keys, name).unwrap().fingerprint()
    });
    let text = |own: usize, role| {
        let (listen, other) = (addresses[own], 1 - own);
        let node = format!("identity = \"DIR\"\nlisten = \"{listen}\"\n");
        let datastore = format!(
            "role = \"{role}\"\npause_limit_ms = 600000\n[datastore.peer]\naddress = \"{}\"\n\
             fingerprint = \"{}\"\n",
            addresses[other], identities[other]
        );
        configuration(&node, &datastore)
    };
    [text(0, "primary"), text(1, "secondary")]
}

impl Site {
    /// A primary without a peer, and a holder.
    pub fn held() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let primary = Node::new(dir.path().join("primary"), &alone());
        let holder = Self::hold(&primary.dir);
        Self::start(dir, primary, None, holder)
    }

    /// A primary without a peer, and nothing that keeps its mount.
    pub fn unheld() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let primary = Node::new(dir.path().join("primary"), &alone());
        Self::start(dir, primary, None, Keeping::Nowhere)
    }

    /// A primary without a peer, and a service manager with a descriptor store.
    pub fn managed() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let primary = Node::new(dir.path().join("primary"), &alone());
        let manager = Manager::new(&primary.dir);
        Self::start(dir, primary, None, Keeping::Manager(manager))
    }

    /// A primary and a secondary in sync, and a holder of the primary's mount.
    pub fn mirrored() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = pair(dir.path());
        let primary = Node::new(dir.path().join("primary"), &first);
        let mut secondary = Node::new(dir.path().join("secondary"), &second);
        secondary.begin(&mut Keeping::Nowhere);
        let holder = Self::hold(&primary.dir);
        let mut site = Self::start(dir, primary, Some(secondary), holder);
        site.primary.await_log("state=\"synced and connected\"");
        site
    }

    fn hold(dir: &Path) -> Keeping {
        let holder = command(dir, "hold", "hold.log").spawn().unwrap();
        while !dir.join("a.sock.hold").exists() {
            sleep(LOOK);
        }
        Keeping::Holder(holder)
    }

    fn start(
        dir: TempDir,
        mut primary: Node,
        secondary: Option<Node>,
        mut keeping: Keeping,
    ) -> Self {
        primary.begin(&mut keeping);
        primary.await_running();
        Self {
            primary,
            secondary,
            keeping,
            _dir: dir,
        }
    }

    /// The mount of the primary.
    pub fn mount(&self) -> PathBuf {
        self.primary.dir.join("mount")
    }

    /// The log of the running primary.
    pub fn log(&self) -> String {
        self.primary.log().split_off(self.primary.logged)
    }

    /// Number of files of content in the store of the primary.
    pub fn content_files(&self) -> usize {
        let dirs = fs::read_dir(self.primary.dir.join("store/content")).unwrap();
        let files = |dir: PathBuf| fs::read_dir(dir).map_or(0, Iterator::count);
        dirs.map(|dir| files(dir.unwrap().path())).sum()
    }

    /// Changes the configuration of the primary.
    pub fn configure(&self, from: &str, to: &str) {
        let path = self.primary.dir.join("node.toml");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        fs::write(path, text.replace(from, to)).unwrap();
    }

    /// The directory of the primary.
    pub fn dir(&self) -> &Path {
        &self.primary.dir
    }

    /// Ends the holder, while the primary is away.
    pub fn end_holder(&mut self) {
        let holder = std::mem::replace(&mut self.keeping, Keeping::Nowhere);
        let Keeping::Holder(mut holder) = holder else {
            panic!("there is no holder");
        };
        let told = command(&self.primary.dir, "hold", "hold.log")
            .arg("--end")
            .status();
        assert!(told.unwrap().success());
        assert!(holder.wait().unwrap().success());
    }

    /// Waits until the started primary runs.
    pub fn await_running(&mut self) {
        self.primary.await_running();
    }

    /// Fails if a node has ended.
    pub fn assert_alive(&mut self) {
        self.primary.assert_alive();
        if let Some(secondary) = &mut self.secondary {
            secondary.assert_alive();
        }
    }

    /// Kills the primary, and waits until the next process has taken its mount over.
    pub fn kill_and_start(&mut self) {
        self.kill();
        self.begin_again();
        self.primary.await_running();
    }

    /// Kills the primary.
    pub fn kill(&mut self) {
        self.primary.kill();
    }

    /// Starts the primary again.
    pub fn begin_again(&mut self) {
        self.primary.begin(&mut self.keeping);
    }

    /// Stops the primary cleanly, and starts it with a new mount.
    pub fn remount(&mut self) {
        self.primary.stop();
        self.primary.begin(&mut self.keeping);
        self.primary.await_running();
    }

    /// Stops all nodes cleanly, and the holder.
    pub fn end(mut self) {
        self.primary.stop();
        if let Some(secondary) = &mut self.secondary {
            secondary.stop();
        }
        if let Keeping::Holder(holder) = &mut self.keeping {
            kill_process(Pid::from_child(holder), Signal::TERM).unwrap();
            assert!(holder.wait().unwrap().success());
        }
    }
}

fn alone() -> String {
    configuration("", "role = \"primary\"\n")
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Keeping::Holder(holder) = &mut self.keeping {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}
