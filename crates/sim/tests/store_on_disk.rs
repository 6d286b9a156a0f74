//! A real store on the simulated disk, crashed at every call that the store makes. Acknowledged
//! data survives the end of the process. Data that was acknowledged as durable survives a power
//! loss.

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "store_on_disk/crashes.rs"]
mod crashes;
#[path = "store_on_disk/creation.rs"]
mod creation;
#[path = "store_on_disk/directories.rs"]
mod directories;
#[path = "store_on_disk/double_faults.rs"]
mod double_faults;
#[path = "store_on_disk/healed.rs"]
mod healed;
#[path = "store_on_disk/history.rs"]
mod history;
#[path = "store_on_disk/kept_blocks.rs"]
mod kept_blocks;
#[path = "store_on_disk/numbers.rs"]
mod numbers;
#[path = "store_on_disk/states.rs"]
mod states;
#[path = "store_on_disk/sums.rs"]
mod sums;
#[path = "store_on_disk/threads.rs"]
mod threads;
#[path = "store_on_disk/workload.rs"]
mod workload;

use std::sync::Arc;

use lockstep_fs::store::{Access, MarkTableSizes, OpenOptions, Opened};
use lockstep_fs::{Store, StoreError};
use lockstep_intentlog::LogOptions;
use lockstep_sim::disk::{CallKind, Disk, DiskOptions, Verdict};
use lockstep_sums::SumSecret;
use lockstep_types::backing::Backing;
use lockstep_types::{
    BootId, DatastoreUuid, FileName, Generation, Ino, MetaRequest, NodeKind, Osn,
};

const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);

/// The machine's run during a workload, and its run after a power loss.
const BOOT: u8 = 1;
const NEXT_BOOT: u8 = 2;

/// The size of each of the two segments.
const LOG_SEGMENT_BYTES: u64 = 64 << 10;

fn log_options() -> LogOptions {
    LogOptions {
        segment_bytes: LOG_SEGMENT_BYTES,
        salt: [9; 16],
        keep_from: None,
        is_whole: false,
    }
}

fn file_name(name: &str) -> FileName {
    FileName::new(name.as_bytes()).unwrap()
}

/// Returns the number of an operation.
fn osn(sequence: u64) -> Osn {
    Osn {
        generation: Generation::FIRST,
        sequence,
    }
}

/// Returns the creation of an inode with plain attributes.
fn creation(parent: Ino, name: FileName, ino: Ino, kind: NodeKind) -> MetaRequest {
    MetaRequest::creation(parent, name, ino, kind)
        .mode(0o644)
        .request()
}

fn sum_secret() -> SumSecret {
    SumSecret::new([8; 32])
}

fn empty_disk() -> Disk {
    Disk::new(DiskOptions {
        capacity_bytes: 1 << 30,
        capacity_files: 1 << 20,
    })
}

fn create(disk: &Disk) -> Result<(), StoreError> {
    let backing: Arc<dyn Backing> = disk.mount();
    Store::create(&backing, UUID, &log_options())
}

/// Returns a disk with a store that was never opened.
fn made_disk() -> Disk {
    let disk = empty_disk();
    create(&disk).unwrap();
    disk
}

fn open(disk: &Disk, boot: u8) -> Result<Opened, StoreError> {
    open_on(disk.mount(), boot)
}

fn open_on(backing: Arc<dyn Backing>, boot: u8) -> Result<Opened, StoreError> {
    let options = OpenOptions {
        datastore: Some(UUID),
        boot: BootId::from_bytes([boot; 16]),
        access: Access::Write,
        log: log_options(),
        marks: MarkTableSizes::of(64),
    };
    Store::open(backing, &options)
}

/// Sets the result of the `nth` call from now on.
fn at_call(disk: &Disk, nth: u64, verdict: Verdict) {
    let serial = disk.calls() + nth;
    disk.observe(Some(Arc::new(move |call| {
        if call.serial == serial {
            verdict
        } else {
            Verdict::Go
        }
    })));
}

/// Returns the kinds and lengths of the calls that `body` makes on a disk.
fn calls_of(disk: &Disk, body: impl FnOnce()) -> Vec<(CallKind, u64)> {
    let calls = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let into = Arc::clone(&calls);
    disk.observe(Some(Arc::new(move |call| {
        into.lock().push((call.kind, call.length));
        Verdict::Go
    })));
    body();
    disk.observe(None);
    std::mem::take(&mut *calls.lock())
}
