//! Programs of a node that has given its role away, and changes that they ask while the other node serves.

use std::fs::{DirEntry, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::operator::{assert_identical, await_in_sync, fail_over};
use lockstep_testbed::{Pair, Settings, await_that};
use tempfile::TempDir;

use crate::{STEADY, start};

/// The file of the program.
const FILE: &str = "LOCKSTEP_LATE_FILE";
/// A file that the program makes when its changes are answered.
const ANSWERED: &str = "LOCKSTEP_LATE_ANSWERED";
/// The name of the test that is the program.
const PROGRAM: &str = "late::child_asks_changes";

/// A program with an open file. Killed at the end.
struct Program {
    child: Child,
    /// Open, because the program writes to it.
    _output: BufReader<ChildStdout>,
    place: TempDir,
}

impl Program {
    /// Starts the program, and waits until it has the file open.
    fn start(path: &Path) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", PROGRAM, "--nocapture"])
            .env(FILE, path)
            .env(ANSWERED, place.path().join("answered"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        while !said.contains("open") {
            assert!(output.read_line(&mut said).unwrap() > 0, "{said}");
        }
        Self {
            child,
            _output: output,
            place,
        }
    }

    /// Has the program ask for its changes.
    fn ask(&mut self) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(b"go\n").unwrap();
    }

    /// Whether both changes are answered, or wait in the kernel.
    fn has_asked(&self) -> bool {
        self.place.path().join("answered").exists() || self.waiting() == 2
    }

    /// The threads that wait without regard to signals.
    fn waiting(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let waits = |task: std::io::Result<DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(|stat| stat.contains(") D "))
        };
        tasks.map(waits).filter(|waits| *waits).count()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// The pattern of a database whose supervisor kills it where the node does not serve. The role goes to B and back.
fn nothing_replaces_newer_data(pair: &mut Pair) {
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    std::fs::write(on_a.join("data"), [b'a'; 8192]).unwrap();
    for round in 0..3 {
        let mut old = Program::start(&on_a.join("data"));
        await_in_sync(pair, A, 2 * round + 1);
        fail_over(pair, A, 2 * round + 1);
        old.ask();
        await_that("the changes to be asked", || old.has_asked());
        old.kill();
        let newer = format!("newer {round}");
        let file = File::options().write(true).open(on_b.join("data")).unwrap();
        file.write_all_at(newer.as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
        await_in_sync(pair, B, 2 * round + 2);
        fail_over(pair, B, 2 * round + 2);
        drop(old);
        let found = std::fs::read(on_a.join("data")).unwrap();
        assert_eq!(found.len(), 8192, "the dead program has cut the file");
        assert_eq!(&found[..newer.len()], newer.as_bytes());
    }
    await_in_sync(pair, A, 7);
    assert_identical(pair.node(A));
}

#[test]
fn nothing_that_a_dead_program_has_asked_replaces_newer_data() {
    for standby in ["wait", "erofs"] {
        if let Some(mut pair) = start(Settings { standby, ..STEADY }) {
            nothing_replaces_newer_data(&mut pair);
        }
    }
}

#[test]
#[ignore = "the program of nothing_that_a_dead_program_has_asked_replaces_newer_data"]
fn child_asks_changes() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let file = File::options().write(true).open(path).unwrap();
    println!("open");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    thread::scope(|scope| {
        // An error is as good as a death.
        scope.spawn(|| drop(file.write_all_at(b"old", 0)));
        scope.spawn(|| drop(file.set_len(1)));
    });
    std::fs::write(std::env::var_os(ANSWERED).unwrap(), "").unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}
