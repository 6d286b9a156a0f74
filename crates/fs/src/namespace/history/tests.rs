//! Tests of the history, on a namespace alone.

use std::collections::BTreeMap;

use lockstep_types::{BootId, FileName, Generation, Ino, NodeKind, Osn, SnapshotId, Timestamp};

use crate::kv::memtable::Memtable;
use crate::kv::redb::{RedbKv, RedbOptions};
use crate::namespace::record::{self, Body, Checkpoint, Inode, ModeAndFlags, RecordChange};
use crate::namespace::snapshot_list::{SnapshotBytes, SnapshotKind, SnapshotRecord};
use crate::namespace::{Namespace, keys};
use crate::paths::NAMESPACE_FILE;

mod copies;
mod neighbours;
mod reading;
mod threads;
mod world;

/// All records of the replicated tables.
type Copy = BTreeMap<Vec<u8>, Vec<u8>>;

fn ino(number: u64) -> Ino {
    Ino::new(number).unwrap()
}

fn id(sequence: u64, local: u8) -> SnapshotId {
    let osn = Osn {
        generation: Generation::FIRST,
        sequence,
    };
    SnapshotId { osn, local }
}

fn snapshot(inos_below: u64) -> SnapshotRecord {
    SnapshotRecord {
        name: String::new(),
        time: Timestamp::default(),
        kind: SnapshotKind::User,
        inos_below,
        is_deleted: false,
        bytes: SnapshotBytes::Unsettled,
        serial: 0,
        holds: Vec::new(),
    }
}

fn inode(body: Body, change: u64) -> Vec<u8> {
    record::encode(&Inode {
        bits: ModeAndFlags::of_mode(0o755),
        uid: 0,
        gid: 0,
        nlink: 1,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        osn: Osn {
            generation: Generation::FIRST,
            sequence: change,
        },
        body,
        named_at: None,
    })
}

fn directory(next_cookie: u64, change: u64) -> Vec<u8> {
    let body = Body::Directory {
        parent: Ino::ROOT,
        next_cookie,
        entries: 0,
    };
    inode(body, change)
}

/// A disk with an empty namespace.
fn disk() -> lockstep_lossy::disk::Disk {
    let disk = lockstep_lossy::disk::Disk::default();
    let kv = RedbKv::create(&*disk.mount(), NAMESPACE_FILE, RedbOptions::default()).unwrap();
    let records = Memtable::new(kv);
    let checkpoint = Checkpoint {
        log_position: 0,
        log_keep_from: 0,
        applied: Osn::ZERO,
        ino_limit: 2,
        epoch: 0,
        boot: Some(BootId::from_bytes([1; 16])),
    };
    records.apply([(keys::CHECKPOINT.to_vec(), Some(record::encode(&checkpoint)))]);
    records.freeze();
    records.flush().unwrap();
    disk
}

fn open(disk: &lockstep_lossy::disk::Disk) -> Namespace {
    Namespace::open(&*disk.mount()).unwrap().0
}

fn keys_of(namespace: &Namespace, table: u8) -> Vec<Vec<u8>> {
    namespace.keys(&keys::table(table)).unwrap()
}

/// Deletes a snapshot as a whole.
fn delete(namespace: &Namespace, id: SnapshotId) {
    let mut deletion = namespace.delete_snapshot(id).unwrap();
    while !namespace
        .delete_step(&mut deletion, 3, &mut |_, _, _| Ok(Vec::new()))
        .unwrap()
    {}
    assert!(namespace.end_deletion(&deletion));
}
