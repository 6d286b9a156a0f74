//! Other users of the machine hold locks on every file of a node that they can open.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lockstep_testbed::{Node, Pair, Which, as_nobody, await_that};

const NODES: [Which; 2] = [Which::Primary, Which::Secondary];

/// A process of `nobody` that waits for a lock on a file or directory, and keeps it.
struct Stranger {
    process: Child,
    log_path: PathBuf,
}

impl Stranger {
    fn start(pair: &Pair, number: usize, target: &Path) -> Self {
        let log_path = pair.outside(&format!("stranger {number}"));
        let output = File::create(&log_path).unwrap();
        let mut command = as_nobody();
        command
            .args(["--pdeathsig", "KILL", "--", "flock", "--no-fork"])
            .arg(target)
            .args(["sh", "-c", "echo held; exec cat"])
            .stdin(Stdio::piped())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        let process = command.spawn().unwrap();
        Self { process, log_path }
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.log_path).unwrap()
    }

    fn await_lock(&self) {
        await_that("the lock of a stranger", || self.output() == "held\n");
    }

    fn must_be_refused(mut self) {
        let status = self.process.wait().unwrap();
        let output = self.output();
        assert!(output.contains("Permission denied"), "{status}: {output}");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Opens the directories to all users: that of the test, those with the control sockets, and the stores, as an
/// earlier version made them.
fn open_directories(pair: &Pair) -> Vec<PathBuf> {
    let mut directories = vec![pair.outside(".")];
    for which in NODES {
        let node = pair.node(which);
        assert_eq!(mode(node.store()), 0o700);
        directories.extend([node.control().parent().unwrap().into(), node.store().into()]);
    }
    for directory in &directories {
        fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    }
    directories
}

/// The lock files of a store and of a control socket.
fn lock_files(node: &Node) -> [PathBuf; 2] {
    let mut beside = node.control().into_os_string();
    beside.push(".lock");
    [node.store().join("lock"), beside.into()]
}

fn says_in_sync(node: &Node) {
    let mut command = Command::new(lockstep_testbed::program());
    let output = node.run(command.args(["status", "--config"]).arg(node.config()));
    assert!(output.status.success(), "{output:?}");
}

/// Checks that nodes start after a kill and after a stop, although `nobody` holds locks on all their directories.
pub fn check_locks_of_other_users(pair: &mut Pair) {
    pair.start();
    let directories = open_directories(pair);
    let stranger = |(number, path): (usize, &PathBuf)| Stranger::start(pair, number, path);
    let strangers: Vec<_> = directories.iter().enumerate().map(stranger).collect();
    let files: Vec<_> = NODES.map(|which| lock_files(pair.node(which))).concat();
    for file in &files {
        assert!(file.exists());
        Stranger::start(pair, strangers.len(), file).must_be_refused();
    }
    for which in NODES {
        pair.node_mut(which).kill();
    }
    for stranger in &strangers {
        stranger.await_lock();
    }
    for _ in 0..2 {
        pair.start();
        for node in NODES.map(|which| pair.node(which)) {
            says_in_sync(node);
            assert_eq!(mode(node.store()), 0o700);
            assert!(node.logged().contains("only another user holds a lock"));
        }
        pair.stop();
    }
}
