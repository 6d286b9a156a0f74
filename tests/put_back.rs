//! An older copy of the secondary's store that an operator puts back: both nodes get equal all the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use lockstep_testbed::playground::MirroredPlayground;
use lockstep_testbed::{Process, logged_command, program};
use serde_json::Value;

fn copy(from: &Path, to: &Path) {
    let mut command = Command::new("cp");
    let done = command.args(["-a", "--sparse=always"]).arg(from).arg(to);
    assert!(done.status().unwrap().success());
}

#[test]
fn a_store_of_the_secondary_from_a_backup_gets_what_came_later() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("play");
    let Some(playground) = MirroredPlayground::start(&directory) else {
        return;
    };
    let [_, store] = playground.of_nodes("store");
    let backup = root.path().join("backup");
    fs::write(playground.path("file"), "old").unwrap();
    drop(playground);
    copy(&store, &backup);
    let playground = MirroredPlayground::start(&directory).unwrap();
    fs::write(playground.path("file"), "new").unwrap();
    drop(playground);
    fs::remove_dir_all(&store).unwrap();
    copy(&backup, &store);
    let playground = MirroredPlayground::start(&directory).unwrap();
    playground.expect_identical();
    assert_eq!(fs::read(playground.path("file")).unwrap(), b"new");
}

/// The status of the only datastore of a node; null while the node starts.
fn status(config: &Path) -> Value {
    let mut command = Command::new(program());
    let command = command.args(["status", "--json", "--config"]).arg(config);
    let printed = command.output().unwrap().stdout;
    let report: Value = serde_json::from_slice(&printed).unwrap_or_default();
    report["datastores"][0].clone()
}

/// Without its primary, only the memory of the machine shows the age of the copy. A node that calls its copy complete takes
/// over, or is promoted without a warning.
#[test]
fn a_store_of_the_secondary_from_a_backup_is_not_complete_while_it_is_alone() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("play");
    let Some(playground) = MirroredPlayground::start(&directory) else {
        return;
    };
    let [[_, store], [_, config]] = ["store", "config"].map(|key| playground.of_nodes(key));
    let backup = root.path().join("backup");
    drop(playground);
    copy(&store, &backup);
    let playground = MirroredPlayground::start(&directory).unwrap();
    fs::write(playground.path("file"), "new").unwrap();
    drop(playground);
    let is_complete = || {
        let mut command = logged_command(program(), &root.path().join("node.log"));
        let command = command.args(["node", "--config"]).arg(&config);
        let mut node = Process::start("node", command);
        let complete = loop {
            let found = status(&config);
            if found["started"] == true {
                break found["complete"].as_bool().unwrap();
            }
            assert!(node.ended().is_none(), "the node has ended");
            thread::sleep(Duration::from_millis(10));
        };
        node.stop();
        complete
    };
    assert!(is_complete(), "the present store");
    fs::remove_dir_all(&store).unwrap();
    copy(&backup, &store);
    assert!(!is_complete(), "the older store");
    let playground = MirroredPlayground::start(&directory).unwrap();
    playground.expect_identical();
    assert_eq!(fs::read(playground.path("file")).unwrap(), b"new");
}
