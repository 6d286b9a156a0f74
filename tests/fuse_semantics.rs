//! The view of programs on a file system that is mounted through FUSE: names, content, rights.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "model/fs.rs"]
mod model;
#[path = "model/mounted.rs"]
mod mounted;

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;

use mounted::{Fixture, NOBODY, drop_caches_until};
use rustix::fs::{AtFlags, CWD, RenameFlags, Timespec, Timestamps, renameat_with, utimensat};
use rustix::io::Errno;

fn read_write(path: std::path::PathBuf) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.open(path).unwrap()
}

#[test]
fn makes_and_removes_every_kind_of_name() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect(
        "mkdir -p a/b; echo hello > a/b/file; ln a/b/file hard; ln -s a/b/file soft
         mkfifo fifo; mknod null c 1 3; mknod loop b 7 0; test -c null; test -b loop; test -p fifo
         echo x > null; test \"$(cat soft)\" = hello; test $(stat -c %h hard) = 2
         mv a/b c; test -f c/file; test $(stat -c %h a) = 2; rm -r a c hard soft fifo null loop
         test -z \"$(ls -A)\"",
    );
    drop_caches_until(|| mount.model.inodes() == 1);
}

#[test]
fn renames_without_replacing_and_by_exchange() {
    let Some(mount) = Fixture::new() else { return };
    fs::write(mount.path("a"), "a").unwrap();
    fs::write(mount.path("b"), "b").unwrap();
    let rename = |flags| renameat_with(CWD, mount.path("a"), CWD, mount.path("b"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(mount.path("a")).unwrap(), "b");
    assert_eq!(fs::read_to_string(mount.path("b")).unwrap(), "a");
}

/// The upper layer of an overlayfs needs whiteouts: without them it takes the mount read-only at best.
#[test]
fn renames_with_a_whiteout() {
    let Some(mount) = Fixture::new() else { return };
    fs::write(mount.path("a"), "a").unwrap();
    fs::write(mount.path("b"), "b").unwrap();
    let rename = |flags| renameat_with(CWD, mount.path("a"), CWD, mount.path("b"), flags);
    rename(RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs::read_to_string(mount.path("b")).unwrap(), "a");
    mount.expect("test -c a; test $(stat -c %t:%T:%a a) = 0:0:0");
    assert_eq!(rename(RenameFlags::WHITEOUT), Err(Errno::EXIST));
}

#[test]
fn is_the_upper_layer_of_an_overlayfs() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect(
        "mkdir upper work lower merged; outside=$(mktemp -d); mkdir $outside/lower $outside/merged
         echo old > $outside/lower/f; echo gone > $outside/lower/g
         mount -t overlay overlay -o lowerdir=$outside/lower,upperdir=upper,workdir=work $outside/merged
         mv $outside/merged/f $outside/merged/h; rm $outside/merged/g
         test \"$(ls $outside/merged)\" = h; test \"$(cat $outside/merged/h)\" = old
         umount $outside/merged; rm -r $outside; test -c upper/f; test -c upper/g",
    );
}

#[test]
fn an_unlinked_open_file_lives_until_it_is_closed() {
    let Some(mount) = Fixture::new() else { return };
    let mut file = read_write(mount.path("f"));
    file.write_all(b"still here").unwrap();
    fs::remove_file(mount.path("f")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
}

#[test]
fn names_of_255_bytes_and_no_longer() {
    let Some(mount) = Fixture::new() else { return };
    File::create(mount.path(&"n".repeat(255))).unwrap();
    let error = File::create(mount.path(&"n".repeat(256))).unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(Errno::NAMETOOLONG.raw_os_error())
    );
}

#[test]
fn times_have_nanoseconds_on_both_sides_of_the_epoch() {
    let Some(mount) = Fixture::new() else { return };
    let path = mount.path("f");
    File::create(&path).unwrap();
    for (tv_sec, tv_nsec) in [(1, 1), (-1, 999_999_999), (-3, 5), (1 << 33, 7)] {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (tv_sec, tv_nsec));
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (tv_sec, tv_nsec));
    }
}

#[test]
fn utimes_can_set_now_and_leave_alone() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect(
        "touch -d @1000.5 f; touch -a f; test $(stat -c %Y f) = 1000; test $(stat -c %X f) -gt 1000",
    );
}

#[test]
fn programs_in_the_mount_run() {
    let Some(mount) = Fixture::new() else { return };
    let printed = mount.expect("cp /bin/echo p; ./p it runs");
    assert_eq!(printed, "it runs");
}

