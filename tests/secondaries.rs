//! Secondaries without a primary: which reasons they report to the operator, and which strangers can change the
//! reason.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockstep_link::{Fingerprint, Identity, LinkOptions, dial};
use lockstep_testbed::address;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use address::own_address;

const UUID: &str = "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a003";
const LOOK: Duration = Duration::from_millis(20);
const TWO: &str = "both nodes are the secondary";
/// The longest wait for a status.
const STATUS_LIMIT: Duration = Duration::from_secs(120);

/// A node in a directory of its own, as a process. Dropping it ends the process and the mount.
struct Node {
    directory: TempDir,
    fingerprint: Fingerprint,
    listen: SocketAddr,
    process: Option<Child>,
}

impl Node {
    fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let keys = directory.path().join("keys");
        fs::create_dir(&keys).unwrap();
        fs::create_dir(directory.path().join("mount")).unwrap();
        let identity = Identity::create(&keys, name).unwrap();
        Self {
            fingerprint: identity.fingerprint(),
            listen: TcpListener::bind((own_address(), 0))
                .unwrap()
                .local_addr()
                .unwrap(),
            directory,
            process: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configure(&self, role: &str, peer: SocketAddr, fingerprint: Fingerprint) {
        let (path, listen) = (self.directory.path().display(), self.listen);
        let text = format!(
            "[node]\nname = \"n\"\nidentity = \"{path}/keys\"\nlisten = \"{listen}\"\n\
             control = \"{path}/socket\"\n[[datastore]]\nname = \"x\"\nuuid = \"{UUID}\"\n\
             store = \"{path}/store\"\nmount = \"{path}/mount\"\nrole = \"{role}\"\n\
             [datastore.peer]\naddress = \"{peer}\"\nfingerprint = \"{fingerprint}\"\n"
        );
        fs::write(self.path("node.toml"), text).unwrap();
        let made = lockstep(&["create-store", "x", "--config"], &self.path("node.toml"));
        assert!(made.status.success(), "{made:?}");
    }

    fn start(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("log"));
        let process = Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args(["node", "--config"])
            .arg(self.path("node.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn();
        self.process = Some(process.unwrap());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        kill_process(Pid::from_child(&process), Signal::TERM).unwrap();
        assert!(process.wait().unwrap().success(), "{}", self.log());
    }

    /// Waits until the status of the datastore is as wanted, and returns the status.
    fn status(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let output = lockstep(&["status", "--json", "--control"], &self.path("socket"));
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let datastore = &status["datastores"][0];
            if datastore.is_object() && wanted(datastore) {
                return datastore.clone();
            }
            let process = self.process.as_mut().unwrap();
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.log());
            let is_late = start.elapsed() > STATUS_LIMIT;
            assert!(!is_late, "{datastore}: {}", self.log());
            sleep(LOOK);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // The process may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = unmount(self.path("mount"), UnmountFlags::DETACH);
        let _ = Command::new("chattr")
            .arg("-i")
            .arg(self.path("mount"))
            .output();
    }
}

fn lockstep(arguments: &[&str], path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(arguments).arg(path).output().unwrap()
}

fn reason(status: &Value) -> &str {
    status["reason"].as_str().unwrap_or_default()
}

/// Two secondaries that wait for each other.
fn two_secondaries() -> [Node; 2] {
    let [mut a, mut b] = [Node::new("a"), Node::new("b")];
    a.configure("secondary", b.listen, b.fingerprint);
    b.configure("secondary", a.listen, a.fingerprint);
    a.start();
    b.start();
    [a, b]
}

#[test]
fn two_secondaries_report_each_other_and_the_cure_they_name_works() {
    let [mut a, mut b] = two_secondaries();
    for node in [&mut a, &mut b] {
        let status = node.status(|status| reason(status).starts_with(TWO));
        assert_eq!(status["peer"]["obstacle"], true);
        assert!(node.log().contains(TWO), "{}", node.log());
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: the cure needs root and /dev/fuse");
        return;
    }
    let promote = ["promote", "x", "--force-data-loss", "--control"];
    let promoted = lockstep(&promote, &b.path("socket"));
    assert!(promoted.status.success(), "{promoted:?}");
    for node in [&mut a, &mut b] {
        let status = node.status(|status| status["in_sync"] == true);
        assert_eq!(status["reason"], Value::Null);
        assert_eq!(status["peer"]["obstacle"], false);
    }
    b.stop();
    let status = a.status(|status| status["in_sync"] == false);
    assert!(!reason(&status).contains(TWO), "{status}");
}

/// The node reports a stranger at its port in addition to the known reason, not in place of it.
#[test]
fn a_stranger_hides_no_reason() {
    let [mut a, _b] = two_secondaries();
    a.status(|status| reason(status).starts_with(TWO));
    let stranger = Identity::ephemeral("stranger").unwrap();
    let options = LinkOptions::default();
    dial(a.listen, &stranger, a.fingerprint, &options).unwrap_err();
    let presented = stranger.fingerprint().to_string();
    let status = a.status(|status| reason(status).contains(&presented));
    assert!(reason(&status).starts_with(TWO), "{status}");
    assert!(
        reason(&status).contains("may be the primary, or not"),
        "{status}"
    );
    assert_eq!(status["peer"]["obstacle"], true);
}

/// The stranger may be the primary with another identity: then the operator has to know.
#[test]
fn a_primary_with_an_unknown_fingerprint_is_reported() {
    let [mut a, b] = [Node::new("a"), Node::new("b")];
    a.configure("secondary", b.listen, b.fingerprint);
    a.start();
    let before = a.status(|status| !reason(status).is_empty());
    assert!(
        reason(&before).starts_with("no primary has connected"),
        "{before}"
    );
    let primary = Identity::ephemeral("primary").unwrap();
    dial(a.listen, &primary, a.fingerprint, &LinkOptions::default()).unwrap_err();
    let presented = primary.fingerprint().to_string();
    let status = a.status(|status| reason(status).contains(&presented));
    assert!(
        reason(&status).starts_with("no primary has connected"),
        "{status}"
    );
    assert!(
        reason(&status).contains("pin the new fingerprint"),
        "{status}"
    );
}
