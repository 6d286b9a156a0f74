//! Setting up two servers as a stranger would, with what `lockstep init` prints.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::path::Path;
use std::process::{Command, Output};

use lockstepfs::config::{self, NodeConfig, Role};

fn lockstep(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs `init` for a node below `root` and gives what it printed as JSON.
fn init(root: &Path, name: &str, more: &[&str]) -> serde_json::Value {
    let path = |part: &str| root.join(name).join(part).display().to_string();
    let (dir, mount, store) = (path("etc"), path("mnt"), path("store"));
    let basic = [
        "init", "--json", "--name", name, "--dir", &dir, "--mount", &mount, "--store", &store,
    ];
    let output = lockstep(&[&basic, more].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(value: &serde_json::Value, key: &str) -> String {
    value[key].as_str().unwrap().to_owned()
}

fn load(made: &serde_json::Value) -> NodeConfig {
    config::load(Path::new(&text(made, "config"))).unwrap()
}

#[test]
fn two_servers_are_set_up_by_two_commands_and_one_line() {
    let root = tempfile::tempdir().unwrap();
    let to_b = ["--listen", "127.0.0.1:7401", "--peer", "127.0.0.1:7402"];
    let a = init(root.path(), "a", &to_b);
    let (uuid, fingerprint) = (text(&a, "uuid"), text(&a, "fingerprint"));
    let to_a = ["--listen", "127.0.0.1:7402", "--peer", "127.0.0.1:7401"];
    let known = ["--uuid", &uuid, "--peer-fingerprint", &fingerprint];
    let b = init(root.path(), "b", &[&to_a[..], &known[..]].concat());
    assert_eq!(
        (a["ready"].as_bool(), b["ready"].as_bool()),
        (Some(false), Some(true))
    );

    // What the second printed goes into the first's file.
    let path = text(&a, "config");
    let written = std::fs::read_to_string(&path).unwrap();
    let open = "FILL IN: fingerprint of the other node";
    std::fs::write(&path, written.replace(open, &text(&b, "fingerprint"))).unwrap();

    let (a, b) = (load(&a), load(&b));
    let (at_a, at_b) = (&a.datastores[0], &b.datastores[0]);
    assert_eq!((at_a.role, at_b.role), (Role::Primary, Role::Secondary));
    assert_eq!(at_a.uuid, at_b.uuid);
    assert_eq!(
        at_a.peer.as_ref().unwrap().address.to_string(),
        "127.0.0.1:7402"
    );
    assert_eq!(
        at_b.peer.as_ref().unwrap().fingerprint.to_string(),
        fingerprint
    );
}

#[test]
fn what_to_do_next_is_printed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("etc").display().to_string();
    let mount = root.path().join("mnt").display().to_string();
    let output = lockstep(&[
        "init",
        "--name",
        "a",
        "--dir",
        &dir,
        "--mount",
        &mount,
        "--listen",
        "192.0.2.1:7400",
    ]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let config = format!("{dir}/node.toml");
    let line = printed
        .split("(line ")
        .nth(1)
        .unwrap()
        .split(')')
        .next()
        .unwrap();
    let text = std::fs::read_to_string(&config).unwrap();
    let line: usize = line.parse().unwrap();
    assert_eq!(
        text.lines().nth(line - 1),
        Some("[datastore.peer]"),
        "{printed}"
    );
    for part in [
        "lockstep init --name b",
        "--peer 192.0.2.1:7400",
        "--peer-fingerprint SHA256:",
        "lockstep node",
    ] {
        assert!(printed.contains(part), "{part} is not in:\n{printed}");
    }
}

#[test]
fn a_file_that_is_not_filled_in_is_refused_by_the_node() {
    let root = tempfile::tempdir().unwrap();
    let made = init(root.path(), "a", &[]);
    let output = lockstep(&["node", "--config", &text(&made, "config")]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("has 2 mistakes") && error.contains("FILL IN"),
        "{error}"
    );
}

#[test]
fn nothing_that_exists_is_overwritten() {
    for existing in ["node.toml", "node.key", "node.crt"] {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("etc");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join(existing), "precious").unwrap();
        let mount = root.path().join("mnt");
        let output = lockstep(&[
            "init",
            "--name",
            "a",
            "--dir",
            dir.to_str().unwrap(),
            "--mount",
            mount.to_str().unwrap(),
        ]);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            error.contains(existing) && error.contains("cure:"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(
            std::fs::read_to_string(dir.join(existing)).unwrap(),
            "precious"
        );
        assert!(!mount.exists());
    }
}

#[test]
fn what_would_be_a_wrong_configuration_is_not_made() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("etc").display().to_string();
    let inside = format!("{dir}/store");
    let output = lockstep(&[
        "init", "--name", "a", "--dir", &dir, "--mount", &dir, "--store", &inside,
    ]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("nothing was made") && error.contains("contains the store"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_made_whole_is_not_left_in_part() {
    let root = tempfile::tempdir().unwrap();
    let path = |part: &str| root.path().join(part).display().to_string();
    std::fs::write(path("file"), "").unwrap();
    let (dir, mount) = (path("new/etc"), path("file/mnt"));
    let output = lockstep(&["init", "--name", "a", "--dir", &dir, "--mount", &mount]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("cannot make the directory"), "{error}");
    let left: Vec<_> = std::fs::read_dir(root.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only what was there: {left:?}");
}
