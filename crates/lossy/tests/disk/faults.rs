//! Disks that are full, refuse, forget and rot.

use lockstep_lossy::disk::CallClass;
use lockstep_types::Errno;

use super::*;

const ENOSPC: Option<i32> = Some(28);
const EIO: Option<i32> = Some(5);

fn small(pages: u64, files: u64) -> DiskOptions {
    DiskOptions {
        capacity_bytes: pages * PAGE_BYTES,
        capacity_files: files,
    }
}

#[test]
fn a_disk_gets_full_in_the_middle_of_a_write_and_empty_again() {
    let disk = Disk::new(small(3, 10));
    let backing = disk.mount();
    let file = backing.open_or_create("f").unwrap();
    let error = file
        .write_at(PAGE_BYTES / 2, &vec![1; 4 * PAGE])
        .unwrap_err();
    assert_eq!(error.raw_os_error(), ENOSPC);
    assert_eq!(file.stat().unwrap().length, 3 * PAGE_BYTES);
    assert_eq!(backing.space().unwrap().free_bytes, 0);
    file.write_at(0, &vec![2; 3 * PAGE]).unwrap();
    assert!(file.write_at(3 * PAGE_BYTES, b"x").is_err());

    disk.set_capacity(small(4, 10));
    file.write_at(3 * PAGE_BYTES, b"x").unwrap();
    disk.set_capacity(small(1, 10));
    assert_eq!(backing.space().unwrap().free_bytes, 0);
    file.set_len(0).unwrap();
    file.write_at(0, b"x").unwrap();
    assert!(file.write_at(PAGE_BYTES, b"x").is_err());
}

/// As on ext4: space that was reserved before the disk was full stays reserved.
#[test]
fn a_full_disk_keeps_what_was_reserved_before() {
    let disk = Disk::new(small(4, 10));
    let backing = disk.mount();
    let file = backing.open_or_create("f").unwrap();
    file.write_at(0, b"x").unwrap();
    let full = file.zero_range(0, 5 * PAGE_BYTES, false);
    assert_eq!(full.unwrap_err().raw_os_error(), ENOSPC);
    assert_eq!(file.stat().unwrap().blocks, 8);
    for full in [
        file.allocate(0, 1 << 40, true),
        file.allocate(0, 5 * PAGE_BYTES, false),
    ] {
        assert_eq!(full.unwrap_err().raw_os_error(), ENOSPC);
        let stat = file.stat().unwrap();
        assert_eq!((stat.length, stat.blocks), (1, 32));
    }
    assert_eq!(bytes(&disk, "f"), b"x");
    file.write_at(0, &vec![1; 4 * PAGE]).unwrap();
    assert_eq!(
        backing.open_table("t", 1).err().unwrap().raw_os_error(),
        ENOSPC
    );
}

#[test]
fn a_disk_runs_out_of_files() {
    let disk = Disk::new(small(10, 3));
    let backing = disk.mount();
    backing.open_or_create("d/a").unwrap();
    backing.open_or_create("d/b").unwrap();
    let full = backing.open_or_create("c").err().unwrap();
    assert_eq!(full.raw_os_error(), ENOSPC);
    assert_eq!(backing.space().unwrap().free_files, 0);
    backing.remove("d/a").unwrap();
    backing.open_or_create("c").unwrap();
}

#[test]
fn the_chosen_call_of_a_class_fails_without_effect() {
    let (disk, backing, file) = with_file();
    disk.fail_call(CallClass::Write, 2, Errno::Io);
    disk.fail_call(CallClass::Name, 1, Errno::NoSpace);
    file.write_at(0, b"one").unwrap();
    assert_eq!(file.write_at(0, b"two").unwrap_err().raw_os_error(), EIO);
    assert_eq!(
        backing.remove("f").unwrap_err().raw_os_error(),
        ENOSPC,
        "of another class"
    );
    assert_eq!(bytes(&disk, "f"), b"one");
    file.write_at(0, b"two").unwrap();

    disk.fail_call(CallClass::Read, 1, Errno::Io);
    disk.fail_call(CallClass::Look, 1, Errno::Io);
    assert_eq!(file.read_at(0, &mut [0]).unwrap_err().raw_os_error(), EIO);
    assert_eq!(backing.exists("f").unwrap_err().raw_os_error(), EIO);
    assert!(backing.exists("f").unwrap());
    assert_eq!(file.read_at(0, &mut [0]).unwrap(), 1);
}

#[test]
fn faults_of_one_class_count_each_for_itself() {
    let (disk, _, file) = with_file();
    for nth in [1, 3] {
        disk.fail_call(CallClass::Sync, nth, Errno::Io);
    }
    let results: Vec<bool> = (0..5).map(|_| file.sync().is_ok()).collect();
    assert_eq!(results, [false, true, false, true, true]);
}

/// As on Linux: the failure is reported once, and the pages are clean from then on, seen, and not on the
/// disk.
#[test]
fn what_a_failed_sync_should_have_saved_is_lost_and_told_once() {
    let (disk, _, file) = with_file();
    file.write_at(0, &vec![1; 2 * PAGE]).unwrap();
    file.sync().unwrap();
    file.write_at(0, &vec![2; 3 * PAGE]).unwrap();
    disk.fail_call(CallClass::Sync, 1, Errno::Io);
    assert_eq!(file.sync().unwrap_err().raw_os_error(), EIO);
    assert_eq!(bytes(&disk, "f"), [2; 3 * PAGE], "seen");
    file.sync().unwrap();
    assert!(disk.unsynced() > 0);
    for survivors in [Survivors::Nothing, Survivors::Everything] {
        assert_eq!(
            bytes(&disk.after_power_loss(survivors, 1), "f"),
            [1; 2 * PAGE]
        );
    }

    // A page that is changed again is dirty again, and is saved whole.
    file.write_at(10, b"x").unwrap();
    file.write_at(3 * PAGE_BYTES, b"y").unwrap();
    file.sync().unwrap();
    let left = bytes(&disk.after_power_loss(Survivors::Everything, 1), "f");
    assert_eq!(left.len(), 3 * PAGE + 1);
    assert_eq!((left[9], left[10], left[PAGE]), (2, b'x', 1));
    assert_eq!(left[2 * PAGE..3 * PAGE], [0; PAGE]);
}

