//! The flags of inodes, `chattr` and `lsattr`, on a mount: compared with an ext4.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "model/ext4.rs"]
mod ext4;
#[path = "model/fs.rs"]
mod model;
#[path = "model/mounted.rs"]
mod mounted;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use ext4::Ext4;
use mounted::{Fixture, NOBODY};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, RenameFlags, Timespec, Timestamps, UTIME_NOW, Uid,
    XattrFlags,
};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// A system call on the flagged inode, with the directory that holds the inode.
type Call = fn(&Place) -> rustix::io::Result<()>;

/// Calls with their names.
type Calls = &'static [(&'static str, Call)];

/// Makes the inode.
type Make<'a> = &'a dyn Fn(&Place);

/// The inode with flags, and the other needs of a call.
struct Place {
    root: PathBuf,
    flagged: PathBuf,
}

impl Place {
    fn other(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A name below the flagged inode.
    fn below(&self, name: &str) -> PathBuf {
        self.flagged.join(name)
    }
}

fn chattr(flags: &str, path: &Path) {
    let status = Command::new("chattr").arg(flags).arg(path).status();
    assert!(
        status.unwrap().success(),
        "chattr {flags} {}",
        path.display()
    );
}

fn opened(path: &Path, options: &mut OpenOptions) -> rustix::io::Result<File> {
    let file = options.open(path);
    file.map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap())
}

fn io<T>(result: std::io::Result<T>) -> rustix::io::Result<()> {
    let errno = |error| rustix::io::Errno::from_io_error(&error).unwrap();
    result.map(drop).map_err(errno)
}

fn times(nanos: i64) -> Timestamps {
    let time = Timespec {
        tv_sec: 7,
        tv_nsec: nanos,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn allocate(place: &Place, flags: FallocateFlags) -> rustix::io::Result<()> {
    let mut options = OpenOptions::new();
    let file = opened(&place.flagged, options.append(true))?;
    rustix::fs::fallocate(file.as_fd(), flags, 0, 4096)
}

fn rename(from: PathBuf, to: PathBuf, flags: RenameFlags) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(CWD, from, CWD, to, flags)
}

/// Calls on an inode of any kind.
const ANY: Calls = &[
    ("chmod", |place| {
        rustix::fs::chmod(&place.flagged, Mode::RWXU)
    }),
    ("chown", |place| {
        let (uid, gid) = (Some(Uid::from_raw(5)), Some(Gid::from_raw(6)));
        rustix::fs::chown(&place.flagged, uid, gid)
    }),
    ("utimes", |place| {
        rustix::fs::utimensat(CWD, &place.flagged, &times(0), AtFlags::empty())
    }),
    ("touch", |place| {
        rustix::fs::utimensat(CWD, &place.flagged, &times(UTIME_NOW), AtFlags::empty())
    }),
    ("touch one time", |place| {
        let both = times(UTIME_NOW);
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: rustix::fs::UTIME_OMIT,
            },
            ..both
        };
        rustix::fs::utimensat(CWD, &place.flagged, &times, AtFlags::empty())
    }),
    ("setxattr", |place| {
        rustix::fs::setxattr(&place.flagged, "user.new", b"x", XattrFlags::empty())
    }),
    ("removexattr", |place| {
        rustix::fs::removexattr(&place.flagged, "user.old")
    }),
    ("rename it", |place| {
        rename(
            place.flagged.clone(),
            place.other("moved"),
            RenameFlags::empty(),
        )
    }),
    ("exchange it", |place| {
        let other = place.other("exchanged");
        io(fs::create_dir(&other))?;
        rename(place.flagged.clone(), other, RenameFlags::EXCHANGE)
    }),
    ("read", |place| io(fs::metadata(&place.flagged))),
];

