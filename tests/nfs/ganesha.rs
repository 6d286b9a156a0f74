//! NFS-Ganesha on one of the two servers, as a process of this machine.
//!
//! Invariant: the processes are gone when [`Ganesha`] is dropped, or when the test is killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;

use lockstep_testbed::namespace::NetNamespace;
use lockstep_testbed::{Node, await_that};
use rustix::process::{Pid, Signal, kill_process};

use crate::server_space::{NAMESPACES, SERVES, START, configuration};

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
        let options = ["--clients", "127.0.0.0/8", "--nfs", versions];
        let text = configuration(
            Path::new(lockstep_testbed::program()),
            &node.config(),
            &node.mount(),
            &options,
        );
        fs::write(dir.join("ganesha.conf"), text).unwrap();
        Self {
            network: Arc::new(NetNamespace::make()),
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

    /// Starts Ganesha on the mount of the node, and waits until it serves. `verifier`: the write verifier, if Ganesha does not
    /// make one.
    pub fn start(&mut self, mount: &Path, verifier: Option<&str>) {
        self.starts += 1;
        let output = File::create(self.dir.join("output")).unwrap();
        let mut command = self.network.command();
        command
            .arg("unshare")
            .args(NAMESPACES)
            .args(["sh", "-c", START, "sh"])
            .args([mount, &self.dir.join("ganesha.conf"), &self.log()])
            .args(verifier.iter().flat_map(|number| ["-E", number]))
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        assert!(self.process.replace(command.spawn().unwrap()).is_none());
        await_that("Ganesha", || {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert_eq!(ended, None, "{}", self.report());
            self.logged().contains(SERVES)
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
