//! The log on a disk that crashes: one test or more for each promise of the crate page.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // Tests may panic.

mod crash;
mod flips;
mod lifecycle;
mod model;
mod threads;

use lockstep_intentlog::{IntentLog, LogError, LogOptions, Position, Record};
use lockstep_lossy::disk::Disk;
use lockstep_types::{Ino, MetaOp, MetaRequest, Osn, Timestamp, XattrMode};

/// Directory of the log in every test.
const DIR: &str = "meta/log";

fn options(segment_bytes: u64) -> LogOptions {
    LogOptions {
        segment_bytes,
        salt: [0x5a; 16],
        keep_from: None,
        is_whole: false,
    }
}

fn osn(sequence: u64) -> Osn {
    Osn {
        sequence,
        ..Osn::ZERO
    }
}

/// The record with this number; kinds and lengths vary.
fn record(number: u64) -> Record {
    match number % 5 {
        0 => Record::Pending(set_xattr(number, usize::try_from(number % 300).unwrap())),
        1 => Record::Committed { osn: osn(number) },
        2 => Record::Done { osn: osn(number) },
        3 => Record::RolledBack { osn: osn(number) },
        _ => Record::FileTimes {
            ino: Ino::ROOT,
            mtime: late(number),
            ctime: late(number + 1),
        },
    }
}

/// Sets an attribute to a value of `bytes` bytes.
fn set_xattr(number: u64, bytes: usize) -> MetaOp {
    MetaOp {
        osn: osn(number),
        time: Timestamp::default(),
        request: MetaRequest::SetXattr {
            ino: Ino::ROOT,
            name: b"user.test".to_vec(),
            value: vec![7; bytes],
            mode: XattrMode::Any,
        },
    }
}

/// A time with the longest encoding.
fn late(number: u64) -> Timestamp {
    Timestamp {
        secs: i64::MAX - i64::try_from(number).unwrap(),
        nanos: 999_999_999,
    }
}

/// A record with a payload of `bytes` bytes.
fn long(bytes: usize) -> Record {
    let payload = |op: &MetaOp| postcard::to_allocvec(op).unwrap().len();
    let around = payload(&set_xattr(1, bytes)) - bytes;
    let op = set_xattr(1, bytes - around);
    assert_eq!(payload(&op), bytes);
    Record::CommittedOp(op)
}

type Found = Vec<(Position, Record)>;

fn create(disk: &Disk, segment_bytes: u64) -> Result<IntentLog, LogError> {
    IntentLog::create(&*disk.mount(), DIR, &options(segment_bytes))
}

/// An empty log on a disk of its own.
fn new_log(segment_bytes: u64) -> (Disk, IntentLog) {
    let disk = Disk::default();
    let log = create(&disk, segment_bytes).unwrap();
    (disk, log)
}

fn open(disk: &Disk, options: &LogOptions) -> Result<(IntentLog, Found), LogError> {
    let (log, replay) = IntentLog::open(&*disk.mount(), DIR, options)?;
    let found = replay.collect::<Result<_, _>>()?;
    Ok((log, found))
}

fn read(disk: &Disk, options: &LogOptions) -> Result<Found, LogError> {
    IntentLog::read(&*disk.mount(), DIR, options)?.collect()
}
