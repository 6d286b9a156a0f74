//! The observer, which is asked before each call, and its verdicts.

use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_lossy::disk::{CallKind, Verdict};
use lockstep_types::Errno;
use parking_lot::Mutex;

use super::*;

#[test]
fn every_call_that_changes_or_saves_is_told() {
    let (disk, backing) = mounted();
    let told = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&told);
    disk.observe(Some(Arc::new(move |call| {
        let to = call.to.unwrap_or("-").to_owned();
        into.lock().push((
            call.serial,
            call.kind,
            call.path.to_owned(),
            to,
            call.offset,
            call.length,
        ));
        Verdict::Go
    })));
    let file = backing.open_or_create("./d//f").unwrap();
    backing.open_or_create("d/f").unwrap();
    file.write_at(5, b"bytes").unwrap();
    file.read_at(0, &mut [0]).unwrap();
    file.set_len(7).unwrap();
    file.allocate(1, 2, true).unwrap();
    file.punch_hole(3, 4).unwrap();
    file.zero_range(5, 6, true).unwrap();
    file.sync().unwrap();
    backing.rename("d/f", "g").unwrap();
    backing.sync_dir("d/").unwrap();
    let table = backing.open_table("t", 8).unwrap();
    backing.open_table("t", 8).unwrap();
    table.store(2, b"abc");
    backing.remove("t").unwrap();
    backing.sync_all().unwrap();
    let row = |serial, kind, path: &str, to: &str, offset, length| {
        (serial, kind, path.to_owned(), to.to_owned(), offset, length)
    };
    let expected = [
        row(1, CallKind::Create, "d/f", "-", 0, 0),
        row(2, CallKind::Write, "d/f", "-", 5, 5),
        row(3, CallKind::SetLength, "d/f", "-", 7, 0),
        row(4, CallKind::Allocate, "d/f", "-", 1, 2),
        row(5, CallKind::PunchHole, "d/f", "-", 3, 4),
        row(6, CallKind::ZeroRange, "d/f", "-", 5, 6),
        row(7, CallKind::Sync, "d/f", "-", 0, 0),
        row(8, CallKind::Rename, "d/f", "g", 0, 0),
        row(9, CallKind::SyncDirectory, "d", "-", 0, 0),
        row(10, CallKind::Create, "t", "-", 0, 0),
        row(11, CallKind::Allocate, "t", "-", 0, 8),
        row(12, CallKind::TableStore, "t", "-", 2, 3),
        row(13, CallKind::Remove, "t", "-", 0, 0),
        row(14, CallKind::SyncAll, "", "-", 0, 0),
    ];
    assert_eq!(*told.lock(), expected);
    assert_eq!(disk.calls(), 14);
}

#[test]
fn a_crash_comes_before_or_after_a_call_and_ends_the_process() {
    for (verdict, left) in [(Verdict::CrashBefore, ""), (Verdict::CrashAfter, "two")] {
        let (disk, backing, file) = with_file();
        disk.set_verdict(2, verdict);
        file.write_at(10, b"one").unwrap();
        assert!(file.write_at(0, b"two").is_err());
        let found = bytes(&disk, "f");
        assert!(found.starts_with(left.as_bytes()) && found.ends_with(b"one"));
        assert!(left == "two" || found.starts_with(&[0; 10]));
        assert!(file.read_at(0, &mut [0]).is_err());
        assert!(backing.exists("f").is_err());
        assert!(disk.mount().exists("f").unwrap());
    }
}

#[test]
fn a_crash_after_a_sync_has_saved_and_one_before_has_not() {
    for (verdict, is_saved) in [(Verdict::CrashBefore, false), (Verdict::CrashAfter, true)] {
        let (disk, _, file) = with_file();
        file.write_at(0, b"x").unwrap();
        disk.set_verdict(1, verdict);
        assert!(file.sync().is_err());
        assert_eq!(disk.unsynced() == 0, is_saved);
    }
}

#[test]
fn a_torn_write_has_whole_pages_of_its_beginning() {
    let half = PAGE_BYTES / 2;
    for (torn, length) in [
        (0, 0),
        (half - 1, 0),
        (half, PAGE_BYTES),
        (half + 2 * PAGE_BYTES - 1, 2 * PAGE_BYTES),
        (4 * PAGE_BYTES, half + 4 * PAGE_BYTES),
        (u64::MAX, half + 4 * PAGE_BYTES),
    ] {
        let (disk, _, file) = with_file();
        disk.set_verdict(1, Verdict::CrashTorn(torn));
        assert!(file.write_at(half, &vec![1; 4 * PAGE]).is_err());
        assert_eq!(bytes(&disk, "f").len() as u64, length, "{torn}");
    }
}

