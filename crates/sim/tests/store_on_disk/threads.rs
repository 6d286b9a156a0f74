//! The store as a node uses it, by many threads at once: syncs beside changes, checkpoints beside
//! writes, group commit. The simulator switches between threads only at disk calls. In this test
//! the machine switches anywhere. So a seed repeats the operations, but not their order.

#[path = "threads/expected.rs"]
mod expected;
#[path = "threads/worker.rs"]
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_fs::StoreView;
use lockstep_fs::poison::{FencedBacking, Poison, PoisonMarkers};
use lockstep_sim::disk::Observer;
use lockstep_sim::random::Random;
use lockstep_types::{BootId, Errno, Ino, MetaOp, NodeKind, Timestamp};
use parking_lot::Mutex;

use self::expected::{Entries, Expected, Found, FoundAll};
use self::worker::{Sequencer, Session, Worker};
use super::states::{Crash, entries, read_file};
use super::workload::skip_numbers;
use super::*;

const THREADS: usize = 4;
/// The size of each thread's region in the shared file, not a multiple of a page.
const REGION_BYTES: usize = 3000;
/// Number of times that a store is opened and crashed.
const SESSIONS: u8 = 3;
/// Most operations of each thread in a session.
const OPERATIONS_MAX: u64 = 40;
/// Number of disk calls among which a crash happens. A session may make fewer calls.
const CALLS: u64 = 900;

/// The inodes that exist before the threads start.
struct Layout {
    directories: Vec<Ino>,
    shared: Ino,
}

/// Returns a disk with a directory for each thread and a file for all threads, in a closed store.
fn prepared() -> (Disk, Layout) {
    let disk = made_disk();
    let store = open(&disk, BOOT).unwrap().store;
    let mut sequence = store.first_sequence();
    let mut next_osn = || {
        sequence += 1;
        osn(sequence)
    };
    let time = Timestamp::default();
    let mut make = |name: &str, kind| {
        let ino = store.next_ino().unwrap();
        let request = creation(Ino::ROOT, file_name(name), ino, kind);
        let osn = next_osn();
        store.commit(&MetaOp { osn, time, request }).unwrap();
        ino
    };
    let directories = (0..THREADS)
        .map(|thread| make(&format!("d{thread}"), NodeKind::Directory))
        .collect();
    let shared = make("shared", NodeKind::File);
    let zeros = vec![0; REGION_BYTES * THREADS];
    store.write(shared, 0, &zeros, next_osn(), time).unwrap();
    store.close().unwrap();
    (
        disk,
        Layout {
            directories,
            shared,
        },
    )
}

/// Returns the disk as a node gives it to its store: after a failed call has returned, every call
/// is refused.
fn fenced(below: Arc<dyn Backing>, boot: u8) -> Arc<dyn Backing> {
    let marks = PoisonMarkers::new(Arc::clone(&below), None);
    let clock = Box::new(Timestamp::default);
    // An earlier marker is ignored: the data that was acknowledged before it must be there all the
    // same.
    let poison = Poison::new(marks, BootId::from_bytes([boot; 16]), clock, None);
    Arc::new(FencedBacking::new(below, Arc::new(poison)))
}

/// Lets the threads yield in the middle of their work, and ends the store at a call. `has_ended` is
/// set from then on.
fn observer(seed: u64, end: Option<(u64, Verdict)>, has_ended: Arc<AtomicBool>) -> Observer {
    Arc::new(move |call| {
        match Random::new(seed ^ call.serial).below(16) {
            0..3 => std::thread::yield_now(),
            3 => std::thread::sleep(std::time::Duration::from_micros(50)),
            _ => {}
        }
        match end {
            // See `Session::sync_everything`.
            Some((_, Verdict::Fail(_))) if call.kind == CallKind::SyncAll => Verdict::Go,
            Some((serial, verdict)) if serial == call.serial => {
                has_ended.store(true, Ordering::SeqCst);
                verdict
            }
            _ => Verdict::Go,
        }
    })
}

/// Returns the number of the call from now on at which the store ends, and the result of the call.
/// `None`: the store does not end.
fn end(disk: &Disk, random: &mut Random) -> Option<(u64, Verdict)> {
    let verdict = match random.below(6) {
        0 => return None,
        1 => Verdict::Fail(*random.pick(&[Errno::Io, Errno::NoSpace])),
        2 => Verdict::CrashAfter,
        _ => Verdict::CrashBefore,
    };
    Some((disk.calls() + 1 + random.below(CALLS), verdict))
}

