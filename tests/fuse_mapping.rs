//! Files of the mount mapped into memory.
//!
//! A page fault on a mapping holds a lock of the process until the file system has answered. The
//! process that answers must therefore never fault on its own mount, so each test here runs its
//! mapping in a child: this same program, asked for one of the tests that are ignored otherwise.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "model/fs.rs"]
mod model;
#[path = "model/mounted.rs"]
mod mounted;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

use memmap2::{MmapMut, MmapOptions};
use mounted::Fixture;

/// Tells the child which file to map.
const FILE: &str = "LOCKSTEP_TEST_FILE";

/// Runs the ignored test `name` of this program in a child, on a file of `size` bytes `a`, and
/// gives what the file holds afterwards.
fn mapped_by_child(name: &str, size: usize) -> Option<Vec<u8>> {
    let mount = Fixture::new()?;
    let path = mount.path("f");
    fs::write(&path, vec![b'a'; size]).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--ignored"]).env(FILE, &path);
    let output = child.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{errors}");
    Some(fs::read(path).unwrap())
}

/// The file to map; none when not run as a child.
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
    // SAFETY: nobody truncates the file while it is mapped.
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
    // SAFETY: nobody truncates the file while it is mapped.
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
    // SAFETY: nobody truncates the file while it is mapped.
    let mut private = unsafe { MmapOptions::new().map_copy(&file) }.unwrap();
    private[0] = b'b';
    assert_eq!(private[1], b'a');
}
