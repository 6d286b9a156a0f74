//! Content directories on real nodes: empty ones are removed on both nodes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs;
use std::path::{Path, PathBuf};

use lockstep_testbed::await_that;
use lockstep_testbed::playground::MirroredPlayground;

/// Enough for several content directories.
const FILES: usize = 1500;

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// Waits until each node has `wanted` content directories.
fn await_directories(contents: &[PathBuf], wanted: usize) {
    await_that(&format!("{wanted} content directories"), || {
        contents.iter().all(|content| count(content) == wanted)
    });
}

#[test]
fn directories_of_content_go_with_the_files_on_both_nodes() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("play");
    let Some(playground) = MirroredPlayground::start(&directory) else {
        return;
    };
    let contents = playground
        .of_nodes("store")
        .map(|store| store.join("content"));
    let path = |number: usize| playground.path(&format!("f{number}"));
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
    drop(playground);
    // As an earlier version left them: that version removed no directory.
    for content in &contents {
        for number in 1..300 {
            fs::create_dir(content.join(format!("fff{number:x}"))).unwrap();
        }
    }
    let playground = MirroredPlayground::start(&directory).unwrap();
    await_directories(&contents, 1);
    assert_eq!(fs::read(playground.path("f0")).unwrap(), b"file 0");
}
