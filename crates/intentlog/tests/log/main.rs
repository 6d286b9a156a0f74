//! The log on a disk that crashes: what is promised on the crate page, each promise tested.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

mod crash;
mod flips;
mod lifecycle;
mod model;
mod sim_backing;
mod threads;

use lockstep_intentlog::{IntentLog, LogError, LogOptions, Position, Record};
use lockstep_types::{Ino, MetaOp, MetaRequest, Osn, Timestamp, XattrMode};
use sim_backing::SimBacking;

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

/// Sets an attribute to a value of so many bytes.
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

/// A time whose encoding is as long as any.
fn late(number: u64) -> Timestamp {
    Timestamp {
        secs: i64::MAX - i64::try_from(number).unwrap(),
        nanos: 999_999_999,
    }
}

/// A record with a payload of so many bytes.
fn long(bytes: usize) -> Record {
    let payload = |op: &MetaOp| postcard::to_allocvec(op).unwrap().len();
    let around = payload(&set_xattr(1, bytes)) - bytes;
    let op = set_xattr(1, bytes - around);
    assert_eq!(payload(&op), bytes);
    Record::CommittedOp(op)
}

type Found = Vec<(Position, Record)>;

fn open(disk: &SimBacking, options: &LogOptions) -> Result<(IntentLog, Found), LogError> {
    let (log, replay) = IntentLog::open(disk, DIR, options)?;
    let found = replay.collect::<Result<_, _>>()?;
    Ok((log, found))
}

fn read(disk: &SimBacking, options: &LogOptions) -> Result<Found, LogError> {
    IntentLog::read(disk, DIR, options)?.collect()
}
