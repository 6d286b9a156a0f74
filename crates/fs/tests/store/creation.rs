//! Creations of a store that are interrupted, and what they must never take for their own.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::store::{Access, OpenOptions};
use lockstep_fs::{Store, StoreError};
use lockstep_types::backing::{Backing, BackingFile, BackingStat, BackingTable, Space};
use lockstep_types::{BootId, Ino};

use crate::disk::Disk;
use crate::harness::{UUID, log_options, open_options};

/// A process that stops after so many calls that change something.
struct Stopping {
    below: Arc<dyn Backing>,
    left: Arc<AtomicUsize>,
}

impl Stopping {
    fn over(below: Arc<dyn Backing>, calls: usize) -> Arc<dyn Backing> {
        let left = Arc::new(AtomicUsize::new(calls));
        Arc::new(Self { below, left })
    }

    fn file(&self, below: Arc<dyn BackingFile>) -> Arc<dyn BackingFile> {
        let left = Arc::clone(&self.left);
        Arc::new(StoppingFile { below, left })
    }
}

fn take(left: &AtomicUsize) -> io::Result<()> {
    let less = |left: usize| left.checked_sub(1);
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    taken
        .map(drop)
        .map_err(|_| io::Error::other("the process has stopped"))
}

struct StoppingFile {
    below: Arc<dyn BackingFile>,
    left: Arc<AtomicUsize>,
}

impl Backing for Stopping {
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        Ok(self.file(self.below.open(path)?))
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        take(&self.left)?;
        Ok(self.file(self.below.open_or_create(path)?))
    }

    fn open_table(&self, path: &str, length: usize) -> io::Result<Arc<dyn BackingTable>> {
        take(&self.left)?;
        self.below.open_table(path, length)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        take(&self.left)?;
        self.below.remove(path)
    }

    fn remove_empty_dir(&self, path: &str) -> io::Result<bool> {
        take(&self.left)?;
        self.below.remove_empty_dir(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        take(&self.left)?;
        self.below.rename(from, to)
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        self.below.exists(path)
    }

    fn stat(&self, path: &str) -> io::Result<BackingStat> {
        self.below.stat(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.below.list(path)
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        take(&self.left)?;
        self.below.sync_dir(path)
    }

    fn sync_all(&self) -> io::Result<()> {
        take(&self.left)?;
        self.below.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
}

impl BackingFile for StoppingFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        take(&self.left)?;
        self.below.write_at(offset, data)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        take(&self.left)?;
        self.below.set_len(length)
    }

    fn stat(&self) -> io::Result<BackingStat> {
        self.below.stat()
    }

    fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        take(&self.left)?;
        self.below.allocate(offset, length, keep_size)
    }

    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        take(&self.left)?;
        self.below.punch_hole(offset, length)
    }

    fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        take(&self.left)?;
        self.below.zero_range(offset, length, keep_size)
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.below.seek_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.below.seek_hole(offset)
    }

    fn sync(&self) -> io::Result<()> {
        take(&self.left)?;
        self.below.sync()
    }
}

/// What a node does when it starts, in the run `boot` of the machine: makes the store if there is
/// none, and opens it.
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
        let disk = Arc::new(Disk::default());
        let done = start(Stopping::over(disk.clone(), calls), 1).is_ok();
        // Again, with a second stop on the way, and then to the end.
        for again in [calls / 3, calls, calls + 5] {
            for (disk, boot) in [(disk.killed(), 1), (disk.after_power_loss(), 2)] {
                let _stopped = start(Stopping::over(disk.clone(), again), boot);
                assert_new(&start(disk.after_power_loss(), 3).unwrap());
                assert_new(&start(disk.killed(), boot).unwrap());
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
        let dir = tempfile::tempdir().unwrap();
        let backing = || -> Arc<dyn Backing> { Arc::new(OsBacking::open(dir.path()).unwrap()) };
        let _stopped = start(Stopping::over(backing(), calls), 1);
        assert_new(&start(backing(), 1).unwrap());
        let mut found = names(dir.path());
        found.sort();
        let made = ["content", "format.json", "log", "namespace.redb", "tables"];
        assert_eq!(found, made);
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let name = |entry: io::Result<std::fs::DirEntry>| {
        let name = entry.unwrap().file_name();
        name.into_string().unwrap()
    };
    entries.map(name).collect()
}

/// Refused by look and by creation, and left as it was.
fn left_alone(disk: &Arc<Disk>, found: &str) {
    let before = disk.all();
    let backing: Arc<dyn Backing> = disk.clone();
    let looked = Store::check_vacant(&backing).unwrap_err().to_string();
    let created = Store::create(&backing, UUID, &log_options()).unwrap_err();
    for error in [looked, created.to_string()] {
        assert!(error.contains(&format!("but {found},")), "{error}");
    }
    assert!(disk.all() == before, "{found} was touched");
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
        let disk = Arc::new(Disk::default());
        let _stopped = start(Stopping::over(disk.clone(), 30), 1);
        disk.open_or_create(foreign).unwrap();
        let shown = match foreign.split_once('/') {
            Some((directory, _)) if directory != "log" => directory,
            _ => foreign,
        };
        left_alone(&disk, shown);
    }
}

/// A store that was in use and lost its other files, and one that cannot be read.
#[test]
fn a_namespace_that_may_hold_data_is_never_cleared() {
    let disk = Arc::new(Disk::default());
    drop(start(disk.clone(), 1).unwrap());
    for path in disk.paths() {
        if !path.starts_with("namespace") && !path.starts_with("log/") {
            disk.remove(&path).unwrap();
        }
    }
    left_alone(&disk, "namespace.redb");
    disk.file("namespace.redb")
        .unwrap()
        .tamper(|bytes| bytes[30] ^= 1);
    left_alone(&disk, "namespace.redb");
}
