//! The promises of the traits, on a real directory.

use std::fs;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use lockstep_types::backing::{Reservations, ReservedRuns};
use lockstep_types::{Errno, limits};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const BLOCK: u64 = 4096;

fn store() -> (TempDir, OsBacking) {
    let dir = tempfile::tempdir().unwrap();
    let backing = OsBacking::open(dir.path()).unwrap();
    (dir, backing)
}

fn whole(file: &dyn BackingFile) -> Vec<u8> {
    let mut content = vec![0xAA; usize::try_from(file.stat().unwrap().length).unwrap() + 1];
    let count = file.read_at(0, &mut content).unwrap();
    content.truncate(count);
    content
}

/// Any range, also one that no disk could read: the bytes of before the call, on the disk or not.
#[test]
fn the_disk_has_what_was_written_before() {
    let (_dir, backing) = store();
    let file = backing.open_or_create("file").unwrap();
    let bytes: Vec<u8> = (0..20_001_u32)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect();
    file.write_at(3 * BLOCK, &bytes).unwrap();
    let content = whole(&*file);
    for (offset, length) in [
        (0, 40_000),
        (1, 1),
        (4095, 8194),
        (12_288, 4096),
        (32_000, 9000),
        (40_000, 5),
    ] {
        let mut read = vec![0xAA; length];
        let count = file.read_disk(offset, &mut read).unwrap();
        let start = usize::try_from(offset).unwrap().min(content.len());
        let end = (start + length).min(content.len());
        assert_eq!(
            read[..count],
            content[start..end],
            "{length} bytes at {offset}"
        );
    }
}

#[test]
fn content_survives_reopen_and_short_reads_end_at_the_end() {
    let (dir, backing) = store();
    let file = backing.open_or_create("a/b/c").unwrap();
    file.write_at(5, b"hello").unwrap();
    file.sync().unwrap();
    backing.sync_dir("a/b").unwrap();
    drop((file, backing));

    let backing = OsBacking::open(dir.path()).unwrap();
    let file = backing.open("a/b/c").unwrap();
    assert_eq!(whole(&*file), b"\0\0\0\0\0hello");
    assert_eq!(file.read_at(10, &mut [0; 4]).unwrap(), 0);
    assert_eq!(file.read_at(8, &mut [0; 4]).unwrap(), 2);
    assert_eq!(backing.stat("a/b/c").unwrap(), file.stat().unwrap());
}

#[test]
fn files_are_private_to_the_owner_of_the_store() {
    let (dir, backing) = store();
    backing.open_or_create("d/f").unwrap();
    let mode = |path: &str| dir.path().join(path).metadata().unwrap().mode() & 0o777;
    assert_eq!((mode("d"), mode("d/f")), (0o700, 0o600));
}

#[test]
fn a_missing_file_is_not_found_and_named() {
    let (dir, backing) = store();
    for error in [
        backing.open("no").err().unwrap(),
        backing.stat("no").unwrap_err(),
        backing.remove("no").unwrap_err(),
        backing.rename("no", "other").unwrap_err(),
    ] {
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(errno_of(&error), Errno::NoEntry);
        let path = dir.path().join("no").display().to_string();
        assert!(error.to_string().contains(&path), "{error}");
    }
    assert!(!backing.exists("no").unwrap());
    assert_eq!(backing.list("no").unwrap(), Vec::<String>::new());
    let gone = OsBacking::open(dir.path().join("no")).err().unwrap();
    assert!(gone.to_string().contains("cannot open directory"), "{gone}");
}

#[test]
fn paths_that_leave_the_store_are_refused() {
    let (_dir, backing) = store();
    for path in ["", "/etc/passwd", "../x", "a/../../x"] {
        let error = backing.open_or_create(path).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path:?}");
    }
}

#[test]
fn symbolic_links_are_not_followed() {
    let (dir, backing) = store();
    std::os::unix::fs::symlink("/etc/hostname", dir.path().join("link")).unwrap();
    assert!(backing.open("link").is_err());
}

