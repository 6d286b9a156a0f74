//! Many threads on one log.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};

use lockstep_intentlog::{IntentLog, LogError, Position, Record};

use crate::sim_backing::{Random, SimBacking};
use crate::{DIR, long, options, osn, read, record};

const SEGMENT_BYTES: u64 = 1 << 20;

/// Appends and syncs; gives the position of every record that was synced.
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
fn what_any_thread_synced_survives() {
    let disk = SimBacking::default();
    let log = IntentLog::create(&disk, DIR, &options(SEGMENT_BYTES)).unwrap();
    let mut synced: Vec<_> = std::thread::scope(|scope| {
        let log = &log;
        let threads = [1, 2, 3, 4].map(|thread| scope.spawn(move || work(log, thread)));
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    synced.sort_by_key(|(position, _)| *position);
    let cold = disk.power_loss(&mut Random(3), 0);
    assert_eq!(read(&cold, &options(SEGMENT_BYTES)).unwrap(), synced);
}

/// While one thread's sync is held up, others append and ask for theirs: one more sync serves all,
/// whenever they come to wait.
#[test]
fn those_that_wait_share_one_sync() {
    let disk = SimBacking::default();
    let log = IntentLog::create(&disk, DIR, &options(SEGMENT_BYTES)).unwrap();
    let before = disk.syncs();
    let (reached, has_reached) = channel();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    disk.on_sync(Arc::new(move |number| {
        if number == before + 1 {
            reached.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
        }
    }));
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
    assert_eq!(disk.syncs() - before, 2);
    assert_eq!(log.durable(), log.tail());
}

/// What is appended while a sync runs may be lost in a power failure, and that is no damage.
#[test]
fn what_is_appended_during_a_sync_is_not_covered_by_it() {
    let disk = SimBacking::default();
    let log = IntentLog::create(&disk, DIR, &options(SEGMENT_BYTES)).unwrap();
    let log = Arc::new(log);
    let late = Arc::new(OnceLock::new());
    let (weak, filled) = (Arc::downgrade(&log), late.clone());
    disk.on_sync(Arc::new(move |_| {
        let log = weak.upgrade().unwrap();
        filled.get_or_init(|| log.append(&long(5000)).unwrap());
    }));
    let first = log.append(&record(2)).unwrap();
    log.sync(first).unwrap();
    let late = *late.get().unwrap();
    assert!(first < log.durable() && log.durable() <= late);
    for seed in 0..64 {
        let after = disk.power_loss(&mut Random(seed), 50);
        let found = read(&after, &options(SEGMENT_BYTES)).unwrap();
        assert_eq!(found[0].0, first);
        assert!(found[1..].iter().all(|(position, _)| *position == late));
    }
}

#[test]
fn a_failed_sync_reaches_everyone_who_waits() {
    let disk = SimBacking::default();
    let log = IntentLog::create(&disk, DIR, &options(SEGMENT_BYTES)).unwrap();
    disk.fail_sync_after(1);
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
