//! `lockstep snapshot` on two real nodes: a snapshot shows one moment of all files, the same on both nodes, while programs write.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "snapshots/backup.rs"]
mod backup;
#[path = "snapshots/hooks.rs"]
mod hooks;
#[path = "snapshots/libvirt.rs"]
mod libvirt;
#[path = "snapshots/mount.rs"]
mod mount;
#[path = "snapshots/rollback.rs"]
mod rollback;
#[path = "snapshots/samba.rs"]
mod samba;
#[path = "snapshots/trash.rs"]
mod trash;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::record::NamedEntry;
use lockstep_fs::store::{Access, MarkTableSizes, OpenOptions, SnapshotAccess};
use lockstep_fs::{Store, StoreView};
use lockstep_intentlog::LogOptions;
use lockstep_testbed::small_disk::SmallDisk;
use lockstep_testbed::{
    DATASTORE, IMPATIENT, Node, NodeEnvironment, PATIENT, Pair, Which, await_that, can_mount,
    operator,
};
use lockstep_types::backing::Backing;
use lockstep_types::{BootId, Ino, NodeKind, Timestamp};
use serde_json::Value;

lockstep_testbed::network_process!();

fn snapshot(node: &Node, args: &[&str]) -> Output {
    let mut command = Command::new(lockstep_testbed::program());
    command.arg("snapshot").args(args);
    command.arg("--control").arg(node.control());
    command.output().unwrap()
}

#[track_caller]
fn done(node: &Node, args: &[&str]) -> String {
    let output = snapshot(node, args);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(node: &Node, args: &[&str]) -> String {
    let output = snapshot(node, args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("cure:"), "{text}");
    text
}

/// Name, number and state of each snapshot of a node.
fn list(node: &Node) -> Vec<(String, String, String)> {
    let text = done(node, &["list", DATASTORE, "--json"]);
    let listed: Value = serde_json::from_str(&text).unwrap();
    let listed = listed["snapshots"].as_array().unwrap().iter();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |it: &Value| (word(&it["name"]), word(&it["osn"]), word(&it["state"]));
    listed.map(row).collect()
}

/// Time of change, time of modification, and bytes of each file or directory.
type Shown = BTreeMap<String, (Timestamp, Timestamp, Vec<u8>)>;

/// All files below a directory of a view.
fn show(view: &dyn StoreView, directory: Ino, path: &str, shown: &mut Shown) {
    let mut entries = Vec::new();
    let mut each = |_, entry: NamedEntry| {
        entries.push(entry);
        ControlFlow::Continue(())
    };
    view.readdir(directory, 0, &mut each).unwrap();
    for entry in entries {
        let name = String::from_utf8_lossy(entry.name.as_bytes()).into_owned();
        let path = format!("{path}/{name}");
        let attr = view.getattr(entry.ino).unwrap();
        let mut bytes = Vec::new();
        if entry.kind == NodeKind::Directory {
            show(view, entry.ino, &path, shown);
        } else {
            bytes.resize(usize::try_from(attr.size).unwrap(), 0xee);
            view.read_raw(entry.ino, 0, &mut bytes).unwrap();
        }
        shown.insert(path, (attr.ctime, attr.mtime, bytes));
    }
}

/// The snapshots in the store of a node that is stopped, by name.
fn stored(node: &Node) -> BTreeMap<String, Shown> {
    let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(node.store()).unwrap());
    let options = OpenOptions {
        datastore: None,
        boot: BootId::from_bytes([3; 16]),
        access: Access::Read,
        log: LogOptions::default(),
        marks: MarkTableSizes::default(),
    };
    let store = Store::open(backing, &options).unwrap().store;
    let snapshots = SnapshotAccess::of(&store);
    let list = snapshots.list().into_iter();
    let shown = list.map(|(id, record)| {
        let view = snapshots.view(id).unwrap();
        let mut shown = Shown::new();
        show(&view, Ino::ROOT, "", &mut shown);
        (record.name.clone(), shown)
    });
    shown.collect()
}

