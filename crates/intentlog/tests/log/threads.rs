//! Many threads on one log.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};

use lockstep_intentlog::{IntentLog, LogError, Position, Record};

use lockstep_lossy::disk::{CallClass, CallKind, Survivors, Verdict};
use lockstep_types::Errno;

use crate::{long, new_log, options, osn, read, record};

const SEGMENT_BYTES: u64 = 1 << 20;

/// Appends and syncs. Returns every synced record with its position.
fn work(log: &IntentLog, thread: u64) -> Vec<(Position, Record)> {
    let one = |number: u64| {
        let record = Record::Done {
            osn: osn(thread * 1000 + number),
        };
        let position = log.append(&record).unwrap();
        log.sync(position).unwrap();
        assert!(log.durable() > position);
        (position, record)
    };
    (0..200).map(one).collect()
}

#[test]
fn a_record_that_any_thread_synced_survives() {
    let (disk, log) = new_log(SEGMENT_BYTES);
    let mut synced: Vec<_> = std::thread::scope(|scope| {
        let log = &log;
        let threads = [1, 2, 3, 4].map(|thread| scope.spawn(move || work(log, thread)));
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    synced.sort_by_key(|(position, _)| *position);
    let cold = disk.after_power_loss(Survivors::Nothing, 0);
    assert_eq!(read(&cold, &options(SEGMENT_BYTES)).unwrap(), synced);
}

/// While the sync of one thread is blocked, other threads append and ask for a sync. One more sync serves all of
/// them, no matter when they begin to wait.
#[test]
fn waiting_threads_share_one_sync() {
    let (disk, log) = new_log(SEGMENT_BYTES);
    let syncs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&syncs);
    let (reached, has_reached) = channel();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    disk.observe(Some(Arc::new(move |call| {
        if call.kind == CallKind::Sync && counted.fetch_add(1, Ordering::SeqCst) == 0 {
            reached.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
        }
        Verdict::Go
    })));
    std::thread::scope(|scope| {
        let log = &log;
        let append = || log.append(&record(2)).unwrap();
        let first = append();
        scope.spawn(move || log.sync(first).unwrap());
        has_reached.recv().unwrap();
        for position in [0; 5].map(|_| append()) {
            scope.spawn(move || log.sync(position).unwrap());
        }
        release.send(()).unwrap();
    });
    assert_eq!(syncs.load(Ordering::SeqCst), 2);
    assert_eq!(log.durable(), log.tail());
}

/// A power loss may take a record that was appended while a sync ran. Such a loss is no damage.
///
/// The observer makes the sync early, then appends, and then takes an image of the disk: the image is a disk whose
/// sync has covered only the records from before the append.
#[test]
fn a_sync_does_not_cover_a_record_that_is_appended_meanwhile() {
    let (disk, log) = new_log(SEGMENT_BYTES);
    let log = Arc::new(log);
    let taken = Arc::new(OnceLock::new());
    let is_first = AtomicBool::new(true);
    let (appender, below, image) = (Arc::clone(&log), disk.clone(), Arc::clone(&taken));
    disk.observe(Some(Arc::new(move |call| {
        if call.kind == CallKind::Sync && is_first.swap(false, Ordering::SeqCst) {
            below.mount().open(call.path).unwrap().sync().unwrap();
            let late = appender.append(&long(5000)).unwrap();
            image.get_or_init(|| (late, below.fork()));
        }
        Verdict::Go
    })));
    let first = log.append(&record(2)).unwrap();
    log.sync(first).unwrap();
    disk.observe(None);
    let (late, image) = taken.get().unwrap();
    assert!(first < log.durable() && log.durable() <= *late);
    for seed in 0..64 {
        let after = image.after_power_loss(Survivors::Mixed { percent: 50 }, seed);
        let found = read(&after, &options(SEGMENT_BYTES)).unwrap();
        assert_eq!(found[0].0, first);
        assert!(found[1..].iter().all(|(position, _)| position == late));
    }
}

#[test]
fn a_failed_sync_fails_for_every_waiting_thread() {
    let (disk, log) = new_log(SEGMENT_BYTES);
    disk.fail_call(CallClass::Sync, 1, Errno::Io);
    let errors: Vec<_> = std::thread::scope(|scope| {
        let log = &log;
        let position = log.append(&record(2)).unwrap();
        let threads = [0; 4].map(|_| scope.spawn(move || log.sync(position).unwrap_err()));
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let told = |error: &&LogError| matches!(error, LogError::Io { .. });
    assert_eq!(errors.iter().filter(told).count(), 1);
    assert!(log.durable() < log.tail());
}
