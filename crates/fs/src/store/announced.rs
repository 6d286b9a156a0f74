//! Tests: each way in which the bytes of files change is announced before it changes anything.
//!
//! The disk tells of each call that changes content, and an observer of the store tells of each announcement. A call
//! without an announcement that covers the call is a finding.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use lockstep_intentlog::LogOptions;
use lockstep_lossy::disk::{Call, CallKind, Disk, Verdict};
use lockstep_types::backing::BackingFile;
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{
    AllocateMode, DatastoreUuid, FileName, Generation, Ino, MetaOp, MetaRequest, NodeKind, Osn,
    Timestamp,
};
use parking_lot::Mutex;

use super::{CopyBefore, FallbackAccess, ImageChunk, OpenOptions, Store};
use crate::content::before_change::{ByteChange, ByteEdit, ByteObserver, Removal};
use crate::error::StoreError;
use crate::namespace::keys;
use crate::namespace::record::{self, Body, Inode};
use crate::paths::content_owner;
use crate::view::FileTimes;

const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of the file on which the ways are tried.
const BLOCKS: u64 = 20;

/// The announcements, and the calls that came without one.
#[derive(Default)]
struct Record {
    announced: Vec<(Ino, Range<u64>)>,
    removals: Vec<Ino>,
    findings: Vec<String>,
    /// Calls that changed content.
    changes: usize,
    /// Whether the observer refuses each change.
    refuses: bool,
}

#[derive(Default)]
struct Recorder(Mutex<Record>);

impl Recorder {
    /// A call of the disk is about to change something.
    fn on_call(&self, call: &Call<'_>) {
        let Some(ino) = content_owner(call.path) else {
            return;
        };
        let mut record = self.0.lock();
        let bytes = call.offset..call.offset.saturating_add(call.length);
        let covers = |(announced, range): &(Ino, Range<u64>)| {
            *announced == ino && range.start <= bytes.start && bytes.end <= range.end
        };
        let is_announced = match call.kind {
            CallKind::Remove | CallKind::Rename => record.removals.contains(&ino),
            CallKind::Write
            | CallKind::SetLength
            | CallKind::Allocate
            | CallKind::PunchHole
            | CallKind::ZeroRange => record.announced.iter().any(covers),
            CallKind::Create
            | CallKind::TableStore
            | CallKind::Sync
            | CallKind::SyncDirectory
            | CallKind::SyncAll => return,
        };
        record.changes += 1;
        if !is_announced {
            record.findings.push(format!("{call:?}"));
        }
    }
}

impl ByteObserver for Recorder {
    fn before_change(
        &self,
        change: &ByteChange<'_>,
        _: &dyn BackingFile,
    ) -> Result<(), StoreError> {
        let mut record = self.0.lock();
        if record.refuses {
            return Err(StoreError::ReadOnly);
        }
        let announced = (change.ino, change.edit.range());
        record.announced.push(announced);
        Ok(())
    }

    fn before_removal(&self, removal: &Removal<'_>) -> Result<Option<String>, StoreError> {
        self.0.lock().removals.push(removal.ino);
        Ok(None)
    }
}

/// A store on a disk in memory, with one file.
struct Site {
    disk: Disk,
    store: Store,
    recorder: Arc<Recorder>,
    ino: Ino,
    count: u64,
}

impl Site {
    fn new() -> Self {
        let disk = Disk::default();
        Store::create(&disk.mount(), UUID, &LogOptions::default()).unwrap();
        let options = OpenOptions::for_test(UUID);
        let mut store = Store::open(disk.mount(), &options).unwrap().store;
        let recorder = Arc::new(Recorder::default());
        let observer = Arc::clone(&recorder);
        store.content.observers_mut().add_first(observer);
        let watched = Arc::clone(&recorder);
        disk.observe(Some(Arc::new(move |call| {
            watched.on_call(call);
            Verdict::Go
        })));
        let ino = store.next_ino().unwrap();
        let mut site = Self {
            disk,
            store,
            recorder,
            ino,
            count: 0,
        };
        let name = FileName::new(b"f").unwrap();
        let create = MetaRequest::creation(Ino::ROOT, name, ino, NodeKind::File);
        site.commit(create.request());
        let (osn, time) = site.next();
        let bytes = vec![1; usize::try_from(BLOCKS * BLOCK).unwrap()];
        site.store.write(ino, 0, &bytes, osn, time).unwrap();
        site
    }

