//! Kept values of one record with several labels. A deletion, and a removal of the record, leave those that an older snapshot sees.

use super::*;
use crate::namespace::keys::KeyRange;
use crate::namespace::plan::View;
use crate::namespace::record::EntryRecord;

const P: u64 = 10;

fn attribute() -> Vec<u8> {
    keys::xattr(ino(2), b"name")
}

fn change(namespace: &Namespace, key: &[u8], value: Option<&[u8]>) {
    let change = (key.to_vec(), value.map(<[u8]>::to_vec));
    namespace.apply([change]).unwrap();
}

/// Keeps a value, regardless of the record.
fn keep(namespace: &Namespace, key: &[u8], id: SnapshotId, value: Option<&[u8]>) {
    namespace
        .apply(super::super::kept::put(key, id, value))
        .unwrap();
}

fn seen(namespace: &Namespace, key: &[u8]) -> Option<Vec<u8>> {
    namespace.at(id(P, 0)).unwrap().get(key).unwrap()
}

fn labels(namespace: &Namespace, range: &KeyRange) -> Vec<SnapshotId> {
    let keys = namespace.keys(range).unwrap();
    keys.iter()
        .filter_map(|key| keys::snapshot_of(key))
        .collect()
}

fn step(namespace: &Namespace, id: SnapshotId) {
    let mut deletion = namespace.delete_snapshot(id).unwrap();
    let is_over = namespace.delete_step(&mut deletion, 100, &mut |_, _, _| Ok(Vec::new()));
    assert!(is_over.unwrap() && namespace.end_deletion(&deletion));
}

/// A store with the snapshot P, whose directory 2 gives out cookie 10 next.
fn store() -> (lockstep_lossy::disk::Disk, Namespace) {
    let disk = disk();
    let namespace = open(&disk);
    change(&namespace, &keys::inode(ino(2)), Some(&directory(10, 0)));
    namespace.create_snapshot(id(P, 0), snapshot(100));
    (disk, namespace)
}

#[test]
fn what_moves_hides_the_values_behind_it() {
    let (_disk, namespace) = store();
    let key = keys::xattr(ino(2), b"other");
    for (local, value) in [(1, b"a"), (2, b"b"), (3, b"c")] {
        change(&namespace, &key, Some(value));
        namespace.create_snapshot(id(P, local), snapshot(100));
    }
    change(&namespace, &key, None);
    // P sees "no such record"; hide that, so that P sees the first of the values.
    keep(&namespace, &key, id(P, 0), Some(b"0"));
    namespace
        .apply(super::super::kept::remove(&key, id(P, 0)))
        .unwrap();
    assert_eq!(seen(&namespace, &key), Some(b"a".to_vec()));
    for local in [2, 3] {
        namespace.delete_snapshot(id(P, local)).unwrap();
    }
    step(&namespace, id(P, 1));
    assert_eq!(seen(&namespace, &key), Some(b"a".to_vec()));
    assert_eq!(
        labels(&namespace, &keys::history_of(&key, id(1, 0))),
        [id(P, 0)]
    );
    step(&namespace, id(P, 3));
    step(&namespace, id(P, 2));
    assert_eq!(seen(&namespace, &key), Some(b"a".to_vec()));
}

#[test]
fn one_of_two_absences_stays() {
    let (_disk, namespace) = store();
    namespace.create_snapshot(id(11, 0), snapshot(100));
    namespace.create_snapshot(id(12, 0), snapshot(100));
    keep(&namespace, &attribute(), id(11, 0), None);
    keep(&namespace, &attribute(), id(12, 0), None);
    change(&namespace, &attribute(), Some(b"now"));
    assert_eq!(seen(&namespace, &attribute()), None);
    namespace.delete_snapshot(id(12, 0)).unwrap();
    step(&namespace, id(11, 0));
    assert_eq!(seen(&namespace, &attribute()), None);
    step(&namespace, id(12, 0));
    assert_eq!(seen(&namespace, &attribute()), None);
}

/// P has "no such record", and a snapshot that is being deleted a value behind it.
#[test]
fn an_absence_that_hides_a_value_outlives_the_record() {
    let (_disk, namespace) = store();
    change(&namespace, &attribute(), Some(b"1"));
    namespace.create_snapshot(id(11, 0), snapshot(100));
    change(&namespace, &attribute(), Some(b"2"));
    namespace.delete_snapshot(id(11, 0)).unwrap();
    change(&namespace, &attribute(), None);
    assert_eq!(seen(&namespace, &attribute()), None);
    step(&namespace, id(11, 0));
    assert_eq!(seen(&namespace, &attribute()), None);
}

/// A kept value goes, as P does not see it by its birth. Then comes a value that does not say so.
#[test]
fn a_record_is_kept_again_once_its_kept_value_is_gone() {
    let (_disk, namespace) = store();
    let key = keys::entry(ino(2), b"name");
    let entry = |number: u64, cookie: u64| {
        let kind = NodeKind::File;
        let ino = ino(number);
        record::encode(&EntryRecord { ino, kind, cookie })
    };
    change(&namespace, &key, Some(&entry(50, 10)));
    change(&namespace, &keys::inode(ino(2)), Some(&directory(11, 1)));
    namespace.create_snapshot(id(11, 0), snapshot(100));
    change(&namespace, &key, Some(&entry(51, 10)));
    let labels_of_key =
        |namespace: &Namespace| labels(namespace, &keys::history_of(&key, id(1, 0)));
    assert_eq!(labels_of_key(&namespace), [id(11, 0)]);
    let mut deletion = namespace.delete_snapshot(id(11, 0)).unwrap();
    change(&namespace, &key, Some(&entry(52, 10)));
    namespace
        .delete_step(&mut deletion, 100, &mut |_, _, _| Ok(Vec::new()))
        .unwrap();
    assert_eq!(labels_of_key(&namespace), []);
    change(&namespace, &key, Some(&entry(53, 5)));
    assert_eq!(seen(&namespace, &key), None);
}

/// A deletion asks for each of the kept blocks, with the older snapshot, and applies the answer.
#[test]
fn kept_blocks_are_judged_by_their_owner() {
    let (_disk, namespace) = store();
    namespace.create_snapshot(id(11, 0), snapshot(100));
    let blocks = [3, 4].map(|chunk| keys::kept_blocks(ino(9), chunk, id(11, 0)));
    for key in &blocks {
        change(&namespace, key, Some(b"mask"));
        change(&namespace, &keys::kept_index(id(11, 0), key), Some(b""));
    }
    let mut deletion = namespace.delete_snapshot(id(11, 0)).unwrap();
    let mut asked = Vec::new();
    let is_over = namespace.delete_step(&mut deletion, 100, &mut |key, older, _| {
        asked.push((key.to_vec(), older));
        let goes = key == blocks[0];
        let index = keys::kept_index(id(11, 0), key);
        let gone = vec![(key.to_vec(), None), (index, None)];
        Ok(if goes { gone } else { Vec::new() })
    });
    assert!(is_over.unwrap());
    let older = Some(id(P, 0));
    assert_eq!(asked, blocks.clone().map(|key| (key, older)));
    assert_eq!(keys_of(&namespace, keys::KEPT_BLOCKS), [blocks[1].clone()]);
    assert_eq!(keys_of(&namespace, keys::KEPT_INDEX).len(), 1);
}
