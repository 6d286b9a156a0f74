//! `lockstep changes` on two real nodes: a backup by the script of docs/operations/backup.md is the directory, also after the node
//! was killed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lockstep_testbed::{DATASTORE, Node, NodeEnvironment, PATIENT, Pair, can_mount};
use serde_json::Value;

lockstep_testbed::network_process!();

/// Mode, time, and bytes or target of each entry below a directory. The times of directories are left out: a copy changes them.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let stat = fs::symlink_metadata(&path).unwrap();
            let (bytes, time) = if stat.is_dir() {
                left.push(path.clone());
                (Vec::new(), 0)
            } else if stat.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                (target.into_os_string().into_encoded_bytes(), 0)
            } else {
                (fs::read(&path).unwrap(), stat.mtime_nsec() + stat.mtime())
            };
            let name = path.strip_prefix(root).unwrap().to_owned();
            found.insert(name, (stat.mode(), time, bytes));
        }
    }
    found
}

/// Two nodes, and the place of the copy.
struct BackedUp {
    pair: Pair,
    copy: PathBuf,
    script: PathBuf,
}

impl BackedUp {
    fn start() -> Self {
        let environments = [NodeEnvironment::default(), NodeEnvironment::default()];
        let mut pair = Pair::prepare(PATIENT, environments);
        pair.start();
        let (copy, script) = (pair.outside("copy"), pair.outside("backup.sh"));
        fs::write(&script, recipe(&pair, &copy)).unwrap();
        Self { pair, copy, script }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.pair.mount().join(name)
    }

    fn run(&self) -> Output {
        Command::new("sh").arg(&self.script).output().unwrap()
    }

    /// Runs the script, and compares the copy. Returns the text for people.
    #[track_caller]
    fn back_up(&self) -> String {
        let output = self.run();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        let (here, there) = (tree(&self.pair.mount()), tree(&self.copy));
        for (name, entry) in &here {
            let copied = there.get(name);
            assert!(copied == Some(entry), "{}: {text}", name.display());
        }
        let gone: Vec<_> = there
            .keys()
            .filter(|name| !here.contains_key(*name))
            .collect();
        assert!(gone.is_empty(), "{gone:?}: {text}");
        text
    }

    /// The names in the last list.
    fn listed(&self) -> Vec<String> {
        let list = fs::read(self.pair.outside("copy.state/list")).unwrap();
        let names = list.split(|byte| *byte == 0);
        let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
        let mut names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
        names.sort();
        names
    }
}

/// The script of the page, with the values of this test.
fn recipe(pair: &Pair, copy: &Path) -> String {
    let page = include_str!("../docs/operations/backup.md");
    let scripts = page.split("```sh\n").skip(1);
    let mut scripts = scripts.map(|it| it.split("```").next().unwrap());
    let script = scripts.find(|it| it.contains("lockstep changes")).unwrap();
    let state = pair.outside("copy.state");
    let values = [
        ("name=data", format!("name={DATASTORE}")),
        (
            "mount=/srv/data",
            format!("mount={}", pair.mount().display()),
        ),
        ("copy=/backup/data\n", format!("copy={}\n", copy.display())),
        (
            "state=/backup/data.state",
            format!("state={}", state.display()),
        ),
    ];
    let mut script = script.to_owned();
    for (old, new) in values {
        assert!(script.contains(old), "{old}");
        script = script.replacen(old, &new, 1);
    }
    let program = lockstep_testbed::program();
    let control = pair.primary.control();
    let call = format!("{program} changes --control {}", control.display());
    script.replace("lockstep changes", &call)
}