#[test]
fn list_names_everything_once() {
    let (_dir, backing) = store();
    for name in ["x", "y", "z/w"] {
        backing.open_or_create(name).unwrap();
    }
    let mut names = backing.list("").unwrap();
    names.sort();
    assert_eq!(names, ["x", "y", "z"]);
    assert_eq!(backing.list("z").unwrap(), ["w"]);
    assert!(backing.exists("z").unwrap());
}

#[test]
fn rename_replaces() {
    let (_dir, backing) = store();
    let old = backing.open_or_create("old").unwrap();
    old.write_at(0, b"old").unwrap();
    let new = backing.open_or_create("d/new").unwrap();
    new.write_at(0, b"newer").unwrap();
    backing.sync_dir("d").unwrap();
    backing.rename("d/new", "old").unwrap();
    backing.sync_dir("").unwrap();
    assert_eq!(whole(&*backing.open("old").unwrap()), b"newer");
    assert!(!backing.exists("d/new").unwrap());
    assert_eq!(whole(&*old), b"old", "an open file outlives its name");
}

#[test]
fn only_an_empty_directory_is_removed() {
    let (dir, backing) = store();
    backing.open_or_create("d/e/f").unwrap();
    for kept in ["d", "d/e", "d/e/f", "none", "d/none", "d/e/f/none"] {
        assert!(!backing.remove_empty_dir(kept).unwrap(), "{kept}");
    }
    backing.remove("d/e/f").unwrap();
    assert!(backing.remove_empty_dir("d/e").unwrap());
    assert!(dir.path().join("d").exists() && !dir.path().join("d/e").exists());
    // A sync of a removed directory makes its removal durable.
    backing.sync_dir("d/e").unwrap();
    backing.sync_dir("none").unwrap_err();
    backing.open_or_create("d/e/g").unwrap();
    assert_eq!(backing.list("d/e").unwrap(), ["g"]);
}

#[test]
fn the_name_of_a_recreated_directory_is_synced_again() {
    let (_dir, backing) = store();
    let is_synced = |path: &str| backing.rooted.lock().directories.contains(path);
    let make_anew = || {
        assert!(backing.remove_empty_dir("d/e").unwrap());
        drop(backing.open_or_create("d/e/f").unwrap());
        backing.remove("d/e/f").unwrap();
    };
    drop(backing.open_or_create("d/e/f").unwrap());
    backing.remove("d/e/f").unwrap();
    backing.sync_dir("d/e").unwrap();
    assert!(is_synced("d/e"));
    make_anew();
    assert!(!is_synced("d/e") && is_synced("d"));
    // The directory is another one when the sync of the one above has returned.
    let moves = backing.rooted.lock().moves;
    make_anew();
    backing.root_directory("d/e", moves).unwrap();
    assert!(!is_synced("d/e"));
    backing.sync_dir("d/e").unwrap();
    assert!(is_synced("d/e"));
}

/// Threads create files, sync their names and remove them, while another thread removes the directory as soon as it is
/// empty.
#[test]
fn files_are_made_in_a_directory_that_is_being_removed() {
    const FILES: usize = 2000;
    let (_dir, backing) = store();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let removed = std::thread::scope(|scope| {
        let (backing, is_over) = (&backing, &is_over);
        let remover = scope.spawn(move || {
            let mut removed = 0;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                removed += usize::from(backing.remove_empty_dir("d/e").unwrap());
            }
            removed
        });
        let makers = ["d/e/1", "d/e/2"].map(|path| {
            scope.spawn(move || {
                (0..FILES).try_for_each(|_| {
                    drop(backing.open_or_create(path)?);
                    backing.sync_dir("d/e")?;
                    backing.stat(path)?;
                    backing.remove(path)
                })
            })
        });
        let made = makers.map(|maker| maker.join().unwrap());
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        for made in made {
            made.unwrap();
        }
        remover.join().unwrap()
    });
    assert!(removed > 0);
}

