//! The files of snapshots in the mounts of both nodes: `.lockstep/snapshots/NAME`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::{
    DATASTORE, IMPATIENT, Node, NodeEnvironment, PATIENT, Pair, Settings, await_that, can_mount,
    operator,
};
use rustix::fs::{FallocateFlags, IFlags, XattrFlags, fallocate, ioctl_getflags, setxattr};
use rustix::io::Errno;

use super::{done, list, refused};

/// Programs at a node that does not serve get an error.
const TURNED_AWAY: Settings = Settings {
    standby: "eagain",
    peer_timeout_ms: 10_000,
    ..PATIENT
};

/// Whole blocks, and a part of one.
const BYTES: usize = 3 * 65_536 + 1000;

pub fn start() -> Option<Pair> {
    can_mount().then(|| {
        let mut pair = Pair::prepare(TURNED_AWAY, [(); 2].map(|()| NodeEnvironment::default()));
        pair.start();
        pair
    })
}

/// Makes a tree of each kind of file.
pub fn fill(top: &Path) {
    fs::create_dir_all(top.join("d/e")).unwrap();
    fs::write(top.join("d/file"), vec![7; BYTES]).unwrap();
    fs::hard_link(top.join("d/file"), top.join("d/e/linked")).unwrap();
    symlink("file", top.join("d/pointer")).unwrap();
    setxattr(top.join("d/file"), "user.of", b"old", XattrFlags::empty()).unwrap();
    let sparse = File::create(top.join("d/sparse")).unwrap();
    sparse.write_at(b"end", 1 << 20).unwrap();
    for number in 0..300 {
        fs::write(top.join(format!("d/e/{number}")), number.to_string()).unwrap();
    }
}

/// The sight that a program has of each file, by path.
pub type Shown = BTreeMap<String, [String; 3]>;

/// The sight of each file below a directory: kind and permissions, owner, links, size, times, extended attribute, target, bytes.
pub fn shown(top: &Path) -> Shown {
    let mut shown = BTreeMap::new();
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let bytes = if meta.is_file() {
            fs::read(&path).unwrap()
        } else if meta.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes()
        } else {
            if meta.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
            }
            Vec::new()
        };
        let flags = (meta.is_file() || meta.is_dir()).then(|| {
            let file = File::open(&path).unwrap();
            // Those that a datastore has; ext4 has others besides.
            let ours = IFlags::IMMUTABLE | IFlags::APPEND | IFlags::NODUMP | IFlags::NOATIME;
            ioctl_getflags(file).unwrap() & ours
        });
        let mut attribute = [0; 64];
        let length = rustix::fs::lgetxattr(&path, "user.of", &mut attribute).unwrap_or(0);
        let (attribute, times) = (&attribute[..length], (meta.mtime(), meta.mtime_nsec()));
        let numbers = (meta.mode(), meta.uid(), meta.nlink(), meta.size());
        let changed = (meta.ctime(), meta.ctime_nsec());
        let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
        let mut sum = DefaultHasher::new();
        bytes.hash(&mut sum);
        let sum = sum.finish();
        let (first, last) = (
            format!("{numbers:?} {times:?} {flags:?}"),
            format!("{attribute:?} {sum}"),
        );
        shown.insert(name, [first, format!("{changed:?}"), last]);
    }
    shown
}

/// Changes and removes everything that [`fill`] has made.
fn spoil(top: &Path) {
    let file = OpenOptions::new().write(true).open(top.join("d/file"));
    file.unwrap().write_all_at(&vec![9; 70_000], 5000).unwrap();
    let sparse = OpenOptions::new().write(true).open(top.join("d/sparse"));
    let sparse = sparse.unwrap();
    sparse.set_len(100).unwrap();
    fallocate(&sparse, FallocateFlags::empty(), 0, 1 << 21).unwrap();
    setxattr(top.join("d/file"), "user.of", b"new", XattrFlags::empty()).unwrap();
    fs::remove_dir_all(top.join("d/e")).unwrap();
    fs::rename(top.join("d"), top.join("moved")).unwrap();
}

