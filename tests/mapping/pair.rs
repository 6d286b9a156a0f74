//! Two nodes and a mirrored mount, as `lockstep playground` makes them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::mounted::can_mount;

/// The nodes; they stop when this is dropped.
pub struct Pair {
    playground: Child,
    directory: TempDir,
}

impl Pair {
    /// Starts both and waits until they are in sync.
    pub fn start() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command
            .arg("playground")
            .arg("--dir")
            .arg(directory.path().join("play"));
        let mut playground = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut printed = BufReader::new(playground.stdout.take().unwrap());
        printed.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        Some(Self {
            playground,
            directory,
        })
    }

    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("play/mount").join(name)
    }

    /// Compares both nodes.
    pub fn expect_identical(&self) {
        let mut verify = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        verify.arg("verify").arg("playground");
        verify
            .arg("--config")
            .arg(self.directory.path().join("play/a/node.toml"));
        let output = verify.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{printed}");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.playground);
        // It stops its nodes in order and removes what it has made.
        let asked = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let ended = asked.is_ok().then(|| self.playground.wait());
        if !std::thread::panicking() {
            assert!(ended.is_some_and(|ended| ended.is_ok()));
        }
    }
}
