//! Creating, filling, cutting, failing.

use lockstep_intentlog::{IntentLog, LogError, LogOptions, PAYLOAD_BYTES_MAX, Position};

use lockstep_lossy::disk::{CallClass, Disk, Survivors};
use lockstep_types::Errno;

use crate::{DIR, create, long, open, options, read, record};

const SEGMENT_BYTES: u64 = 8192;

fn new_log() -> (Disk, IntentLog) {
    crate::new_log(SEGMENT_BYTES)
}

/// The records that a power loss leaves if no unsynced change survives.
fn cold(disk: &Disk) -> crate::Found {
    let left = disk.after_power_loss(Survivors::Nothing, 0);
    read(&left, &options(SEGMENT_BYTES)).unwrap()
}

fn fail_sync(disk: &Disk, nth: u64) {
    disk.fail_call(CallClass::Sync, nth, Errno::Io);
}

fn keeping(position: Position) -> LogOptions {
    LogOptions {
        keep_from: Some(position),
        ..options(SEGMENT_BYTES)
    }
}

/// Appends until the log refuses, and returns the refusal.
fn fill(log: &IntentLog) -> LogError {
    (0..10_000)
        .find_map(|number| log.append(&record(number)).err())
        .unwrap()
}

#[test]
fn what_is_appended_is_found_again() {
    let (disk, log) = new_log();
    let first = log.append(&record(0)).unwrap();
    let second = log.append(&record(1)).unwrap();
    assert!(first < second && second < log.tail());
    let (log, found) = open(&disk, &options(SEGMENT_BYTES)).unwrap();
    assert_eq!(found, [(first, record(0)), (second, record(1))]);
    let third = log.append(&record(2)).unwrap();
    let replay = IntentLog::read(&*disk.mount(), DIR, &options(SEGMENT_BYTES)).unwrap();
    assert!(replay.end() > third);
    let found: Vec<_> = replay.from(second).map(Result::unwrap).collect();
    assert_eq!(found, [(second, record(1)), (third, record(2))]);
}

#[test]
fn reading_changes_nothing_and_needs_nothing_changed() {
    let (disk, log) = new_log();
    log.append(&record(0)).unwrap();
    let before = (disk.digest(), disk.calls());
    assert_eq!(read(&disk, &options(SEGMENT_BYTES)).unwrap().len(), 1);
    assert_eq!((disk.digest(), disk.calls()), before);
}

#[test]
fn a_log_is_made_once_and_missed_when_gone() {
    let (disk, _) = new_log();
    let again = create(&disk, SEGMENT_BYTES);
    assert!(matches!(again, Err(LogError::Exists { .. })));
    let missing = IntentLog::open(&*disk.mount(), "elsewhere", &options(SEGMENT_BYTES));
    assert!(matches!(missing, Err(LogError::Missing { .. })));
    let odd = IntentLog::create(&*disk.mount(), "other", &options(5000));
    assert!(matches!(odd, Err(LogError::BadSegmentBytes { .. })));
}

#[test]
fn a_sync_of_what_is_durable_costs_nothing() {
    let (disk, log) = new_log();
    let first = log.append(&record(0)).unwrap();
    log.sync(first).unwrap();
    let calls = disk.calls();
    log.sync(first).unwrap();
    log.sync(log.tail()).unwrap();
    log.sync(Position::START).unwrap();
    assert_eq!(disk.calls(), calls);
    let second = log.append(&record(1)).unwrap();
    let calls = disk.calls();
    log.sync(first).unwrap();
    assert_eq!(disk.calls(), calls);
    log.sync(log.tail()).unwrap();
    assert_eq!(disk.calls(), calls + 2, "one sync, and the mark after it");
    assert!(log.durable() > second);
}

#[test]
fn a_full_log_refuses_until_it_is_cut() {
    let (disk, log) = new_log();
    assert!(!log.needs_checkpoint());
    assert!(matches!(fill(&log), LogError::Full { .. }));
    assert!(matches!(log.append(&record(0)), Err(LogError::Full { .. })));
    assert!(log.needs_checkpoint());
    assert!(log.usage().used_bytes <= log.usage().capacity_bytes);
    // A full log opens after a crash: opening needs no room.
    let (log, found) = open(&disk, &options(SEGMENT_BYTES)).unwrap();
    assert!(found.len() > 20);
    assert!(matches!(fill(&log), LogError::Full { .. }));
    let tail = log.tail();
    log.cut(tail);
    let position = log.append(&record(7)).unwrap();
    assert!(position >= tail);
    let (_, found) = open(&disk, &keeping(tail)).unwrap();
    assert_eq!(found, [(position, record(7))]);
}

