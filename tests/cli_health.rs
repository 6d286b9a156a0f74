//! `lockstep health`, `why` and `ganesha-follow` against a fake node, whose answers the test chooses; and the refusals of
//! `lockstep keepalived-config`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockstep_driver::report::{
    ChangeReaderStatus, ChangesPart, ChangesQuestion, ClusterStatus, CommandFailure, DiffPart,
    DiffQuestion, ReaderCommand, RoleReport, ServiceStatus, SnapshotCommand, SnapshotStatus,
    TrashAnswer, TrashCommand, VerifyMode, VerifyProgress, VerifyReport,
};
use lockstep_fs::export::{ExportSummary, Lost};
use lockstep_fs::seed::{SeedProgress, SeedSummary};
use lockstep_testbed::status::{alpha, node_with};
use lockstepfs::control::{ControlServer, ControlService, ExportQuestion, NodeStatus, RoleCommand};
use tempfile::TempDir;

/// Longest run of a command, in seconds: the holds of these tests are longer.
const COMMAND_SECONDS_MAX: &str = "30";
/// A hold that no test waits for, in milliseconds.
const LONG_HOLD_MS: &str = "60000";
/// A time of a restart that no test waits for, in milliseconds.
const LONG_MS: u64 = 59_000;

/// A primary that serves or not.
#[derive(Default)]
struct FakePrimary {
    serves: AtomicBool,
    /// The present service has just begun.
    is_fresh: bool,
    hangs: bool,
    /// The node gives its role away.
    is_leaving: AtomicBool,
    /// The time of a restart that is no failover, in milliseconds. The mount is one of every machine.
    restart_within_ms: Option<u64>,
    asked: AtomicUsize,
    followed: Mutex<Option<IpAddr>>,
    /// The time for which the NFS server at the cluster address has given no answer, in milliseconds.
    nfs_silent_ms: Option<u64>,
}

impl ControlService for FakePrimary {
    fn status(&self) -> NodeStatus {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            // For longer than any test.
            let (_open, never) = channel::<()>();
            let _ = never.recv_timeout(Duration::from_secs(3600));
        }
        let serves = self.serves.load(Ordering::SeqCst);
        let service = match serves {
            _ if self.is_leaving.load(Ordering::SeqCst) => ServiceStatus::None,
            true => ServiceStatus::Mirrored,
            false => ServiceStatus::Undecided,
        };
        let mut alpha = alpha(service, serves);
        alpha.work.generation = 3;
        alpha.sync.copy.marked_in_sync = true;
        alpha.sync.restart_within_ms = self
            .restart_within_ms
            .filter(|_| service == ServiceStatus::Mirrored);
        alpha.settings.mount = Some("/proc".to_owned());
        alpha.sync.cluster = self.nfs_silent_ms.map(|silent_ms| ClusterStatus {
            address: "192.0.2.10".to_owned(),
            here: true,
            moved_ms: 60_000,
            asked_ms: 800,
            nfs_silent_ms: Some(silent_ms),
        });
        alpha.sync.service_since_ms = if self.is_fresh { 10 } else { 3_600_000 };
        node_with(alpha)
    }

    fn changes(
        &self,
        _: &str,
        _: &ChangesQuestion,
        _: &mut dyn FnMut(ChangesPart) -> bool,
    ) -> Result<(), CommandFailure> {
        unreachable!("nobody asks what has changed")
    }

    fn snapshots(
        &self,
        _: &str,
        _: &SnapshotCommand,
    ) -> Result<Vec<SnapshotStatus>, CommandFailure> {
        unreachable!("nobody asks for snapshots")
    }

    fn trash(&self, _: &str, _: &TrashCommand) -> Result<TrashAnswer, CommandFailure> {
        unreachable!("nobody asks for the trash")
    }

    fn snapshot_diff(
        &self,
        _: &str,
        _: &DiffQuestion,
        _: &mut dyn FnMut(DiffPart) -> bool,
    ) -> Result<(), CommandFailure> {
        unreachable!("nobody asks for a difference")
    }

    fn change_readers(
        &self,
        _: &str,
        _: &ReaderCommand,
    ) -> Result<Vec<ChangeReaderStatus>, CommandFailure> {
        unreachable!("nobody asks for change readers")
    }

    fn verify(
        &self,
        _name: &str,
        _mode: VerifyMode,
        _progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, CommandFailure> {
        panic!("no command of these tests compares")
    }

    fn export(
        &self,
        _: &str,
        _: &ExportQuestion,
        _: &mut dyn FnMut(&Lost),
        _: &dyn Fn() -> bool,
    ) -> Result<ExportSummary, CommandFailure> {
        unreachable!("no look at the health exports")
    }

    fn export_seed(
        &self,
        _: &str,
        _: &ExportQuestion,
        _: &mut dyn FnMut(SeedProgress),
        _: &dyn Fn() -> bool,
    ) -> Result<SeedSummary, CommandFailure> {
        unreachable!("no look at the health exports")
    }

    fn change_role(&self, _name: &str, _change: RoleCommand) -> Result<RoleReport, CommandFailure> {
        panic!("no command of these tests changes a role")
    }

    fn follow_address(&self, _name: &str, address: IpAddr, _has_nfs: bool) {
        *self.followed.lock().unwrap() = Some(address);
    }
}