    fn next(&mut self) -> (Osn, Timestamp) {
        self.count += 1;
        let osn = Osn {
            generation: Generation::FIRST,
            sequence: self.store.first_sequence() + self.count,
        };
        (osn, Timestamp::default())
    }

    fn op(&mut self, request: MetaRequest) -> MetaOp {
        let (osn, time) = self.next();
        MetaOp { osn, time, request }
    }

    fn commit(&mut self, request: MetaRequest) {
        let op = self.op(request);
        self.store.commit(&op).unwrap();
    }

    fn allocate(&mut self, mode: AllocateMode, offset: u64) -> MetaOp {
        let (ino, length) = (self.ino, 2 * BLOCK);
        self.op(MetaRequest::Allocate {
            ino,
            offset,
            length,
            mode,
        })
    }

    /// Changes content in one way, which must be announced with this origin.
    fn way(&mut self, name: &str, change: impl FnOnce(&mut Self)) {
        *self.recorder.0.lock() = Record::default();
        change(self);
        let record = self.recorder.0.lock();
        assert!(record.changes > 0, "{name}: nothing changed");
        assert!(record.findings.is_empty(), "{name}: {:?}", record.findings);
        assert!(!record.announced.is_empty(), "{name}");
    }
}

#[test]
fn operations_are_announced() {
    use AllocateMode::{Allocate, AllocateKeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize};
    let mut site = Site::new();
    let ino = site.ino;
    site.way("write of the secondary", |site| {
        let (osn, time) = site.next();
        site.store.write(ino, 100, b"two", osn, time).unwrap();
    });
    site.way("write of the primary", |site| {
        let (osn, time) = site.next();
        let ticket = site.store.begin_write(ino, 9000, 3, false).unwrap();
        site.store.write_begun(&ticket, 9000, b"one").unwrap();
        site.store.complete_write(&ticket, 9003, osn, time);
    });
    for size in [BLOCK + 1, 5 * BLOCK] {
        site.way("truncate", |site| {
            site.commit(MetaRequest::Truncate {
                ino,
                size,
                drop_set_id: false,
            });
        });
    }
    for (number, mode) in [
        Allocate,
        AllocateKeepSize,
        PunchHole,
        ZeroRange,
        ZeroRangeKeepSize,
    ]
    .into_iter()
    .enumerate()
    {
        site.way("allocate", |site| {
            let op = site.allocate(mode, number as u64 * BLOCK);
            site.store.commit(&op).unwrap();
        });
    }
    site.way("reservation before the peer is asked", |site| {
        let op = site.allocate(Allocate, 30 * BLOCK);
        site.store.validate(&op).unwrap();
    });
    site.way("bytes that a failed operation has left", |site| {
        let beyond = 50 * BLOCK;
        let left = ByteChange {
            ino,
            edit: ByteEdit::Resize { size: beyond },
        };
        site.store.content.change(&left).unwrap();
        site.store.tree().restore_length(ino);
        assert!(site.store.content.length(ino).unwrap() < beyond);
    });
}

#[test]
fn changes_of_a_resync_are_announced() {
    let mut site = Site::new();
    let ino = site.ino;
    site.way("blocks", |site| {
        site.store
            .replica()
            .put_blocks(ino, BLOCK, &[3; BLOCK_BYTES])
            .unwrap();
    });
    site.way("zeros", |site| {
        site.store.replica().zero(ino, BLOCK, BLOCK).unwrap();
    });
    site.way("hole", |site| {
        assert!(site.store.replica().punch(ino, 2 * BLOCK, BLOCK).unwrap());
    });
    site.way("reserved space", |site| {
        site.store
            .replica()
            .reserve(ino, 30 * BLOCK, BLOCK)
            .unwrap();
    });
    site.way("size and times", |site| {
        let times = FileTimes {
            size: 3 * BLOCK,
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            last_write: None,
        };
        assert!(site.store.replica().set_file_times(ino, &times).unwrap());
    });
    site.way("records of an image", |site| {
        let view = site.store.tree();
        let mut chunk = ImageChunk::read(&view, keys::INODES, &[], 1 << 20).unwrap();
        resize(&mut chunk, ino, BLOCK);
        site.store.image().load_chunk(&chunk).unwrap();
    });
}

