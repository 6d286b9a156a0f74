//! A primary whose mount outlives it: with a holder or with a service manager, alone or with a secondary.
//!
//! Invariant: when a [`Site`] is dropped, its processes are gone and nothing is mounted, however the test ended.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use lockstep_testbed::address::own_address;
use lockstep_testbed::holder::Holder;
use lockstep_testbed::{Node, NodeConfig, NodeEnvironment, PeerConfig, can_mount, logged_command};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tempfile::TempDir;

/// Pause between two looks at a state.
pub const LOOK: Duration = Duration::from_millis(5);
/// The first Linux that can send requests again.
const RESEND_SINCE: (u32, u32) = (6, 9);

/// Whether this machine can let a mount outlive its process; prints the reason if not.
pub fn can_resume() -> bool {
    if !can_mount() {
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

/// The keeper of the mount.
enum HeldBy {
    Nothing,
    Holder(Holder),
    Manager(Manager),
}

/// Plays the part of systemd: keeps descriptors, and gives them to the next process.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    kept: Vec<OwnedFd>,
    name: String,
}

/// See the head of this file. The nodes end before the keeper of the mount.
pub struct Site {
    primary: Node,
    secondary: Option<Node>,
    held_by: HeldBy,
    _dir: TempDir,
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

    /// Starts the command of a node with the environment and the descriptors of a unit. The log of the node is at `log`.
    fn start(&mut self, node: &Command, log: &Path) -> io::Result<Child> {
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
        let mut unit = logged_command("bash", log);
        unit.args(["-c", &script, "unit"])
            .arg(node.get_program())
            .args(node.get_args())
            .env("NOTIFY_SOCKET", &self.path)
            .env("FDSTORE", "64")
            .env("LISTEN_FDS", self.kept.len().to_string())
            .env(
                "LISTEN_FDNAMES",
                vec![self.name.as_str(); high.len()].join(":"),
            );
        unit.spawn()
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

/// Makes a primary without a peer in `root`.
fn alone(root: &Path) -> Node {
    let primary = Node::make(root, "primary", NodeEnvironment::default());
    primary.configure(&NodeConfig {
        role: "primary",
        settings: String::new(),
        peer: None,
    });
    primary
}

/// Makes a primary and a secondary in `root`.
fn pair(root: &Path) -> [Node; 2] {
    let roles = ["primary", "secondary"];
    let nodes = roles.map(|name| Node::make(root, name, NodeEnvironment::default()));
    // Held until both are found, so that they differ.
    let held = roles.map(|_| TcpListener::bind((own_address(), 0)).unwrap());
    let addresses = held.map(|listener| listener.local_addr().unwrap());
    let fingerprints = nodes.each_ref().map(Node::identify);
    for (own, node) in nodes.iter().enumerate() {
        node.configure(&NodeConfig {
            role: roles[own],
            settings: "pause_limit_ms = 600000\n".to_owned(),
            peer: Some(PeerConfig {
                listen: addresses[own],
                address: addresses[1 - own],
                fingerprint: fingerprints[1 - own],
                encryption: "on",
            }),
        });
    }
    nodes
}

impl Site {
    /// A primary without a peer, and a holder.
    pub fn held() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let primary = alone(dir.path());
        let holder = Holder::start(&primary);
        Self::start(dir, primary, None, HeldBy::Holder(holder))
    }

    /// A primary without a peer, and nothing that keeps its mount.
    pub fn unheld() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let primary = alone(dir.path());
        Self::start(dir, primary, None, HeldBy::Nothing)
    }

    /// A primary without a peer, and a service manager with a descriptor store.
    pub fn managed() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let primary = alone(dir.path());
        let manager = Manager::new(primary.dir());
        Self::start(dir, primary, None, HeldBy::Manager(manager))
    }

    /// A primary and a secondary in sync, and a holder of the primary's mount.
    pub fn mirrored() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [primary, mut secondary] = pair(dir.path());
        secondary.start();
        let holder = Holder::start(&primary);
        let mut site = Self::start(dir, primary, Some(secondary), HeldBy::Holder(holder));
        site.primary.await_logged("state=\"synced and connected\"");
        site
    }

    fn start(dir: TempDir, primary: Node, secondary: Option<Node>, held_by: HeldBy) -> Self {
        let mut site = Self {
            primary,
            secondary,
            held_by,
            _dir: dir,
        };
        site.begin_again();
        site.await_running();
        site
    }

    /// The mount of the primary.
    pub fn mount(&self) -> PathBuf {
        self.primary.mount()
    }

    /// The log of the running primary.
    pub fn log(&self) -> String {
        self.primary.logged_since_start()
    }

    /// Number of files of content in the store of the primary.
    pub fn content_files(&self) -> usize {
        let dirs = fs::read_dir(self.primary.store().join("content")).unwrap();
        let files = |dir: PathBuf| fs::read_dir(dir).map_or(0, Iterator::count);
        dirs.map(|dir| files(dir.unwrap().path())).sum()
    }

    /// Changes the configuration of the primary.
    pub fn configure(&self, from: &str, to: &str) {
        let path = self.primary.config();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        fs::write(path, text.replace(from, to)).unwrap();
    }

    /// The directory of the primary.
    pub fn dir(&self) -> &Path {
        self.primary.dir()
    }

    /// Ends the holder, while the primary is away.
    pub fn end_holder(&mut self) {
        let holder = std::mem::replace(&mut self.held_by, HeldBy::Nothing);
        let HeldBy::Holder(holder) = holder else {
            panic!("there is no holder");
        };
        holder.end(&self.primary);
    }

    /// Waits until the started primary runs.
    pub fn await_running(&mut self) {
        self.primary.await_logged(" running node=");
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
        self.await_running();
    }

    /// Kills the primary.
    pub fn kill(&mut self) {
        self.primary.kill();
    }

    /// Starts the primary again. Does not wait until it runs.
    pub fn begin_again(&mut self) {
        match &mut self.held_by {
            HeldBy::Manager(manager) => {
                let log = self.primary.log();
                self.primary
                    .start_by(|command| manager.start(command, &log));
            }
            _ => self.primary.start(),
        }
    }

    /// Stops the primary cleanly, and starts it with a new mount.
    pub fn remount(&mut self) {
        self.primary.stop();
        self.begin_again();
        self.await_running();
    }

    /// Stops all nodes cleanly, and the holder.
    pub fn end(mut self) {
        self.primary.stop();
        if let Some(secondary) = &mut self.secondary {
            secondary.stop();
        }
        if let HeldBy::Holder(holder) = self.held_by {
            holder.stop();
        }
    }
}
