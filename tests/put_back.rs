//! An older copy of the secondary's store that an operator puts back: both nodes get equal all the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "playground/mirrored.rs"]
mod mirrored;

use std::fs;
use std::path::Path;
use std::process::Command;

use mirrored::MirroredPlayground;

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
