//! What `lockstep node` refuses before anything starts, and how it ends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

fn node(text: &str) -> (tempfile::TempDir, Output) {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("node.toml");
    std::fs::write(&config, text).unwrap();
    let output = lockstep_node(&config).output().unwrap();
    (directory, output)
}

#[test]
fn a_wrong_configuration_starts_nothing() {
    let (directory, output) = node("[node]\nname = \"a\"\ncontrl = \"/run/a.sock\"\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in [
        "node.toml:3: contrl in [node]",
        "did you mean `control`?",
        "node.toml:1: ",
    ] {
        assert!(error.contains(part), "{part} is not in:\n{error}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_missing_configuration_says_what_to_do() {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["node", "--config", "/nonexistent/node.toml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("/nonexistent/node.toml") && error.contains("cure:"),
        "{error}"
    );
}

/// Starts the node whose configuration is `config`.
fn lockstep_node(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(["node", "--config"]).arg(config);
    command
}

/// A configuration with one datastore and no peer, all of it in `directory`.
fn unmirrored(directory: &Path) -> String {
    let path = directory.display();
    format!(
        "[node]\nname = \"a\"\ncontrol = \"{path}/a.sock\"\n[[datastore]]\nname = \"x\"\n\
         uuid = \"6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001\"\nstore = \"{path}/store\"\n\
         mount = \"{path}/mount\"\nrole = \"primary\"\n"
    )
}

#[test]
fn a_control_socket_that_is_in_use_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::create_dir(path.join("mount")).unwrap();
    std::fs::create_dir(path.join("store")).unwrap();
    std::fs::write(path.join("node.toml"), unmirrored(path)).unwrap();
    let _other_node = UnixListener::bind(path.join("a.sock")).unwrap();
    let output = lockstep_node(&path.join("node.toml")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("another node is running"), "{error}");
    assert_eq!(std::fs::read_dir(path.join("store")).unwrap().count(), 0);
}

/// A node that runs, with its mount; both end with it.
struct Running {
    process: Child,
    directory: tempfile::TempDir,
}

impl Running {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::fs::create_dir(path.join("mount")).unwrap();
        std::fs::write(path.join("node.toml"), unmirrored(path)).unwrap();
        let log = File::create(path.join("log")).unwrap();
        let process = lockstep_node(&path.join("node.toml"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut node = Self { process, directory };
        while !node.log().contains("running") {
            assert!(node.process.try_wait().unwrap().is_none(), "{}", node.log());
            sleep(Duration::from_millis(10));
        }
        node
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = unmount(self.directory.path().join("mount"), UnmountFlags::DETACH);
    }
}

/// What watches over it (systemd, say) must see that it did not stop because it was asked to.
#[test]
fn a_mount_that_somebody_takes_away_ends_the_node_with_an_error() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: needs root and /dev/fuse");
        return;
    }
    let mut node = Running::start();
    unmount(node.directory.path().join("mount"), UnmountFlags::empty()).unwrap();
    let ended = node.process.wait().unwrap();
    assert_eq!(ended.code(), Some(2), "{}", node.log());
    assert!(node.log().contains("somebody unmounted"), "{}", node.log());
}

#[test]
fn a_processor_that_is_none_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("node.toml");
    std::fs::write(&config, unmirrored(directory.path())).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["node", "--cpus", "100000", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("no processor 100000"), "{error}");
}
