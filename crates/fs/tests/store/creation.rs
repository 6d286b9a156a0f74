//! Interrupted creations of a store, and foreign files that a creation must never clear.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::store::{Access, OpenOptions};
use lockstep_fs::{Store, StoreError, StoreView};
use lockstep_lossy::disk::{Disk, Verdict};
use lockstep_types::backing::Backing;
use lockstep_types::{BootId, Ino};

use crate::harness::{UUID, after_power_loss, log_options, open_options};

/// The backing of a process that stops after `calls` changing calls.
fn stopping(disk: &Disk, calls: u64) -> Arc<dyn Backing> {
    disk.set_verdict(calls + 1, Verdict::CrashBefore);
    disk.mount()
}

/// Starts a node in the run `boot` of the machine: creates the store if there is none, and opens it.
fn start(backing: Arc<dyn Backing>, boot: u8) -> Result<Store, StoreError> {
    if !Store::exists(backing.as_ref())? {
        Store::check_vacant(&backing)?;
        Store::create(&backing, UUID, &log_options())?;
    }
    let options = OpenOptions {
        boot: BootId::from_bytes([boot; 16]),
        ..open_options(Access::Write)
    };
    Ok(Store::open(backing, &options)?.store)
}

fn assert_new(store: &Store) {
    assert_eq!(store.tree().getattr(Ino::ROOT).unwrap().nlink, 2);
    store.close().unwrap();
}

#[test]
fn a_creation_that_stops_anywhere_is_done_again() {
    for calls in 0.. {
        let disk = Disk::default();
        let done = start(stopping(&disk, calls), 1).is_ok();
        // Another start, with a second stop in between, and then a start to the end.
        for again in [calls / 3, calls, calls + 5] {
            for (disk, boot) in [(disk.fork(), 1), (after_power_loss(&disk), 2)] {
                let _stopped = start(stopping(&disk, again), boot);
                assert_new(&start(after_power_loss(&disk).mount(), 3).unwrap());
                assert_new(&start(disk.fork().mount(), boot).unwrap());
            }
        }
        if done {
            return assert!(calls > 40, "{calls}");
        }
    }
}

/// The same on files of the system, where a directory stays when its files are removed.
#[test]
fn leftovers_on_a_real_disk_are_cleared() {
    for calls in (0..60).step_by(4) {
        let disk = Disk::default();
        let _stopped = start(stopping(&disk, calls), 1);
        let dir = tempfile::tempdir().unwrap();
        copy_out(&disk, dir.path());
        let backing = Arc::new(OsBacking::open(dir.path()).unwrap());
        assert_new(&start(backing, 1).unwrap());
        let mut found = names(dir.path());
        found.sort();
        let made = ["content", "format.json", "log", "namespace.redb", "tables"];
        assert_eq!(found, made);
    }
}

/// Writes all directories and files of a disk into a directory of the system.
fn copy_out(disk: &Disk, dir: &Path) {
    for directory in disk.directories() {
        fs::create_dir(dir.join(directory)).unwrap();
    }
    for file in disk.files() {
        fs::write(dir.join(&file), disk.read_all(&file).unwrap()).unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.unwrap().file_name();
        name.into_string().unwrap()
    };
    entries.map(name).collect()
}

/// Checks that the look and the creation refuse the disk and leave it unchanged.
fn assert_refused_unchanged(disk: &Disk, found: &str) {
    let before = disk.digest();
    let backing = disk.mount();
    let looked = Store::check_vacant(&backing).unwrap_err().to_string();
    let created = Store::create(&backing, UUID, &log_options()).unwrap_err();
    for error in [looked, created.to_string()] {
        assert!(error.contains(&format!("but {found},")), "{error}");
    }
    assert!(disk.digest() == before, "{found} was touched");
}

#[test]
fn what_no_creation_leaves_is_never_cleared() {
    for foreign in [
        "notes.txt",
        "role.json",
        "content/0/2",
        "tables/times",
        "tables/paw",
        "log/other",
        "log/intent.2",
        "namespace.redb.old",
        "log.new",
        "logbook",
    ] {
        let disk = Disk::default();
        let _stopped = start(stopping(&disk, 30), 1);
        disk.put(foreign, b"").unwrap();
        let shown = match foreign.split_once('/') {
            Some((directory, _)) if directory != "log" => directory,
            _ => foreign,
        };
        assert_refused_unchanged(&disk, shown);
    }
}

/// A used store that lost its other files, and an unreadable store.
#[test]
fn a_namespace_that_may_hold_data_is_never_cleared() {
    let disk = Disk::default();
    drop(start(disk.mount(), 1).unwrap());
    for path in disk.files() {
        if !path.starts_with("namespace") && !path.starts_with("log/") {
            disk.mount().remove(&path).unwrap();
        }
    }
    assert_refused_unchanged(&disk, "namespace.redb");
    disk.edit("namespace.redb", |bytes| bytes[30] ^= 1).unwrap();
    assert_refused_unchanged(&disk, "namespace.redb");
}