#[test]
fn a_second_owner_is_kept_out_until_the_first_is_gone() {
    let (dir, first) = store();
    first.lock().unwrap();
    let second = OsBacking::open(dir.path()).unwrap();
    let error = second.lock().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    assert!(error.to_string().contains("another process"), "{error}");
    drop(first);
    // A process that another test is just starting has the lock, too, until it runs its program.
    while second.lock().is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn a_wide_store_directory_is_made_private() {
    let (dir, backing) = store();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    backing.lock().unwrap();
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        0,
        "it is no store"
    );
    fs::write(dir.path().join(FORMAT_FILE), "").unwrap();
    backing.lock().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.path()), 0o700);
    assert_eq!(mode(&dir.path().join(LOCK_FILE)), 0o600);
}

/// A lock of the same user on the directory is respected: an older version takes no other. A lock of another user is
/// not.
#[test]
fn a_lock_on_the_directory_holds_unless_another_user_has_it() {
    let (dir, backing) = store();
    fs::write(dir.path().join(FORMAT_FILE), "").unwrap();
    let theirs = fs::File::open(dir.path()).unwrap();
    rustix::fs::flock(&theirs, FlockOperation::NonBlockingLockExclusive).unwrap();
    let error = backing.lock().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    let us = format!("process {}", std::process::id());
    assert!(error.to_string().contains(&us), "{error}");
    drop(theirs);
    if !rustix::process::geteuid().is_root() {
        return;
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut stranger = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["sh", "-c", "exec 9<\"$0\"; flock 9; echo; exec cat"])
        .arg(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut byte = [0];
    stranger
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut byte)
        .unwrap();
    let held = fs::File::open(dir.path()).unwrap();
    let refused = rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(OsErrno::WOULDBLOCK));
    let locked = OsBacking::open(dir.path()).unwrap().lock();
    drop(stranger.stdin.take());
    stranger.wait().unwrap();
    locked.unwrap();
}

#[test]
fn holes_are_found_and_free_their_space() {
    let (_dir, backing) = store();
    let file = backing.open_or_create("f").unwrap();
    file.write_at(0, &vec![1; 64 * 4096]).unwrap();
    file.sync().unwrap();
    let before = file.stat().unwrap();
    file.punch_hole(16 * BLOCK, 16 * BLOCK).unwrap();
    let after = file.stat().unwrap();
    assert_eq!(after.length, before.length);
    assert_eq!(after.blocks, before.blocks - 16 * 8);
    assert_eq!(file.seek_data(0).unwrap(), Some(0));
    assert_eq!(file.seek_hole(0).unwrap(), Some(16 * BLOCK));
    assert_eq!(file.seek_data(16 * BLOCK).unwrap(), Some(32 * BLOCK));
    assert_eq!(file.seek_hole(32 * BLOCK).unwrap(), Some(64 * BLOCK));
    assert_eq!(file.seek_data(64 * BLOCK).unwrap(), None);
    assert_eq!(file.seek_hole(64 * BLOCK).unwrap(), None);
}

#[test]
fn a_file_of_holes_has_no_data() {
    let (_dir, backing) = store();
    let file = backing.open_or_create("f").unwrap();
    assert_eq!(file.seek_data(0).unwrap(), None);
    file.set_len(1 << 40).unwrap();
    assert_eq!(file.seek_data(0).unwrap(), None);
    assert_eq!(file.seek_hole(0).unwrap(), Some(0));
    assert_eq!(file.stat().unwrap().blocks, 0);
}

#[test]
fn allocate_reserves_with_and_without_growing() {
    let (_dir, backing) = store();
    let file = backing.open_or_create("f").unwrap();
    file.allocate(0, 8 * BLOCK, true).unwrap();
    let stat = file.stat().unwrap();
    assert_eq!(stat.length, 0);
    assert!(stat.blocks >= 64, "{stat:?}");
    file.allocate(BLOCK, BLOCK, false).unwrap();
    assert_eq!(whole(&*file), vec![0; 8192]);
    file.allocate(0, 0, false).unwrap();
}

