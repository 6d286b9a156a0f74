//! The data that a node had alone when it lost its role, in the directory of its store.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use lockstep_testbed::Pair;
use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::await_that;
use lockstep_testbed::operator::{
    assert_identical, await_alone, await_in_sync, await_status, change, cut, fail_over, run,
};
use lockstepfs::config::Role;

const MIB: usize = 1 << 20;

fn put(path: &Path, offset: u64, bytes: &[u8]) {
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(path);
    let file = file.unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
}

/// The directory of the data that A had alone in generation 1.
fn directory(pair: &Pair) -> PathBuf {
    pair.node(A).store().join(".lockstep/lost+found/1")
}

fn list(pair: &Pair) -> String {
    fs::read_to_string(directory(pair).join("list.txt")).unwrap_or_default()
}

/// The kept file that an entry of the list names.
fn kept_by(pair: &Pair, what: &str, path: &str) -> PathBuf {
    let list = list(pair);
    let entry = list.lines().find(|line| {
        line.starts_with(&format!("{what}\t")) && line.contains(&format!("\t{path}\t"))
    });
    let entry = entry.unwrap_or_else(|| panic!("no entry {what} of {path} in\n{list}"));
    pair.node(A)
        .store()
        .join(entry.rsplit('\t').next().unwrap())
}

/// A serves alone until B is promoted, and both change the same files. Then A is demoted and meets B.
fn diverge(pair: &mut Pair, length: usize) {
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    put(&on_a.join("common"), 0, &vec![1; length]);
    put(&on_a.join("same"), 0, &vec![4; length]);
    cut(pair, true);
    await_alone(pair.node(B));
    put(&on_a.join("common"), 4096, &vec![2; length / 2]);
    put(&on_a.join("common"), length as u64, b"the end on A");
    fs::create_dir(on_a.join("directory")).unwrap();
    put(&on_a.join("directory/alone"), 0, &vec![3; length]);
    fs::set_permissions(on_a.join("same"), Permissions::from_mode(0o604)).unwrap();
    change(pair.node(B), "promote", &[]);
    put(&on_b.join("of-b"), 0, b"B serves");
    cut(pair, false);
    await_status(pair.node(A), "the earlier primary to stop", |status| {
        status
            .sync
            .reason
            .as_deref()
            .is_some_and(|reason| reason.contains("lockstep demote"))
    });
    assert!(!directory(pair).exists());
    // A takes up the generation of B right after that.
    let demoted = run(pair.node(A), "demote", &[]);
    assert_eq!(demoted.code, Some(0), "{}", demoted.error);
}

fn read_at(path: &Path, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    File::open(path)
        .unwrap()
        .read_exact_at(&mut bytes, offset)
        .unwrap();
    bytes
}

/// Checks the kept bytes after [`diverge`].
fn assert_kept(pair: &Pair, length: usize) {
    let ranges = kept_by(pair, "overwritten", "/common");
    assert!(read_at(&ranges, 4096, length / 2) == vec![2; length / 2]);
    assert_eq!(kept_by(pair, "cut off", "/common"), ranges);
    assert_eq!(read_at(&ranges, length as u64, 12), b"the end on A");
    let whole = kept_by(pair, "content removed", "/directory/alone");
    assert!(fs::read(whole).unwrap() == vec![3; length]);
}

pub fn is_kept(pair: &mut Pair) {
    let length = 2 * MIB;
    diverge(pair, length);
    await_in_sync(pair, B, 2);
    assert_identical(pair.node(B));
    assert_kept(pair, length);
    let list = list(pair);
    for words in [
        "\t/same\tmode 604 before, 644 now\t",
        "\t/directory/alone\tthe name is gone\t",
        "\t/directory\tthe name is gone\t",
    ] {
        assert!(list.contains(words), "{words}: {list}");
    }
    assert!(!list.contains("of-b"), "only what A had: {list}");

    let status = await_status(pair.node(A), "the count", |status| {
        !status.lost_found.is_empty()
    });
    let kept = &status.lost_found[0];
    assert_eq!((kept.generation, kept.files), (1, 2), "{kept:?}");
    assert!(kept.bytes >= 3 * length as u64 / 2, "{kept:?}");
    assert_eq!(Path::new(&kept.path), directory(pair));
    let shown = run(pair.node(A), "status", &[]).output;
    assert!(
        shown.contains("lost+found") && shown.contains("/list.txt"),
        "{shown}"
    );
    assert!(pair.node(B).status().unwrap().lost_found.is_empty());
    assert!(!pair.node(B).store().join(".lockstep").exists());

    fail_over(pair, B, 2);
    await_in_sync(pair, A, 3);
    for which in [A, B] {
        assert_eq!(
            pair.node(which).status().unwrap().settings.role == Role::Primary,
            which == A
        );
    }
    let names = fs::read_dir(pair.node(A).mount()).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["common", "of-b", "same"]);
    assert!(
        pair.node(A)
            .mount()
            .join(".lockstep")
            .symlink_metadata()
            .is_err()
    );
    assert_kept(pair, length);

    fs::remove_dir_all(directory(pair)).unwrap();
    await_status(pair.node(A), "the end of the entry", |status| {
        status.lost_found.is_empty()
    });
}

pub fn survives_kills(pair: &mut Pair) {
    let length = 16 * MIB;
    diverge(pair, length);
    for round in 1..=3 {
        // Each round gets further.
        await_that("the resync to set something aside", || {
            list(pair).lines().count() >= 4 * round
        });
        pair.node_mut(A).kill();
        await_alone(pair.node(B));
        pair.node_mut(A).start();
    }
    await_in_sync(pair, B, 2);
    assert_identical(pair.node(B));
    assert_kept(pair, length);
}
