//! Each kind of request, read by a process that ends before it executes the request or before it answers: the next process
//! gets the request again, and the program sees what one execution gives.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink,
};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags, copy_file_range,
    fallocate, getxattr, mknodat, removexattr, renameat_with, setxattr,
};
use rustix::io::Errno;

use crate::interrupted::interrupt;

pub fn file(path: &Path) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    options.truncate(false).open(path).unwrap()
}

/// Changes that make names.
pub fn names_that_are_made() {
    interrupt("Create", drop_path, |dir, ()| {
        drop(File::create_new(dir.join("new")).unwrap());
        assert!(File::create_new(dir.join("new")).is_err());
    });
    interrupt("Create", drop_path, |dir, ()| {
        fs::create_dir(dir.join("new")).unwrap();
        assert!(fs::metadata(dir.join("new")).unwrap().is_dir());
    });
    interrupt("Create", drop_path, |dir, ()| {
        mknodat(CWD, dir.join("new"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    });
    interrupt("Create", drop_path, |dir, ()| {
        let device = rustix::fs::makedev(1, 3);
        let mode = Mode::RUSR;
        mknodat(
            CWD,
            dir.join("new"),
            FileType::CharacterDevice,
            mode,
            device,
        )
        .unwrap();
        assert_eq!(fs::metadata(dir.join("new")).unwrap().rdev(), device);
    });
    interrupt("Create", drop_path, |dir, ()| {
        symlink("to", dir.join("new")).unwrap();
        assert_eq!(fs::read_link(dir.join("new")).unwrap(), Path::new("to"));
    });
    interrupt(
        "Link",
        |dir| drop(file(&dir.join("a"))),
        |dir, ()| {
            fs::hard_link(dir.join("a"), dir.join("b")).unwrap();
            assert_eq!(fs::metadata(dir.join("a")).unwrap().nlink(), 2);
        },
    );
}

fn drop_path(_: &Path) {}

/// An access list: the owner reads and writes, user 1 reads, the others nothing.
const ACL: &[u8] = &[
    2, 0, 0, 0, //
    1, 0, 6, 0, 255, 255, 255, 255, // the owner
    2, 0, 4, 0, 1, 0, 0, 0, // user 1
    4, 0, 4, 0, 255, 255, 255, 255, // the group
    16, 0, 4, 0, 255, 255, 255, 255, // the mask
    32, 0, 0, 0, 255, 255, 255, 255, // the others
];

/// `O_SYNC` of Linux.
#[expect(clippy::cast_possible_wrap, reason = "the flag fits")]
const O_SYNC: i32 = OFlags::SYNC.bits() as i32;

/// Changes that remove and move names.
pub fn names_that_go() {
    let one = |dir: &Path| drop(file(&dir.join("a")));
    let two = |dir: &Path| {
        fs::write(dir.join("a"), "a").unwrap();
        fs::write(dir.join("b"), "b").unwrap();
    };
    interrupt("Unlink", one, |dir, ()| {
        fs::remove_file(dir.join("a")).unwrap();
        assert!(!dir.join("a").exists());
    });
    interrupt(
        "Rmdir",
        |dir| fs::create_dir(dir.join("a")).unwrap(),
        |dir, ()| fs::remove_dir(dir.join("a")).unwrap(),
    );
    interrupt("Rename", one, |dir, ()| {
        fs::rename(dir.join("a"), dir.join("b")).unwrap();
        assert!(dir.join("b").exists());
    });
    interrupt("Rename", one, |dir, ()| {
        let flags = RenameFlags::NOREPLACE;
        renameat_with(CWD, dir.join("a"), CWD, dir.join("b"), flags).unwrap();
    });
    interrupt("Rename", two, |dir, ()| {
        fs::rename(dir.join("a"), dir.join("b")).unwrap();
        assert_eq!(fs::read(dir.join("b")).unwrap(), b"a");
    });
    let whiteout = |dir: &Path| {
        renameat_with(
            CWD,
            dir.join("a"),
            CWD,
            dir.join("b"),
            RenameFlags::WHITEOUT,
        )
    };
    interrupt("Rename", two, |dir, ()| {
        whiteout(dir).unwrap();
        assert_eq!(fs::read(dir.join("b")).unwrap(), b"a");
        let left = fs::metadata(dir.join("a")).unwrap();
        assert!(left.file_type().is_char_device() && left.rdev() == 0);
    });
    let left = |dir: &Path| {
        two(dir);
        whiteout(dir).unwrap();
    };
    interrupt("Rename", left, |dir, ()| {
        assert_eq!(whiteout(dir), Err(Errno::EXIST), "a whiteout stays");
        assert_eq!(fs::read(dir.join("b")).unwrap(), b"a");
    });
    let directories = |dir: &Path| {
        fs::create_dir(dir.join("a")).unwrap();
        fs::create_dir(dir.join("b")).unwrap();
        fs::write(dir.join("a/in"), "a").unwrap();
    };
    interrupt("Rename", directories, |dir, ()| {
        fs::rename(dir.join("a"), dir.join("b")).unwrap();
        assert!(dir.join("b/in").exists() && !dir.join("a").exists());
    });
    interrupt("Rename", two, |dir, ()| {
        let flags = RenameFlags::EXCHANGE;
        renameat_with(CWD, dir.join("a"), CWD, dir.join("b"), flags).unwrap();
        assert_eq!(fs::read(dir.join("a")).unwrap(), b"b");
        assert_eq!(fs::read(dir.join("b")).unwrap(), b"a");
    });
}

/// Changes of attributes.
pub fn changes_of_attributes() {
    let one = |dir: &Path| file(&dir.join("a"));
    let marked = |dir: &Path| {
        let file = file(&dir.join("a"));
        setxattr(dir.join("a"), "user.x", b"old", XattrFlags::empty()).unwrap();
        file
    };
    interrupt("SetXattr", one, |dir, _| {
        setxattr(dir.join("a"), "user.x", b"new", XattrFlags::CREATE).unwrap();
    });
    interrupt("SetXattr", marked, |dir, _| {
        let again = setxattr(dir.join("a"), "user.x", b"old", XattrFlags::CREATE);
        assert_eq!(again, Err(Errno::EXIST));
    });
    interrupt("SetXattr", marked, |dir, _| {
        setxattr(dir.join("a"), "user.x", b"new", XattrFlags::REPLACE).unwrap();
    });
    interrupt("SetXattr", marked, |dir, _| {
        setxattr(dir.join("a"), "user.x", b"new", XattrFlags::empty()).unwrap();
    });
    interrupt("SetXattr", one, |dir, _| {
        setxattr(
            dir.join("a"),
            "system.posix_acl_access",
            ACL,
            XattrFlags::empty(),
        )
        .unwrap();
        let mut found = [0; 64];
        let length = getxattr(dir.join("a"), "system.posix_acl_access", &mut found).unwrap();
        assert_eq!(&found[..length], ACL);
    });
    interrupt("RemoveXattr", marked, |dir, _| {
        removexattr(dir.join("a"), "user.x").unwrap();
    });
    interrupt("RemoveXattr", one, |dir, _| {
        let removed = removexattr(dir.join("a"), "user.x");
        assert_eq!(removed, Err(Errno::NODATA));
    });
    interrupt("SetAttr", one, |dir, file| {
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(dir.join("a"), mode).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    });
    interrupt("SetAttr", one, |_, file| {
        let time = UNIX_EPOCH + Duration::from_secs(7);
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
        assert_eq!(file.metadata().unwrap().mtime(), 7);
    });
    interrupt("SetAttr", one, |dir, file| {
        chown(dir.join("a"), Some(1), Some(2)).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (1, 2));
    });
}

fn chattr(flags: &str, path: &Path) -> bool {
    let status = Command::new("chattr").arg(flags).arg(path).status();
    status.unwrap().success()
}

/// Changes of flags, and a change that flags restrict.
pub fn changes_of_flags() {
    let one = |dir: &Path| drop(file(&dir.join("a")));
    interrupt("SetFlags", one, |dir, ()| {
        assert!(chattr("+i", &dir.join("a")));
        assert!(fs::remove_file(dir.join("a")).is_err());
        assert!(chattr("-i", &dir.join("a")));
    });
    let log = |dir: &Path| {
        fs::write(dir.join("a"), "old ").unwrap();
        assert!(chattr("+a", &dir.join("a")));
        OpenOptions::new().append(true).open(dir.join("a")).unwrap()
    };
    interrupt("write", log, |dir, mut file| {
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(dir.join("a")).unwrap(), b"old new");
    });
}

