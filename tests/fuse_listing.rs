//! Directories of 100,000 entries, and file handles that outlive the kernel's cache.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "model/fs.rs"]
mod model;
#[path = "model/mounted.rs"]
mod mounted;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lockstep_driver::client::FileService;
use lockstep_types::{FileName, Ino, MetaRequest, NodeKind};
use model::ModelFs;
use mounted::{Fixture, drop_caches_until};
use rustix::fs::{RawDir, SeekFrom};

const MANY: u32 = 100_000;

fn name_of(number: u32) -> String {
    format!("entry-{number:06}")
}

/// Fills the root without the mount, so that the kernel caches nothing.
fn fill(model: &ModelFs) {
    for number in 0..MANY {
        let request = MetaRequest::creation(
            Ino::ROOT,
            FileName::new(name_of(number).as_bytes()).unwrap(),
            model.next_ino().unwrap(),
            NodeKind::File,
        )
        .mode(0o644)
        .request();
        model.change(request, Box::new(|made| assert!(made.is_ok())));
    }
}

/// Reads up to `count` names from the position of `directory` on, each with the position after it.
fn read(directory: &OwnedFd, count: usize) -> Vec<(String, u64)> {
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        if !name.starts_with('.') {
            names.push((name, entry.next_entry_cookie()));
        }
        if names.len() == count {
            break;
        }
    }
    names
}

fn open(path: &Path) -> OwnedFd {
    File::open(path).unwrap().into()
}

#[test]
fn lists_every_entry_once() {
    let Some(mount) = Fixture::new() else { return };
    fill(&mount.model);
    for _ in ["first from us", "then from the kernel's cache"] {
        let names = read(&open(&mount.path("")), usize::MAX);
        let distinct: BTreeSet<_> = names.iter().map(|(name, _)| name).collect();
        assert_eq!((names.len(), distinct.len()), (100_000, 100_000));
    }
    let printed = mount.expect("ls -l | wc -l; find . -name 'entry-09999?' | wc -l");
    assert_eq!(printed, "100001\n10");
}

#[test]
fn positions_stay_while_entries_go() {
    let Some(mount) = Fixture::new() else { return };
    fill(&mount.model);
    let stream = open(&mount.path(""));
    let (half, position) = read(&stream, 49_999).pop().unwrap();
    for number in (0..MANY).step_by(100) {
        fs::remove_file(mount.path(&name_of(number))).unwrap();
    }
    fs::remove_file(mount.path(&half)).unwrap();
    rustix::fs::seek(&stream, SeekFrom::Start(position)).unwrap();
    let rest = read(&stream, usize::MAX);
    let rest: BTreeSet<_> = rest.into_iter().map(|(name, _)| name).collect();
    let gone = |number: u32| number.is_multiple_of(100);
    let expected = (0..50_001).filter(|n| !gone(*n)).map(name_of).collect();
    assert_eq!(rest, expected);
    rustix::fs::seek(&stream, SeekFrom::Start(0)).unwrap();
    assert_eq!(read(&stream, usize::MAX).len(), 100_000 - 1000 - 1);
}

/// The change that a reader makes to each name that it reads.
type EntryChange = fn(&Path, &str);

/// More entries than the kernel requests at once.
const SEVERAL: usize = 5_000;

fn rename(from: &Path, to: &Path) {
    fs::rename(from, to).unwrap();
}