#[test]
fn appenders_never_overwrite_each_other() {
    let Some(mount) = Fixture::new() else { return };
    let path = mount.path("log");
    thread::scope(|scope| {
        for letter in b'a'..b'e' {
            let path = &path;
            scope.spawn(move || {
                let mut log = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .unwrap();
                for _ in 0..200 {
                    log.write_all(&[letter; 100]).unwrap();
                }
            });
        }
    });
    let log = fs::read(&path).unwrap();
    assert_eq!(log.len(), 4 * 200 * 100);
    let (records, _) = log.as_chunks::<100>();
    assert!(records.iter().all(|r| r.iter().all(|byte| *byte == r[0])));
}

#[test]
fn writers_of_one_file_work_side_by_side() {
    const EACH: u64 = 256 * 1024;
    let Some(mount) = Fixture::new() else { return };
    let file = read_write(mount.path("f"));
    file.set_len(8 * EACH).unwrap();
    thread::scope(|scope| {
        for part in 0..8_u8 {
            let file = &file;
            scope.spawn(move || {
                for offset in (0..EACH).step_by(8192) {
                    let at = u64::from(part) * EACH + offset;
                    file.write_all_at(&[part + 1; 8192], at).unwrap();
                }
            });
        }
    });
    let bytes = fs::read(mount.path("f")).unwrap();
    for (part, bytes) in bytes.chunks(usize::try_from(EACH).unwrap()).enumerate() {
        assert!(bytes.iter().all(|byte| usize::from(*byte) == part + 1));
    }
}

#[test]
fn writes_larger_than_one_request_and_direct_ones() {
    let Some(mount) = Fixture::new() else { return };
    let bytes: Vec<u8> = (0..5_000_001_u32).map(|i| (i % 251) as u8).collect();
    fs::write(mount.path("big"), &bytes).unwrap();
    assert_eq!(fs::read(mount.path("big")).unwrap(), bytes);
    mount.expect(
        "dd if=/dev/zero of=direct bs=64k count=8 oflag=direct status=none
         dd if=direct of=copy bs=512 iflag=direct status=none; cmp direct copy",
    );
}

#[test]
fn allocates_punches_zeroes_and_finds_holes() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect(
        "fallocate -l 64K f; test $(stat -c %s f) = 65536
         fallocate -n -o 64K -l 64K f; test $(stat -c %s f) = 65536; test $(stat -c %b f) = 256
         yes | head -c 65536 > f; fallocate -p -o 8192 -l 8192 f
         test $(stat -c %b f) -lt 256; fallocate -z -o 0 -l 4096 f
         test \"$(head -c 4096 f | tr -d '\\0' | wc -c)\" = 0",
    );
    let collapse = mount.sh("fallocate -c -o 0 -l 4096 f");
    assert!(!collapse.status.success());
    let file = File::open(mount.path("f")).unwrap();
    let seek = |from| rustix::fs::seek(&file, from).unwrap();
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), 8192);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(8192)), 16384);
    assert_eq!(
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(65536)),
        Err(Errno::NXIO)
    );
}

/// A change of many pieces would hold all other changes up.
#[test]
fn an_allocation_is_made_in_the_parts_of_the_service() {
    let Some(mount) = Fixture::new() else { return };
    let parts = |script: &str| {
        let before = mount.model.allocations();
        mount.expect(script);
        mount.model.allocations() - before
    };
    assert_eq!(parts("fallocate -l 64K f; test $(stat -c %s f) = 65536"), 4);
    mount.expect(
        "yes | head -c 65536 > f; cp f g; dd if=/dev/zero of=g bs=1K seek=5 count=37 conv=notrunc",
    );
    assert_eq!(parts("fallocate -p -o 5K -l 37K f; cmp f g"), 3);
    assert_eq!(parts("cp g f; fallocate -z -o 5K -l 37K f; cmp f g"), 3);
    assert_eq!(parts("fallocate -n -o 1M -l 1G f"), 1);
    mount.expect("test $(stat -c %s f) = 65536");
}

#[test]
fn copies_within_the_service() {
    let Some(mount) = Fixture::new() else { return };
    let bytes: Vec<u8> = (0..300_000_u32).map(|i| (i % 249) as u8).collect();
    fs::write(mount.path("from"), &bytes).unwrap();
    let from = File::open(mount.path("from")).unwrap();
    let to = read_write(mount.path("to"));
    let (mut at, mut put) = (100, 50);
    let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut put), 200_000);
    assert_eq!(copied, Ok(200_000));
    assert_eq!(
        fs::read(mount.path("to")).unwrap()[50..],
        bytes[100..200_100]
    );
}

#[test]
fn locks_hold_between_processes() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect("touch l; flock l sh -c '! flock -n l true'; flock -n l true");
}