#[test]
fn files_keep_their_length() {
    let (disk, log) = new_log();
    for number in 0..600 {
        log.append(&record(number)).unwrap();
        log.sync(log.tail()).unwrap();
        log.cut(log.tail());
    }
    open(&disk, &options(SEGMENT_BYTES)).unwrap();
    for path in disk.files() {
        let content = disk.read_all(&path).unwrap();
        assert_eq!(content.len() as u64, SEGMENT_BYTES, "{path}");
    }
}

#[test]
fn half_full_is_when_to_make_a_checkpoint() {
    let (_, log) = new_log();
    for number in 0..2000 {
        log.append(&record(number)).unwrap();
        if log.needs_checkpoint() {
            log.cut(log.tail());
            let usage = log.usage();
            assert!(usage.used_bytes <= usage.capacity_bytes / 2);
        }
    }
}

#[test]
fn opening_again_and_again_does_not_fill_the_log() {
    let (disk, log) = new_log();
    let position = log.append(&record(3)).unwrap();
    let mut highest = position;
    for _ in 0..400 {
        let (log, found) = open(&disk, &keeping(position)).unwrap();
        assert_eq!(found, [(position, record(3))]);
        assert!(log.tail() >= highest);
        assert!(
            !log.needs_checkpoint(),
            "an idle log would ask for one after the other"
        );
        highest = log.tail();
    }
    let (log, _) = open(&disk, &keeping(position)).unwrap();
    assert!(log.append(&record(4)).unwrap() > highest);
    assert_eq!(open(&disk, &keeping(position)).unwrap().1.len(), 2);
}

#[test]
fn a_checkpoint_that_does_not_fit_the_log_is_refused() {
    let (disk, log) = new_log();
    let copy = disk.fork();
    let first = log.append(&record(0)).unwrap();
    for number in 0..300 {
        log.append(&record(number)).unwrap();
        log.cut(log.tail());
    }
    let older = open(&disk, &keeping(first));
    assert!(matches!(older, Err(LogError::Gone { .. })));
    let newer = open(&copy, &keeping(log.tail()));
    assert!(matches!(newer, Err(LogError::Behind { .. })));
    // Without a claim the log replays every record that a checkpoint may not cover.
    assert!(!open(&disk, &options(SEGMENT_BYTES)).unwrap().1.is_empty());
}

#[test]
fn a_record_that_can_never_fit_is_refused_and_harmless() {
    let (disk, log) = new_log();
    for length in [8000, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1] {
        let refused = log.append(&long(length));
        assert!(matches!(refused, Err(LogError::TooLarge { .. })));
    }
    log.append(&long(3900)).unwrap();
    log.append(&long(4000)).unwrap();
    assert_eq!(open(&disk, &options(SEGMENT_BYTES)).unwrap().1.len(), 2);
}

#[test]
fn a_failed_sync_poisons_forever() {
    let (disk, log) = new_log();
    let kept = log.append(&record(0)).unwrap();
    log.sync(kept).unwrap();
    let doubtful = log.append(&record(1)).unwrap();
    fail_sync(&disk, 1);
    assert!(matches!(log.sync(doubtful), Err(LogError::Io { .. })));
    assert!(matches!(log.sync(doubtful), Err(LogError::Poisoned { .. })));
    assert!(matches!(log.sync(kept), Err(LogError::Poisoned { .. })));
    let append = log.append(&record(2));
    assert!(matches!(append, Err(LogError::Poisoned { .. })));
    assert!(log.durable() > kept && log.durable() <= doubtful);
    // The next process reads the record, which is not on stable storage: opening makes the record durable.
    let (_, found) = open(&disk, &options(SEGMENT_BYTES)).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(cold(&disk), found);
}

#[test]
fn a_failed_sync_at_the_change_of_segment_poisons() {
    for failing in 1..=2 {
        let (disk, log) = new_log();
        fail_sync(&disk, failing);
        assert!(matches!(fill(&log), LogError::Io { .. }));
        assert!(matches!(fill(&log), LogError::Poisoned { .. }));
        let (log, mut found) = open(&disk, &options(SEGMENT_BYTES)).unwrap();
        assert_eq!(cold(&disk), found);
        // A later record follows records that are on stable storage.
        found.push((log.append(&record(1)).unwrap(), record(1)));
        log.sync(log.tail()).unwrap();
        assert_eq!(cold(&disk), found);
    }
}

#[test]
fn a_failed_write_poisons() {
    let (disk, log) = new_log();
    disk.fail_call(CallClass::Write, 1, Errno::Io);
    assert!(matches!(log.append(&record(0)), Err(LogError::Io { .. })));
    assert!(matches!(fill(&log), LogError::Poisoned { .. }));
}

#[test]
fn errors_say_where_and_what() {
    let (disk, _) = new_log();
    let Err(error) = IntentLog::open(&*disk.mount(), "elsewhere", &options(SEGMENT_BYTES)) else {
        panic!("there is no log");
    };
    assert!(error.to_string().contains("elsewhere/intent.0"), "{error}");
}
