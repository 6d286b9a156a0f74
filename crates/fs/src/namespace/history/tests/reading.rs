//! Reads as of a snapshot: pieces, births, and a snapshot that is deleted meanwhile.

use std::ops::ControlFlow;

use lockstep_types::Errno;

use super::*;
use crate::error::{OpError, StoreError};
use crate::namespace::plan::View;

fn cookies(namespace: &Namespace, id: SnapshotId, is_up: bool) -> Result<Vec<u64>, OpError> {
    let at = namespace.at(id).unwrap();
    let mut found = Vec::new();
    let mut each = |key: &[u8], _: &[u8]| {
        found.push(u64::from_be_bytes(keys::rest_of(key).try_into().unwrap()));
        ControlFlow::Continue(())
    };
    let range = keys::of_ino(keys::COOKIES, ino(2));
    if is_up {
        at.scan(&range, &mut each)?;
    } else {
        at.scan_down(&range, &mut each)?;
    }
    Ok(found)
}

/// Every piece of a scan ends somewhere else: most names are gone, some have changed several times, and many are new.
#[test]
fn a_long_directory_is_read_piece_by_piece() {
    const NAMES: u64 = 3_000;
    let disk = disk();
    let namespace = open(&disk);
    let put = |numbers: &mut dyn Iterator<Item = u64>, value: Option<u8>| {
        let value = |_| value.map(|value| vec![value]);
        let batch: Vec<_> = numbers
            .map(|number| (keys::cookie(ino(2), number), value(number)))
            .collect();
        namespace.apply(batch).unwrap();
    };
    let set_next = |next: u64| {
        let record = (keys::inode(ino(2)), Some(directory(next, next)));
        namespace.apply([record]).unwrap();
    };
    put(&mut (0..NAMES), Some(1));
    set_next(NAMES);
    namespace.create_snapshot(id(1, 0), snapshot(10));
    put(&mut (0..NAMES).filter(|it| it % 3 > 0), None);
    namespace.create_snapshot(id(2, 0), snapshot(10));
    put(&mut (0..NAMES).filter(|it| it % 7 == 0), Some(2));
    put(&mut (NAMES..2 * NAMES), Some(1));
    set_next(2 * NAMES);
    namespace.freeze();
    namespace.flush().unwrap();
    namespace.create_snapshot(id(3, 0), snapshot(10));
    put(&mut (0..2 * NAMES), None);
    let all = |filter: fn(&u64) -> bool, end| (0..end).filter(filter).collect::<Vec<u64>>();
    for (sequence, expected) in [
        (1, all(|_| true, NAMES)),
        (2, all(|it| it % 3 == 0, NAMES)),
        (
            3,
            all(|it| it % 3 == 0 || it % 7 == 0 || *it >= NAMES, 2 * NAMES),
        ),
    ] {
        assert!(cookies(&namespace, id(sequence, 0), true).unwrap() == expected);
        let mut down = cookies(&namespace, id(sequence, 0), false).unwrap();
        down.reverse();
        assert!(down == expected);
    }
    let now = keys_of(&namespace, keys::COOKIES);
    assert!(now.is_empty());
    // The scan may be broken off.
    let mut count = 0;
    let at = namespace.at(id(1, 0)).unwrap();
    at.scan(&keys::table(keys::COOKIES), &mut |_, _| {
        count += 1;
        ControlFlow::Break(())
    })
    .unwrap();
    assert_eq!(count, 1);
}

#[test]
fn a_snapshot_that_is_deleted_meanwhile_refuses_its_readers() {
    let disk = disk();
    let namespace = open(&disk);
    let batch: Vec<_> = (0..100)
        .map(|number| (keys::xattr(ino(2), &[1 + number]), Some(vec![number])))
        .collect();
    namespace.apply(batch).unwrap();
    namespace.create_snapshot(id(1, 0), snapshot(10));
    let at = namespace.at(id(1, 0)).unwrap();
    let mut read = 0;
    let result = at.scan(&keys::table(keys::XATTRS), &mut |_, _| {
        if read == 10 {
            delete(&namespace, id(1, 0));
        }
        read += 1;
        ControlFlow::Continue(())
    });
    // The first piece was read before.
    assert!(read < 100);
    let is_stale = |errno: Errno| errno == Errno::Stale;
    assert!(is_stale(result.unwrap_err().errno()));
    assert!(is_stale(
        at.get(&keys::xattr(ino(2), &[1])).unwrap_err().errno()
    ));
    assert!(is_stale(
        at.get(&keys::xattr(ino(99), &[1])).unwrap_err().errno()
    ));
    assert!(is_stale(
        at.keys(&keys::table(keys::XATTRS)).unwrap_err().errno()
    ));
    assert!(namespace.at(id(1, 0)).is_none());
}

#[test]
fn records_of_this_node_alone_have_no_history() {
    let disk = disk();
    let namespace = open(&disk);
    namespace.create_snapshot(id(1, 0), snapshot(10));
    let garbage = keys::garbage(ino(2));
    namespace
        .apply([(garbage.clone(), Some(Vec::new()))])
        .unwrap();
    assert!(keys_of(&namespace, keys::HISTORY).is_empty());
    let at = namespace.at(id(1, 0)).unwrap();
    assert_eq!(at.get(&garbage).unwrap(), None);
    assert!(at.keys(&keys::table(keys::GARBAGE)).unwrap().is_empty());
    assert_eq!(at.get(keys::CHECKPOINT).unwrap(), None);
}

/// The list is in the records, and a record that cannot be read is damage.
#[test]
fn the_list_is_read_at_the_opening() {
    let disk = disk();
    let namespace = open(&disk);
    namespace.create_snapshot(id(1, 0), snapshot(10));
    namespace.create_snapshot(id(1, 1), snapshot(20));
    namespace.delete_snapshot(id(1, 0)).unwrap();
    assert!(namespace.delete_snapshot(id(7, 0)).is_none());
    namespace.freeze();
    namespace.flush().unwrap();
    let disk = disk.fork();
    let reopened = open(&disk);
    assert_eq!(reopened.snapshots().all(), namespace.snapshots().all());
    assert!(reopened.at(id(1, 0)).is_none());
    let mut begun = reopened.delete_snapshot(id(1, 0)).unwrap();
    assert!(!reopened.end_deletion(&begun), "nothing was judged");
    assert!(
        reopened
            .delete_step(&mut begun, 9, &mut |_, _, _| Ok(Vec::new()))
            .unwrap()
    );
    assert!(reopened.end_deletion(&begun));
    let damaged = (keys::snapshot(id(1, 1)), Some(vec![0xff]));
    reopened.apply([damaged]).unwrap();
    reopened.freeze();
    reopened.flush().unwrap();
    let opened = Namespace::open(&*disk.fork().mount());
    assert!(matches!(opened.err(), Some(StoreError::Damaged { .. })));
}