/// A listing ends although the directory changes meanwhile, and holds every entry that was there at its start.
#[test]
fn a_listing_ends_although_its_entries_come_back() {
    let Some(mount) = Fixture::new() else { return };
    let changes: [(&str, EntryChange); 3] = [
        ("renamed away and back", |directory, name| {
            rename(&directory.join(name), &directory.join("away"));
            rename(&directory.join("away"), &directory.join(name));
        }),
        ("moved to another directory and back", |directory, name| {
            let away = directory.with_extension("away");
            rename(&directory.join(name), &away);
            rename(&away, &directory.join(name));
        }),
        ("recreated", |directory, name| {
            fs::remove_file(directory.join(name)).unwrap();
            File::create(directory.join(name)).unwrap();
        }),
    ];
    let directory = mount.path("d");
    fs::create_dir(&directory).unwrap();
    for number in 0..SEVERAL {
        File::create(directory.join(number.to_string())).unwrap();
    }
    for (what, change) in changes {
        let mut listed = Vec::new();
        for entry in fs::read_dir(&directory).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            change(&directory, &name);
            listed.push(name);
            assert!(listed.len() <= SEVERAL, "{what}: the listing does not end");
        }
        let distinct: BTreeSet<_> = listed.iter().collect();
        assert_eq!((listed.len(), distinct.len()), (SEVERAL, SEVERAL), "{what}");
    }
}

#[test]
fn a_cached_listing_follows_every_change() {
    let Some(mount) = Fixture::new() else { return };
    let list = || mount.expect("ls | tr '\\n' ' '");
    assert_eq!(list(), "");
    mount.expect("touch a b; mkdir c");
    assert_eq!(list(), "a b c");
    assert_eq!(list(), "a b c");
    mount.expect("mv a c/a; ln b d; rm b");
    assert_eq!(list(), "c d");
    mount.expect("mv c/a .; rmdir c");
    assert_eq!(list(), "a d");
}

#[test]
fn references_are_counted_as_the_kernel_counts_them() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect("mkdir d; touch d/a d/b; ln d/a d/c; ls -l d; cat d/*; mv d/b b; rm d/c");
    let inodes = ["d", "d/a", "b"].map(|name| {
        let number = fs::metadata(mount.path(name)).unwrap().ino();
        Ino::new(number).unwrap()
    });
    assert!(inodes.iter().all(|ino| mount.model.holds(*ino) > 0));
    // The model itself refuses to release more references than it has given.
    drop_caches_until(|| inodes.iter().all(|ino| mount.model.holds(*ino) == 0));
}

/// A file handle as the kernel fills it, with space for the largest one.
#[repr(C)]
struct Handle {
    length: u32,
    kind: i32,
    bytes: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle {
        length: 128,
        kind: 0,
        bytes: [0; 128],
    };
    let mut mount = 0;
    // SAFETY: `Handle` has the layout of `file_handle`, and its buffer has the length that it states.
    let done = unsafe {
        libc::name_to_handle_at(
            libc::AT_FDCWD,
            path.as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount,
            0,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    handle
}

fn open_handle(root: &OwnedFd, handle: &mut Handle) -> io::Result<File> {
    let handle = &raw mut *handle;
    // SAFETY: `Handle` has the layout of `file_handle`; no other code owns the returned descriptor.
    unsafe {
        let fd = libc::open_by_handle_at(root.as_raw_fd(), handle.cast(), libc::O_RDONLY);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(File::from_raw_fd(fd))
    }
}

#[test]
fn handles_open_inodes_that_the_kernel_has_forgotten() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect("mkdir -p a/b; echo found > a/b/f");
    let mut file = handle_of(&mount.path("a/b/f"));
    let mut directory = handle_of(&mount.path("a/b"));
    let number = fs::metadata(mount.path("a/b/f")).unwrap().ino();
    drop_caches_until(|| mount.model.holds(Ino::new(number).unwrap()) == 0);
    let root = open(&mount.path(""));
    let mut text = String::new();
    let mut opened = open_handle(&root, &mut file).unwrap();
    opened.read_to_string(&mut text).unwrap();
    assert_eq!(text, "found\n");
    assert_eq!(opened.metadata().unwrap().ino(), number);
    let opened = open_handle(&root, &mut directory).unwrap();
    let path = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
    assert_eq!(path, mount.path("a/b"));
}

#[test]
fn the_handle_of_a_removed_file_is_stale() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect("echo x > f");
    let mut handle = handle_of(&mount.path("f"));
    fs::remove_file(mount.path("f")).unwrap();
    drop_caches_until(|| mount.model.inodes() == 1);
    let root = open(&mount.path(""));
    let error = open_handle(&root, &mut handle).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
}
