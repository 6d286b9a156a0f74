//! `lockstep demo` on this machine: it ends well, and leaves nothing behind, also after Ctrl-C at any step.
//!
//! The demonstration starts its nodes itself. So the testbed starts none here.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use lockstep_testbed::can_mount;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A running demo in a directory of its own.
struct Demo {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    dir: TempDir,
}

/// Starts the demo; `None` if this machine cannot mount.
fn start() -> Option<Demo> {
    if !can_mount() {
        return None;
    }
    let dir = tempfile::Builder::new().prefix("lsd.").tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.arg("demo").arg("--dir").arg(dir.path());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    Some(Demo { child, out, dir })
}

impl Demo {
    /// Reads the output until a line contains `text`.
    fn await_line(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let bytes = self.out.read_line(&mut line).unwrap();
            assert!(bytes > 0, "the demo ended before it printed {text:?}");
        }
    }

    /// Waits for the end, checks that nothing is left, and returns the exit code and the rest of the output.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        let code = self.child.wait().unwrap().code();
        let place = self.dir.path().to_str().unwrap();
        let left = fs::read_dir(place).unwrap().count();
        assert_eq!(left, 0, "files are left:\n{rest}");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(place), "a mount is left:\n{mounts}");
        let processes = processes_with(place);
        assert!(processes.is_empty(), "{processes:?}");
        (code, rest)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // After a failed check the demo still runs.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
            let _ = self.child.wait();
        }
    }
}

/// Command lines of the processes that name a path.
fn processes_with(path: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap();
    let lines = processes.filter_map(|process| {
        let line = fs::read(process.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(path)).collect()
}

/// Presses Ctrl-C once a line contains `text`.
fn interrupt_at(text: &str) {
    let Some(mut demo) = start() else {
        return;
    };
    demo.await_line(text);
    kill_process(Pid::from_child(&demo.child), Signal::INT).unwrap();
    let (code, rest) = demo.end();
    assert_eq!(code, Some(130), "{rest}");
    assert!(rest.contains("everything is cleaned up"), "{rest}");
}

#[test]
fn the_demo_ends_well_and_says_how_long_the_client_waited() {
    let Some(mut demo) = start() else {
        return;
    };
    demo.await_line("Kill the primary in mid-write");
    demo.await_line("the client waited ");
    for shown in [
        "node a is the secondary",
        "Kill the primary in the middle of a resync",
        "fallback: the whole copy from before the resync that began at 20",
        "serves that moment",
        "2,000 files and the large one: content as written",
        "lost copy: snapshot lost-",
    ] {
        demo.await_line(shown);
    }
    let (code, rest) = demo.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("Everything is as it should be"), "{rest}");
}

#[test]
fn an_interrupt_while_the_primary_is_dead_leaves_nothing_behind() {
    interrupt_at("Kill the primary in mid-write");
}

#[test]
fn an_interrupt_while_a_process_is_away_leaves_nothing_behind() {
    interrupt_at("Kill the process of the primary alone");
}
