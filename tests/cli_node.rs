//! The errors of `lockstep node` before the start, and the ways in which a node ends.
//!
//! These tests start the program themselves: its arguments, its signals, its reports to the service manager, several datastores
//! in one configuration and its exit code are their subject. The testbed hides them: its node has one datastore, and is started
//! and ended in the usual way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, sleep};
use std::time::Duration;

use lockstep_link::Identity;
use lockstep_testbed::can_mount;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use serde_json::Value;

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

/// A command that starts the node with the configuration `config`.
fn lockstep_node(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(["node", "--config"]).arg(config);
    command
}

/// A configuration with one datastore and no peer, with all paths in `directory`.
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

fn make_store(directory: &Path, name: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    let command = command.args(["create-store", name, "--config"]);
    let output = command.arg(directory.join("node.toml")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// A running node with its mount. A drop ends both.
struct Running {
    process: Child,
    directory: tempfile::TempDir,
}

impl Running {
    fn start() -> Self {
        Self::start_by(lockstep_node)
    }

    fn start_by(command: impl FnOnce(&Path) -> Command) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let text = unmirrored(directory.path());
        Self::start_in(directory, &text, command)
    }

    /// Starts a node with this configuration, whose first datastore can be served.
    fn start_in(
        directory: tempfile::TempDir,
        text: &str,
        command: impl FnOnce(&Path) -> Command,
    ) -> Self {
        let path = directory.path();
        std::fs::create_dir_all(path.join("mount")).unwrap();
        std::fs::write(path.join("node.toml"), text).unwrap();
        make_store(path, "x");
        let log = File::create(path.join("log")).unwrap();
        let process = command(&path.join("node.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
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
        // The node may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = unmount(self.directory.path().join("mount"), UnmountFlags::DETACH);
    }
}

/// The service manager (systemd, for example) must see that the node was not asked to stop.
#[test]
fn an_unmount_by_another_program_ends_the_node_with_an_error() {
    if !can_mount() {
        return;
    }
    let mut node = Running::start();
    unmount(node.directory.path().join("mount"), UnmountFlags::empty()).unwrap();
    let ended = node.process.wait().unwrap();
    assert_eq!(ended.code(), Some(2), "{}", node.log());
    assert!(
        node.log().contains("another program has unmounted"),
        "{}",
        node.log()
    );
}

#[test]
fn a_missing_processor_is_refused() {
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

/// A second datastore in the same configuration.
fn second(path: &Path) -> String {
    let path = path.display();
    format!(
        "[[datastore]]\nname = \"y\"\nuuid = \"6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a002\"\n\
         store = \"{path}/store-y\"\nmount = \"{path}/mount-y\"\nrole = \"primary\"\n"
    )
}

fn lockstep(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(arguments).output().unwrap()
}

fn status(socket: &Path) -> (Option<i32>, Value) {
    let output = lockstep(&["status", "--json", "--control", socket.to_str().unwrap()]);
    let status = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), status)
}

fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap()
}

/// A closed terminal sends SIGHUP.
#[test]
fn a_closed_terminal_shuts_the_node_down_cleanly() {
    if !can_mount() {
        return;
    }
    let mut node = Running::start();
    let mount = node.directory.path().join("mount").display().to_string();
    assert!(mounts().contains(&mount));
    kill(&node.process, Signal::HUP);
    assert_eq!(
        node.process.wait().unwrap().code(),
        Some(0),
        "{}",
        node.log()
    );
    assert!(node.log().contains("stopped"), "{}", node.log());
    assert!(!mounts().contains(&mount));
}

#[test]
fn a_node_that_ignores_hangups_goes_on_doing_so() {
    if !can_mount() {
        return;
    }
    let node = Running::start_by(|config| {
        let mut command = Command::new("nohup");
        command.arg(env!("CARGO_BIN_EXE_lockstep"));
        command.args(["node", "--config"]).arg(config);
        command
    });
    kill(&node.process, Signal::HUP);
    // The node still answers. A node that handles the signal would stop answering within a moment.
    let socket = node.directory.path().join("a.sock");
    for _ in 0..20 {
        assert_eq!(status(&socket).0, Some(0), "{}", node.log());
    }
    assert!(!node.log().contains("stopping"), "{}", node.log());
}

fn kill(process: &Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(process), signal).unwrap();
}

/// A datastore whose mount directory is missing is reported and retried; the other datastore is served.
#[test]
fn a_datastore_that_cannot_start_keeps_no_other_from_starting() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let text = unmirrored(&path) + &second(&path);
    let node = Running::start_in(directory, &text, lockstep_node);
    make_store(&path, "y");
    let socket = path.join("a.sock");
    let (code, report) = status(&socket);
    assert_eq!(code, Some(1));
    assert_eq!(report["datastores"][0]["started"], true);
    assert_eq!(report["datastores"][1]["started"], false);
    let reason = report["datastores"][1]["reason"].as_str().unwrap();
    assert!(reason.contains("mount-y does not exist"), "{reason}");
    std::fs::write(path.join("mount/file"), "served").unwrap();

    let waits = [
        "wait",
        "--timeout",
        "0",
        "--control",
        socket.to_str().unwrap(),
    ];
    assert_eq!(lockstep(&waits).status.code(), Some(1));
    std::fs::create_dir(path.join("mount-y")).unwrap();
    let waits = [
        "wait",
        "--timeout",
        "120",
        "--control",
        socket.to_str().unwrap(),
    ];
    assert_eq!(lockstep(&waits).status.code(), Some(0), "{}", node.log());
    assert_eq!(status(&socket).0, Some(0));
    std::fs::write(path.join("mount-y/file"), "served").unwrap();
    drop(node);
    let _ = unmount(path.join("mount-y"), UnmountFlags::DETACH);
}

