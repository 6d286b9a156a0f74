//! The life of a mount: which mounts are refused, how a mount ends, and that every fault of a mount is reported.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "model/faulty.rs"]
mod faulty;
#[path = "model/forward.rs"]
mod forward;
#[path = "model/fs.rs"]
mod model;
#[path = "model/mounted.rs"]
mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use faulty::Faulty;
use lockstep_driver::client::FileService;
use lockstep_mount::{MountError, MountOptions, Mounted, Unmounted, mount};
use lockstep_types::{FileName, Ino};
use lockstepfs::config::FUSE_THREADS_DEFAULT;
use model::ModelFs;
use mounted::{Fixture, can_mount};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

fn mount_model(path: &Path, name: &str) -> Result<Mounted, MountError> {
    mount(Arc::new(ModelFs::default()), &MountOptions::new(path, name))
}

/// Mounts a model with faults; `None` if this machine cannot mount.
fn mount_faulty() -> Option<(Fixture, Arc<Faulty>)> {
    let mut faulty = None;
    let mount = Fixture::serving(|model| Arc::clone(faulty.insert(Faulty::new(model))))?;
    Some((mount, faulty?))
}

/// Waits until the mount reports an event to its owner.
fn news_of(mounted: &Mounted) -> Result<(), MountError> {
    loop {
        if let Some(news) = mounted.take_event() {
            return news;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn errno(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

/// The kernel may take up an answer that brings or changes an inode after it has dropped its caches. So it keeps no attributes of
/// such an answer. It keeps those that it has asked for.
#[test]
fn the_kernel_keeps_only_attributes_that_it_has_asked_for() {
    let Some((mount, faulty)) = mount_faulty() else {
        return;
    };
    let (made, changed) = (mount.path("made"), mount.path("changed"));
    fs::create_dir(&made).unwrap();
    fs::write(&changed, "").unwrap();
    let lose = |name: &str| {
        let name = FileName::new(name.as_bytes()).unwrap();
        let found = mount.model.lookup(Ino::ROOT, &name).unwrap();
        faulty.lose_attributes(found.ino);
    };
    lose("made");
    let asked = fs::metadata(&made).unwrap_err();
    assert_eq!(errno(&asked), Some(Errno::IO));
    fs::set_permissions(&changed, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(&changed).unwrap().mode() & 0o777, 0o640);
    lose("changed");
    assert_eq!(fs::metadata(&changed).unwrap().mode() & 0o777, 0o640);
    lose("made");
    fs::set_permissions(&changed, fs::Permissions::from_mode(0o600)).unwrap();
    lose("changed");
    let asked = fs::metadata(&changed).unwrap_err();
    assert_eq!(errno(&asked), Some(Errno::IO));
}

#[test]
fn refuses_a_mount_point_that_is_no_directory() {
    if !can_mount() {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let file = outside.path().join("file");
    fs::write(&file, "x").unwrap();
    let not_a_directory = mount_model(&file, "m").unwrap_err();
    assert!(matches!(not_a_directory, MountError::NotADirectory { .. }));
    let below = mount_model(&file.join("below"), "m").unwrap_err();
    assert!(matches!(below, MountError::NotADirectory { .. }));
    let missing = mount_model(&outside.path().join("no"), "m").unwrap_err();
    assert!(matches!(missing, MountError::Missing { .. }));
    assert!(missing.to_string().contains("mkdir -p"), "{missing}");
}

#[test]
fn refuses_to_mount_twice() {
    let Some(mut mount) = Fixture::new() else {
        return;
    };
    let again = mount_model(&mount.path(""), "model").unwrap_err();
    assert!(matches!(again, MountError::Served { .. }));
    let text = again.to_string();
    assert!(text.contains("lockstep:model"), "{text}");
    assert!(
        !text.contains("umount"),
        "that would end the other node's service: {text}"
    );
    let other = mount_model(&mount.path(""), "other").unwrap_err();
    assert!(matches!(other, MountError::AlreadyMounted { .. }));
    assert!(other.to_string().contains("umount"), "{other}");
    assert_eq!(mount.unmount(), Unmounted::Clean);
}

#[test]
fn mounts_over_entries_and_shows_them_again() {
    if !can_mount() {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let hidden = outside.path().join("hidden");
    fs::write(&hidden, "x").unwrap();
    let mounted = mount_model(outside.path(), "m").unwrap();
    assert!(!hidden.exists());
    assert_eq!(mounted.unmount().unwrap(), Unmounted::Clean);
    assert!(hidden.exists());
}

/// Ends the connection as the death of its process would, and leaves the dead mount in place.
fn kill(path: &Path) {
    let busy = File::create(path.join("busy")).unwrap();
    let forced = rustix::mount::unmount(path, UnmountFlags::FORCE);
    assert_eq!(forced, Err(Errno::BUSY));
    let error = fs::metadata(path).unwrap_err();
    assert_eq!(errno(&error), Some(Errno::NOTCONN));
    drop(busy);
}

#[test]
fn clears_its_own_dead_mount_away_but_no_other() {
    if !can_mount() {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let first = mount_model(outside.path(), "mine").unwrap();
    kill(outside.path());
    news_of(&first).unwrap();
    let other = mount_model(outside.path(), "other").unwrap_err();
    assert!(matches!(other, MountError::Dead { .. }));
    assert!(other.to_string().contains("umount -l"), "{other}");
    let second = mount_model(outside.path(), "mine").unwrap();
    fs::write(outside.path().join("f"), "alive").unwrap();
    assert_eq!(second.unmount().unwrap(), Unmounted::Clean);
    assert_eq!(first.unmount().unwrap(), Unmounted::Clean);
}

#[test]
fn a_busy_mount_is_detached() {
    let Some(mut mount) = Fixture::new() else {
        return;
    };
    let file = File::create(mount.path("f")).unwrap();
    file.write_at(b"before", 0).unwrap();
    assert_eq!(mount.unmount(), Unmounted::Detached);
    assert!(!mount.path("f").exists());
    let error = file.write_at(b"after", 0).unwrap_err();
    assert_eq!(errno(&error), Some(Errno::IO));
}

#[test]
fn the_end_of_a_mount_is_reported() {
    let Some(mut mount) = Fixture::new() else {
        return;
    };
    rustix::mount::unmount(mount.path(""), UnmountFlags::empty()).unwrap();
    news_of(mount.mounted()).unwrap();
    assert_eq!(mount.unmount(), Unmounted::Clean);
}

#[test]
fn dropping_unmounts() {
    if !can_mount() {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    drop(mount_model(outside.path(), "m").unwrap());
    drop(mount_model(outside.path(), "m").unwrap());
}

#[test]
fn a_panic_costs_one_request_and_is_reported() {
    let Some((mount, _)) = mount_faulty() else {
        return;
    };
    std::os::unix::fs::symlink("target", mount.path("link")).unwrap();
    let error = fs::read_link(mount.path("link")).unwrap_err();
    assert_eq!(errno(&error), Some(Errno::IO));
    let reported = news_of(mount.mounted()).unwrap_err();
    assert!(matches!(
        reported,
        MountError::Panicked {
            operation: "readlink",
            ..
        }
    ));
    fs::write(mount.path("f"), "still works").unwrap();
}

#[test]
fn an_operation_that_never_answers_fails() {
    let Some((mount, _)) = mount_faulty() else {
        return;
    };
    let file = File::create(mount.path("f")).unwrap();
    let error = file.sync_all().unwrap_err();
    assert_eq!(errno(&error), Some(Errno::IO));
}

/// A program that compares listings, such as a backup, takes a missing name for a removed one.
#[test]
fn a_name_whose_attributes_cannot_be_read_is_listed_or_the_listing_fails() {
    let Some((mount, service)) = mount_faulty() else {
        return;
    };
    for count in [1, 20] {
        let directory = mount.path(&format!("with {count}"));
        fs::create_dir(&directory).unwrap();
        let made = (0..count).map(|number| {
            let file = File::create(directory.join(number.to_string())).unwrap();
            file.metadata().unwrap().ino()
        });
        let inos: Vec<u64> = made.collect();
        let lost = Ino::new(inos[count / 2]).unwrap();
        service.lose_attributes(lost);
        let listed = fs::read_dir(&directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        match listed {
            Ok(entries) => assert_eq!(entries.len(), count),
            Err(error) => assert_eq!(errno(&error), Some(Errno::IO)),
        }
    }
}

/// A program requests durability by an open flag, or for one write alone.
#[test]
fn synchronous_writes_are_durable() {
    let Some((mount, service)) = mount_faulty() else {
        return;
    };
    fs::write(mount.path("f"), "not durable").unwrap();
    assert_eq!(service.durable(), 0);
    for (count, flag) in [(1, libc::O_DSYNC), (2, libc::O_SYNC)] {
        let mut options = OpenOptions::new();
        let file = options.write(true).custom_flags(flag).open(mount.path("f"));
        // A sync fails here, so the write itself must be durable.
        let _ = file.unwrap().write_at(b"durable", 0);
        assert_eq!(service.durable(), count);
    }
    let file = OpenOptions::new()
        .write(true)
        .open(mount.path("f"))
        .unwrap();
    let bytes = [io::IoSlice::new(b"durable")];
    let _ = rustix::io::pwritev2(&file, &bytes, 0, rustix::io::ReadWriteFlags::DSYNC);
    assert_eq!(service.durable(), 3);
}

/// Each thread of the mount has a write, and one more waits in the kernel.
#[test]
fn a_write_learns_whether_requests_wait() {
    let Some((mount, service)) = mount_faulty() else {
        return;
    };
    let file = File::create(mount.path("f")).unwrap();
    file.set_len(64 * 4096).unwrap();
    service.await_followers();
    thread::scope(|scope| {
        for at in 0..=FUSE_THREADS_DEFAULT as u64 {
            let file = &file;
            scope.spawn(move || file.write_all_at(&[1; 4096], at * 4096).unwrap());
        }
    });
    // The kernel's own requests may come in between.
    service.saw_no_follower();
    let mut lone = (0..100).map(|_| {
        file.write_all_at(&[1; 4096], 0).unwrap();
        service.saw_no_follower()
    });
    assert!(lone.any(|saw_nothing| saw_nothing));
}

/// A write that was deferred for coalescing must not wait until another request is done.
#[test]
fn every_other_request_flushes_deferred_writes() {
    let Some((mount, service)) = mount_faulty() else {
        return;
    };
    let path = mount.path("f");
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    let file = options.open(&path).unwrap();
    file.write_all_at(b"first", 0).unwrap();
    let before = service.non_writes();
    for _ in 0..10 {
        file.write_all_at(b"again", 0).unwrap();
    }
    assert!(service.non_writes() < before + 10);
    let asks: [(&str, &dyn Fn()); 7] = [
        ("read", &|| {
            file.read_at(&mut [0; 5], 0).unwrap();
        }),
        ("truncate", &|| file.set_len(3).unwrap()),
        ("open", &|| drop(File::open(&path).unwrap())),
        ("fallocate", &|| {
            let size = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&file, size, 0, 4096).unwrap();
        }),
        ("lookup", &|| drop(fs::metadata(mount.path("none")))),
        ("ioctl", &|| {
            rustix::fs::ioctl_getflags(&file).unwrap();
        }),
        ("statfs", &|| drop(rustix::fs::statvfs(&path))),
    ];
    for (name, ask) in asks {
        let before = service.non_writes();
        ask();
        assert!(service.non_writes() > before, "{name}");
    }
}

/// Four times as many writes wait as there are threads, and all other requests are answered.
#[test]
fn waiting_writes_hold_no_other_request_up() {
    let Some((mount, service)) = mount_faulty() else {
        return;
    };
    fs::write(mount.path("other"), "readable").unwrap();
    let file = File::create(mount.path("f")).unwrap();
    file.set_len(32 * 4096).unwrap();
    service.hold_writes();
    let finished = AtomicUsize::new(0);
    thread::scope(|scope| {
        for at in 0..32_u8 {
            let (file, finished) = (&file, &finished);
            scope.spawn(move || {
                let offset = u64::from(at) * 4096;
                file.write_all_at(&[at; 4096], offset).unwrap();
                finished.fetch_add(1, Ordering::SeqCst);
            });
        }
        while service.waiting() < 32 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(fs::read_to_string(mount.path("other")).unwrap(), "readable");
        fs::create_dir(mount.path("directory")).unwrap();
        assert_eq!(finished.load(Ordering::SeqCst), 0);
        service.resume();
    });
    let bytes = fs::read(mount.path("f")).unwrap();
    let (blocks, _) = bytes.as_chunks::<4096>();
    assert!(
        (0..32_u8)
            .zip(blocks)
            .all(|(at, block)| *block == [at; 4096])
    );
}

#[test]
fn the_mount_says_that_reading_changes_no_access_time() {
    let Some(mount) = Fixture::new() else { return };
    let flags = rustix::fs::statvfs(mount.path("")).unwrap().f_flag;
    assert!(
        flags.contains(rustix::fs::StatVfsMountFlags::NOATIME),
        "{flags:?}"
    );
    let accessed = || fs::metadata(mount.path("f")).unwrap().atime();
    mount.expect("echo x > f; touch -a -d @5 f; cat f");
    assert_eq!(accessed(), 5);
}

/// The answer to the look of another program has the old size, and reaches the kernel after the read. The writer has no answer yet.
#[test]
fn a_size_is_not_smaller_than_what_a_read_has_shown_before() {
    let Some((mount, service)) = mount_faulty() else {
        return;
    };
    fs::write(mount.path("f"), "old").unwrap();
    let [reader, writer] = [(); 2].map(|()| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .open(mount.path("f"))
            .unwrap()
    });
    let size = || reader.metadata().unwrap().len();
    thread::scope(|scope| {
        let mut look = None;
        service.hold_attributes(|| look = Some(scope.spawn(size)));
        service.hold_answers(|| {
            scope.spawn(|| writer.write_all_at(b"new", 3).unwrap());
        });
        let mut bytes = [0; 10];
        assert_eq!(reader.read_at(&mut bytes, 0).unwrap(), 6);
        service.give_attributes();
        assert_eq!(look.unwrap().join().unwrap(), 3);
        assert_eq!(size(), 6);
        service.give_answers();
    });
    assert_eq!(size(), 6);
}

/// The kernel marks attributes as valid a moment before it takes the size from them. A program that looks in this moment sees the
/// size before, unless the kernel keeps none of the attributes.
#[test]
fn the_kernel_keeps_no_attributes_of_a_file_that_grows() {
    let Some((mount, service)) = mount_faulty() else {
        return;
    };
    let file = File::create(mount.path("f")).unwrap();
    let asks = || {
        let before = service.non_writes();
        file.metadata().unwrap();
        service.non_writes() - before
    };
    // On a busy machine a second may pass between the write and the second look.
    let is_asked_twice = || {
        (&file).write_all(b"x").unwrap();
        [asks(), asks()] == [1, 1]
    };
    assert!((0..30).any(|_| is_asked_twice()));
}
