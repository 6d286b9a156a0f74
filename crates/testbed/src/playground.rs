//! A mirrored playground: two nodes and their mount, as `lockstep playground` makes them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::program::{can_mount, program};

/// A running playground. Dropping it stops the nodes.
pub struct MirroredPlayground {
    child: Child,
    /// The content of `playground.json`.
    description: Value,
}

impl MirroredPlayground {
    /// Starts a new playground, or the one that the directory already holds; `None` if this machine cannot mount.
    pub fn start(directory: &Path) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        // A playground that is asked to stop stops its nodes, also if the test is killed.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--", program()])
            .arg("playground")
            .arg("--dir")
            .arg(directory);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        let description = fs::read_to_string(directory.join("playground.json")).unwrap();
        Some(Self {
            child,
            description: serde_json::from_str(&description).unwrap(),
        })
    }

    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        Path::new(self.description["mount"].as_str().unwrap()).join(name)
    }

    /// The values of one key of the primary and of the secondary.
    pub fn of_nodes(&self, key: &str) -> [PathBuf; 2] {
        [0, 1].map(|node| {
            let value = &self.description["nodes"][node][key];
            value.as_str().unwrap().into()
        })
    }

    /// Checks that the nodes' own comparison finds no difference.
    pub fn expect_identical(&self) {
        let [config, _] = self.of_nodes("config");
        let mut verify = Command::new(program());
        verify.args(["verify", "playground", "--config"]);
        let output = verify.arg(config).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{printed}");
    }
}

impl Drop for MirroredPlayground {
    fn drop(&mut self) {
        // The playground stops its nodes cleanly and removes the mount.
        let asked = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let ended = asked.is_ok().then(|| self.child.wait());
        if !std::thread::panicking() {
            assert!(ended.is_some_and(|ended| ended.is_ok()));
        }
    }
}