/// Receives notifications of the node until one contains `wanted`. Returns all of them.
fn receive_until(socket: &UnixDatagram, wanted: &str) -> String {
    let mut all = String::new();
    let mut message = [0; 4096];
    while !all.contains(wanted) {
        let length = socket.recv(&mut message).unwrap();
        all += &String::from_utf8_lossy(&message[..length]);
        all.push('\n');
    }
    all
}

#[test]
fn systemd_is_notified_of_readiness_keep_alives_and_the_stop() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("notify");
    let socket = UnixDatagram::bind(&name).unwrap();
    let text = unmirrored(directory.path());
    let mut node = Running::start_in(directory, &text, |config| {
        let mut command = lockstep_node(config);
        command
            .env("NOTIFY_SOCKET", &name)
            .env("WATCHDOG_USEC", "400000");
        command
    });
    let ready = receive_until(&socket, "READY=1");
    assert!(ready.contains("STATUS=x: unmirrored"), "{ready}");
    receive_until(&socket, "WATCHDOG=1");
    kill(&node.process, Signal::TERM);
    receive_until(&socket, "STOPPING=1");
    assert_eq!(node.process.wait().unwrap().code(), Some(0));
}

#[test]
fn a_start_in_the_background_returns_when_it_is_mounted_or_says_why_not() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let config = path.join("node.toml");
    let log = path.join("log");
    std::fs::write(&config, unmirrored(path)).unwrap();
    make_store(path, "x");
    let start = || {
        let (config, log) = (config.to_str().unwrap(), log.to_str().unwrap());
        lockstep(&[
            "node",
            "--background",
            "--config",
            config,
            "--log-file",
            log,
        ])
    };
    let failed = start();
    assert_eq!(failed.status.code(), Some(2));
    let error = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(error.contains("mount does not exist: create it"), "{error}");

    std::fs::create_dir(path.join("mount")).unwrap();
    let started = start();
    let error = String::from_utf8_lossy(&started.stderr).into_owned();
    assert_eq!(started.status.code(), Some(0), "{error}");
    let mount = path.join("mount").display().to_string();
    assert!(mounts().contains(&mount));
    let (_, report) = status(&path.join("a.sock"));
    let pid = i32::try_from(report["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    while mounts().contains(&mount) || path.join("a.sock").exists() {
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_node_is_not_its_own_peer() {
    let dir = tempfile::tempdir().unwrap();
    let own = Identity::create(dir.path(), "a").unwrap().fingerprint();
    let identity = dir.path().display();
    let text = unmirrored(dir.path()).replace(
        "[[datastore]]",
        &format!("identity = \"{identity}\"\nlisten = \"127.0.0.1:1\"\n[[datastore]]"),
    );
    let peer = format!("[datastore.peer]\naddress = \"127.0.0.1:2\"\nfingerprint = \"{own}\"\n");
    let config = dir.path().join("node.toml");
    std::fs::write(&config, text + &peer).unwrap();
    let output = lockstep_node(&config).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("that of this node itself"), "{error}");
    assert_eq!(output.status.code(), Some(2), "{error}");
}

/// The port of a node that was killed is free once the last of its threads has ended.
#[test]
fn a_node_waits_for_a_port_whose_owner_is_ending() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    Identity::create(&path, "a").unwrap();
    let peer = Identity::ephemeral("b").unwrap().fingerprint();
    let owner = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = owner.local_addr().unwrap();
    let identity = path.display();
    let text = unmirrored(&path).replace(
        "[[datastore]]",
        &format!("identity = \"{identity}\"\nlisten = \"{listen}\"\n[[datastore]]"),
    );
    let peer = format!("[datastore.peer]\naddress = \"127.0.0.1:2\"\nfingerprint = \"{peer}\"\n");
    let log = path.join("log");
    let ends = thread::spawn(move || {
        while !std::fs::read_to_string(&log).is_ok_and(|log| log.contains("cannot start yet")) {
            sleep(Duration::from_millis(10));
        }
        drop(owner);
    });
    let node = Running::start_in(directory, &(text + &peer), lockstep_node);
    ends.join().unwrap();
    let (_, report) = status(&path.join("a.sock"));
    assert_eq!(report["datastores"][0]["started"], true, "{}", node.log());
}

