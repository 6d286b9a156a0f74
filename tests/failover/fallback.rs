//! The copy of a node that a resync changes: whole at every moment in the fallback, and kept as a snapshot if the node was deposed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lockstep_driver::report::{DatastoreStatus, OwnSnapshotStatus};
use lockstep_testbed::Which::{self, Primary as A, Secondary as B};
use lockstep_testbed::operator::{
    assert_identical, await_alone, await_in_sync, await_status, change, cut, run,
};
use lockstep_testbed::{DATASTORE, PATIENT, Pair, Settings, program};

const MIB: usize = 1 << 20;

/// A primary that soon goes on alone, and a resync that lasts.
pub const SLOW_RESYNC: Settings = Settings {
    pause_limit_ms: 400,
    resync_bytes_per_second: 8 << 20,
    ..PATIENT
};

/// The names of a tree, with modes and contents.
type Files = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn files(root: &Path) -> Files {
    let mut found = Files::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let mut bytes = Vec::new();
            if metadata.is_dir() {
                folders.push(path.clone());
            } else {
                bytes = fs::read(&path).unwrap();
            }
            let name = path.strip_prefix(root).unwrap().to_owned();
            found.insert(name, (metadata.permissions().mode(), bytes));
        }
    }
    found
}

fn put(path: &Path, offset: u64, bytes: &[u8]) {
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(path);
    let file: File = file.unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
}

/// A serves alone until B is promoted, and both change the same files. Then A is demoted and meets B. Returns the files of A.
fn diverge(pair: &Pair, length: usize) -> Files {
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
    let alone = files(&on_a);
    change(pair.node(B), "promote", &[]);
    put(&on_b.join("of-b"), 0, &vec![5; length]);
    put(&on_b.join("common"), 0, &vec![6; length / 4]);
    cut(pair, false);
    await_conflict(pair, A);
    let demoted = run(pair.node(A), "demote", &[]);
    assert_eq!(demoted.code, Some(0), "{}", demoted.error);
    alone
}

fn await_conflict(pair: &Pair, which: Which) {
    await_status(pair.node(which), "the earlier primary to stop", |status| {
        let reason = status.sync.reason.as_deref();
        reason.is_some_and(|reason| reason.contains("lockstep demote"))
    });
}

fn own_snapshots(pair: &Pair, which: Which) -> Vec<OwnSnapshotStatus> {
    pair.node(which).status().unwrap().sync.copy.own_snapshots
}

/// Exports a snapshot of a node that does not run.
fn export(pair: &Pair, which: Which, snapshot: &str) -> Files {
    let dest = pair.outside(&format!("{snapshot}-of-{which:?}"));
    let exported = try_export(pair, which, snapshot, &dest);
    assert!(exported.status.success(), "{exported:?}");
    let found = files(&dest);
    fs::remove_dir_all(dest).unwrap();
    found
}

fn try_export(pair: &Pair, which: Which, snapshot: &str, dest: &Path) -> Output {
    let mut command = Command::new(program());
    command.args(["export", DATASTORE]).arg(dest);
    command.args(["--at", snapshot]).arg("--config");
    command.arg(pair.node(which).config());
    pair.node(which).run(&mut command)
}

pub fn is_kept_of_a_deposed_node(pair: &mut Pair) {
    let of_a = diverge(pair, 2 * MIB);
    await_in_sync(pair, B, 2);
    assert_identical(pair.node(B));
    let kept = own_snapshots(pair, A);
    let [lost] = kept.as_slice() else {
        panic!("{kept:?}");
    };
    assert_eq!(lost.name, "lost-1");
    assert_eq!((lost.exact, lost.lost_generation), (true, Some(1)));
    let shown = run(pair.node(A), "status", &[]).output;
    assert!(shown.contains("snapshot lost-1"), "{shown}");
    assert_eq!(own_snapshots(pair, B), []);
    let copy = pair.node(A).status().unwrap().sync.copy;
    assert!(!copy.mixed);

    let told = snapshot_command(pair, A, &["diff", DATASTORE, "lost-1", "-0"]);
    assert!(told.status.success(), "{told:?}");
    let told = String::from_utf8(told.stdout).unwrap();
    let mut told: Vec<&str> = told.split_terminator('\0').collect();
    told.sort_unstable();
    let alone = [
        ".",
        "common",
        "directory",
        "directory/alone",
        "of-b",
        "same",
    ];
    assert_eq!(told, alone);

    // Later changes leave the snapshot as it is.
    put(&pair.node(B).mount().join("same"), 0, &vec![7; 2 * MIB]);
    fs::remove_file(pair.node(B).mount().join("common")).unwrap();
    pair.node_mut(A).stop();
    assert!(export(pair, A, "lost-1") == of_a);
    let none = try_export(pair, A, "other", Path::new("/nowhere"));
    let error = String::from_utf8_lossy(&none.stderr);
    assert!(
        error.contains("no snapshot other: it has lost-1"),
        "{error}"
    );
    pair.node_mut(A).start();
    await_in_sync(pair, B, 2);
    assert_identical(pair.node(B));
    let delete = |snapshot| snapshot_command(pair, A, &["delete", DATASTORE, snapshot]);
    assert!(!delete("lost-2").status.success());
    let deleted = delete("lost-1");
    assert!(deleted.status.success(), "{deleted:?}");
    assert_eq!(own_snapshots(pair, A), []);
    let reserved = snapshot_command(pair, B, &["create", DATASTORE, "lost-7"]);
    let error = String::from_utf8_lossy(&reserved.stderr);
    assert!(error.contains("of its own copy"), "{error}");
}