/// Opens the store, and lets the threads work until they are done or the store has ended. Returns
/// whether the store may be opened again in the same run of the machine.
fn run_session(
    disk: &Disk,
    boot: u8,
    layout: &Layout,
    expected: &Mutex<Expected>,
    random: &mut Random,
) -> bool {
    let backing = fenced(disk.mount(), boot);
    let store = open_on(Arc::clone(&backing), boot).unwrap().store;
    for osn in store.intents().in_doubt() {
        store.intents().roll_back(osn).unwrap();
    }
    let session = Session {
        sequence: AtomicU64::new(store.first_sequence()),
        store,
        backing,
        layout,
        expected,
        is_mirrored: random.percent(50),
        sequencer: Mutex::new(Sequencer::default()),
        is_over: AtomicBool::new(false),
        has_ended: Arc::default(),
    };
    let seed = random.any();
    let end = end(disk, random);
    disk.observe(Some(observer(seed, end, Arc::clone(&session.has_ended))));
    let mut randoms = random.fork();
    std::thread::scope(|scope| {
        let session = &session;
        let maintenance = randoms.fork();
        scope.spawn(move || session.maintain(maintenance));
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let random = randoms.fork();
                let mut worker = Worker {
                    session,
                    number,
                    random,
                };
                scope.spawn(move || worker.work(OPERATIONS_MAX))
            })
            .collect();
        let mut failed = false;
        for worker in workers {
            failed |= worker.join().is_err();
        }
        session.is_over.store(true, Ordering::Relaxed);
        assert!(!failed, "see above");
    });
    if random.percent(30) {
        // The close may fail, or be cut short: this equals a store without a close.
        drop(session.close());
    }
    disk.observe(None);
    // The data of a failed sync is not on the disk, and no later sync would report that.
    let has_failed = matches!(end, Some((_, Verdict::Fail(_))));
    !(has_failed && session.store.is_poisoned())
}

/// Returns the present content of the store.
fn find_all(store: &Store, layout: &Layout) -> FoundAll {
    let names: Vec<Entries> = layout
        .directories
        .iter()
        .map(|directory| {
            let entries = entries(store, *directory).into_iter();
            entries.map(|(name, entry)| (name, entry.ino)).collect()
        })
        .collect();
    let inos = names.iter().flat_map(BTreeMap::values).copied();
    let files = inos
        .chain([layout.shared])
        .map(|ino| (ino, find(store, ino)))
        .collect();
    FoundAll { names, files }
}

fn find(store: &Store, ino: Ino) -> Found {
    Found {
        bytes: read_file(store, ino),
        changed: store.tree().getattr(ino).unwrap().mtime,
    }
}

/// Opens the store after a crash, and compares it with the expected content, before and after a
/// checkpoint.
fn check(disk: &Disk, boot: u8, layout: &Layout, expected: &mut Expected, crash: Crash) {
    let store = open(disk, boot).unwrap().store;
    let found = find_all(&store, layout);
    expected.check_names(&found.names, crash);
    for (ino, file) in &found.files {
        expected.check_content(*ino, file, crash);
    }
    expected.continue_with(found, store.first_sequence(), crash);
    if crash == Crash::Process {
        store.checkpoint().unwrap();
        let found = find_all(&store, layout);
        expected.check_names(&found.names, Crash::Process);
        for (ino, file) in &found.files {
            expected.check_content(*ino, file, Crash::Process);
        }
    }
    drop(store);
    disk.kill();
}

fn run(prepared: &Disk, layout: &Layout, seed: u64) {
    let mut random = Random::new(seed);
    let disk = prepared.fork();
    let expected = Mutex::new(Expected::new(layout.shared));
    let mut boot = BOOT;
    for _ in 0..SESSIONS {
        let may_go_on = run_session(&disk, boot, layout, &expected, &mut random);
        let crash = if may_go_on && random.percent(50) {
            disk.kill();
            Crash::Process
        } else {
            disk.power_loss(&mut random);
            boot += 1;
            Crash::Power
        };
        check(&disk, boot, layout, &mut expected.lock(), crash);
    }
}

/// `LOCKSTEP_STORE_ROUNDS` sets the number of rounds, `LOCKSTEP_STORE_SEED` the first seed.
#[test]
fn acknowledged_data_of_many_threads_survives_any_end() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap())
    };
    let rounds = number("LOCKSTEP_STORE_ROUNDS").unwrap_or(300);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    let first = number("LOCKSTEP_STORE_SEED").unwrap_or(now.as_secs() << 20);
    let (disk, layout) = prepared();
    for seed in first..first + rounds {
        println!("seed {seed}");
        run(&disk, &layout, seed);
    }
}