/// Changes the size in the record of a file.
fn resize(chunk: &mut ImageChunk, ino: Ino, bytes: u64) {
    let mut records = chunk.records.iter_mut();
    let found = records.find(|record| keys::ino_of(&record.key) == Some(ino));
    let found = found.unwrap();
    let mut inode: Inode = record::decode(&found.value).unwrap();
    inode.body = Body::File { size: bytes };
    found.value = record::encode(&inode);
}

/// Content that leaves its place is announced, whether it is removed or moved into `bodies/`.
#[test]
fn removed_content_is_announced() {
    for is_seen in [false, true] {
        let mut site = Site::new();
        let ino = site.ino;
        if is_seen {
            let fallback = FallbackAccess::of(&site.store);
            let copy = CopyBefore {
                is_exact: true,
                own_of: None,
                time: Timestamp::default(),
            };
            assert!(fallback.begin(copy).unwrap());
        }
        site.commit(MetaRequest::Unlink {
            parent: Ino::ROOT,
            name: FileName::new(b"f").unwrap(),
        });
        site.commit(MetaRequest::Reap { ino });
        *site.recorder.0.lock() = Record::default();
        assert_eq!(site.store.collect_garbage().unwrap(), 1);
        let record = site.recorder.0.lock();
        assert_eq!(record.removals, [ino]);
        assert!(
            record.changes > 0 && record.findings.is_empty(),
            "{:?}",
            record.findings
        );
        let files = site.disk.files();
        let moved = files.iter().any(|path| path.starts_with("bodies/"));
        assert_eq!(moved, is_seen);
    }
}

/// The change that an observer refuses is not made, and its caller hears of the refusal.
#[test]
fn a_refused_change_is_not_made() {
    let mut site = Site::new();
    let ino = site.ino;
    *site.recorder.0.lock() = Record {
        refuses: true,
        ..Record::default()
    };
    let (osn, time) = site.next();
    site.store.write(ino, 0, b"two", osn, time).unwrap_err();
    let op = site.allocate(AllocateMode::PunchHole, 0);
    site.store.commit(&op).unwrap_err();
    assert_eq!(site.recorder.0.lock().changes, 0);
    let mut bytes = [0; 3];
    site.store.read(ino, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 3]);
}

/// Calls that change the bytes of a file of a backing.
const CALLS: [&str; 5] = [
    ".write_at(",
    ".set_len(",
    ".allocate(",
    ".punch_hole(",
    ".zero_range(",
];

/// The files of the product that may make such calls, and their objects.
const CALLERS: [(&str, &str); 14] = [
    (
        "adopt/target.rs",
        "the content of a store that is not there yet",
    ),
    ("backing", "below the store"),
    ("content/before_change.rs", "the one place"),
    (
        "content/healing.rs",
        "bytes that a disk has changed are put back",
    ),
    ("content/open_file.rs", "the cut of a failed write"),
    ("content/reservation.rs", "a reservation, for the one place"),
    ("delta/barrier_file.rs", "the names of barriers"),
    ("delta/rest_copy.rs", "the rest of the source of a resync"),
    (
        "delta/trace_file.rs",
        "the trace of a node that serves alone",
    ),
    ("export.rs", "a file of the exported tree"),
    ("kv", "the file of the namespace"),
    (
        "seed",
        "the files of a seed, and the content of a store that is not there yet",
    ),
    ("snapshots/packs", "the files of the packs"),
    ("sums", "the files of the sums"),
];

/// A new way to change bytes goes through the one place: no other file makes the calls.
#[test]
fn bytes_change_at_one_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut callers = BTreeMap::new();
    find_callers(&root, &root, &mut callers);
    let is_allowed = |path: &str| CALLERS.iter().any(|(allowed, _)| path.starts_with(allowed));
    callers.retain(|path, _| !is_allowed(path));
    assert!(callers.is_empty(), "{callers:#?}");
}

fn find_callers(root: &Path, folder: &Path, callers: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_callers(root, &path, callers);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let product = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let name = path
            .strip_prefix(root)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let line = product
            .lines()
            .find(|line| CALLS.iter().any(|call| line.contains(call)));
        if let Some(line) = line.filter(|_| !name.ends_with("announced.rs")) {
            callers.insert(name, line.trim().to_owned());
        }
    }
}
