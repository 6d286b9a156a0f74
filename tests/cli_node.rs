//! What `lockstep node` refuses before anything starts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::process::{Command, Output};

fn node(text: &str) -> (tempfile::TempDir, Output) {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("node.toml");
    std::fs::write(&config, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["node", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    (directory, output)
}

#[test]
fn a_wrong_configuration_starts_nothing() {
    let (directory, output) = node("[node]\nname = \"a\"\ncontrl = \"/run/a.sock\"\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in [
        "node.toml:3: contrl in [node]",
        "did you mean `control`?",
        "node.toml:1: ",
    ] {
        assert!(error.contains(part), "{part} is not in:\n{error}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_missing_configuration_says_what_to_do() {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["node", "--config", "/nonexistent/node.toml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("/nonexistent/node.toml") && error.contains("cure:"),
        "{error}"
    );
}

#[test]
fn a_processor_that_is_none_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("node.toml");
    let text = "[node]\nname = \"a\"\ncontrol = \"/nonexistent/a.sock\"\n[[datastore]]\nname = \"x\"\n\
                uuid = \"6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001\"\nstore = \"/nonexistent/s\"\n\
                mount = \"/nonexistent/m\"\nrole = \"primary\"\n";
    std::fs::write(&config, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["node", "--cpus", "100000", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("no processor 100000"), "{error}");
}