fn errno<T>(outcome: io::Result<T>) -> Option<Errno> {
    outcome.err().as_ref().and_then(Errno::from_io_error)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

#[test]
fn the_mount_shows_each_snapshot_as_it_was_and_lets_nothing_change() {
    let Some(mut pair) = start() else { return };
    let (mount, node) = (pair.mount(), &pair.primary);
    let snapshots = mount.join(".lockstep/snapshots");
    assert_eq!(names(&snapshots), [""; 0]);
    fill(&mount);
    let before = shown(&mount);
    done(node, &["create", DATASTORE, "one"]);
    spoil(&mount);
    let one = snapshots.join("one");
    assert!(shown(&one) == before);
    assert_eq!(names(&mount), ["moved"], "no listing has the snapshots");

    let held = File::open(one.join("d/file")).unwrap();
    let file = one.join("d/file");
    let write = OpenOptions::new().write(true).open(&file);
    let refusals = [
        (errno(write), Errno::ROFS),
        (errno(fs::write(one.join("new"), "")), Errno::ROFS),
        (errno(fs::remove_file(&file)), Errno::ROFS),
        (errno(fs::create_dir(snapshots.join("new"))), Errno::ROFS),
        (errno(fs::rename(&file, one.join("other"))), Errno::ROFS),
        (errno(fs::rename(&file, mount.join("other"))), Errno::ROFS),
        (
            errno(fs::hard_link(&file, mount.join("other"))),
            Errno::XDEV,
        ),
        (errno(fs::create_dir(mount.join(".lockstep"))), Errno::EXIST),
        (errno(fs::remove_dir(mount.join(".lockstep"))), Errno::BUSY),
        (
            errno(fs::rename(mount.join("moved"), mount.join(".lockstep"))),
            Errno::BUSY,
        ),
    ];
    for (number, (found, expected)) in refusals.into_iter().enumerate() {
        assert_eq!(found, Some(expected), "case {number}");
    }

    // Programs that copy within the kernel, and by mapping.
    assert_eq!(fs::copy(&file, mount.join("back")).unwrap(), BYTES as u64);
    assert_eq!(fs::read(mount.join("back")).unwrap(), vec![7; BYTES]);

    done(node, &["rename", DATASTORE, "one", "first"]);
    assert_eq!(names(&snapshots), ["first"]);
    assert!(!one.exists() && snapshots.join("first/d/file").exists());
    done(node, &["create", DATASTORE, "one"]);
    assert_eq!(names(&one), ["back", "moved"]);
    done(node, &["delete", DATASTORE, "first"]);
    assert_eq!(names(&snapshots), ["one"]);
    // The kernel may have read ahead.
    rustix::fs::fadvise(&held, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let read = held.read_at(&mut [0; 10], 65_536);
    assert_eq!(errno(read), Some(Errno::STALE));
    pair.stop();
}

#[test]
fn each_node_shows_the_snapshots_that_it_has_whichever_serves() {
    let Some(mut pair) = start() else { return };
    let mounts = [A, B].map(|which| pair.node(which).mount());
    let ones = mounts
        .each_ref()
        .map(|it| it.join(".lockstep/snapshots/one"));
    fill(&mounts[0]);
    let before = shown(&mounts[0]);
    done(&pair.primary, &["create", DATASTORE, "one"]);
    spoil(&mounts[0]);
    let held = File::open(ones[0].join("d/file")).unwrap();
    held.read_exact_at(&mut [0; 100], 0).unwrap();
    let numbers = |one: &Path| {
        let files = ["", "d", "d/file", "d/e/299"];
        files.map(|file| fs::symlink_metadata(one.join(file)).unwrap().ino())
    };
    let expected = numbers(&ones[0]);
    for (serving, name) in [(A, "two"), (B, "three")] {
        for one in &ones {
            assert!(shown(one) == before, "{serving:?} serves");
            assert_eq!(numbers(one), expected);
        }
        let standby = &mounts[usize::from(serving == A)];
        assert_eq!(
            errno(fs::metadata(standby.join("moved"))),
            Some(Errno::AGAIN)
        );
        let mut bytes = vec![0; BYTES];
        held.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, vec![7; BYTES]);
        done(pair.node(serving), &["create", DATASTORE, name]);
        operator::fail_over(&mut pair, serving, if serving == A { 1 } else { 2 });
        operator::await_in_sync(
            &mut pair,
            operator::other(serving),
            if serving == A { 2 } else { 3 },
        );
    }
    for mount in &mounts {
        assert_eq!(
            names(&mount.join(".lockstep/snapshots")),
            ["one", "three", "two"]
        );
    }
    pair.stop();
}

fn export(node: &Node, args: &[&Path]) -> Output {
    let mut command = Command::new(lockstep_testbed::program());
    command.arg("export").arg(DATASTORE).args(args);
    command.arg("--config").arg(node.config());
    command.output().unwrap()
}

/// Beside programs, and without them; on the node that serves, and on the other one.
#[test]
fn a_running_node_writes_a_snapshot_out() {
    let Some(mut pair) = start() else { return };
    let mount = pair.mount();
    fill(&mount);
    done(&pair.primary, &["create", DATASTORE, "one"]);
    let one = shown(&mount.join(".lockstep/snapshots/one"));
    spoil(&mount);
    let [at, name] = ["--at", "one"].map(Path::new);
    let mut manifests = Vec::new();
    for which in [A, B] {
        let copy = pair.outside(&format!("copy of {which:?}"));
        let list = pair.outside(&format!("list of {which:?}"));
        let args = [&*copy, at, name, Path::new("--manifest"), &*list];
        let output = export(pair.node(which), &args);
        assert!(output.status.success(), "{output:?}");
        assert_copied(&shown(&copy), &one);
        manifests.push(fs::read(&list).unwrap());
        let again = export(pair.node(which), &args);
        let text = String::from_utf8_lossy(&again.stderr).into_owned();
        assert_eq!(again.status.code(), Some(2), "{text}");
        assert!(text.contains("exists: name another"), "{text}");
    }
    assert!(manifests[0] == manifests[1]);
    let other = pair.outside("other");
    let cases: [(&[&Path], &str); 3] = [
        (
            &[&other, at, Path::new("two")],
            "has no snapshot two: it has one",
        ),
        (&[&other], "stop its node first"),
        (
            &[&pair.outside("missing/copy"), at, name],
            "cannot look at the directory above",
        ),
    ];
    for (args, why) in cases {
        let output = export(&pair.primary, args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(why), "{text}");
    }
    assert!(!other.exists());
    pair.stop();
}

/// Checks that a copy has all but the times of the last change of attributes.
#[track_caller]
pub fn assert_copied(copy: &Shown, of: &Shown) {
    let kept = |all: &Shown| {
        let mut kept = BTreeSet::new();
        for (name, [first, _, last]) in all {
            kept.insert(format!("{name}: {first} {last}"));
        }
        kept
    };
    let (copy, of) = (kept(copy), kept(of));
    let differing: Vec<_> = copy.symmetric_difference(&of).take(10).collect();
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
fn a_snapshot_that_one_node_has_made_alone_arrives_on_the_other_one() {
    if !can_mount() {
        return;
    }
    let mut pair = Pair::prepare(IMPATIENT, [(); 2].map(|()| NodeEnvironment::default()));
    pair.start();
    let mount = pair.mount();
    let old = vec![7; 3 << 20];
    fs::write(mount.join("file"), &old).unwrap();
    fs::write(mount.join("freed"), &old).unwrap();
    pair.secondary.stop();
    operator::await_status(&pair.primary, "the node alone", |status| {
        status.sync.state == "out of sync"
    });
    fs::write(mount.join("young"), "young").unwrap();
    done(&pair.primary, &["create", DATASTORE, "alone"]);
    fs::write(mount.join("file"), "new").unwrap();
    fs::remove_file(mount.join("freed")).unwrap();
    pair.secondary.start();
    pair.await_in_sync();
    done(&pair.primary, &["create", DATASTORE, "both"]);
    let mounts = [A, B].map(|which| pair.node(which).mount().clone());
    let shown = |of: &Path| names(&of.join(".lockstep/snapshots"));
    await_that("the snapshot on the other node", || {
        shown(&mounts[1]) == ["alone", "both"]
    });
    await_that("the end of the arrival", || {
        let both = [&pair.primary, &pair.secondary].map(list);
        both.iter().all(|listed| listed.len() == 2)
    });
    let text = refused(&pair.secondary, &["delete", DATASTORE, "alone"]);
    assert!(text.contains("ask the primary"), "{text}");
    operator::fail_over(&mut pair, A, 1);
    for mount in &mounts {
        let alone = mount.join(".lockstep/snapshots/alone");
        assert_eq!(names(&alone), ["file", "freed", "young"]);
        for file in ["file", "freed"] {
            assert!(fs::read(alone.join(file)).unwrap() == old, "{file}");
        }
        assert_eq!(fs::read(alone.join("young")).unwrap(), b"young");
    }
    pair.stop();
}
