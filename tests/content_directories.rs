//! Content directories on real nodes: empty ones are removed on both nodes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "playground/mirrored.rs"]
mod mirrored;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use mirrored::MirroredPlayground;

/// Longest wait for an expected event.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Enough for several content directories.
const FILES: usize = 1500;

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// Waits until each node has `wanted` content directories.
fn await_directories(contents: &[PathBuf], wanted: usize) {
    let start = Instant::now();
    loop {
        let found: Vec<usize> = contents.iter().map(|content| count(content)).collect();
        if found.iter().all(|found| *found == wanted) {
            return;
        }
        assert!(start.elapsed() < WAIT_LIMIT, "{found:?} of {wanted}");
        sleep(LOOK_INTERVAL);
    }
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