/// Changes of content.
pub fn changes_of_files() {
    let one = |dir: &Path| file(&dir.join("a"));
    interrupt("Truncate", one, |_, file| {
        file.set_len(5).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5);
    });
    interrupt("Allocate", one, |_, file| {
        fallocate(&file, FallocateFlags::empty(), 0, 9).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 9);
    });
    for (flags, length) in [
        (FallocateFlags::KEEP_SIZE, 6),
        (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 6),
        (FallocateFlags::ZERO_RANGE, 9),
        (FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 6),
    ] {
        let six = |dir: &Path| {
            fs::write(dir.join("a"), "before").unwrap();
            file(&dir.join("a"))
        };
        interrupt("Allocate", six, move |dir, file| {
            fallocate(&file, flags, 3, 6).unwrap();
            let zeroed = !flags.difference(FallocateFlags::KEEP_SIZE).is_empty();
            let expected: &[u8] = if zeroed { b"bef\0\0\0" } else { b"before" };
            let found = fs::read(dir.join("a")).unwrap();
            assert_eq!((found.len(), &found[..6]), (length, expected));
        });
    }
    interrupt("write", one, |_, file| {
        file.write_all_at(b"bytes", 3).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8);
    });
    let synchronous = |dir: &Path| {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).custom_flags(O_SYNC);
        options.open(dir.join("a")).unwrap()
    };
    interrupt("write", synchronous, |_, file| {
        file.write_all_at(b"bytes", 3).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8);
    });
    let log = |dir: &Path| {
        let mut log = OpenOptions::new();
        let mut log = log.append(true).create(true).open(dir.join("a")).unwrap();
        log.write_all(b"one").unwrap();
        log
    };
    interrupt("write", log, |dir, mut log| {
        log.write_all(b"two").unwrap();
        assert_eq!(fs::read(dir.join("a")).unwrap(), b"onetwo");
    });
    interrupt("sync", one, |_, file| file.sync_all().unwrap());
    interrupt("sync", drop_path, |dir, ()| {
        File::open(dir).unwrap().sync_all().unwrap();
    });
    let pair = |dir: &Path| {
        fs::write(dir.join("a"), "copied").unwrap();
        (file(&dir.join("a")), file(&dir.join("b")))
    };
    interrupt("copy", pair, |dir, (from, to)| {
        let copied = copy_file_range(from.as_fd(), None, to.as_fd(), None, 6);
        assert_eq!(copied.unwrap(), 6);
        assert_eq!(fs::read(dir.join("b")).unwrap(), b"copied");
    });
}

