//! A store on a disk with a poison fence: every way in which the store makes data durable, after
//! every failure.

use std::sync::Arc;

use lockstep_fs::poison::{FencedBacking, MARKER_FILE, Poison, PoisonMarkers};
use lockstep_fs::store::{Access, MarkTableSizes, OpenOptions};
use lockstep_fs::{OpError, Store, StoreError};
use lockstep_intentlog::LogOptions;
use lockstep_lossy::disk::{Call, CallClass, CallKind, Disk, DiskOptions, Survivors, Verdict};
use lockstep_lossy::random::Random;
use lockstep_types::backing::Backing;
use lockstep_types::{
    BootId, DatastoreUuid, Errno, FileName, Generation, Ino, MetaOp, MetaRequest, NodeKind, Osn,
    StateVersion, Timestamp,
};

const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);
const BOOT: BootId = BootId::from_bytes([1; 16]);
const FILE: u64 = 2;

/// A disk with a store behind a poison fence.
struct FencedStore {
    disk: Disk,
    backing: Arc<dyn Backing>,
    poison: Arc<Poison>,
}

impl FencedStore {
    fn on(disk: Disk) -> Self {
        let below = disk.mount();
        let marks = PoisonMarkers::new(Arc::clone(&below), None);
        let found = marks.read();
        let clock = Box::new(Timestamp::default);
        let poison = Arc::new(Poison::new(marks, BOOT, clock, found));
        let backing = Arc::new(FencedBacking::new(below, Arc::clone(&poison)));
        Self {
            disk,
            backing,
            poison,
        }
    }

    fn open(&self, access: Access) -> Result<Store, StoreError> {
        let options = OpenOptions {
            datastore: Some(UUID),
            boot: BOOT,
            access,
            log: log_options(),
            marks: MarkTableSizes::of(64),
        };
        Ok(Store::open(Arc::clone(&self.backing), &options)?.store)
    }
}

fn log_options() -> LogOptions {
    LogOptions {
        segment_bytes: 64 << 10,
        ..LogOptions::default()
    }
}

fn empty_disk() -> Disk {
    Disk::new(DiskOptions {
        capacity_bytes: 1 << 30,
        capacity_files: 1000,
    })
}

/// Returns an open store with a written file, and with another file that was freed.
fn used() -> (FencedStore, Store) {
    let disk = empty_disk();
    let raw = disk.mount();
    Store::create(&raw, UUID, &log_options()).unwrap();
    let fenced = FencedStore::on(disk);
    let store = fenced.open(Access::Write).unwrap();
    for (number, name) in [(FILE, "kept"), (3, "freed")] {
        store.commit(&create(number, name)).unwrap();
        let (osn, time) = (osn(10 + number), Timestamp::default());
        store.write(ino(number), 0, b"bytes", osn, time).unwrap();
    }
    let parent = Ino::ROOT;
    let name = FileName::new(b"freed").unwrap();
    store
        .commit(&op(20, MetaRequest::Unlink { parent, name }))
        .unwrap();
    store
        .commit(&op(21, MetaRequest::Reap { ino: ino(3) }))
        .unwrap();
    (fenced, store)
}

fn ino(number: u64) -> Ino {
    Ino::new(number).unwrap()
}

fn osn(sequence: u64) -> Osn {
    Osn {
        generation: Generation::FIRST,
        sequence,
    }
}

fn op(sequence: u64, request: MetaRequest) -> MetaOp {
    MetaOp {
        osn: osn(sequence),
        time: Timestamp::default(),
        request,
    }
}

fn create(number: u64, name: &str) -> MetaOp {
    let request = MetaRequest::creation(
        Ino::ROOT,
        FileName::new(name.as_bytes()).unwrap(),
        ino(number),
        NodeKind::File,
    )
    .mode(0o644)
    .request();
    op(number, request)
}

type Promise = fn(&Store) -> Result<(), OpError>;

/// Every way in which a store makes data durable, or reports data as durable.
const PROMISES: [(&str, Promise); 14] = [
    ("fsync", |store| store.sync_file(ino(FILE), true)),
    ("O_SYNC", |store| store.sync_file(ino(FILE), false)),
    ("a file without content", |store| {
        store.sync_file(Ino::ROOT, true)
    }),
    ("the log", |store| Ok(store.sync_all_logged()?)),
    ("Welcome", |store| Ok(store.sync_all_applied()?)),
    ("checkpoint", |store| Ok(store.checkpoint()?)),
    ("removal", |store| {
        store.collect_garbage()?;
        Ok(store.sync_all_logged()?)
    }),
    ("InSync", |store| Ok(store.sync_everything()?)),
    ("BeginResync", |store| Ok(store.image().begin()?)),
    ("FlushImage", |store| Ok(store.image().prepare_finish()?)),
    ("EndImage", |store| Ok(store.image().finish(osn(99), 2)?)),
    ("an operation, always", |store| {
        let applied = store.commit(&create(50, "another"))?;
        Ok(store.sync_applied(&applied)?)
    }),
    ("close", |store| Ok(store.close()?)),
    ("numbers", |store| {
        for _ in 0..=1 << 20 {
            store.next_ino()?;
        }
        Ok(())
    }),
];

