//! Faulty nodes of a playground: the playground reports the fault and leaves nothing behind.
//!
//! The playground starts its nodes itself, or a program in their place. So the testbed starts none here.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lockstep_testbed::can_mount;

/// A directory with a program that takes the place of the node.
fn with_program(script: &str) -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let program = root.path().join("program");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    (root, program)
}

fn playground(root: &Path, program: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command
        .arg("playground")
        .arg("--dir")
        .arg(root.join("play"));
    command.arg("--node-program").arg(program);
    command
}

#[test]
fn a_node_that_dies_is_reported_with_the_end_of_its_log() {
    let (root, program) = with_program("echo 'no /dev/fuse here' >&2; exit 3");
    let output = playground(root.path(), &program).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("stopped before it was ready (exit status: 3)"),
        "{error}"
    );
    assert!(error.contains("| no /dev/fuse here"), "{error}");
    assert!(!root.path().join("play").exists(), "it was left behind");
}

#[test]
fn a_program_that_cannot_run_is_reported() {
    let (root, _) = with_program("");
    let output = playground(root.path(), Path::new("/nonexistent/program"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("cannot start node b"), "{error}");
}

/// Starts a playground whose nodes only print their process ids, and returns the ids.
fn waiting_playground(root: &Path, program: &Path) -> (Child, Vec<String>) {
    let fifo = root.join("pids");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let child = playground(root, program)
        .env("PIDS", &fifo)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let fifo = BufReader::new(std::fs::File::open(&fifo).unwrap());
    (child, fifo.lines().take(2).map(Result::unwrap).collect())
}

#[test]
fn a_signal_before_it_is_ready_ends_it_and_its_nodes() {
    // Open for reading too, so that neither node waits for the test.
    let (root, program) = with_program("exec 3<>\"$PIDS\"; echo $$ >&3; exec sleep 1000");
    let (mut child, nodes) = waiting_playground(root.path(), &program);
    assert_eq!(nodes.len(), 2);
    let pid = child.id().to_string();
    assert!(
        Command::new("/bin/kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(0));
    for node in nodes {
        assert!(!Path::new("/proc").join(node).exists());
    }
}

#[test]
fn a_directory_in_use_for_something_else_is_refused() {
    let (root, program) = with_program("exit 1");
    std::fs::create_dir(root.path().join("play")).unwrap();
    std::fs::write(root.path().join("play/precious"), "").unwrap();
    let output = playground(root.path(), &program).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("not empty") && error.contains("cure:"),
        "{error}"
    );
}

/// Operators stop reading a log that always warns.
#[test]
fn a_good_first_start_logs_no_warnings() {
    if !can_mount() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let mut child = playground(root.path(), Path::new(env!("CARGO_BIN_EXE_lockstep")))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut ready).unwrap();
    let logs =
        ["a.log", "b.log"].map(|log| std::fs::read_to_string(root.path().join("play").join(log)));
    // A closed terminal sends this signal.
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(ready, "ready\n");
    for log in logs {
        let log = log.unwrap();
        let is_warning = |line: &&str| line.contains("WARN") || line.contains("ERROR");
        let warnings: Vec<_> = log.lines().filter(is_warning).collect();
        assert!(warnings.is_empty() && log.contains("running"), "{log}");
    }
}