/// Requests that change nothing.
pub fn questions() {
    let one = |dir: &Path| {
        fs::write(dir.join("a"), "content").unwrap();
        file(&dir.join("a"))
    };
    interrupt("lookup", drop_path, |dir, ()| {
        assert!(!dir.join("new").exists());
    });
    interrupt("getattr", one, |_, file| {
        // A write makes the kernel ask for the attributes.
        file.write_all_at(b"C", 0).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 7);
    });
    interrupt(
        "readlink",
        |dir| symlink("to", dir.join("l")).unwrap(),
        |dir, ()| assert_eq!(fs::read_link(dir.join("l")).unwrap(), Path::new("to")),
    );
    let marked = |dir: &Path| {
        drop(file(&dir.join("a")));
        setxattr(dir.join("a"), "user.x", b"old", XattrFlags::empty()).unwrap();
    };
    interrupt("getxattr", marked, |dir, ()| {
        let mut value = [0; 3];
        assert_eq!(getxattr(dir.join("a"), "user.x", &mut value).unwrap(), 3);
    });
    interrupt("listxattr", marked, |dir, ()| {
        let mut names = [0; 64];
        assert_eq!(rustix::fs::listxattr(dir.join("a"), &mut names).unwrap(), 7);
    });
    interrupt("readdir", one, |dir, _| {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
    });
    interrupt("space", drop_path, |dir, ()| {
        assert!(rustix::fs::statvfs(dir).unwrap().f_blocks > 0);
    });
    interrupt("seek", one, |_, file| {
        assert_eq!(
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap(),
            7
        );
    });
    interrupt("read", one, |_, file| {
        let mut bytes = [0; 7];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"content");
    });
    interrupt("opened", one, |dir, _| {
        drop(File::open(dir.join("a")).unwrap());
    });
    interrupt("closed", one, |dir, _| {
        drop(File::open(dir.join("a")).unwrap());
        // A close waits for no answer. The next process, which has one thread, gets the question behind the close.
        rustix::fs::statvfs(dir).unwrap();
    });
}
