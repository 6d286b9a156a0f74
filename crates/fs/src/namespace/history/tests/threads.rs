//! Changes, reads and deletions at the same time, and a disk that fails to read.

use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lockstep_lossy::disk::CallClass;
use lockstep_types::Errno;

use super::*;
use crate::namespace::plan::View;

/// So many that the look-ups for a batch take a while.
const NAMES: usize = 600;

fn attribute(name: usize) -> Vec<u8> {
    keys::xattr(ino(2), format!("{name}").as_bytes())
}

/// Changes all attributes in one batch.
fn put_all(namespace: &Namespace, value: Option<u8>) {
    let changes = (0..NAMES).map(|name| (attribute(name), value.map(|value| vec![value])));
    namespace.apply(changes).unwrap();
}

/// The values as of a snapshot, in order.
fn values(namespace: &Namespace, id: SnapshotId) -> Vec<Vec<u8>> {
    let mut values = Vec::new();
    let at = namespace.at(id).unwrap();
    at.scan(&keys::table(keys::XATTRS), &mut |_, value| {
        values.push(value.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    values
}

/// Says so when it is dropped, also by a failure.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `busy` over and over while `body` runs.
fn beside(busy: impl Fn() + Sync, body: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                busy();
            }
        });
        body();
        drop(over);
    });
}

#[test]
fn a_reader_never_sees_a_record_that_comes_and_goes() {
    let disk = disk();
    let namespace = open(&disk);
    namespace.create_snapshot(id(1, 0), snapshot(10));
    let at = namespace.at(id(1, 0)).unwrap();
    let come_and_go = || {
        for value in [Some(1), None] {
            put_all(&namespace, value);
        }
    };
    beside(come_and_go, || {
        for name in 0..NAMES {
            assert_eq!(at.get(&attribute(name)).unwrap(), None);
            assert!(values(&namespace, id(1, 0)).is_empty());
        }
    });
    assert!(keys_of(&namespace, keys::HISTORY).is_empty());
}

#[test]
fn of_two_changes_at_once_the_value_from_before_is_kept() {
    let disk = disk();
    let namespace = open(&disk);
    let together = Barrier::new(2);
    let put = |value: u8| {
        together.wait();
        put_all(&namespace, Some(value));
    };
    for round in 1..20 {
        put_all(&namespace, Some(0));
        namespace.create_snapshot(id(round, 0), snapshot(10));
        thread::scope(|scope| {
            scope.spawn(|| put(1));
            put(2);
        });
        assert!(values(&namespace, id(round, 0)) == vec![[0]; NAMES]);
    }
}

/// A kept value that stays of a local snapshot gets another label, before the place where the reader is.
#[test]
fn a_reader_misses_nothing_that_moves() {
    let disk = disk();
    let namespace = open(&disk);
    put_all(&namespace, Some(0));
    namespace.create_snapshot(id(1, 0), snapshot(10));
    let read = || assert!(values(&namespace, id(1, 0)) == vec![[0]; NAMES]);
    beside(read, || {
        for round in 2..8 {
            namespace.create_snapshot(id(round, 1), snapshot(10));
            put_all(&namespace, Some(1));
            delete(&namespace, id(round, 1));
            put_all(&namespace, Some(0));
        }
    });
    delete(&namespace, id(1, 0));
    assert!(keys_of(&namespace, keys::HISTORY).is_empty());
}

#[test]
fn a_change_whose_old_value_cannot_be_read_changes_nothing() {
    let disk = disk();
    let namespace = open(&disk);
    let old = vec![7; 5_000];
    let batch: Vec<_> = (0..NAMES)
        .map(|name| (attribute(name), Some(old.clone())))
        .collect();
    namespace.apply(batch).unwrap();
    namespace.create_snapshot(id(1, 0), snapshot(10));
    namespace.freeze();
    namespace.flush().unwrap();
    // Nothing is in memory.
    let disk = disk.fork();
    let namespace = open(&disk);
    let at = namespace.at(id(1, 0)).unwrap();
    let change = |value: Option<Vec<u8>>| {
        let fresh = (keys::inode(ino(99)), Some(Vec::new()));
        namespace.apply([fresh, (attribute(9), value)])
    };
    disk.fail_calls(CallClass::Read, Errno::Io);
    change(Some(vec![1])).unwrap_err();
    disk.stop_failing();
    assert_eq!(namespace.get(&attribute(9)).unwrap(), Some(old.clone()));
    assert_eq!(namespace.get(&keys::inode(ino(99))).unwrap(), None);
    change(None).unwrap();
    assert_eq!(at.get(&attribute(9)).unwrap(), Some(old));
}