/// Calls on a file.
const FILES: Calls = &[
    ("open to write", |place| {
        opened(&place.flagged, OpenOptions::new().write(true)).map(drop)
    }),
    ("open to read and write", |place| {
        opened(&place.flagged, OpenOptions::new().read(true).write(true)).map(drop)
    }),
    ("open to append", |place| {
        opened(&place.flagged, OpenOptions::new().append(true)).map(drop)
    }),
    ("open to read", |place| io(File::open(&place.flagged))),
    ("create", |place| {
        let mut options = OpenOptions::new();
        opened(&place.flagged, options.create(true).append(true)).map(drop)
    }),
    ("cut at open", |place| {
        let flags = i32::try_from(rustix::fs::OFlags::TRUNC.bits()).unwrap();
        let mut options = OpenOptions::new();
        opened(&place.flagged, options.append(true).custom_flags(flags)).map(drop)
    }),
    ("append", |place| {
        let file = opened(&place.flagged, OpenOptions::new().append(true))?;
        io(file.write_at(b"more", 0))
    }),
    ("truncate", |place| {
        let path = std::ffi::CString::new(place.flagged.to_str().unwrap()).unwrap();
        // SAFETY: the path ends with a NUL.
        match unsafe { libc::truncate(path.as_ptr(), 1) } {
            0 => Ok(()),
            _ => io(Err::<(), _>(std::io::Error::last_os_error())),
        }
    }),
    ("ftruncate", |place| {
        let file = opened(&place.flagged, OpenOptions::new().append(true))?;
        rustix::fs::ftruncate(file, 1)
    }),
    ("allocate", |place| allocate(place, FallocateFlags::empty())),
    ("allocate and keep the size", |place| {
        allocate(place, FallocateFlags::KEEP_SIZE)
    }),
    ("punch a hole", |place| {
        allocate(
            place,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        )
    }),
    ("zero a range", |place| {
        allocate(place, FallocateFlags::ZERO_RANGE)
    }),
    ("link", |place| {
        io(fs::hard_link(&place.flagged, place.other("link")))
    }),
    ("unlink", |place| io(fs::remove_file(&place.flagged))),
    ("replace", |place| {
        io(fs::write(place.other("new"), "new"))?;
        rename(
            place.other("new"),
            place.flagged.clone(),
            RenameFlags::empty(),
        )
    }),
];

/// Calls on a directory, which holds `file`, and on its names.
const DIRECTORIES: Calls = &[
    ("create below", |place| io(File::create(place.below("new")))),
    ("create what is there", |place| {
        io(fs::create_dir(place.below("file")))
    }),
    ("mkdir below", |place| {
        io(fs::create_dir(place.below("new")))
    }),
    ("symlink below", |place| {
        io(std::os::unix::fs::symlink("x", place.below("new")))
    }),
    ("link into it", |place| {
        io(fs::write(place.other("outside"), "x"))?;
        io(fs::hard_link(place.other("outside"), place.below("new")))
    }),
    ("rename into it", |place| {
        io(fs::write(place.other("outside"), "x"))?;
        rename(
            place.other("outside"),
            place.below("new"),
            RenameFlags::empty(),
        )
    }),
    ("replace in it", |place| {
        io(fs::write(place.other("outside"), "x"))?;
        rename(
            place.other("outside"),
            place.below("file"),
            RenameFlags::empty(),
        )
    }),
    ("rename out of it", |place| {
        rename(
            place.below("file"),
            place.other("out"),
            RenameFlags::empty(),
        )
    }),
    ("rename in it", |place| {
        rename(
            place.below("file"),
            place.below("new"),
            RenameFlags::empty(),
        )
    }),
    ("unlink below", |place| {
        io(fs::remove_file(place.below("file")))
    }),
    ("rmdir below", |place| {
        io(fs::remove_dir(place.below("directory")))
    }),
    ("write below", |place| {
        io(fs::write(place.below("file"), "changed"))
    }),
    ("rmdir", |place| io(fs::remove_dir(&place.flagged))),
];

/// The answer of each call, each on a new inode with some flags.
fn answers(root: &Path, flags: &str) -> Vec<String> {
    let mut answers = Vec::new();
    let file = |place: &Place| fs::write(&place.flagged, "bytes").unwrap();
    let directory = |place: &Place| {
        fs::create_dir_all(place.below("directory")).unwrap();
        fs::write(place.below("file"), "bytes").unwrap();
    };
    let kinds: [(&str, Make<'_>, [Calls; 2]); 2] = [
        ("file", &file, [ANY, FILES]),
        ("directory", &directory, [ANY, DIRECTORIES]),
    ];
    for (kind, make, calls) in kinds {
        for (name, call) in calls.into_iter().flatten() {
            let top = tempfile::tempdir_in(root).unwrap();
            let place = Place {
                root: top.path().to_owned(),
                flagged: top.path().join("flagged"),
            };
            make(&place);
            rustix::fs::setxattr(&place.flagged, "user.old", b"x", XattrFlags::empty()).unwrap();
            chattr(&format!("+{flags}"), &place.flagged);
            answers.push(format!("{kind} {flags}: {name}: {:?}", call(&place)));
            let all = top.path().to_str().unwrap();
            let cleared = Command::new("chattr")
                .args(["-R", "-f", "-ia", all])
                .status();
            cleared.unwrap();
        }
    }
    answers
}

#[test]
fn immutable_and_append_only_inodes_refuse_what_those_of_ext4_refuse() {
    let Some(mount) = Fixture::new() else { return };
    let ext4 = Ext4::new();
    for flags in ["i", "a", "ia", "d"] {
        let here = answers(&mount.path(""), flags);
        let there = answers(&ext4.root(), flags);
        for (here, there) in here.iter().zip(&there) {
            assert_eq!(here, there);
        }
        assert_eq!(here.len(), there.len());
        let refused = here.iter().filter(|answer| answer.contains("Err")).count();
        assert_eq!(refused > 2, flags != "d", "{here:?}");
    }
}

#[test]
fn flags_are_shown_set_and_inherited() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect(
        "flags() { lsattr -d $1 | cut -d' ' -f1 | tr -d -; }
         mkdir d; touch f; test -z \"$(flags f)$(flags d)\"
         chattr +iadA f; test $(flags f) = iadA; chattr -ia f; test $(flags f) = dA; chattr = f; test -z \"$(flags f)\"
         chattr +adA d; touch d/f; mkdir d/d; test $(flags d/f)$(flags d/d) = dAdA; chattr -a d
         ! chattr +S f; ! chattr +c f; test -z \"$(flags f)\"; lsattr -p f",
    );
}

