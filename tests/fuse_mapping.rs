//! Files of the mount mapped into memory.
//!
//! A page fault on a mapping holds a lock of the process until the file system has answered. So the process that
//! answers must never fault on its own mount. Each test here runs its mapping in a child: the same program, started
//! for one of the ignored tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "model/faulty.rs"]
mod faulty;
#[path = "model/forward.rs"]
mod forward;
#[path = "model/fs.rs"]
mod model;
#[path = "model/mounted.rs"]
mod mounted;
#[path = "mapping/race.rs"]
mod race;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use lockstep_testbed::playground::MirroredPlayground;
use memmap2::{MmapMut, MmapOptions};

use faulty::Faulty;
use mounted::Fixture;

/// Names the file that the child maps.
const FILE: &str = "LOCKSTEP_TEST_FILE";
/// Names the directory in which the child and its parent signal their progress.
const SIGNALS: &str = "LOCKSTEP_TEST_SIGNALS";

/// Runs the ignored test `name` of this program in a child, on a file of `size` bytes `a`, and returns the content of
/// the file afterwards.
fn mapped_by_child(name: &str, size: usize) -> Option<Vec<u8>> {
    let mount = Fixture::new()?;
    let path = mount.path("f");
    fs::write(&path, vec![b'a'; size]).unwrap();
    expect_success(child(name, &path));
    Some(fs::read(path).unwrap())
}

/// Starts the ignored test `name` of this program on a file.
fn child(name: &str, path: &Path) -> Child {
    child_knowing(name, &[(FILE, path)])
}

/// Starts the ignored test `name` with these paths in its environment.
fn child_knowing(name: &str, paths: &[(&str, &Path)]) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--ignored", "--nocapture"]);
    child.envs(paths.iter().copied());
    child.stdout(Stdio::piped()).spawn().unwrap()
}

fn expect_success(child: Child) {
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
}

/// The file to map; `None` outside a child.
fn file() -> Option<File> {
    let path = std::env::var_os(FILE)?;
    let mut options = OpenOptions::new();
    Some(options.read(true).write(true).open(path).unwrap())
}

#[test]
fn mapping_and_file_are_one() {
    let Some(bytes) = mapped_by_child("child_maps_shared", 3 * 4096) else {
        return;
    };
    assert_eq!(&bytes[5000..5007], b"written");
    assert_eq!(&bytes[6000..6006], b"mapped");
}

#[test]
#[ignore = "the child of mapping_and_file_are_one"]
fn child_maps_shared() {
    let Some(file) = file() else { return };
    // SAFETY: no process truncates the file while it is mapped.
    let mut shared = unsafe { MmapMut::map_mut(&file) }.unwrap();
    assert_eq!(shared[5000], b'a');
    file.write_all_at(b"written", 5000).unwrap();
    assert_eq!(&shared[5000..5007], b"written");
    shared[6000..6006].copy_from_slice(b"mapped");
    let mut bytes = [0; 6];
    file.read_exact_at(&mut bytes, 6000).unwrap();
    assert_eq!(&bytes, b"mapped");
    shared.flush().unwrap();
}

#[test]
fn a_mapping_reaches_the_file_without_a_flush() {
    let Some(bytes) = mapped_by_child("child_closes_before_it_writes", 4096) else {
        return;
    };
    assert_eq!(bytes[10], b'x');
    assert_eq!(bytes[11], b'a');
}

#[test]
#[ignore = "the child of a_mapping_reaches_the_file_without_a_flush"]
fn child_closes_before_it_writes() {
    let Some(file) = file() else { return };
    // SAFETY: no process truncates the file while it is mapped.
    let mut shared = unsafe { MmapMut::map_mut(&file) }.unwrap();
    drop(file);
    shared[10] = b'x';
}

#[test]
fn a_private_mapping_stays_private() {
    let Some(bytes) = mapped_by_child("child_maps_privately", 8192) else {
        return;
    };
    assert!(bytes.iter().all(|byte| *byte == b'a'));
}

#[test]
#[ignore = "the child of a_private_mapping_stays_private"]
fn child_maps_privately() {
    let Some(file) = file() else { return };
    // SAFETY: no process truncates the file while it is mapped.
    let mut private = unsafe { MmapOptions::new().map_copy(&file) }.unwrap();
    private[0] = b'b';
    assert_eq!(private[1], b'a');
}

/// A directory in which parent and child signal their progress.
#[derive(Clone)]
struct Signals(PathBuf);

impl Signals {
    fn give(&self, name: &str) {
        File::create(self.0.join(name)).unwrap();
    }