#[test]
fn a_write_by_somebody_else_takes_the_set_id_bits() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect("cp /bin/true p; chmod 6777 p; echo >> p; test $(stat -c %a p) = 6777");
    mount.expect_as(NOBODY, NOBODY, "echo >> p; test $(stat -c %a p) = 777");
}

/// The kernel decides by its cached mode whether and how a program runs.
#[test]
fn a_written_program_does_not_run_with_its_old_set_id_bits() {
    let Some(mount) = Fixture::new() else { return };
    fs::set_permissions(mount.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let before = "cp /usr/bin/id who; chmod 4777 who; ./who -u";
    assert_eq!(mount.expect(before), "0");
    assert_eq!(mount.expect_as(NOBODY, NOBODY, "./who -u"), "0");
    let write = "printf x | dd of=who bs=1 seek=900000 conv=notrunc status=none; exec ./who -u";
    assert_eq!(mount.expect_as(NOBODY, NOBODY, write), NOBODY.to_string());
}

#[test]
fn other_changes_by_somebody_else_take_the_set_id_bits() {
    let Some(mount) = Fixture::new() else { return };
    for change in ["truncate -s 3 p", ": > p", "fallocate -l 9999 p"] {
        mount.expect("echo data > p; chmod 6777 p; truncate -s 9 p; test $(stat -c %a p) = 6777");
        let script = format!("{change}; test $(stat -c %a p) = 777");
        mount.expect_as(NOBODY, NOBODY, &script);
    }
    mount.expect("chmod 6755 p; chown 7:7 p; test $(stat -c %a p) = 755");
}

#[test]
fn a_set_group_id_bit_needs_membership() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect(&format!("touch f; chown {NOBODY}:7 f; chmod 2755 f"));
    mount.expect_as(
        NOBODY,
        NOBODY,
        "setfacl -m u:5:r f; test $(stat -c %a f) = 755",
    );
    mount.expect(&format!(
        "chown {NOBODY}:{NOBODY} f; setfacl -b f; chmod 2755 f"
    ));
    mount.expect_as(
        NOBODY,
        NOBODY,
        "setfacl -m u:5:r f; test $(stat -c %a f) = 2755",
    );
}

#[test]
fn access_lists_give_and_take() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect("echo secret > f; chmod 600 f");
    let peek = || mount.sh_as(NOBODY, NOBODY, "cat f").status.success();
    assert!(!peek());
    mount.expect(&format!("setfacl -m u:{NOBODY}:r f"));
    assert!(peek());
    let list = mount.expect("getfacl -cn f");
    assert!(list.contains(&format!("user:{NOBODY}:r--")), "{list}");
    assert!(list.contains("mask::r--"), "{list}");
    mount.expect("chmod g-r f; test $(stat -c %a f) = 600");
    assert!(!peek());
    mount.expect("setfacl -b f; test $(stat -c %a f) = 600");
}

#[test]
fn a_default_list_counts_instead_of_the_umask() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect(
        "umask 077; mkdir d plain; touch plain/f; test $(stat -c %a plain/f) = 600
         setfacl -d -m u:5:rw,g::r,o::r d; touch d/f; mkdir d/sub
         test $(stat -c %a d/f) = 664; getfacl -cn d/f | grep -q user:5:rw-
         getfacl -cn d/sub | grep -q default:user:5:rw-",
    );
}

/// Asks the kernel for the length of a value, with a buffer of size zero.
fn size_of_value(path: &Path, name: &CStr) -> isize {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: both names are strings, and no byte is written to a buffer of size zero.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) }
}

#[test]
fn extended_attributes_by_the_book() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect(
        "touch f; setfattr -n user.a -v 1 f; setfattr -n trusted.b -v 2 f; chmod 666 f
         test \"$(getfattr --only-values -n user.a f)\" = 1
         getfattr -d -m - f | grep -q trusted.b; setfattr -x user.a f; ! getfattr -n user.a f",
    );
    mount.expect_as(NOBODY, NOBODY, "! getfattr -d -m - f | grep -q trusted.b");
    let path = mount.path("f");
    assert_eq!(size_of_value(&path, c"trusted.b"), 1);
    rustix::fs::setxattr(
        &path,
        "user.long",
        &[7; 500],
        rustix::fs::XattrFlags::CREATE,
    )
    .unwrap();
    let mut short = [0_u8; 10];
    let read = rustix::fs::getxattr(&path, "user.long", &mut short[..]);
    assert_eq!(read, Err(Errno::RANGE));
    let again = rustix::fs::setxattr(&path, "user.long", b"", rustix::fs::XattrFlags::CREATE);
    assert_eq!(again, Err(Errno::EXIST));
    let missing = rustix::fs::setxattr(&path, "user.no", b"", rustix::fs::XattrFlags::REPLACE);
    assert_eq!(missing, Err(Errno::NODATA));
    let huge = rustix::fs::setxattr(
        &path,
        "user.x",
        &vec![0; 65537],
        rustix::fs::XattrFlags::empty(),
    );
    assert_eq!(huge, Err(Errno::TOOBIG));
}

