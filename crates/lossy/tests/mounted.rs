//! The mounted disk behaves as the model in memory, and forgets the same changes.
//!
//! Needs root and /dev/fuse, as all mounts do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // Tests may panic.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockstep_fs::os_backing::OsBacking;
use lockstep_lossy::Lossy;
use lockstep_lossy::disk::{CallClass, Disk, DiskOptions, Survivors};
use lockstep_lossy::random::Random;
use lockstep_types::Errno;
use lockstep_types::backing::{Backing, BackingFile};
use tempfile::TempDir;

/// A disk mounted on a directory, which is removed with the mount.
struct Place {
    lossy: Lossy,
    dir: TempDir,
}

impl Place {
    /// `None` if the machine does not let a test mount.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: needs root and /dev/fuse");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("lsl.").tempdir().unwrap();
        let lossy = Lossy::mount(dir.path()).unwrap();
        Some(Self { lossy, dir })
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn open(&self, path: &str) -> File {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true);
        options.open(self.at(path)).unwrap()
    }

    fn sync_directory(&self, path: &str) {
        File::open(self.at(path)).unwrap().sync_all().unwrap();
    }

    fn backing(&self) -> OsBacking {
        OsBacking::open(self.dir.path()).unwrap()
    }

    /// Loses all unsynced changes.
    fn forget(&mut self) {
        let mut random = Random::new(0);
        let done = self.lossy.lose_power_with(Survivors::Nothing, &mut random);
        done.unwrap();
    }
}

#[test]
fn content_that_was_not_synced_is_forgotten() {
    let Some(mut place) = Place::new() else {
        return;
    };
    let file = place.open("file");
    file.write_all_at(b"kept", 0).unwrap();
    file.sync_data().unwrap();
    place.sync_directory("");
    file.write_all_at(b"lost and longer", 0).unwrap();
    assert_eq!(fs::read(place.at("file")).unwrap(), b"lost and longer");
    drop(file);
    place.forget();
    assert_eq!(fs::read(place.at("file")).unwrap(), b"kept");
}