#[test]
fn zero_range_keeps_or_grows_the_length() {
    let (_dir, backing) = store();
    let file = backing.open_or_create("f").unwrap();
    file.write_at(0, &[7; 10]).unwrap();
    file.zero_range(5, 100, true).unwrap();
    assert_eq!(whole(&*file), [7, 7, 7, 7, 7, 0, 0, 0, 0, 0]);
    file.zero_range(4, 10, false).unwrap();
    assert_eq!(file.stat().unwrap().length, 14);
}

#[test]
fn tables_survive_reopen_and_grow_with_zeros() {
    let (dir, backing) = store();
    let table = backing.open_table("t/table", 5000).unwrap();
    assert_eq!(table.len(), 5000);
    table.store(4990, b"persistent");
    drop((table, backing));

    let backing = OsBacking::open(dir.path()).unwrap();
    let table = backing.open_table("t/table", 10_000).unwrap();
    let mut back = [1; 12];
    table.load(4990, &mut back);
    assert_eq!(&back, b"persistent\0\0");
    assert_eq!(backing.stat("t/table").unwrap().length, 10_000);
}

#[test]
fn tables_have_all_their_space_before_they_are_mapped() {
    let (_dir, backing) = store();
    let sparse = backing.open_or_create("table").unwrap();
    sparse.set_len(1 << 20).unwrap();
    let table = backing.open_table("table", 1 << 20).unwrap();
    assert!(sparse.stat().unwrap().blocks >= 2048);
    table.store((1 << 20) - 1, &[9]);
    let mut last = [0];
    sparse.read_at((1 << 20) - 1, &mut last).unwrap();
    assert_eq!(last, [9], "mapping and file are one");
}

#[test]
#[should_panic(expected = "outside a table")]
fn tables_refuse_ranges_outside() {
    let (_dir, backing) = store();
    let table = backing.open_table("table", 10).unwrap();
    table.store(8, &[0; 3]);
}

#[test]
fn space_is_reported() {
    let (_dir, backing) = store();
    let space = backing.space().unwrap();
    assert!(space.total_bytes >= space.free_bytes);
    assert!(space.free_bytes >= space.available_bytes);
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Punch(u64, u64),
    Zero(u64, u64, bool),
    Allocate(u64, u64, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..40_000u64;
    let count = 0..20_000u64;
    prop_oneof![
        (at.clone(), proptest::collection::vec(1..255u8, 0..9000))
            .prop_map(|(o, d)| Step::Write(o, d)),
        at.clone().prop_map(Step::SetLen),
        (at.clone(), count.clone()).prop_map(|(o, n)| Step::Punch(o, n)),
        (at.clone(), count.clone(), any::<bool>()).prop_map(|(o, n, k)| Step::Zero(o, n, k)),
        (at, count, any::<bool>()).prop_map(|(o, n, k)| Step::Allocate(o, n, k)),
    ]
}

fn model(content: &mut Vec<u8>, step: &Step) {
    let index = |offset: u64| usize::try_from(offset).unwrap();
    match step {
        Step::Write(_, data) if data.is_empty() => {}
        Step::Write(offset, data) => {
            let end = index(*offset) + data.len();
            content.resize(content.len().max(end), 0);
            content[index(*offset)..end].copy_from_slice(data);
        }
        Step::SetLen(length) => content.resize(index(*length), 0),
        Step::Punch(..) | Step::Zero(..) | Step::Allocate(..) => {
            let (offset, count, keep, zeros) = match *step {
                Step::Punch(o, n) => (o, n, true, true),
                Step::Zero(o, n, keep) => (o, n, keep, true),
                Step::Allocate(o, n, keep) => (o, n, keep, false),
                _ => unreachable!(),
            };
            let end = index(offset + count);
            if !keep && count > 0 {
                content.resize(content.len().max(end), 0);
            }
            let end = end.min(content.len());
            if zeros && index(offset) < end {
                content[index(offset)..end].fill(0);
            }
        }
    }
}

fn apply(file: &dyn BackingFile, step: &Step) {
    match step {
        Step::Write(offset, data) => file.write_at(*offset, data),
        Step::SetLen(length) => file.set_len(*length),
        Step::Punch(offset, count) => file.punch_hole(*offset, *count),
        Step::Zero(offset, count, keep) => file.zero_range(*offset, *count, *keep),
        Step::Allocate(offset, count, keep) => file.allocate(*offset, *count, *keep),
    }
    .unwrap();
}

proptest! {
    #[test]
    fn files_behave_like_a_vector(steps in proptest::collection::vec(step(), 1..20)) {
        let (_dir, backing) = store();
        let file = backing.open_or_create("f").unwrap();
        let mut content = Vec::new();
        for step in &steps {
            apply(&*file, step);
            model(&mut content, step);
        }
        prop_assert_eq!(whole(&*file), content);
    }

    #[test]
    fn zeros_by_hand_are_those_of_the_file_system(
        data in proptest::collection::vec(1..255u8, 0..9000),
        offset in 0..12_000u64, count in 1..300_000u64, keep in any::<bool>(),
    ) {
        let (_dir, backing) = store();
        let by_hand = backing.open_file("by_hand", FILE_FLAGS | OFlags::CREATE).unwrap();
        let by_kernel = backing.open_or_create("by_kernel").unwrap();
        by_hand.write_at(0, &data).unwrap();
        by_kernel.write_at(0, &data).unwrap();
        by_hand.zero_by_hand(offset, offset + count, keep).unwrap();
        by_kernel.zero_range(offset, count, keep).unwrap();
        prop_assert_eq!(whole(&by_hand), whole(&*by_kernel));
    }
}

/// In any state of the pages, the next read comes from the disk.
#[test]
fn cached_pages_of_a_store_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let backing = OsBacking::open(dir.path()).unwrap();
    for path in ["top", "content/00/07"] {
        let file = backing.open_or_create(path).unwrap();
        file.write_at(0, &vec![7; 100_000]).unwrap();
    }
    backing.forget_cached().unwrap();
    for path in ["top", "content/00/07"] {
        let mut bytes = vec![0; 100_000];
        let file = backing.open(path).unwrap();
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
        assert_eq!(bytes, vec![7; 100_000], "{path}");
    }
}