/// The kernel's cache is valid for a day: every change must show all the same.
#[test]
fn attributes_are_never_stale() {
    let Some(mount) = Fixture::new() else { return };
    mount.expect("mkdir d; touch d/f; ln d/f d/g; touch -d @5 d/f d; stat d d/f d/g > /dev/null");
    mount.expect("test $(stat -c %Y d/g) = 5; rm d/f; test $(stat -c %h d/g) = 1");
    mount.expect("test $(stat -c %Y d) -gt 5; touch -d @5 d; mkdir d/x; test $(stat -c %h d) = 3");
    mount.expect("touch -d @5 d; mv d/x x; test $(stat -c %Y d) -gt 5; test $(stat -c %h d) = 2");
    mount.expect("echo 12345 >> d/g; test $(stat -c %s d/g) = 6; test $(stat -c %Y d/g) -gt 5");
    mount.expect("ls nothing || touch nothing; test -f nothing; rm nothing; ! test -e nothing");
    mount.expect("ln -s a s; readlink s; ln -sfn b s; test $(readlink s) = b");
}

#[test]
fn an_anonymous_file_is_refused_as_unsupported() {
    let Some(mount) = Fixture::new() else { return };
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let opened = rustix::fs::open(mount.path(""), flags, rustix::fs::Mode::RUSR);
    assert_eq!(opened.unwrap_err(), Errno::OPNOTSUPP);
}

#[test]
fn shows_the_space_of_the_service() {
    let Some(mount) = Fixture::new() else { return };
    let space = rustix::fs::statvfs(mount.path("")).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, 1 << 40);
    assert_eq!(space.f_namemax, 255);
    assert_eq!(space.f_ffree, 1 << 19);
}

/// Writes by root keep capabilities. This is the only difference from ext4: the kernel does not report those
/// writes.
#[test]
fn capabilities_of_a_file_do_not_outlive_a_change() {
    let Some(mount) = Fixture::new() else { return };
    let give = "setfattr -n security.capability -v 0sAQAAAgAgAAAAAAAAAAAAAAAAAAA= p";
    let gone = "! getfattr -n security.capability p 2>/dev/null";
    mount.expect("echo > p; chmod 777 p");
    for change in ["truncate -s 1 p", "fallocate -l 10 p", "echo x >> p"] {
        mount.expect(give);
        mount.expect_as(NOBODY, NOBODY, &format!("{change}; {gone}"));
    }
    for change in ["chown 5 p", "truncate -s 1 p", "fallocate -l 10 p"] {
        mount.expect(&format!("{give}; {change}; {gone}"));
    }
}

/// The kernel asks for a file system id before it reports handles of a whole file system, and a FUSE mount has none.
#[test]
fn fanotify_watches_files_and_directories_by_handle() {
    let Some(mount) = Fixture::new() else { return };
    let path = CString::new(mount.path("").as_os_str().as_bytes()).unwrap();
    let mark = |class: u32, scope: u32| {
        // SAFETY: no pointers.
        let group = unsafe { libc::fanotify_init(libc::FAN_CLASS_NOTIF | class, 0) };
        assert!(group >= 0, "{}", std::io::Error::last_os_error());
        let flags = libc::FAN_MARK_ADD | scope;
        // SAFETY: the path ends with a NUL.
        let marked =
            unsafe { libc::fanotify_mark(group, flags, libc::FAN_MODIFY, -1, path.as_ptr()) };
        let outcome = (marked == 0).then_some(()).ok_or_else(|| {
            let error = std::io::Error::last_os_error();
            Errno::from_io_error(&error).unwrap()
        });
        // SAFETY: the descriptor is open, and nothing else uses it.
        assert_eq!(unsafe { libc::close(group) }, 0);
        outcome
    };
    let handles = libc::FAN_REPORT_FID;
    assert_eq!(mark(handles, libc::FAN_MARK_INODE), Ok(()));
    for whole in [libc::FAN_MARK_FILESYSTEM, libc::FAN_MARK_MOUNT] {
        assert_eq!(mark(handles, whole), Err(Errno::NODEV));
        assert_eq!(mark(0, whole), Ok(()));
    }
}
