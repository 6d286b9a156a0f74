//! Content directories on real nodes: empty ones are removed on both nodes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longest wait for an expected event.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Enough for several content directories.
const FILES: usize = 1500;

/// Both nodes as processes of this machine, and their mount. Dropping it ends them.
struct Playground {
    child: Child,
    mount: PathBuf,
}

impl Playground {
    /// Starts a new playground, or the one that the directory already holds.
    fn start(directory: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command.arg("playground").arg("--dir").arg(directory);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        let told = fs::read_to_string(directory.join("playground.json")).unwrap();
        let told: Value = serde_json::from_str(&told).unwrap();
        let mount = told["mount"].as_str().unwrap().into();
        Self { child, mount }
    }

    fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        }
        self.child.wait().unwrap();
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        self.end();
    }
}

/// The directories `content` of both stores.
fn contents(directory: &Path) -> Vec<PathBuf> {
    let told = fs::read_to_string(directory.join("playground.json")).unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    let nodes = told["nodes"].as_array().unwrap().iter();
    let contents: Vec<PathBuf> = nodes
        .map(|node| Path::new(node["store"].as_str().unwrap()).join("content"))
        .collect();
    assert_eq!(contents.len(), 2);
    contents
}

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// Waits until each node has `wanted` content directories.
fn await_directories(contents: &[PathBuf], wanted: usize) {
    let start = Instant::now();
    loop {
        let found: Vec<usize> = contents.iter().map(|content| count(content)).collect();
        if found.iter().all(|found| *found == wanted) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{found:?} of {wanted}");
        sleep(LOOK_INTERVAL);
    }
}

#[test]
fn directories_of_content_go_with_the_files_on_both_nodes() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: needs root and /dev/fuse");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("play");
    let playground = Playground::start(&directory);
    let contents = contents(&directory);
    let path = |number: usize| playground.mount.join(format!("f{number}"));
    for number in 0..FILES {
        fs::write(path(number), format!("file {number}")).unwrap();
    }
    for content in &contents {
        assert!(count(content) > FILES / 256, "{}", content.display());
    }
    for number in 1..FILES {
        fs::remove_file(path(number)).unwrap();
    }
    await_directories(&contents, 1);
    assert_eq!(fs::read(path(0)).unwrap(), b"file 0");
    playground.stop();
    // As an earlier version left them: that version removed no directory.
    for content in &contents {
        for number in 1..300 {
            fs::create_dir(content.join(format!("fff{number:x}"))).unwrap();
        }
    }
    let playground = Playground::start(&directory);
    await_directories(&contents, 1);
    assert_eq!(fs::read(playground.mount.join("f0")).unwrap(), b"file 0");
}