#[test]
fn pages_that_stay_in_memory_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let backing = OsBacking::open(dir.path()).unwrap();
    let table = backing.open_table("tables/mapped", 4096).unwrap();
    table.store(0, b"in use");
    match backing.forget_cached() {
        Err(error) => assert!(error.to_string().contains("stay in memory"), "{error}"),
        // A file system in memory keeps its pages.
        Ok(()) => assert!(backing.is_in_memory().unwrap()),
    }
    drop(table);
    backing.forget_cached().unwrap();
}

/// The kernel tells a bounded number of extents for each call.
#[test]
fn all_reserved_runs_are_found() {
    const RUNS: usize = 300;
    let (_dir, backing) = store();
    let file = backing.open_or_create("f").unwrap();
    for run in 0..RUNS as u64 {
        file.allocate(2 * run * BLOCK, BLOCK, true).unwrap();
    }
    let reserved = |range| {
        let runs = Reservations::of(&*file, range).map(Result::unwrap);
        runs.collect::<Vec<_>>()
    };
    let runs = reserved(0..u64::MAX);
    // A file system without a map shows none.
    assert!(runs.is_empty() || runs.len() == RUNS, "{runs:?}");
    let part = reserved(3 * BLOCK..7 * BLOCK - 1);
    let in_part = |run: &Range<u64>| run.start > 3 * BLOCK && run.start < 7 * BLOCK;
    assert_eq!(part.len(), runs.iter().filter(|run| in_part(run)).count());
}

/// The kernel answers EFBIG there.
#[test]
fn no_space_is_reserved_beyond_the_longest_file() {
    let (_dir, backing) = store();
    let file = backing.open_or_create("f").unwrap();
    for start in [limits::FILE_BYTES_MAX, 16 << 40, 1 << 50, i64::MAX as u64] {
        let range = start..u64::MAX;
        let none = ReservedRuns::none(&range);
        assert_eq!(file.reserved(range).unwrap(), none);
    }
}