#[test]
fn what_a_failed_sync_gave_up_survives_the_end_of_the_process() {
    let (disk, _, file) = with_file();
    file.write_at(0, b"lost").unwrap();
    disk.fail_call(CallClass::Sync, 1, Errno::Io);
    file.sync().unwrap_err();
    disk.kill();
    let next = disk.mount();
    next.open("f").unwrap().sync().unwrap();
    assert_eq!(bytes(&disk, "f"), b"lost");
    assert_eq!(
        bytes(&disk.after_power_loss(Survivors::Everything, 1), "f"),
        b""
    );
}

#[test]
fn a_failed_sync_of_a_directory_loses_its_names() {
    let (disk, backing) = mounted();
    backing.open_or_create("d/a").unwrap();
    disk.fail_call(CallClass::Sync, 1, Errno::Io);
    backing.sync_dir("d").unwrap_err();
    backing.sync_dir("d").unwrap();
    assert_eq!(disk.files(), ["d/a"]);
    let left = |disk: &Disk| disk.after_power_loss(Survivors::Everything, 1).files();
    assert!(left(&disk).is_empty());
    // A later name in that directory needs the directory, which is saved with the name.
    backing.open_or_create("d/b").unwrap();
    backing.sync_dir("d").unwrap();
    assert_eq!(left(&disk), ["d/b"]);
    backing.rename("d/a", "d/c").unwrap();
    backing.sync_dir("d").unwrap();
    assert_eq!(left(&disk), ["d/b", "d/c"]);
}

#[test]
fn a_failed_sync_of_everything_loses_everything() {
    let (disk, backing, file) = with_file();
    file.write_at(0, b"lost").unwrap();
    backing.open_or_create("g").unwrap();
    disk.fail_call(CallClass::Sync, 1, Errno::Io);
    backing.sync_all().unwrap_err();
    backing.sync_all().unwrap();
    let left = disk.after_power_loss(Survivors::Everything, 1);
    assert_eq!(left.files(), ["f"]);
    assert_eq!(bytes(&left, "f"), b"");
}

/// A failed sync may have written some of the pages that it gave up.
#[test]
fn a_failed_sync_may_have_saved_some() {
    let (disk, _, file) = with_file();
    file.write_at(0, &vec![1; 8 * PAGE]).unwrap();
    file.sync().unwrap();
    file.write_at(0, &vec![2; 8 * PAGE]).unwrap();
    disk.fail_call(CallClass::Sync, 1, Errno::Io);
    file.sync().unwrap_err();
    let left = bytes(
        &disk.after_power_loss(Survivors::Mixed { percent: 50 }, 1),
        "f",
    );
    let firsts: Vec<u8> = left.iter().copied().step_by(PAGE).collect();
    assert!(firsts.contains(&1) && firsts.contains(&2), "{firsts:?}");
}

/// As after a remount: changes that no sync has saved disappear, and changes that a sync can save are saved.
#[test]
fn what_a_failed_sync_gave_up_goes_with_the_cache() {
    let (disk, backing, file) = with_file();
    file.write_at(0, b"kept").unwrap();
    file.sync().unwrap();
    file.write_at(0, b"lost").unwrap();
    backing.open_or_create("g").unwrap();
    disk.fail_call(CallClass::Sync, 1, Errno::Io);
    backing.sync_all().unwrap_err();
    let other = backing.open_or_create("h").unwrap();
    other.write_at(0, b"later").unwrap();
    drop((file, other));
    backing.forget_cached().unwrap();
    assert_eq!(disk.files(), ["f", "h"]);
    assert_eq!(bytes(&disk, "f"), b"kept");
    assert_eq!(bytes(&disk, "h"), b"later");
    assert_eq!(disk.unsynced(), 0);
    backing.open("f").unwrap().write_at(0, b"goes").unwrap();
    disk.fail_call(CallClass::Sync, 1, Errno::Io);
    assert!(backing.forget_cached().is_err(), "it still fails");
}

#[test]
fn a_bit_rots_in_all_that_may_be_seen() {
    let (disk, _, file) = with_file();
    file.write_at(0, &[0; 10]).unwrap();
    file.sync().unwrap();
    file.write_at(0, &[1; 10]).unwrap();
    let fork = disk.fork();
    assert!(disk.flip_bit("f", 4, 7));
    assert_eq!(bytes(&disk, "f"), [1, 1, 1, 1, 129, 1, 1, 1, 1, 1]);
    let kept = bytes(&disk.after_power_loss(Survivors::Nothing, 1), "f");
    assert_eq!(kept, [0, 0, 0, 0, 128, 0, 0, 0, 0, 0]);
    assert_eq!(bytes(&fork, "f"), [1; 10], "only on this disk");
    assert!(!disk.flip_bit("f", 10, 0), "past the end");
    assert!(!disk.flip_bit("no", 0, 0));
    file.set_len(2 * PAGE_BYTES).unwrap();
    assert!(!disk.flip_bit("f", PAGE_BYTES, 0), "a hole");
}