/// Only somebody with the capability sets or takes these two flags; the owner decides about the others.
#[test]
fn a_user_without_the_capability_sets_no_restricting_flag() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect("chmod 777 .; touch other");
    let (user, group) = (NOBODY, NOBODY);
    mount.expect_as(
        user,
        group,
        "touch f; ! chattr +i f; ! chattr +a f; chattr +d f; ! chattr +d other",
    );
    mount.expect("chattr +i f; ! rm f");
    mount.expect_as(user, group, "! chattr -i f; ! rm -f f");
}

/// `lsattr` shows a change time that the kernel has not cached.
#[test]
fn setting_a_flag_shows_in_the_time_of_the_change() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect(
        "touch f; before=$(stat -c %z f); chattr +d f; test \"$(stat -c %z f)\" != \"$before\"",
    );
}

/// The check of each write sees what no check of an `open` sees: the descriptor is older than the flag, or is not the kernel's to
/// tell (`O_APPEND` taken away).
#[test]
fn an_open_descriptor_writes_no_more_than_the_flags_allow() {
    let Some(mount) = Fixture::new() else { return };
    let path = mount.path("f");
    fs::write(&path, "0123456789").unwrap();
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    let appender = OpenOptions::new().append(true).open(&path).unwrap();
    let refused = |result| io(result) == Err(rustix::io::Errno::PERM);
    chattr("+a", &path);
    rustix::fs::fcntl_setfl(&appender, rustix::fs::OFlags::empty()).unwrap();
    for file in [&writer, &appender] {
        assert!(refused(file.write_all_at(b"x", 3)));
    }
    writer.write_all_at(b"ab", 10).unwrap();
    assert!(refused(
        rustix::fs::ftruncate(&writer, 3).map_err(Into::into)
    ));
    chattr("+i", &path);
    assert!(refused(writer.write_all_at(b"c", 12)));
    chattr("-ia", &path);
    writer.write_all_at(b"c", 12).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "0123456789abc");
}

/// Bytes that a mapping has stored before the flag are kept.
#[test]
fn what_a_mapping_has_stored_before_the_flag_is_kept() {
    let Some(mount) = Fixture::new() else { return };
    let path = mount.path("f");
    fs::write(&path, [0; 4096]).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let address = std::ptr::null_mut();
    // SAFETY: a new mapping of a whole page of the file.
    let page = unsafe { rustix::mm::mmap(address, 4096, protection, MapFlags::SHARED, &file, 0) };
    let page = page.unwrap().cast::<u8>();
    let store = |byte| {
        // SAFETY: the page is mapped until the end of the test.
        unsafe { page.write_volatile(byte) }
    };
    let sync = || {
        // SAFETY: as above.
        unsafe { rustix::mm::msync(page.cast(), 4096, MsyncFlags::SYNC) }
    };
    store(1);
    chattr("+i", &path);
    sync().unwrap();
    assert_eq!(fs::read(&path).unwrap()[0], 1);
    store(2);
    sync().unwrap_err();
    chattr("-i", &path);
    store(3);
    sync().unwrap();
    assert_eq!(fs::read(&path).unwrap()[0], 3);
    // SAFETY: nothing uses the mapping any more.
    unsafe { rustix::mm::munmap(page.cast(), 4096) }.unwrap();
}