/// If the disk that holds the store is not mounted, the node must not serve an empty directory in its place.
#[test]
fn a_missing_store_is_not_made_by_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let config = path.join("node.toml");
    std::fs::write(&config, unmirrored(path)).unwrap();
    std::fs::create_dir(path.join("mount")).unwrap();
    for exists in [false, true] {
        if exists {
            std::fs::create_dir(path.join("store")).unwrap();
        }
        let output = lockstep_node(&config).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("is not mounted"), "{error}");
        assert!(error.contains("`lockstep create-store x`"), "{error}");
        let left = std::fs::read_dir(path.join("store")).map(Iterator::count);
        assert_eq!(left.ok(), exists.then_some(0));
    }
    make_store(path, "x");
    let config = config.to_str().unwrap();
    let again = lockstep(&["create-store", "x", "--config", config]);
    assert_eq!(again.status.code(), Some(1));
}

/// An operator removes the store under its node, and makes a new one too early.
#[test]
fn a_store_that_is_removed_under_its_node_ends_the_service_and_is_not_replaced() {
    if !can_mount() {
        return;
    }
    let mut node = Running::start();
    let path = node.directory.path().to_owned();
    let (store, config) = (path.join("store"), path.join("node.toml"));
    std::fs::write(path.join("mount/file"), "data").unwrap();
    // The node may make a file in the store meanwhile.
    while store.exists() {
        let _tried = std::fs::remove_dir_all(&store);
    }
    let config = config.to_str().unwrap();
    let early = lockstep(&["create-store", "x", "--config", config]);
    let error = String::from_utf8_lossy(&early.stderr).into_owned();
    assert_eq!(early.status.code(), Some(2), "{error}");
    assert!(
        error.contains("is in use by another node process"),
        "{error}"
    );
    let reason = loop {
        let (_, report) = status(&path.join("a.sock"));
        let poisoned = &report["datastores"][0]["poisoned"];
        if let Some(reason) = poisoned["reason"].as_str() {
            break reason.to_owned();
        }
        sleep(Duration::from_millis(10));
    };
    assert!(reason.contains("removed or replaced"), "{reason}");
    let refused = std::fs::write(path.join("mount/later"), "data");
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(5));
    kill(&node.process, Signal::TERM);
    node.process.wait().unwrap();
    make_store(&path, "x");
}

/// The node goes on with the files that it has open. Its next start would not find the store.
#[test]
fn a_store_that_is_moved_under_its_node_is_reported() {
    if !can_mount() {
        return;
    }
    let node = Running::start();
    let path = node.directory.path().to_owned();
    let (store, away) = (path.join("store"), path.join("away"));
    let until_logged = |what: &str| {
        while !node.log().contains(what) {
            sleep(Duration::from_millis(10));
        }
    };
    std::fs::rename(&store, &away).unwrap();
    until_logged("the directory of the store was moved");
    let socket = path.join("a.sock");
    let (code, report) = status(&socket);
    let reason = report["datastores"][0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("bring it back before the node is started again"),
        "{reason}"
    );
    assert_eq!(code, Some(1));
    for command in [["status", "x"], ["why", "x"]] {
        let [name, datastore] = command;
        let shown = lockstep(&[name, datastore, "--control", socket.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(text.contains(reason), "{command:?}: {text}");
    }
    std::fs::write(path.join("mount/file"), "data").unwrap();
    let config = path.join("node.toml");
    let early = lockstep(&["create-store", "x", "--config", config.to_str().unwrap()]);
    assert_eq!(early.status.code(), Some(2));
    let removed = std::fs::remove_dir_all(&store);
    assert!(removed.is_ok() || !store.exists(), "{removed:?}");
    std::fs::rename(&away, &store).unwrap();
    until_logged("the directory of the store is in its place again");
    let (code, report) = status(&socket);
    assert_eq!(code, Some(0), "{}", node.log());
    assert!(report["datastores"][0]["reason"].is_null(), "{report}");
}

/// The log and the status report files that a program has written while nothing was mounted.
#[test]
fn files_in_the_bare_mount_directory_are_reported() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    std::fs::create_dir(path.join("mount")).unwrap();
    std::fs::write(path.join("mount/stray"), "lost").unwrap();
    let node = Running::start_in(directory, &unmirrored(&path), lockstep_node);
    assert!(!path.join("mount/stray").exists(), "it is hidden");
    let (_, report) = status(&path.join("a.sock"));
    assert_eq!(report["datastores"][0]["stray"]["names"][0], "stray");
    assert!(
        node.log().contains("the mount directory itself holds"),
        "{}",
        node.log()
    );
    let text = lockstep(&["status", "--control", path.join("a.sock").to_str().unwrap()]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.contains("WARNING: the mount directory itself holds stray"),
        "{text}"
    );
}

/// The kernel gives this answer: `docs/semantics.md` promises no other.
#[test]
fn a_file_of_a_node_that_has_ended_is_not_connected() {
    if !can_mount() {
        return;
    }
    for signal in [Signal::TERM, Signal::KILL] {
        let mut node = Running::start();
        let file = File::create(node.directory.path().join("mount/file")).unwrap();
        file.write_at(b"before", 0).unwrap();
        kill(&node.process, signal);
        node.process.wait().unwrap();
        for _ in 0..3 {
            let error = file.write_at(b"after", 0).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NotConnected, "{error}");
        }
    }
}
