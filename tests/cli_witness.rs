//! The witness as its operator runs it: set-up with the output of `init --witness`, service, status, and mistakes.
//!
//! These tests start the witness themselves: the configuration of `init` and the reports to the service manager are their subject.
//! The testbed writes a configuration of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "json/page.rs"]
mod page;

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use lockstep_link::Identity;
use lockstep_roles::{Claim, InSyncSet, Member, WitnessRecord};
use lockstep_testbed::address::own_address;
use lockstep_types::{DatastoreUuid, Generation};
use lockstep_witness::{WitnessClient, WitnessConfig};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than any call takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

fn lockstep(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(arguments)
        .output()
        .unwrap()
}

fn error_of(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn text_of(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A directory with a witness, and the two nodes that it knows.
struct Setting {
    directory: tempfile::TempDir,
    listen: SocketAddr,
    nodes: [Identity; 2],
}

impl Setting {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            listen: SocketAddr::new(own_address(), 7400),
            nodes: ["a", "b"].map(|name| Identity::ephemeral(name).unwrap()),
        }
    }

    fn path(&self, part: &str) -> PathBuf {
        self.directory.path().join(part)
    }

    fn config(&self) -> String {
        self.path("etc/witness.toml").display().to_string()
    }

    /// Runs `init --witness` with the nodes that are to be allowed.
    fn init(&self, allowed: &[&Identity], more: &[&str]) -> Output {
        let (dir, store) = (self.path("etc"), self.path("store"));
        let mut arguments = vec![
            "init".to_owned(),
            "--witness".to_owned(),
            format!("--dir={}", dir.display()),
            format!("--store={}", store.display()),
            format!("--listen={}", self.listen),
            "--name=w".to_owned(),
        ];
        for (name, node) in ["a", "b"].iter().zip(allowed) {
            arguments.push(format!("--allow={name}={}", node.fingerprint()));
        }
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        lockstep(&[&arguments[..], more].concat())
    }

    fn init_whole(&self) -> Value {
        let [a, b] = &self.nodes;
        let made = self.init(&[a, b], &["--json"]);
        serde_json::from_str(&text_of(&made)).unwrap()
    }

    /// Starts the witness, and returns when it reports that it is ready.
    fn start(&self) -> Service {
        let path = self.path("notify");
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args(["witness", "--config", &self.config()])
            .env("NOTIFY_SOCKET", &path)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let service = Service { process, socket };
        service.wait_for("READY=1");
        service
    }

    /// The witness of a datastore, as node `a` asks it.
    fn witness(&self, made: &Value, uuid: DatastoreUuid) -> Box<dyn lockstep_roles::Witness> {
        let config = WitnessConfig::Own {
            address: self.listen.into(),
            fingerprint: made["fingerprint"].as_str().unwrap().parse().unwrap(),
        };
        let [a, b] = &self.nodes;
        let client = WitnessClient::new(&config, a).unwrap();
        client.datastore(uuid, b.fingerprint()).unwrap()
    }
}

/// A running witness. A drop kills it.
struct Service {
    process: Child,
    socket: UnixDatagram,
}

impl Service {
    fn wait_for(&self, wanted: &str) -> String {
        let mut message = [0; 4096];
        loop {
            let length = self.socket.recv(&mut message).unwrap();
            let text = String::from_utf8_lossy(&message[..length]).into_owned();
            if text.contains(wanted) {
                return text;
            }
        }
    }

    fn stop(mut self) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::TERM).unwrap();
        self.wait_for("STOPPING=1");
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn first_claim() -> Claim {
    Claim {
        expected: None,
        new: WitnessRecord {
            change: 0,
            generation: Generation::new(3).unwrap(),
            primary: Member::First,
            in_sync: InSyncSet::Both,
            sync: None,
        },
    }
}

/// Checks that `docs/json.md` describes each key of the JSON of this command, and no other.
fn assert_described(command: &str, value: &Value) {
    let section = page::sections().find(|it| it.starts_with(command));
    let section = section.unwrap_or_else(|| panic!("no {command}"));
    let (keys, described) = (page::keys_of(value), page::described_keys(section));
    assert_eq!(keys, described);
}

#[test]
fn a_witness_is_set_up_with_the_output_of_init_and_shows_its_records() {
    let setting = Setting::new();
    let made = setting.init_whole();
    assert_described("`lockstep init --witness --json`", &made);
    assert_eq!(made["ready"], true);
    let config = setting.config();
    let service = setting.start();
    let status = |more: &[&str]| {
        let base = ["witness-status", "--config", &config];
        text_of(&lockstep(&[&base, more].concat()))
    };
    assert!(status(&[]).contains("no datastore yet"));
    let uuid = DatastoreUuid::random();
    let claim = first_claim();
    let after = setting.witness(&made, uuid).claim(&claim, LIMIT).unwrap();
    assert_eq!(after, Some(claim.new));
    let [a, b] = &setting.nodes;
    let is_a_first = a.fingerprint() < b.fingerprint();
    let (primary, secondary) = if is_a_first { ("a", "b") } else { ("b", "a") };
    let text = status(&[]);
    for part in [
        uuid.to_string(),
        format!("primary     {primary}\n"),
        format!("in sync     {primary}, {secondary}\n"),
        "generation  3, change 0".to_owned(),
    ] {
        assert!(text.contains(&part), "{part} is not in:\n{text}");
    }
    let json: Value = serde_json::from_str(&status(&["--json"])).unwrap();
    assert_described("`lockstep witness-status --json`", &json);
    assert_eq!(json["datastores"][0]["primary"]["name"], primary);
    service.stop();
    // The records are there after a stop and after a kill.
    for is_last in [false, true] {
        let service = setting.start();
        assert_eq!(setting.witness(&made, uuid).read(LIMIT).unwrap(), after);
        if is_last {
            service.stop();
        }
    }
}

