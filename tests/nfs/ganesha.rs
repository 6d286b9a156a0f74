//! NFS-Ganesha on one of the two servers, as a process of this machine: in namespaces of its own, with the ports, paths
//! and configuration of a real installation.
//!
//! Invariant: the processes are gone when [`Ganesha`] is dropped, or when the test is killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};

use crate::namespace::NetNamespace;
use crate::nodes::{DATASTORE, Node, PROGRAM, await_that};

/// Where both servers mount the datastore.
pub const EXPORT: &str = "/srv/data";

/// No process of the server outlives Ganesha, and Ganesha does not outlive the process that waits for it.
const NAMESPACES: [&str; 7] = [
    "--mount",
    "--propagation",
    "slave",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// Starts Ganesha: `sh -c START sh MOUNT CONFIGURATION LOG`.
const START: &str = r#"
set -e
mount -t tmpfs none /run
mkdir -p /run/rpcbind /run/ganesha /run/lock
mount -t tmpfs none /srv
mkdir /srv/data
mount --bind "$1" /srv/data
rpcbind -f &
until [ -S /run/rpcbind.sock ]; do sleep 0.01; done
exec ganesha.nfsd -F -f "$2" -L "$3" -p /run/ganesha.pid -N NIV_EVENT
"#;

/// Ganesha beside one node.
pub struct Ganesha {
    /// The network of the server.
    pub network: Arc<NetNamespace>,
    dir: PathBuf,
    process: Option<Child>,
    starts: usize,
}

impl Ganesha {
    /// The server of a node, with its configuration. Ganesha does not run.
    pub fn new(node: &Node, dir: PathBuf, versions: &str) -> Self {
        fs::create_dir(&dir).unwrap();
        fs::write(
            dir.join("ganesha.conf"),
            configuration(node, &dir, versions),
        )
        .unwrap();
        Self {
            network: Arc::new(NetNamespace::new()),
            dir,
            process: None,
            starts: 0,
        }
    }

    fn log(&self) -> PathBuf {
        self.dir.join(format!("ganesha.log.{}", self.starts))
    }

    /// The log since the last start.
    pub fn logged(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log()).unwrap_or_default()).into_owned()
    }

    /// Starts Ganesha on the mount of the node, and waits until it serves.
    pub fn start(&mut self, mount: &Path) {
        self.starts += 1;
        let output = File::create(self.dir.join("output")).unwrap();
        let mut command = self.network.command();
        command
            .arg("unshare")
            .args(NAMESPACES)
            .args(["sh", "-c", START, "sh"])
            .args([mount, &self.dir.join("ganesha.conf"), &self.log()])
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        assert!(self.process.replace(command.spawn().unwrap()).is_none());
        await_that("Ganesha", || {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert_eq!(ended, None, "{}", self.report());
            self.logged().contains("NFS SERVER INITIALIZED")
        });
    }

    /// Ends Ganesha as a crash does.
    pub fn kill(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        let number = process.id();
        let list = format!("/proc/{number}/task/{number}/children");
        let children = fs::read_to_string(list).unwrap_or_default();
        let first = children.split_whitespace().next();
        match first.and_then(|child| Pid::from_raw(child.parse().unwrap())) {
            // Ganesha is the first process of its namespace, and takes all others of it along.
            Some(ganesha) => kill_process(ganesha, Signal::KILL).unwrap(),
            None => process.kill().unwrap(),
        }
        process.wait().unwrap();
    }

    fn report(&self) -> String {
        let output = fs::read_to_string(self.dir.join("output"));
        format!("{}{}", output.unwrap_or_default(), self.logged())
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.report());
        }
        self.kill();
    }
}

/// The text that the command prints for a node with the mount of a real server.
fn configuration(node: &Node, dir: &Path, versions: &str) -> String {
    let text = fs::read_to_string(node.config()).unwrap();
    let mount = node.mount().display().to_string();
    assert!(text.contains(&mount));
    let config = dir.join("node.toml");
    fs::write(&config, text.replace(&mount, EXPORT)).unwrap();
    let printed = Command::new(PROGRAM)
        .args(["ganesha-config", DATASTORE, "--clients", "127.0.0.0/8"])
        .args(["--nfs", versions, "--config"])
        .arg(config)
        .output()
        .unwrap();
    assert!(printed.status.success(), "{printed:?}");
    String::from_utf8(printed.stdout).unwrap()
}