fn changes(node: &Node, args: &[&str]) -> Output {
    let mut command = Command::new(lockstep_testbed::program());
    command.args(["changes", DATASTORE, "--control"]);
    command.arg(node.control()).args(args).output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn fill(this: &BackedUp) {
    fs::create_dir_all(this.path("moved/deep")).unwrap();
    fs::write(this.path("moved/deep/inside"), "inside").unwrap();
    fs::write(this.path("still"), "still").unwrap();
    fs::write(this.path("big"), vec![7; 1 << 20]).unwrap();
    fs::write(this.path("line\nbreak"), "odd").unwrap();
    symlink("big", this.path("link")).unwrap();
}

fn change(this: &BackedUp) {
    fs::rename(this.path("moved"), this.path("elsewhere")).unwrap();
    fs::write(this.path("elsewhere/deep/fresh"), "fresh").unwrap();
    fs::remove_file(this.path("line\nbreak")).unwrap();
    fs::set_permissions(this.path("still"), fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_backup_by_the_script_of_the_page_is_the_directory() {
    if !can_mount() {
        return;
    }
    let mut this = BackedUp::start();
    fill(&this);
    let text = this.back_up();
    assert!(text.contains("did not know the reader"), "{text}");
    change(&this);
    let text = this.back_up();
    assert!(text.contains("entries since"), "{text}");
    let all = [
        ".",
        "elsewhere",
        "elsewhere/deep",
        "elsewhere/deep/fresh",
        "elsewhere/deep/inside",
        "line\nbreak",
        "moved",
        "still",
    ];
    assert_eq!(this.listed(), all);
    this.back_up();
    assert_eq!(this.listed(), Vec::<String>::new(), "nothing has changed");
    // An answer is lost, and the node is killed.
    fs::write(this.path("still"), "changed").unwrap();
    let lost = changes(&this.pair.primary, &["--reader", "nightly"]);
    assert!(lost.status.success());
    let text = String::from_utf8_lossy(&lost.stdout).into_owned();
    assert!(text.contains("changed  still\n"), "{text}");
    fs::write(this.path("new"), "new").unwrap();
    this.pair.primary.kill();
    let refused = this.run();
    assert_eq!(refused.status.code(), Some(2));
    this.pair.primary.clear();
    this.pair.primary.start();
    this.pair.await_in_sync();
    fs::write(this.path("later"), "later").unwrap();
    let text = this.back_up();
    assert!(text.contains("entries since"), "{text}");
    assert_eq!(this.listed(), [".", "later", "new", "still"]);
}

#[test]
fn the_commands_say_what_they_have_done_and_why_not() {
    if !can_mount() {
        return;
    }
    let this = BackedUp::start();
    let node = &this.pair.primary;
    fs::write(this.path("big"), vec![7; 1 << 20]).unwrap();
    let first = changes(node, &["--reader", "images", "--json"]);
    assert_eq!(first.status.code(), Some(1));
    let first = json(&first);
    assert_eq!(first["everything"], "registered");
    assert_eq!(first["entries"], Value::Array(Vec::new()));
    let point = first["point"].as_str().unwrap();
    let confirmed = changes(node, &["--reader", "images", "--confirm", point, "--json"]);
    assert_eq!(json(&confirmed)["readers"][0]["since"], point);
    let big = fs::OpenOptions::new().write(true).open(this.path("big"));
    std::os::unix::fs::FileExt::write_at(&big.unwrap(), b"x", 200_000).unwrap();
    let args = ["--reader", "images", "--since", point, "--ranges", "--json"];
    let answer = json(&changes(node, &args));
    assert_eq!(answer["since"], point);
    assert_eq!(answer["entries_total"], 1);
    let entry = &answer["entries"][0];
    assert_eq!(
        (&entry["path"], &entry["change"]),
        (&"big".into(), &"changed".into())
    );
    assert_eq!(entry["ranges"][0]["offset"], 3 << 16);
    assert_eq!(entry["ranges"][0]["length"], 1 << 16);
    assert_eq!(entry["ranges"].as_array().unwrap().len(), 1);
    // A point of no question.
    let args = ["--reader", "images", "--since", "1.1-7", "--json"];
    assert_eq!(json(&changes(node, &args))["everything"], "other_point");
    let cases: [(&Node, &[&str], &str); 4] = [
        (
            node,
            &["--reader", "images", "--since", "yesterday"],
            "is no point",
        ),
        (
            node,
            &["--reader", "images", "--confirm", point],
            "has not asked at",
        ),
        (node, &["--remove", "nightly"], "no change reader is named"),
        (
            &this.pair.secondary,
            &["--reader", "images"],
            "ask the primary",
        ),
    ];
    for (node, args, why) in cases {
        let refused = changes(node, args);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(text.contains(why) && text.contains("cure:"), "{text}");
    }
    let status = node.status().unwrap();
    assert_eq!(status.sync.copy.readers[0].name, "images");
    let removed = changes(node, &["--remove", "images"]);
    assert!(removed.status.success());
    let empty = changes(node, &["--readers"]);
    assert_eq!(empty.stdout, b"no change readers on this node\n");
}