#[test]
fn the_record_of_a_datastore_can_be_removed() {
    let setting = Setting::new();
    let made = setting.init_whole();
    let _service = setting.start();
    let uuid = DatastoreUuid::random();
    let witness = setting.witness(&made, uuid);
    witness.claim(&first_claim(), LIMIT).unwrap();
    let (config, uuid_text) = (setting.config(), uuid.to_string());
    let forget = || lockstep(&["witness-forget", "--config", &config, &uuid_text]);
    text_of(&forget());
    assert_eq!(forget().status.code(), Some(1));
    assert_eq!(setting.witness(&made, uuid).read(LIMIT).unwrap(), None);
}

#[test]
fn a_witness_without_its_nodes_asks_for_them() {
    let setting = Setting::new();
    let steps = text_of(&setting.init(&[], &[]));
    assert!(steps.contains("fill in the fingerprint"), "{steps}");
    let section = format!(
        "       [datastore.witness]\n       address = \"{}\"\n       fingerprint = \"SHA256:",
        setting.listen
    );
    assert!(steps.contains(&section), "{steps}");
    let lines = std::fs::read_to_string(setting.config()).unwrap();
    let open = lines
        .lines()
        .zip(1..)
        .filter(|(line, _)| line.contains("FILL IN"));
    let open: Vec<usize> = open.map(|(_, number)| number).collect();
    assert!(
        steps.contains(&format!("lines {} and {}", open[0], open[1])),
        "{steps}"
    );
    let error = error_of(&lockstep(&["witness", "--config", &setting.config()]));
    for line in open {
        assert!(error.contains(&format!("witness.toml:{line}: ")), "{error}");
    }
}

#[test]
fn init_overwrites_nothing_and_leaves_nothing_after_a_failure() {
    let setting = Setting::new();
    // The directory of the store has records of another witness.
    let other = Setting::new();
    other.init_whole();
    std::fs::create_dir(setting.path("store")).unwrap();
    let records = |setting: &Setting| setting.path("store").join("records");
    std::fs::copy(records(&other), records(&setting)).unwrap();
    let before = std::fs::read(records(&setting)).unwrap();
    let error = error_of(&setting.init(&[], &[]));
    assert!(
        error.contains("already") && error.contains("cure: "),
        "{error}"
    );
    assert!(!setting.path("etc").exists());
    assert_eq!(std::fs::read(records(&setting)).unwrap(), before);
    // A second run finds the files of the first.
    let key = std::fs::read(other.path("etc/node.key")).unwrap();
    let error = error_of(&other.init(&[], &[]));
    assert!(error.contains("never overwritten"), "{error}");
    assert_eq!(std::fs::read(other.path("etc/node.key")).unwrap(), key);
}

#[test]
fn wrong_arguments_of_init_make_nothing() {
    let setting = Setting::new();
    let [a, _] = &setting.nodes;
    for wrong in [
        &["--mount", "/srv/data"][..],
        &["--uuid", "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001"],
        &["--allow", "c"],
        &["--allow", "c=SHA256:1"],
        &["--allow", &format!("c={}", a.fingerprint())],
    ] {
        error_of(&setting.init(&[a], wrong));
        assert!(!setting.path("etc").exists(), "{wrong:?}");
        assert!(!setting.path("store").exists(), "{wrong:?}");
    }
    let allow = format!("a={}", a.fingerprint());
    let error = error_of(&lockstep(&["init", "--name", "n", "--allow", &allow]));
    assert!(error.contains("--witness"), "{error}");
}

#[test]
fn a_witness_without_its_records_does_not_start() {
    let setting = Setting::new();
    setting.init_whole();
    let refused = || error_of(&lockstep(&["witness", "--config", &setting.config()]));
    let records = setting.path("store/records");
    let whole = std::fs::read(&records).unwrap();
    // The middle of the file lies in the space that is reserved for further records.
    std::fs::write(&records, &whole[..5000]).unwrap();
    let error = refused();
    assert!(
        error.contains("are damaged") && error.contains("A lost witness"),
        "{error}"
    );
    std::fs::remove_file(&records).unwrap();
    let error = refused();
    assert!(
        error.contains("no records") && error.contains("A lost witness"),
        "{error}"
    );
    assert!(!records.exists());
}

#[test]
fn a_witness_that_is_its_own_node_does_not_start() {
    let setting = Setting::new();
    let made = setting.init_whole();
    replace(
        Path::new(&setting.config()),
        &setting.nodes[0].fingerprint().to_string(),
        made["fingerprint"].as_str().unwrap(),
    );
    let error = error_of(&lockstep(&["witness", "--config", &setting.config()]));
    assert!(error.contains("the fingerprint of this witness"), "{error}");
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn a_witness_that_does_not_run_is_an_error_with_a_cure() {
    let setting = Setting::new();
    setting.init_whole();
    let error = error_of(&lockstep(&[
        "witness-status",
        "--config",
        &setting.config(),
    ]));
    assert!(
        error.contains("does not answer") && error.contains("cure: "),
        "{error}"
    );
    let missing = setting.path("missing.toml").display().to_string();
    let error = error_of(&lockstep(&["witness-status", "--config", &missing]));
    assert!(error.contains("lockstep init"), "{error}");
}