/// A program that counts: into the file `a`, then into `b`, which is behind by one at most; then it makes and renames a file.
fn count(directory: &Path, over: &AtomicBool, counted: &AtomicU64) {
    fs::create_dir(directory).unwrap();
    let [a, b] = ["a", "b"].map(|name| File::create(directory.join(name)).unwrap());
    let mut number: u64 = 0;
    while !over.load(Ordering::Relaxed) {
        number += 1;
        for file in [&a, &b] {
            // Far apart, so that files grow, and old blocks are kept.
            file.write_at(&number.to_be_bytes(), 0).unwrap();
            file.write_at(&number.to_be_bytes(), 8192 + number % 64 * 5000)
                .unwrap();
        }
        fs::write(directory.join("new"), number.to_string()).unwrap();
        fs::rename(directory.join("new"), directory.join("named")).unwrap();
        counted.fetch_add(1, Ordering::Relaxed);
    }
}

fn number_at(shown: &Shown, path: &str) -> u64 {
    let bytes = &shown[path].2;
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

/// Checks that a snapshot shows one moment of each program.
fn check_moment(shown: &Shown, programs: usize) {
    for program in 0..programs {
        let [a, b] = ["a", "b"].map(|name| number_at(shown, &format!("/{program}/{name}")));
        assert!(a == b || a == b + 1, "{a} and {b}");
        let named = String::from_utf8(shown[&format!("/{program}/named")].2.clone()).unwrap();
        let named: u64 = named.parse().unwrap();
        assert!(named == b || named + 1 == b, "{named} and {b}");
    }
}

#[test]
fn a_snapshot_is_of_one_moment_and_the_same_on_both_nodes() {
    const PROGRAMS: usize = 3;
    const SNAPSHOTS: usize = 6;
    if !can_mount() {
        return;
    }
    let mut pair = Pair::prepare(PATIENT, [(); 2].map(|()| NodeEnvironment::default()));
    pair.start();
    let (over, mount) = (AtomicBool::new(false), pair.mount());
    let counted = [(); PROGRAMS].map(|()| AtomicU64::new(0));
    thread::scope(|scope| {
        for (program, counted) in counted.iter().enumerate() {
            let (directory, over) = (mount.join(program.to_string()), &over);
            scope.spawn(move || count(&directory, over, counted));
        }
        let made = (0..SNAPSHOTS).map(|number| {
            let go_on = counted.each_ref().map(|it| it.load(Ordering::Relaxed) + 3);
            await_that("the programs to go on", || {
                let mut both = counted.iter().zip(go_on);
                both.all(|(counted, least)| counted.load(Ordering::Relaxed) >= least)
            });
            snapshot(&pair.primary, &["create", DATASTORE, &format!("s{number}")])
        });
        let made: Vec<Output> = made.collect();
        over.store(true, Ordering::Relaxed);
        for output in made {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{text}");
        }
    });
    done(&pair.primary, &["rename", DATASTORE, "s1", "kept"]);
    done(&pair.primary, &["delete", DATASTORE, "s2"]);
    // A kill loses nothing of them.
    pair.secondary.kill();
    pair.secondary.clear();
    pair.secondary.start();
    pair.await_in_sync();
    let names = ["s0", "kept", "s3", "s4", "s5"];
    for node in [&pair.primary, &pair.secondary] {
        await_that(
            "the snapshots to be settled, and the deleted one gone",
            || {
                let listed = list(node);
                let settled = listed.iter().all(|(_, _, state)| state == "settled");
                settled && listed.iter().map(|(name, ..)| name).eq(&names)
            },
        );
    }
    let numbers = |node| {
        list(node)
            .into_iter()
            .map(|(_, osn, _)| osn)
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers(&pair.primary), numbers(&pair.secondary));
    pair.stop();
    let (here, there) = (stored(&pair.primary), stored(&pair.secondary));
    assert_eq!(here.len(), names.len());
    for (name, shown) in &here {
        check_moment(shown, PROGRAMS);
        assert!(there[name] == *shown, "{name} differs");
    }
}

#[test]
fn the_commands_say_what_they_have_done_and_why_not() {
    if !can_mount() {
        return;
    }
    let mut pair = Pair::prepare(IMPATIENT, [(); 2].map(|()| NodeEnvironment::default()));
    pair.start();
    let node = &pair.primary;
    assert_eq!(done(node, &["list", DATASTORE]), "no snapshots\n");
    assert_eq!(
        done(node, &["create", DATASTORE, "before upgrade"]),
        "made before upgrade\n"
    );
    let listed = done(&pair.secondary, &["list", DATASTORE]);
    assert!(
        listed.contains("  before upgrade  (operation 1."),
        "{listed}"
    );
    let cases: [(&Node, &[&str], &str); 7] = [
        (
            node,
            &["create", DATASTORE, "before upgrade"],
            "has a snapshot \"before upgrade\" already",
        ),
        (node, &["create", DATASTORE, "a/b"], "no slash"),
        (node, &["create", DATASTORE, ".."], "no slash"),
        (node, &["create", "other", "a"], "no datastore named other"),
        (
            node,
            &["rename", DATASTORE, "a", "b"],
            "has no snapshot \"a\"",
        ),
        (node, &["delete", DATASTORE, "a"], "has no snapshot \"a\""),
        (
            &pair.secondary,
            &["create", DATASTORE, "a"],
            "ask the primary",
        ),
    ];
    for (node, args, why) in cases {
        let text = refused(node, args);
        assert!(text.contains(why), "{text}");
    }
    done(node, &["create", DATASTORE, "a"]);
    let text = refused(node, &["rename", DATASTORE, "a", "before upgrade"]);
    assert!(text.contains("already"), "{text}");
    assert_eq!(
        done(node, &["rename", DATASTORE, "a", "b"]),
        "renamed a to b\n"
    );
    let names = ["before upgrade", "nightly backup"];
    let hold = |action| [&[action, DATASTORE][..], &names].concat();
    assert_eq!(
        done(node, &hold("hold")),
        "nightly backup holds before upgrade\n"
    );
    let listed = done(&pair.secondary, &["list", DATASTORE]);
    assert!(listed.contains("user, held by nightly backup)"), "{listed}");
    let delete = ["delete", DATASTORE, "before upgrade"];
    for (args, why) in [
        (&hold("hold")[..], "already held by \"nightly backup\""),
        (&delete, "is held by \"nightly backup\""),
        (
            &["release", DATASTORE, "b", "c"],
            "\"b\" is not held by \"c\"",
        ),
        (&["hold", DATASTORE, "a", "c"], "has no snapshot \"a\""),
        (&["hold", DATASTORE, "b", "c/d"], "no slash"),
    ] {
        let text = refused(node, args);
        assert!(text.contains(why), "{text}");
    }
    // The other node knows the hold when it serves.
    operator::fail_over(&mut pair, Which::Primary, 1);
    let text = refused(&pair.secondary, &delete);
    assert!(text.contains("is held by"), "{text}");
    let node = &pair.secondary;
    done(node, &hold("release"));
    let text = done(node, &["delete", DATASTORE, "before upgrade"]);
    assert!(text.contains("deleted before upgrade"), "{text}");
    await_that("one snapshot", || {
        list(node).len() == 1 && list(&pair.primary).len() == 1
    });
    assert_eq!(list(&pair.primary)[0].0, "b");
    pair.stop();
}

#[test]
fn the_schedule_of_both_nodes_makes_snapshots_with_the_names_of_samba() {
    if !can_mount() {
        return;
    }
    let mut pair = Pair::prepare(IMPATIENT, [(); 2].map(|()| NodeEnvironment::default()));
    for node in [&pair.primary, &pair.secondary] {
        node.add_to_config("[datastore.snapshots]\nhourly = 2\ndaily = 1\n");
    }
    pair.start();
    await_that("the first snapshot on both nodes", || {
        let both = [&pair.primary, &pair.secondary].map(list);
        both.iter().all(|listed| !listed.is_empty())
    });
    operator::fail_over(&mut pair, Which::Primary, 1);
    pair.secondary.kill();
    pair.secondary.clear();
    operator::change(&pair.primary, "promote", &["--force-data-loss"]);
    let text = done(&pair.primary, &["list", DATASTORE, "--json"]);
    let listed: Value = serde_json::from_str(&text).unwrap();
    let mut hours = Vec::new();
    for snapshot in listed["snapshots"].as_array().unwrap() {
        let name = snapshot["name"].as_str().unwrap();
        assert!(name.starts_with("@GMT-20") && name.len() == 24, "{name}");
        assert_eq!(snapshot["kind"], "schedule");
        hours.push(name[..18].to_owned());
    }
    let made = hours.len();
    hours.dedup();
    assert_eq!(hours.len(), made, "one in an hour: {text}");
    pair.primary.stop();
}

/// Bytes of each file.
const FILE_BYTES: usize = 60 << 20;

/// Bytes that differ from block to block, and from those of another number.
fn bytes_of(number: u8) -> Vec<u8> {
    let block = |at: usize| (at as u64 * 256 + u64::from(number)).to_be_bytes();
    (0..FILE_BYTES / 8).flat_map(block).collect()
}

/// On disks that hold three files without the old bytes of one: they find room because the snapshot of the schedule goes. One of the user stays.
#[test]
fn a_snapshot_of_the_schedule_goes_before_a_program_finds_no_room() {
    if !can_mount() {
        return;
    }
    let disks = [(); 2].map(|()| SmallDisk::make());
    let environments = disks.each_ref().map(SmallDisk::environment);
    let mut pair = Pair::prepare(PATIENT, environments);
    pair.start();
    let mount = pair.mount();
    let file = |name: &str| mount.join(name);
    fs::write(file("old"), bytes_of(1)).unwrap();
    for node in [&pair.primary, &pair.secondary] {
        node.add_to_config("[datastore.snapshots]\nhourly = 4\n");
    }
    pair.stop();
    pair.start();
    let scheduled = || {
        let listed = list(&pair.primary).into_iter();
        let names = listed.map(|(name, ..)| name);
        names.filter(|name| name.starts_with("@GMT-")).count()
    };
    await_that("the snapshot of the schedule", || scheduled() > 0);
    // Its old bytes are kept.
    let changed = File::options().write(true).open(file("old")).unwrap();
    changed.write_all_at(&bytes_of(2), 0).unwrap();
    changed.sync_all().unwrap();
    let text = done(&pair.primary, &["list", DATASTORE, "--space", "--json"]);
    let listed: Value = serde_json::from_str(&text).unwrap();
    let alone = listed["snapshots"][0]["alone_bytes"].as_u64().unwrap();
    assert_eq!(alone, FILE_BYTES as u64, "the old bytes");
    done(&pair.primary, &["create", DATASTORE, "mine"]);
    assert!(scheduled() > 0, "there is room so far");
    for (name, number) in [("new", 3), ("newer", 4)] {
        fs::write(file(name), bytes_of(number)).unwrap();
        assert!(fs::read(file(name)).unwrap() == bytes_of(number));
    }
    await_that("the end of the deletion", || list(&pair.primary).len() == 1);
    assert_eq!(list(&pair.primary)[0].0, "mine");
    // Nothing gives way any more: the disk is full for programs.
    let mut writes = (5..9).map(|number| fs::write(file(&number.to_string()), bytes_of(number)));
    let full = writes.find_map(Result::err).unwrap();
    assert_eq!(full.raw_os_error(), Some(28));
    assert_eq!(list(&pair.secondary)[0].0, "mine");
    assert!(
        pair.primary
            .logged()
            .contains("a disk is nearly full: the snapshot is deleted")
    );
    drop(changed);
    pair.stop();
}