/// A fake node with its control socket.
struct Node {
    service: Arc<FakePrimary>,
    socket: PathBuf,
    server: Option<ControlServer>,
    _directory: TempDir,
}

impl Node {
    fn start(service: FakePrimary) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("node.sock");
        let service = Arc::new(service);
        let shared: Arc<dyn ControlService> = Arc::clone(&service) as _;
        Self {
            server: Some(ControlServer::start(&socket, shared).unwrap()),
            service,
            socket,
            _directory: directory,
        }
    }

    fn begin(&self, words: &[&str]) -> Child {
        let mut command = lockstep(words);
        command.arg("--control").arg(&self.socket).spawn().unwrap()
    }

    /// Runs a command to its end. Returns its exit code and its output.
    fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        outcome(&self.begin(words).wait_with_output().unwrap())
    }
}

fn lockstep(words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args([COMMAND_SECONDS_MAX, env!("CARGO_BIN_EXE_lockstep")])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn outcome(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn primary(serves: bool) -> FakePrimary {
    FakePrimary {
        serves: AtomicBool::new(serves),
        ..FakePrimary::default()
    }
}

#[test]
fn the_exit_code_says_whether_the_node_serves_and_one_line_says_why() {
    let node = Node::start(primary(true));
    let (code, text) = node.run(&["health", "alpha"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(
        text,
        "alpha: node a serves (generation 3): changes go to both nodes\n"
    );
    node.service.serves.store(false, Ordering::SeqCst);
    let (code, text) = node.run(&["health", "alpha"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("does not serve") && text.lines().count() == 1,
        "{text}"
    );
    let (code, text) = node.run(&["health", "beta"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("has no datastore \"beta\""), "{text}");
}

#[test]
fn a_node_hears_which_address_its_answers_move() {
    let node = Node::start(primary(true));
    let (code, text) = node.run(&["health", "alpha"]);
    assert_eq!(code, Some(0), "{text}");
    let followed = || *node.service.followed.lock().unwrap();
    assert_eq!(followed(), None);
    let (code, text) = node.run(&["health", "alpha", "--address", "192.0.2.10"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(followed(), Some("192.0.2.10".parse().unwrap()));
}

/// Only keepalived that has Ganesha follow asks with `--nfs`.
#[test]
fn a_node_with_an_nfs_server_that_hangs_does_not_serve_for_a_caller_that_asks_for_that() {
    const ASKED: [&str; 5] = ["health", "alpha", "--address", "192.0.2.10", "--nfs"];
    for (silent_ms, code_with_nfs) in [(0, 0), (5000, 0), (60_000, 1)] {
        let node = Node::start(FakePrimary {
            nfs_silent_ms: Some(silent_ms),
            ..primary(true)
        });
        let (code, text) = node.run(&ASKED);
        assert_eq!(code, Some(code_with_nfs), "{text}");
        assert_eq!(code == Some(1), text.contains("NFS server"), "{text}");
        let (code, text) = node.run(&ASKED[..4]);
        assert_eq!(code, Some(0), "{text}");
    }
}

#[test]
fn a_node_that_does_not_run_cannot_be_asked() {
    let socket = tempfile::tempdir().unwrap().path().join("none.sock");
    let mut command = lockstep(&["health", "alpha", "--control"]);
    let (code, text) = outcome(&command.arg(socket).output().unwrap());
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("no node answers"), "{text}");
}

#[test]
fn a_node_that_hangs_keeps_nobody_waiting() {
    let node = Node::start(FakePrimary {
        hangs: true,
        ..primary(true)
    });
    let (code, text) = node.run(&["health", "alpha", "--limit-ms", "200"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("no answer within 200 ms"), "{text}");
}

/// A change during the hold ends the hold, in both directions.
#[test]
fn a_held_answer_changes_at_once() {
    for serves_at_first in [true, false] {
        let node = Node::start(primary(serves_at_first));
        let running = node.begin(&["health", "alpha", "--hold-ms", LONG_HOLD_MS]);
        let deadline = Instant::now() + Duration::from_secs(20);
        while node.service.asked.load(Ordering::SeqCst) < 3 {
            assert!(Instant::now() < deadline, "the command asks again");
            std::thread::sleep(Duration::from_millis(10));
        }
        node.service
            .serves
            .store(!serves_at_first, Ordering::SeqCst);
        let (code, text) = outcome(&running.wait_with_output().unwrap());
        assert_eq!(code, Some(i32::from(serves_at_first)), "{text}");
    }
}

#[test]
fn a_fresh_answer_is_not_held() {
    let node = Node::start(FakePrimary {
        is_fresh: true,
        ..primary(true)
    });
    let (code, text) = node.run(&["health", "alpha", "--hold-ms", LONG_HOLD_MS]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(node.service.asked.load(Ordering::SeqCst), 1);
}

/// The answers of keepalived's script, which holds none of them for long here: of a node that serves, and then of one that is
/// as `then` makes it.
fn answers_before_and_after(restart_within_ms: u64, then: impl Fn(&mut Node)) -> (Node, String) {
    let mut node = Node::start(FakePrimary {
        restart_within_ms: Some(restart_within_ms),
        ..primary(true)
    });
    let hold = ["health", "alpha", "--hold-ms", "1"];
    let (code, text) = node.run(&hold);
    assert_eq!(code, Some(0), "{text}");
    then(&mut node);
    let (code, text) = node.run(&hold);
    let answer = format!("{}: {text}", code.unwrap());
    (node, answer)
}

#[test]
fn a_node_that_restarts_keeps_the_address_while_no_other_node_serves() {
    let is_away = |node: &mut Node| drop(node.server.take());
    let (node, away) = answers_before_and_after(LONG_MS, is_away);
    assert!(
        away.starts_with("0: alpha: this node is away or has just restarted"),
        "{away}"
    );
    // Without a hold the question is about this moment.
    assert_eq!(node.run(&["health", "alpha"]).0, Some(2));
    // The restarted node has not met the other one.
    let is_undecided = |node: &mut Node| node.service.serves.store(false, Ordering::SeqCst);
    let (_, undecided) = answers_before_and_after(LONG_MS, is_undecided);
    assert!(undecided.starts_with("0: "), "{undecided}");
}

#[test]
fn a_node_that_is_away_for_too_long_or_leaves_loses_the_address() {
    let is_away = |node: &mut Node| drop(node.server.take());
    // The run awaits the end of that time.
    let (_, away) = answers_before_and_after(300, is_away);
    assert!(away.starts_with("2: "), "{away}");
    let leaves = |node: &mut Node| node.service.is_leaving.store(true, Ordering::SeqCst);
    let (mut node, leaving) = answers_before_and_after(LONG_MS, leaves);
    assert!(leaving.starts_with("1: "), "{leaving}");
    node.server.take();
    let hold = ["health", "alpha", "--hold-ms", "1"];
    assert_eq!(node.run(&hold).0, Some(2), "nothing is left of the time");
}

#[test]
fn why_explains_the_state_of_a_running_node() {
    let node = Node::start(primary(true));
    let (code, text) = node.run(&["why", "alpha"]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "alpha on node a: primary of generation 3, some state",
        "each change goes to both",
        "if the link fails now",
    ] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
}

/// A configuration file of a node, with the given lines for `listen` and the address of the peer.
fn configuration(listen: &str, peer: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    let digits = "0".repeat(64);
    let text = format!(
        "[node]\nname = \"a\"\nidentity = \"{dir}\"\nlisten = \"{listen}\"\ncontrol = \"{dir}/sock\"\n\n\
         [[datastore]]\nname = \"data\"\nuuid = \"6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001\"\nrole = \"primary\"\n\
         store = \"{dir}/store\"\nmount = \"{dir}/mount\"\n\n\
         [datastore.peer]\naddress = \"{peer}\"\nfingerprint = \"SHA256:{digits}\"\n"
    );
    fs::write(directory.path().join("node.toml"), text).unwrap();
    directory
}

fn keepalived_config(directory: &TempDir, words: &[&str]) -> (Option<i32>, String) {
    let mut command = lockstep(&["keepalived-config", "data", "--config"]);
    let command = command.arg(directory.path().join("node.toml")).args(words);
    if !words.contains(&"--interface") {
        command.args(["--interface", "eth0"]);
    }
    outcome(&command.output().unwrap())
}

#[test]
fn a_configuration_of_keepalived_gets_the_addresses_of_the_node() {
    let directory = configuration("192.0.2.1:7400", "192.0.2.2:7400");
    let (code, text) = keepalived_config(&directory, &["--address", "192.0.2.10/24"]);
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "unicast_src_ip 192.0.2.1\n",
        " 192.0.2.2\n",
        " 192.0.2.10/24\n",
    ] {
        assert!(text.contains(line), "{line:?}: {text}");
    }
}

#[test]
fn what_keepalived_could_not_use_is_refused_with_its_cure() {
    let named = configuration("192.0.2.1:7400", "node-b.example:7400");
    let (code, text) = keepalived_config(&named, &["--address", "192.0.2.10/24"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("node-b.example") && text.contains("with --peer"),
        "{text}"
    );
    let anywhere = configuration("0.0.0.0:7400", "192.0.2.2:7400");
    let (code, text) = keepalived_config(&anywhere, &["--address", "192.0.2.10/24"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("with --source"), "{text}");
    let given = ["--address", "192.0.2.10/24", "--source", "192.0.2.3"];
    assert_eq!(keepalived_config(&anywhere, &given).0, Some(0));
    for (words, part) in [
        (
            ["--address", "192.0.2.10", "--router-id", "1"],
            "192.0.2.10/24",
        ),
        (
            ["--address", "192.0.2.10/24", "--router-id", "0"],
            "1..=255",
        ),
        (
            ["--address", "192.0.2.10/24", "--interface", "a b"],
            "ip link",
        ),
        (
            ["--address", "192.0.2.10/24", "--notify", "/a b"],
            "take literally",
        ),
        (
            ["--address", "192.0.2.2/24", "--router-id", "1"],
            "one of the servers",
        ),
    ] {
        let directory = configuration("192.0.2.1:7400", "192.0.2.2:7400");
        let (code, text) = keepalived_config(&directory, &words);
        assert_eq!(code, Some(2), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {part:?}: {text}");
    }
}

/// Runs `lockstep ganesha-follow`. Returns its outcome, and the verbs that its program got.
fn follow(node: &Node, event: &str, program: &str) -> (Option<i32>, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let (path, verbs) = (directory.path().join("nfs"), directory.path().join("verbs"));
    fs::write(&path, program.replace("VERBS", verbs.to_str().unwrap())).unwrap();
    let executable = Command::new("chmod").arg("+x").arg(&path).status();
    assert!(executable.unwrap().success());
    let path = path.to_str().unwrap();
    let words = ["ganesha-follow", "alpha", event, "--address", "192.0.2.10"];
    let (code, text) = node.run(&[&words[..], &["--program", path]].concat());
    (code, text, fs::read_to_string(verbs).unwrap_or_default())
}

#[test]
fn ganesha_follows_the_role_and_a_late_loss_does_not_stop_it() {
    let noted = "#!/bin/sh\necho \"$@\" >>VERBS\n";
    for (serves, event, verbs) in [
        (true, "serves", "restart\n"),
        // The node serves no more: the next event stops Ganesha.
        (false, "serves", "restart\n"),
        (false, "lost", "stop\n"),
        (true, "lost", ""),
    ] {
        let node = Node::start(primary(serves));
        let (code, text, found) = follow(&node, event, noted);
        assert_eq!(code, Some(0), "{event}: {text}");
        assert_eq!(found, verbs, "{event} while serving: {serves}");
    }
    let node = Node::start(primary(true));
    let (code, text, _) = follow(&node, "serves", "#!/bin/sh\nexit 3\n");
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("restart has failed") && text.contains("exit status: 3"),
        "{text}"
    );
}

/// A node that does not answer serves nothing.
#[test]
fn ganesha_stops_where_the_node_hangs() {
    let node = Node::start(FakePrimary {
        hangs: true,
        ..primary(true)
    });
    let (code, text, found) = follow(&node, "lost", "#!/bin/sh\necho \"$@\" >>VERBS\n");
    assert_eq!((code, found.as_str()), (Some(0), "stop\n"), "{text}");
}