    fn await_one(&self, name: &str) {
        while !self.0.join(name).exists() {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Starts a child that writes to a file. While the write is in progress, the child reads the page into its mapping
/// and stores to it. Then the write ends, with the given result. Returns the content of the file at the end.
fn page_read_during_a_write(child_name: &str, fails: bool) -> Option<Vec<u8>> {
    let mut service = None;
    let mount = Fixture::serving(|model| {
        let faulty = Faulty::new(model);
        service = Some(faulty.clone());
        faulty
    })?;
    let service = service.unwrap();
    let path = mount.path("f");
    fs::write(&path, vec![b'a'; 4096]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let signals = Signals(directory.path().to_owned());
    service.hold_writes();
    let child = child_knowing(child_name, &[(FILE, &path), (SIGNALS, directory.path())]);
    while service.waiting() < 1 {
        thread::sleep(Duration::from_millis(1));
    }
    signals.give("write-is-under-way");
    signals.await_one("stored");
    if fails {
        service.fail_waiting();
    } else {
        service.resume();
    }
    expect_success(child);
    Some(fs::read(path).unwrap())
}

/// The child's part: a write of 7 bytes at 0 and a store at 100. Returns whether `write` succeeded.
fn write_and_store() -> Option<(File, MmapMut, bool)> {
    let file = file()?;
    let signals = Signals(PathBuf::from(std::env::var_os(SIGNALS)?));
    // SAFETY: no process truncates the file while it is mapped.
    let mut shared = unsafe { MmapMut::map_mut(&file) }.unwrap();
    let written = thread::scope(|scope| {
        let writer = scope.spawn(|| file.write_all_at(b"written", 0));
        signals.await_one("write-is-under-way");
        assert_eq!(shared[0], b'a', "the page is read before the write is done");
        shared[100] = b'm';
        signals.give("stored");
        writer.join().unwrap()
    });
    Some((file, shared, written.is_ok()))
}

/// The page in the mapping is older than the write, and the kernel writes the whole page back.
#[test]
fn a_store_beside_a_write_takes_nothing_of_it_back() {
    let child = "child_stores_beside_a_write";
    let Some(bytes) = page_read_during_a_write(child, false) else {
        return;
    };
    assert_eq!(&bytes[..8], b"writtena");
    assert_eq!(bytes[100], b'm');
}

#[test]
#[ignore = "the child of a_store_beside_a_write_takes_nothing_of_it_back"]
fn child_stores_beside_a_write() {
    let Some((file, shared, written)) = write_and_store() else {
        return;
    };
    assert!(written);
    assert_eq!(&shared[..8], b"writtena", "the mapping shows the write");
    assert_eq!(shared[100], b'm');
    drop(shared);
    let mut bytes = [0; 101];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((&bytes[..7], bytes[100]), (&b"written"[..], b'm'));
}

/// The write failed, so the stored bytes of the mapping are the only new content.
#[test]
fn a_store_beside_a_write_that_fails_stays() {
    let child = "child_stores_beside_a_write_that_fails";
    let Some(bytes) = page_read_during_a_write(child, true) else {
        return;
    };
    assert_eq!(&bytes[..8], b"maaaaaaa");
    assert_eq!(bytes[100], b'm');
}

#[test]
#[ignore = "the child of a_store_beside_a_write_that_fails_stays"]
fn child_stores_beside_a_write_that_fails() {
    let Some((_file, mut shared, written)) = write_and_store() else {
        return;
    };
    assert!(!written);
    shared[0] = b'm';
    assert_eq!(shared[100], b'm');
}

/// Runs on the file system of the temporary directory: the test requires only the guarantees of Linux.
#[test]
fn writes_stores_and_holes_of_one_page_stay_apart_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    expect_success(child("child_races", &path));
}

#[test]
fn writes_stores_and_holes_of_one_page_stay_apart() {
    let Some(mount) = Fixture::new() else { return };
    expect_success(child("child_races", &mount.path("f")));
}

#[test]
fn writes_stores_and_holes_of_one_page_stay_apart_on_two_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let Some(playground) = MirroredPlayground::start(&directory.path().join("play")) else {
        return;
    };
    expect_success(child("child_races", &playground.path("f")));
    playground.expect_identical();
}

#[test]
#[ignore = "the child of writes_stores_and_holes_of_one_page_stay_apart"]
fn child_races() {
    if let Some(path) = std::env::var_os(FILE) {
        race::run(Path::new(&path));
    }
}