/// What a node had alone takes the room of a small disk, until a program needs that room.
pub fn gives_way_to_programs(pair: &mut Pair) {
    let length = 32 * MIB;
    diverge(pair, length);
    await_in_sync(pair, B, 2);
    assert_eq!(own_snapshots(pair, A).len(), 1);
    // A primary in sync asks for the room of the other disk, without a need.
    for _ in 0..2 {
        cut(pair, true);
        await_alone(pair.node(B));
        cut(pair, false);
        await_in_sync(pair, B, 2);
    }
    assert_eq!(own_snapshots(pair, A).len(), 1);
    put(&pair.node(B).mount().join("same"), 0, &vec![7; length]);
    let space = pair.node(A).status().unwrap().space.unwrap();
    let more = usize::try_from(space.available_bytes).unwrap() + length / 4;
    put(&pair.node(B).mount().join("more"), 0, &vec![8; more]);
    await_status(pair.node(A), "the lost copy to go", |status| {
        status.sync.copy.own_snapshots.is_empty()
    });
    await_in_sync(pair, B, 2);
    assert_identical(pair.node(B));
}

fn snapshot_command(pair: &Pair, which: Which, args: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.arg("snapshot").args(args).arg("--control");
    command.arg(pair.node(which).control());
    pair.node(which).run(&mut command)
}

pub fn is_served_by_force(pair: &mut Pair) {
    let of_a = diverge(pair, 8 * MIB);
    let resyncs_far = |status: &DatastoreStatus| status.sync.copy.mixed;
    let mut first = None;
    for _ in 0..3 {
        await_status(pair.node(A), "the resync to change the copy", resyncs_far);
        let fallback = own_snapshots(pair, A);
        assert_eq!(fallback.len(), 1, "{fallback:?}");
        assert_eq!(fallback[0].name, "fallback");
        assert_eq!(*first.get_or_insert_with(|| fallback.clone()), fallback);
        let shown = run(pair.node(A), "status", &[]).output;
        assert!(
            shown.contains("the whole copy from before the resync"),
            "{shown}"
        );
        let told = snapshot_command(pair, A, &["diff", DATASTORE, "fallback"]);
        let error = String::from_utf8_lossy(&told.stderr);
        assert!(error.contains("of no moment"), "{error}");
        pair.node_mut(A).kill();
        await_alone(pair.node(B));
        assert!(export(pair, A, "fallback") == of_a);
        pair.node_mut(A).start();
    }
    await_status(pair.node(A), "the resync to change the copy", resyncs_far);
    cut(pair, true);
    await_alone(pair.node(B));
    let generation = change(pair.node(A), "promote", &["--force-data-loss"]).generation;
    assert!(files(&pair.node(A).mount()) == of_a);
    let copy = pair.node(A).status().unwrap().sync.copy;
    assert!(!copy.mixed);
    put(&pair.node(A).mount().join("same"), 0, b"A serves");
    let of_a = files(&pair.node(A).mount());
    let of_b = files(&pair.node(B).mount());
    pair.node_mut(A).kill();
    pair.node_mut(A).start();
    cut(pair, false);
    await_conflict(pair, B);
    assert_eq!(run(pair.node(B), "demote", &[]).code, Some(0));
    await_in_sync(pair, A, generation);
    assert_identical(pair.node(A));
    assert!(files(&pair.node(A).mount()) == of_a);
    pair.node_mut(B).stop();
    assert!(export(pair, B, "lost-2") == of_b);
}