fn reads(store: &Store) -> Vec<u8> {
    let mut bytes = vec![0; 5];
    let length = store.read(ino(FILE), 0, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

/// Asserts that the store promises nothing any more, neither in this process nor in any later
/// process, with or without a power loss.
#[track_caller]
fn promises_nothing(fenced: &FencedStore, store: &Store, after: &str) {
    assert!(store.is_poisoned(), "{after}");
    for (what, promise) in PROMISES {
        if what != "numbers" {
            assert!(promise(store).is_err(), "{what}, after {after}");
        }
    }
    let (osn, time) = (osn(80), Timestamp::default());
    assert!(
        store.write(ino(FILE), 0, b"x", osn, time).is_err(),
        "{after}"
    );
    assert!(!store.is_synced(ino(FILE), StateVersion(1)), "{after}");
    assert_eq!(reads(store), b"bytes", "{after}");
    let failure = fenced.poison.failure().unwrap();
    assert!(failure.reason.contains("cannot "), "{failure}");

    fenced.disk.kill();
    fenced.disk.stop_failing();
    let again = FencedStore::on(fenced.disk.fork());
    assert_eq!(again.poison.failure(), Some(failure), "{after}");
    assert!(again.open(Access::Write).is_err(), "{after}");
    let looked = again.open(Access::Read).unwrap();
    assert!(looked.is_poisoned() && looked.checkpoint().is_err());
    assert_eq!(reads(&looked), b"bytes", "{after}");
    let cold = fenced.disk.fork();
    cold.power_loss_with(Survivors::Nothing, &mut Random::new(1));
    assert!(FencedStore::on(cold).poison.has_failed(), "{after}");
}

/// Returns the number of syncs of a promise.
fn syncs_of(promise: Promise) -> usize {
    let (fenced, store) = used();
    let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    fenced.disk.observe(Some(Arc::new(move |call: &Call<'_>| {
        let syncs = [CallKind::Sync, CallKind::SyncDirectory, CallKind::SyncAll];
        if syncs.contains(&call.kind) {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        Verdict::Go
    })));
    promise(&store).unwrap();
    count.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn after_any_failed_sync_nothing_is_promised_again() {
    let mut met = 0;
    for (what, promise) in PROMISES {
        for nth in 1..=syncs_of(promise) {
            // Also for `ENOSPC`: the data that the failed sync should have saved is gone.
            for errno in [Errno::Io, Errno::NoSpace] {
                let (fenced, store) = used();
                fenced.disk.fail_call(CallClass::Sync, nth as u64, errno);
                // The promise may succeed, if it does not need the failed sync.
                let _outcome = promise(&store);
                promises_nothing(&fenced, &store, &format!("{what}, sync {nth}, {errno}"));
                met += 1;
            }
        }
    }
    assert!(met > 40, "{met} syncs");
}

#[test]
fn an_input_or_output_error_poisons_and_a_full_disk_does_not() {
    let (osn, time) = (osn(60), Timestamp::default());
    for errno in [Errno::Io, Errno::NoSpace, Errno::QuotaExceeded] {
        for class in [CallClass::Read, CallClass::Write, CallClass::Name] {
            let (fenced, store) = used();
            fenced.disk.fail_call(class, 1, errno);
            let mut buffer = [0; 5];
            let failed = match class {
                CallClass::Read => store.read(ino(FILE), 0, &mut buffer).is_err(),
                CallClass::Name => {
                    store.commit(&create(40, "new")).unwrap();
                    store.write(ino(40), 0, b"x", osn, time).is_err()
                }
                _ => store.write(ino(FILE), 0, b"other", osn, time).is_err(),
            };
            assert!(failed, "{class:?} {errno}");
            if errno == Errno::Io {
                promises_nothing(&fenced, &store, &format!("{class:?}"));
            } else {
                assert!(!store.is_poisoned(), "{class:?} {errno}");
                store.sync_file(ino(FILE), true).unwrap();
            }
        }
    }
}

/// The log reports its failure through the store.
#[test]
fn a_log_that_could_not_be_written_takes_the_store_with_it() {
    for errno in [Errno::Io, Errno::NoSpace, Errno::QuotaExceeded] {
        let (fenced, store) = used();
        fenced.disk.fail_call(CallClass::Write, 1, errno);
        assert!(store.commit(&create(40, "new")).is_err());
        assert_eq!(store.is_poisoned(), errno == Errno::Io, "{errno}");
    }
}

/// The disk may not even accept the marker. The process treats the disk as failed all the same.
#[test]
fn a_disk_that_accepts_no_marker_is_poisoned_all_the_same() {
    let (fenced, store) = used();
    fenced
        .disk
        .observe(Some(Arc::new(|_: &Call<'_>| Verdict::Fail(Errno::Io))));
    assert!(store.sync_file(ino(FILE), true).is_err());
    fenced.disk.observe(None);
    assert!(!fenced.disk.files().contains(&MARKER_FILE.to_owned()));
    for (what, promise) in PROMISES.into_iter().filter(|(what, _)| *what != "numbers") {
        assert!(promise(&store).is_err(), "{what}");
    }
}

/// The marker is written before the operation is refused.
#[test]
fn the_marker_is_written_before_the_answer() {
    let (fenced, store) = used();
    let disk = fenced.disk.clone();
    fenced.disk.fail_call(CallClass::Sync, 1, Errno::Io);
    assert!(store.sync_file(ino(FILE), true).is_err());
    let left = disk.fork();
    left.power_loss_with(Survivors::Nothing, &mut Random::new(1));
    let mark = left.read_all(MARKER_FILE).unwrap();
    assert!(!mark.is_empty());
}

#[test]
fn a_marker_is_valid_by_its_name() {
    for text in [
        "",
        "{",
        "{\"reason\": 3}",
        "{\"reason\":\"x\",\"time\":\"y\"}",
    ] {
        let (fenced, _) = used();
        fenced.disk.kill();
        let raw = fenced.disk.mount();
        let file = raw.open_or_create(MARKER_FILE).unwrap();
        file.write_at(0, text.as_bytes()).unwrap();
        let again = FencedStore::on(fenced.disk.clone());
        assert!(again.poison.has_failed(), "{text:?}");
    }
}