#[test]
fn a_write_that_is_cut_has_whole_sectors_of_its_beginning() {
    // Of bytes 700 to 1700, the sectors end at 1024 and 1536.
    for (thousandths, length) in [
        (0, 0),
        (323, 0),
        (324, 1024),
        (835, 1024),
        (836, 1536),
        (999, 1536),
    ] {
        let (disk, _, file) = with_file();
        disk.set_verdict(1, Verdict::CrashInside { thousandths });
        assert!(file.write_at(700, &[1; 1000]).is_err());
        assert_eq!(bytes(&disk, "f").len(), length, "{thousandths}");
    }
}

#[test]
fn a_torn_store_stops_at_any_byte_and_torn_calls_of_other_kinds_are_not_done() {
    let (disk, backing) = mounted();
    let table = backing.open_table("t", 8).unwrap();
    disk.set_verdict(1, Verdict::CrashTorn(3));
    table.store(1, b"abcdef");
    assert_eq!(bytes(&disk, "t"), b"\0abc\0\0\0\0");

    let backing = disk.mount();
    disk.set_verdict(1, Verdict::CrashTorn(3));
    assert!(backing.remove("t").is_err());
    assert_eq!(disk.files(), ["t"]);
}

#[test]
fn a_refused_call_has_no_effect_and_the_process_goes_on() {
    let (disk, backing, file) = with_file();
    disk.set_verdict(1, Verdict::Fail(Errno::NoSpace));
    let error = file.write_at(0, b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(28));
    file.write_at(0, b"y").unwrap();
    assert_eq!(bytes(&disk, "f"), b"y");
    disk.set_verdict(1, Verdict::Fail(Errno::Io));
    file.sync().unwrap_err();
    file.sync().unwrap();
    assert_eq!(
        bytes(&disk.after_power_loss(Survivors::Everything, 1), "f"),
        b""
    );

    let table = backing.open_table("t", 8).unwrap();
    disk.set_verdict(1, Verdict::Fail(Errno::Io));
    table.store(0, b"z");
    assert_eq!(bytes(&disk, "t")[0], b'z', "a table cannot fail");
}

/// The disk is not locked while the observer runs. A call whose process has ended meanwhile does nothing.
#[test]
fn an_observer_may_use_the_disk() {
    let (disk, _, file) = with_file();
    let same = disk.clone();
    disk.observe(Some(Arc::new(move |_| {
        same.observe(None);
        same.power_loss(&mut Random::new(1));
        Verdict::Go
    })));
    assert!(file.write_at(0, b"x").is_err());
    assert_eq!(bytes(&disk, "f"), b"");
}

#[test]
fn an_observer_may_hold_open_files_when_it_is_taken_off() {
    let (disk, _, file) = with_file();
    disk.observe(Some(Arc::new(move |_| {
        assert!(file.stat().is_ok());
        Verdict::Go
    })));
    disk.mount().remove("f").unwrap();
    disk.observe(None);
    assert_eq!(disk.mount().space().unwrap().free_files, 1 << 20);
}

#[test]
fn a_fork_is_not_observed() {
    let (disk, _, _file) = with_file();
    disk.observe(Some(Arc::new(|_| Verdict::CrashBefore)));
    let fork = disk.fork();
    fork.mount().open("f").unwrap().write_at(0, b"x").unwrap();
}

/// As with `O_CREAT`: both threads get the file.
#[test]
fn a_file_that_another_thread_creates_meanwhile_is_opened() {
    let (disk, backing) = mounted();
    let below = disk.clone();
    let is_first = AtomicBool::new(true);
    disk.observe(Some(Arc::new(move |call| {
        if is_first.swap(false, Ordering::Relaxed) {
            let other = below.mount().open_or_create(call.path).unwrap();
            other.write_at(0, b"other").unwrap();
        }
        Verdict::Go
    })));
    let file = backing.open_or_create("f").unwrap();
    disk.observe(None);
    assert_eq!(file.stat().unwrap().length, 5);
}

#[test]
fn bytes_are_put_and_edited_on_stable_storage_without_a_call() {
    let disk = Disk::default();
    disk.put("d/f", &[1; 2 * PAGE]).unwrap();
    disk.edit("d/f", |bytes| bytes.truncate(3)).unwrap();
    assert!(disk.edit("d/g", |_| {}).is_err());
    assert_eq!((bytes(&disk, "d/f"), disk.calls()), (vec![1; 3], 0));
    assert_eq!(disk.unsynced(), 0);
    assert!(disk.is_durable("d/f") && !disk.is_durable("d/g"));
    let file = disk.mount().open("d/f").unwrap();
    file.write_at(0, b"x").unwrap();
    assert!(!disk.is_durable("d/f"));
}