#[test]
fn a_synced_file_without_a_synced_name_is_forgotten() {
    let Some(mut place) = Place::new() else {
        return;
    };
    fs::create_dir(place.at("d")).unwrap();
    let file = place.open("d/file");
    file.write_all_at(b"kept", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    place.forget();
    assert!(!place.at("d").exists());
}

#[test]
fn a_renaming_is_forgotten_until_the_directory_is_synced() {
    let Some(mut place) = Place::new() else {
        return;
    };
    for (name, content) in [("old", b"1"), ("new", b"2")] {
        let file = place.open(name);
        file.write_all_at(content, 0).unwrap();
        file.sync_all().unwrap();
    }
    place.sync_directory("");
    fs::rename(place.at("new"), place.at("old")).unwrap();
    assert_eq!(fs::read(place.at("old")).unwrap(), b"2");
    place.forget();
    assert_eq!(fs::read(place.at("old")).unwrap(), b"1");
    assert_eq!(fs::read(place.at("new")).unwrap(), b"2");
    fs::rename(place.at("new"), place.at("old")).unwrap();
    place.sync_directory("");
    place.forget();
    assert_eq!(fs::read(place.at("old")).unwrap(), b"2");
    assert!(!place.at("new").exists());
}

#[test]
fn a_directory_can_be_removed_and_made_anew() {
    let Some(mut place) = Place::new() else {
        return;
    };
    let backing = place.backing();
    let make = |path: &str| backing.open_or_create(path).map(drop).unwrap();
    make("d/e/f");
    backing.sync_dir("d/e").unwrap();
    let open = File::open(place.at("d/e")).unwrap();
    assert!(!backing.remove_empty_dir("d/e").unwrap());
    backing.remove("d/e/f").unwrap();
    assert!(backing.remove_empty_dir("d/e").unwrap());
    assert!(!place.at("d/e").exists());
    open.sync_all().unwrap();
    drop(open);
    make("d/e/g");
    assert_eq!(backing.list("d/e").unwrap(), ["g"]);
    backing.sync_dir("d/e").unwrap();
    drop(backing);
    place.forget();
    assert_eq!(place.backing().list("d/e").unwrap(), ["g"]);
    let backing = place.backing();
    backing.remove("d/e/g").unwrap();
    assert!(backing.remove_empty_dir("d/e").unwrap());
    backing.sync_dir("d/e").unwrap();
    drop(backing);
    place.forget();
    assert!(place.at("d").exists() && !place.at("d/e").exists());
}

/// Writes the stored pages of a file back, and syncs nothing. The end of a mapping waits for the pages with the memory
/// of the process locked, and the threads of the mount are of the same process: they could need that lock.
fn write_back(path: &Path) {
    let file = File::open(path).unwrap();
    let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes no pointer, and the descriptor is open.
    let written = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
    assert_eq!(written, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn what_is_stored_in_a_table_is_seen_and_forgotten_until_it_is_synced() {
    let Some(mut place) = Place::new() else {
        return;
    };
    let backing = place.backing();
    let table = backing.open_table("table", 8192).unwrap();
    let file = backing.open("table").unwrap();
    backing.sync_dir("").unwrap();
    table.store(4096, b"kept");
    file.sync().unwrap();
    table.store(4096, b"lost");
    table.store(0, b"lost");
    let mut seen = [0; 4];
    file.read_at(4096, &mut seen).unwrap();
    assert_eq!(&seen, b"lost", "mapping and file are one");
    write_back(&place.at("table"));
    drop((table, file, backing));
    place.forget();
    let after = fs::read(place.at("table")).unwrap();
    assert_eq!(after.len(), 8192);
    assert_eq!(
        (&after[..4], &after[4096..4100]),
        (&[0; 4][..], &b"kept"[..])
    );
}

#[test]
fn what_is_stored_in_a_table_may_survive_the_loss() {
    let Some(mut place) = Place::new() else {
        return;
    };
    let backing = place.backing();
    let table = backing.open_table("table", 4096).unwrap();
    table.store(0, b"there");
    write_back(&place.at("table"));
    drop((table, backing));
    let mut random = Random::new(0);
    let everything = Survivors::Everything;
    place
        .lossy
        .lose_power_with(everything, &mut random)
        .unwrap();
    assert_eq!(&fs::read(place.at("table")).unwrap()[..5], b"there");
}

#[test]
fn a_sync_of_the_file_system_saves_everything() {
    let Some(mut place) = Place::new() else {
        return;
    };
    let sync = |place: &Place| {
        let mut command = Command::new("sync");
        let mut child = place
            .lossy
            .spawn(command.arg("-f").arg(place.dir.path()))
            .unwrap();
        assert!(child.wait().unwrap().success());
    };
    fs::create_dir(place.at("d")).unwrap();
    let file = place.open("d/file");
    file.write_all_at(b"kept", 0).unwrap();
    let backing = place.backing();
    let table = backing.open_table("d/table", 4096).unwrap();
    table.store(0, b"kept");
    sync(&place);
    file.write_all_at(b"lost", 0).unwrap();
    drop((file, table, backing));
    place.forget();
    assert_eq!(fs::read(place.at("d/file")).unwrap(), b"kept");
    assert_eq!(&fs::read(place.at("d/table")).unwrap()[..4], b"kept");
}

#[test]
fn other_file_systems_are_synced_by_the_kernel() {
    let Some(place) = Place::new() else { return };
    place.open("file");
    let unsynced = place.lossy.disk().unsynced();
    let mut command = Command::new("sync");
    let mut child = place.lossy.spawn(command.args(["-f", "/proc"])).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(place.lossy.disk().unsynced(), unsynced);
}

#[test]
fn power_is_not_lost_under_those_who_have_files_open() {
    let Some(mut place) = Place::new() else {
        return;
    };
    let mut child = Command::new("sleep")
        .arg("600")
        .current_dir(place.dir.path())
        .spawn()
        .unwrap();
    let mut random = Random::new(0);
    let busy = place.lossy.lose_power(&mut random).unwrap_err();
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy);
    child.kill().unwrap();
    child.wait().unwrap();
    place.lossy.lose_power(&mut random).unwrap();
}

/// A call that fails on the disk fails for the process that made it.
#[test]
fn calls_fail_as_they_were_told_to() {
    let Some(place) = Place::new() else { return };
    let is_eio = |error: std::io::Error| assert_eq!(error.raw_os_error(), Some(5));
    let disk = place.lossy.disk();
    let file = place.open("file");
    disk.fail_call(CallClass::Write, 2, Errno::Io);
    file.write_all_at(b"there", 0).unwrap();
    is_eio(file.write_all_at(b"not", 0).unwrap_err());
    file.write_all_at(b"again", 0).unwrap();
    disk.fail_call(CallClass::Name, 1, Errno::Io);
    is_eio(fs::create_dir(place.at("d")).unwrap_err());
    fs::create_dir(place.at("d")).unwrap();
    disk.fail_call(CallClass::Read, 1, Errno::Io);
    is_eio(file.read_exact_at(&mut [0; 5], 0).unwrap_err());
    file.read_exact_at(&mut [0; 5], 0).unwrap();
    disk.fail_calls(CallClass::Sync, Errno::Io);
    for _ in 0..3 {
        is_eio(file.sync_all().unwrap_err());
        is_eio(
            File::open(place.dir.path())
                .unwrap()
                .sync_all()
                .unwrap_err(),
        );
        let mut command = Command::new("sync");
        let command = command.arg("-f").arg(place.dir.path());
        assert!(
            !place
                .lossy
                .spawn(command)
                .unwrap()
                .wait()
                .unwrap()
                .success()
        );
    }
    disk.stop_failing();
    file.sync_all().unwrap();
}

/// Reads show the changes that a failed sync gave up, as long as the kernel caches them.
#[test]
fn what_a_failed_sync_has_lost_goes_with_the_cache() {
    let Some(place) = Place::new() else { return };
    let file = place.open("file");
    file.write_all_at(b"kept", 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"lost", 0).unwrap();
    place.lossy.disk().fail_call(CallClass::Sync, 1, Errno::Io);
    file.sync_all().unwrap_err();
    file.sync_all().unwrap();
    let seen = || fs::read(place.at("file")).unwrap();
    assert_eq!(seen(), b"lost");
    place.lossy.disk().drop_lost_pages();
    assert_eq!(seen(), b"lost");
    drop(file);
    place.backing().forget_cached().unwrap();
    assert_eq!(seen(), b"kept");
}

/// The kernel reports a failed write once to the next sync of the file, and once to the next sync of the file
/// system. After the kernel has dropped the lost pages, no sync may report that failure again.
#[test]
fn what_was_forgotten_does_not_count_as_a_failure_again() {
    let Some(place) = Place::new() else { return };
    let backing = place.backing();
    let table = backing.open_table("table", 4096).unwrap();
    table.store(0, b"lost");
    place.lossy.disk().fail_calls(CallClass::Write, Errno::Io);
    // The kernel does the same by itself after some time: it writes the pages, and no call learns the
    // outcome.
    drop((table, backing));
    let written = Command::new("sync").status().unwrap();
    assert!(written.success());
    place.lossy.disk().stop_failing();
    let backing = place.backing();
    backing.forget_cached().unwrap();
    let file = backing.open("table").unwrap();
    file.sync().unwrap();
    backing.sync_all().unwrap();
    let mut seen = [1; 4];
    file.read_at(0, &mut seen).unwrap();
    assert_eq!(seen, [0; 4]);
}

#[test]
fn mounted_anew_it_shows_what_it_has() {
    let Some(mut place) = Place::new() else {
        return;
    };
    let file = place.open("file");
    file.write_all_at(b"kept", 0).unwrap();
    file.sync_all().unwrap();
    place.sync_directory("");
    file.write_all_at(b"lost", 0).unwrap();
    place.open("lost");
    place.lossy.disk().fail_call(CallClass::Sync, 2, Errno::Io);
    file.sync_all().unwrap();
    file.write_all_at(b"more", 4096).unwrap();
    file.sync_all().unwrap_err();
    place.lossy.disk().fail_call(CallClass::Sync, 1, Errno::Io);
    let top = File::open(place.dir.path()).unwrap();
    top.sync_all().unwrap_err();
    top.sync_all().unwrap();
    place.open("saved");
    drop((top, file));
    place.lossy.remount().unwrap();
    assert_eq!(fs::read(place.at("file")).unwrap(), b"lost");
    assert!(!place.at("lost").exists());
    assert!(place.at("saved").exists());
}

#[test]
fn syncs_of_one_file_can_be_held_alone() {
    let Some(place) = Place::new() else { return };
    let (file, other) = (place.open("file"), place.open("other"));
    file.write_all_at(b"held", 0).unwrap();
    other.write_all_at(b"kept", 0).unwrap();
    place.lossy.hold_syncs_of("file");
    std::thread::scope(|scope| {
        let held = scope.spawn(|| file.sync_all());
        while place.lossy.held_syncs() < 1 {
            std::thread::yield_now();
        }
        other.sync_all().unwrap();
        assert!(!held.is_finished());
        place.lossy.release_syncs();
        held.join().unwrap().unwrap();
    });
    assert_eq!(place.lossy.held_syncs(), 0);
}

#[test]
fn syncs_that_are_held_wait_and_all_else_goes_on() {
    let Some(place) = Place::new() else { return };
    let (file, other) = (place.open("file"), place.open("other"));
    file.write_all_at(b"kept", 0).unwrap();
    place.lossy.hold_syncs();
    let mut command = Command::new("sync");
    let command = command.arg("-f").arg(place.dir.path());
    let mut sync = place.lossy.spawn(command).unwrap();
    std::thread::scope(|scope| {
        let one = scope.spawn(|| file.sync_all());
        // More syncs than there are threads that take requests.
        let more: Vec<_> = (0..8).map(|_| scope.spawn(|| other.sync_all())).collect();
        // The kernel runs one sync of a file at a time.
        while place.lossy.held_syncs() < 3 {
            std::thread::yield_now();
        }
        assert!(place.lossy.disk().unsynced() > 0);
        fs::write(place.at("third"), b"x").unwrap();
        assert_eq!(fs::read(place.at("file")).unwrap(), b"kept");
        assert!(!one.is_finished() && sync.try_wait().unwrap().is_none());
        place.lossy.release_syncs();
        one.join().unwrap().unwrap();
        for other in more {
            other.join().unwrap().unwrap();
        }
    });
    assert!(sync.wait().unwrap().success());
    assert_eq!(place.lossy.held_syncs(), 0);
}

/// Does a random change of a disk. A store syncs a directory together with all directories above it.
fn change(backing: &dyn Backing, sync_directory: &dyn Fn(&str), random: &mut Random) {
    const PATHS: [&str; 5] = ["a", "d/b", "d/c", "d/e/f", "g"];
    let path = *random.pick(&PATHS);
    let (offset, length) = (random.below(20_000), 1 + random.below(9000));
    let file = || backing.open_or_create(path).unwrap();
    match random.below(11) {
        0..3 => {
            let bytes = random.any().to_le_bytes();
            let data: Vec<u8> = bytes
                .into_iter()
                .cycle()
                .take(usize::try_from(length).unwrap())
                .collect();
            file().write_at(offset, &data).unwrap();
        }
        3 => file().set_len(offset).unwrap(),
        4 => file().allocate(offset, length, offset % 2 == 0).unwrap(),
        5 => file().punch_hole(offset, length).unwrap(),
        6 => file().zero_range(offset, length, offset % 2 == 0).unwrap(),
        7 => file().sync().unwrap(),
        8 => {
            let _ = backing.remove(path);
        }
        9 => {
            // Other directories may not exist yet.
            if backing.exists("d/b").unwrap() {
                backing.rename("d/b", "d/c").unwrap();
            }
        }
        _ => {
            if backing.exists("d/e").unwrap() {
                let path = if random.percent(50) { "d" } else { "d/e" };
                sync_directory(path);
            }
        }
    }
}

fn contents(disk: &Disk) -> Vec<(String, Option<Vec<u8>>)> {
    let files = disk.files().into_iter();
    files
        .map(|path| (path.clone(), disk.read_all(&path)))
        .collect()
}

fn holes(file: &dyn BackingFile) -> Vec<u64> {
    let mut found = Vec::new();
    let mut at = Some(0);
    while let Some(data) = at.and_then(|at| file.seek_data(at).unwrap()) {
        at = file.seek_hole(data).unwrap();
        found.extend([Some(data), at].into_iter().flatten());
    }
    found
}

/// The same calls, through the kernel and without it, leave the same disk, before a loss and after a loss.
#[test]
fn the_kernel_sees_what_the_model_says() {
    for seed in 0..20 {
        let Some(mut place) = Place::new() else {
            return;
        };
        let model = Disk::new(DiskOptions {
            capacity_bytes: 1 << 30,
            capacity_files: 1 << 10,
        });
        let mut random = Random::new(seed);
        for _ in 0..10 {
            let (mounted, plain) = (place.backing(), model.mount());
            for _ in 0..15 {
                let mut same = random.clone();
                change(&mounted, &|path| place.sync_directory(path), &mut random);
                let sync_directory = |path: &str| plain.sync_dir(path).unwrap();
                change(plain.as_ref(), &sync_directory, &mut same);
            }
            assert_eq!(contents(place.lossy.disk()), contents(&model), "{seed}");
            for path in model.files() {
                let [one, other] = [mounted.open(&path), plain.open(&path)].map(Result::unwrap);
                assert_eq!(one.stat().unwrap(), other.stat().unwrap(), "{seed} {path}");
                assert_eq!(holes(&*one), holes(&*other), "{seed} {path}");
            }
            drop((mounted, plain));
            place.forget();
            model.power_loss_with(Survivors::Nothing, &mut Random::new(0));
            assert_eq!(contents(place.lossy.disk()), contents(&model), "{seed}");
        }
    }
}
