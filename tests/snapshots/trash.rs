//! `lockstep trash` on two real nodes: a deleted tree comes back, also on the other node; an open file goes on; full disks get their room.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use lockstep_testbed::small_disk::SmallDisk;
use lockstep_testbed::{
    DATASTORE, IMPATIENT, Node, NodeEnvironment, PATIENT, Pair, Settings, Which, await_that,
    can_mount, operator,
};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use serde_json::Value;

/// Starts two nodes with these lines in the datastore of both.
fn start(settings: Settings, environments: [NodeEnvironment; 2], lines: &str) -> Pair {
    let mut pair = Pair::prepare(settings, environments);
    for config in [pair.primary.config(), pair.secondary.config()] {
        let text = fs::read_to_string(&config).unwrap();
        let text = text.replacen("on_peer_loss", &format!("{lines}\non_peer_loss"), 1);
        fs::write(config, text).unwrap();
    }
    pair.start();
    pair
}

fn trash(node: &Node, args: &[&str]) -> Output {
    let mut command = Command::new(lockstep_testbed::program());
    command.arg("trash").args(args);
    command.arg("--control").arg(node.control());
    command.output().unwrap()
}

#[track_caller]
fn done(node: &Node, args: &[&str]) -> String {
    let output = trash(node, args);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(node: &Node, args: &[&str]) -> String {
    let output = trash(node, args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("cure:"), "{text}");
    text
}

/// The entries in the list of a node.
fn entries(node: &Node) -> Vec<Value> {
    let text = done(node, &["list", DATASTORE, "--json"]);
    let listed: Value = serde_json::from_str(&text).unwrap();
    listed["entries"].as_array().unwrap().clone()
}

/// The paths in the list of a node, the newest last.
fn paths(node: &Node) -> Vec<String> {
    let path = |entry: &Value| entry["path"].as_str().unwrap().to_owned();
    entries(node).iter().map(path).collect()
}

/// Kind, mode, owner, inode number, time of modification and size of a file. A directory is modified when its names go and come.
fn sight(path: &Path) -> (u32, u32, u64, i64, u64) {
    let it = fs::symlink_metadata(path).unwrap();
    let modified = if it.is_dir() { 0 } else { it.mtime_nsec() };
    (it.mode(), it.uid(), it.ino(), modified, it.size())
}

#[test]
fn a_deleted_tree_comes_back_also_on_the_other_node() {
    if !can_mount() {
        return;
    }
    let environments = [(); 2].map(|()| NodeEnvironment::default());
    let mut pair = start(IMPATIENT, environments, "trash = \"7d\"");
    let mount = pair.mount();
    let tree = mount.join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/file"), vec![7; 100_000]).unwrap();
    setxattr(tree.join("a/file"), "user.of", b"old", XattrFlags::empty()).unwrap();
    symlink("file", tree.join("a/pointer")).unwrap();
    fs::write(tree.join("a/b/deep"), b"deep").unwrap();
    fs::write(tree.join("linked"), b"stays").unwrap();
    fs::hard_link(tree.join("linked"), mount.join("other name")).unwrap();
    let names = ["a/b", "a/file", "a/pointer", "a/b/deep"];
    let before = names.map(|name| sight(&tree.join(name)));
    // An editor that saves.
    fs::write(mount.join("note"), b"first").unwrap();
    fs::write(mount.join("note.new"), b"second").unwrap();
    fs::rename(mount.join("note.new"), mount.join("note")).unwrap();
    let mut open = File::open(tree.join("a/b/deep")).unwrap();
    fs::remove_dir_all(&tree).unwrap();
    assert!(!tree.exists());
    let mut read = String::new();
    open.read_to_string(&mut read).unwrap();
    assert_eq!(
        (read.as_str(), open.metadata().unwrap().nlink()),
        ("deep", 0)
    );
    let mut listed = paths(&pair.primary);
    assert_eq!(listed.first().unwrap(), "note");
    assert_eq!(listed.last().unwrap(), "tree");
    listed.sort();
    let expected = [
        "note",
        "tree",
        "tree/a",
        "tree/a/b",
        "tree/a/b/deep",
        "tree/a/file",
        "tree/a/pointer",
    ];
    assert_eq!(listed, expected, "the file with another name is not in it");
    await_that("both lists to be equal", || {
        entries(&pair.primary) == entries(&pair.secondary)
    });
    let zero = done(&pair.primary, &["list", DATASTORE, "tree/a/b", "-0"]);
    assert_eq!(zero, "tree/a/b/deep\0tree/a/b\0");
    let text = refused(&pair.secondary, &["restore", DATASTORE, "tree"]);
    assert!(text.contains("ask the primary"), "{text}");
    drop(open);

    operator::fail_over(&mut pair, Which::Primary, 1);
    let node = &pair.secondary;
    let mount = node.mount();
    let tree = mount.join("tree");
    assert!(
        !tree.exists(),
        "the kernel knows that there is no such name"
    );
    let text = done(node, &["restore", DATASTORE, "tree"]);
    assert_eq!(text, "tree is back: 6 files and directories\n");
    assert_eq!(names.map(|name| sight(&tree.join(name))), before);
    assert_eq!(fs::read(tree.join("a/file")).unwrap(), vec![7; 100_000]);
    assert_eq!(fs::read(tree.join("a/pointer")).unwrap(), vec![7; 100_000]);
    let mut value = [0; 8];
    let length = getxattr(tree.join("a/file"), "user.of", &mut value).unwrap();
    assert_eq!(&value[..length], b"old");
    assert_eq!(fs::metadata(&tree).unwrap().nlink(), 3);
    assert_eq!(paths(node), ["note"]);

    let text = refused(node, &["restore", DATASTORE, "note"]);
    assert!(text.contains("exists") && text.contains("--to"), "{text}");
    let whole = mount.join("note");
    let whole = whole.to_str().unwrap();
    done(node, &["restore", DATASTORE, whole, "--to", "tree/note"]);
    assert_eq!(fs::read(tree.join("note")).unwrap(), b"first");
    assert_eq!(fs::read(mount.join("note")).unwrap(), b"second");
    let text = refused(node, &["restore", DATASTORE, "note"]);
    assert!(text.contains("nothing in the trash has the path"), "{text}");

    await_that("the nodes to be in sync", || {
        node.status().is_some_and(|it| it.sync.in_sync)
    });
    operator::assert_identical(node);
    await_that("the new primary to know its trash", || {
        let status = node.status().and_then(|it| it.trash);
        status.is_some_and(|it| it.keeps == "7d" && it.entries == 0)
    });
    pair.stop();
}

#[test]
fn a_file_comes_back_as_it_was_at_a_time_and_an_emptied_trash_has_none() {
    if !can_mount() {
        return;
    }
    let environments = [(); 2].map(|()| NodeEnvironment::default());
    let mut pair = start(PATIENT, environments, "trash = \"1d\"");
    let (node, mount) = (&pair.primary, pair.mount());
    let directory = mount.join("d");
    fs::create_dir(&directory).unwrap();
    for version in ["one", "two", "three"] {
        fs::write(directory.join("f"), version).unwrap();
        fs::remove_file(directory.join("f")).unwrap();
    }
    let listed = entries(node);
    assert_eq!(listed.len(), 3);
    let second = listed[1]["inode"].as_u64().unwrap().to_string();
    done(
        node,
        &["restore", DATASTORE, "--inode", &second, "--to", "d/two"],
    );
    assert_eq!(fs::read(directory.join("two")).unwrap(), b"two");
    // The directory is there: the files that were deleted from it come back.
    fs::write(directory.join("g"), b"g").unwrap();
    fs::remove_file(directory.join("g")).unwrap();
    let text = done(node, &["restore", DATASTORE, "d"]);
    assert_eq!(text, "d is back: 2 files and directories\n");
    assert_eq!(fs::read(directory.join("f")).unwrap(), b"three");
    assert_eq!(fs::read(directory.join("g")).unwrap(), b"g");
    let output = trash(node, &["restore", DATASTORE, "d"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("another file has its name: d/f"), "{text}");
    let text = refused(node, &["restore", DATASTORE, "d/f", "--at", "2001-01-01"]);
    assert!(text.contains("of that moment or before"), "{text}");

    // A program that has a file open keeps it, also when the trash is emptied.
    let open = File::options()
        .read(true)
        .write(true)
        .open(directory.join("two"));
    let open = open.unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let text = done(node, &["empty", DATASTORE, "--before", "1h"]);
    assert!(text.starts_with("0 files"), "{text}");
    let text = done(node, &["empty", DATASTORE]);
    assert!(text.starts_with("5 files and directories"), "{text}");
    open.write_all_at(b"TWO", 0).unwrap();
    let mut bytes = [0; 3];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"TWO");
    assert!(entries(node).is_empty());
    let text = refused(node, &["restore", DATASTORE, "d"]);
    assert!(text.contains("nothing in the trash"), "{text}");
    drop(open);
    operator::assert_identical(node);
    pair.stop();
}

/// The disks hold three such files.
const FILE_BYTES: usize = 60 << 20;

#[test]
fn the_trash_goes_before_a_program_finds_no_room() {
    if !can_mount() {
        return;
    }
    let disks = [(); 2].map(|()| SmallDisk::make());
    let environments = disks.each_ref().map(SmallDisk::environment);
    let lines = "trash = \"7d\"\ntrash_bytes = 10_000_000_000";
    let mut pair = start(PATIENT, environments, lines);
    let (node, mount) = (&pair.primary, pair.mount());
    fs::write(mount.join("small"), b"old").unwrap();
    fs::remove_file(mount.join("small")).unwrap();
    for number in 0..8_u8 {
        let file = mount.join(format!("large{number}"));
        fs::write(&file, vec![number + 1; FILE_BYTES]).unwrap();
        assert!(fs::read(&file).unwrap() == vec![number + 1; FILE_BYTES]);
        fs::remove_file(&file).unwrap();
    }
    assert!(
        node.logged()
            .contains("the oldest files of the trash are freed")
    );
    let kept = paths(node);
    assert_eq!(kept.last().unwrap(), "large7");
    assert!(!kept.iter().any(|path| path == "small"), "{kept:?}");
    done(node, &["restore", DATASTORE, "large7"]);
    assert!(fs::read(mount.join("large7")).unwrap() == vec![8; FILE_BYTES]);
    pair.stop();
}
