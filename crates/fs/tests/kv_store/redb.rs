//! The store on redb, through its public interface.

use std::ops::{Bound, ControlFlow};

use lockstep_fs::kv::redb::{RedbKv, RedbOptions};
use lockstep_fs::kv::{Direction, Kv, KvError};
use lockstep_fs::os_backing::OsBacking;
use lockstep_lossy::disk::{CallClass, Disk};
use lockstep_types::Errno;
use lockstep_types::backing::Backing;
use proptest::prelude::*;

use crate::content;
use crate::model::{Map, all, change, put, range};

fn create(disk: &dyn Backing) -> RedbKv {
    RedbKv::create(disk, "meta/db", RedbOptions::default()).unwrap()
}

fn open(disk: &dyn Backing) -> Result<RedbKv, KvError> {
    RedbKv::open(disk, "meta/db", RedbOptions::default())
}

#[test]
fn what_is_committed_is_there_after_reopen_on_a_real_directory() {
    let dir = tempfile::tempdir().unwrap();
    let backing = OsBacking::open(dir.path()).unwrap();
    let kv = create(&backing);
    put(&kv, &[("a", Some("1")), ("b", Some("2"))]).unwrap();
    put(&kv, &[("a", None), ("c", Some(&"7".repeat(70_000)))]).unwrap();
    drop(kv);
    let mut kv = open(&backing).unwrap();
    assert_eq!(kv.get(b"a").unwrap(), None);
    assert_eq!(kv.get(b"b").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(kv.get(b"c").unwrap(), Some(b"7".repeat(70_000)));
    kv.check().unwrap();
    assert_eq!(all(&kv).unwrap().len(), 2);
    assert_eq!(backing.list("meta").unwrap(), ["db"]);
}

#[test]
fn a_missing_store_is_not_made_and_an_existing_one_not_replaced() {
    let disk = Disk::default();
    let backing = disk.mount();
    assert!(matches!(open(&*backing), Err(KvError::Missing { .. })));
    assert!(disk.files().is_empty());
    put(&create(&*backing), &[("k", Some("v"))]).unwrap();
    let again = RedbKv::create(&*backing, "meta/db", RedbOptions::default());
    assert!(matches!(again, Err(KvError::Exists { .. })));
    assert_eq!(all(&open(&*backing).unwrap()).unwrap().len(), 1);
}

#[test]
fn an_interrupted_creation_is_no_store_and_does_not_hinder_the_next() {
    let disk = crate::disk_with("meta/db.new", b"half of a file");
    assert!(matches!(open(&*disk.mount()), Err(KvError::Missing { .. })));
    create(&*disk.mount()).check().unwrap();
}

/// Commits meanwhile use no page again that the scan has still to read.
#[test]
fn a_long_scan_shows_one_moment_over_many_commits() {
    let kv = create(&*Disk::default().mount());
    let keys: Vec<String> = (0..3_000).map(|number| format!("{number:05}")).collect();
    let put_all = |value: &str| {
        let pairs: Vec<_> = keys.iter().map(|key| (key.as_str(), Some(value))).collect();
        put(&kv, &pairs).unwrap();
    };
    put_all(&"old".repeat(20));
    let mut seen = 0;
    let mut each = |key: &[u8], value: &[u8]| {
        assert_eq!(key, keys[seen].as_bytes());
        assert_eq!(value, "old".repeat(20).as_bytes());
        seen += 1;
        if seen == 10 {
            for round in 0..4 {
                put_all(&format!("new {round}").repeat(10));
            }
        }
        ControlFlow::Continue(())
    };
    kv.scan(Direction::Up, Bound::Unbounded, Bound::Unbounded, &mut each)
        .unwrap();
    assert_eq!(seen, keys.len());
}

#[test]
fn readers_see_the_last_commit_and_their_scan_one_moment() {
    let kv = create(&*Disk::default().mount());
    put(&kv, &[("a", Some("1")), ("b", Some("1"))]).unwrap();
    let mut seen = Vec::new();
    kv.scan(
        Direction::Up,
        Bound::Unbounded,
        Bound::Unbounded,
        &mut |key, value| {
            put(&kv, &[("a", None), ("b", None), ("c", Some("2"))]).unwrap();
            seen.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        },
    )
    .unwrap();
    assert_eq!(seen.len(), 2);
    assert_eq!(kv.get(b"a").unwrap(), None);
    assert_eq!(all(&kv).unwrap().len(), 1);
}

#[test]
fn bounds_that_hold_nothing_give_nothing() {
    let kv = create(&*Disk::default().mount());
    put(&kv, &[("a", Some("1"))]).unwrap();
    let (a, b) = (&b"a"[..], &b"b"[..]);
    for (from, to) in [
        (Bound::Excluded(a), Bound::Excluded(a)),
        (Bound::Included(a), Bound::Excluded(a)),
        (Bound::Included(b), Bound::Excluded(a)),
        (Bound::Included(b), Bound::Included(a)),
    ] {
        kv.scan(Direction::Up, from, to, &mut |_, _| {
            panic!("nothing lies there")
        })
        .unwrap();
    }
}

#[test]
fn a_full_disk_fails_the_commit_and_not_the_store() {
    let disk = Disk::default();
    let kv = create(&*disk.mount());
    put(&kv, &[("a", Some("1"))]).unwrap();
    disk.fail_calls(CallClass::Write, Errno::NoSpace);
    let error = put(&kv, &[("a", Some("2"))]).unwrap_err();
    assert!(matches!(error, KvError::Io { .. }), "{error}");
    assert_eq!(kv.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    disk.stop_failing();
    put(&kv, &[("a", Some("3"))]).unwrap();
    assert_eq!(kv.get(b"a").unwrap().as_deref(), Some(&b"3"[..]));
    drop(kv);
    open(&*disk.mount()).unwrap().check().unwrap();
}

#[test]
fn a_failed_sync_stops_the_store_for_good() {
    let disk = Disk::default();
    let kv = create(&*disk.mount());
    put(&kv, &[("a", Some("1"))]).unwrap();
    disk.fail_calls(CallClass::Sync, Errno::NoSpace);
    let error = put(&kv, &[("a", Some("2"))]).unwrap_err();
    assert!(matches!(error, KvError::Stopped { .. }), "{error}");
    disk.stop_failing();
    let before = content(&disk, "meta/db");
    let error = put(&kv, &[("a", Some("3"))]).unwrap_err();
    assert!(matches!(error, KvError::Stopped { .. }), "{error}");
    assert!(matches!(kv.get(b"a"), Err(KvError::Stopped { .. })));
    drop(kv);
    assert_eq!(
        content(&disk, "meta/db"),
        before,
        "a stopped store writes nothing"
    );
}

#[test]
fn a_failed_read_does_not_stop_the_store() {
    let disk = Disk::default();
    let kv = create(&*disk.mount());
    put(&kv, &[("a", Some("1"))]).unwrap();
    drop(kv);
    let kv = open(&*disk.mount()).unwrap();
    disk.fail_calls(CallClass::Read, Errno::NoSpace);
    // The cache may still answer.
    let during = kv.get(b"a");
    assert!(!matches!(during, Ok(None)), "{during:?}");
    disk.stop_failing();
    assert_eq!(kv.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    put(&kv, &[("a", Some("2"))]).unwrap();
}

#[test]
fn a_scan_callback_that_panics_is_not_taken_for_damage() {
    let kv = create(&*Disk::default().mount());
    put(&kv, &[("a", Some("1"))]).unwrap();
    let scan = std::panic::AssertUnwindSafe(|| {
        kv.scan(
            Direction::Up,
            Bound::Unbounded,
            Bound::Unbounded,
            &mut |_, _| panic!("of the caller"),
        )
    });
    assert!(std::panic::catch_unwind(scan).is_err());
    assert_eq!(all(&kv).unwrap().len(), 1);
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(0..3u8, 0..4)
}

type Batch = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let value = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..5000));
    let batch = proptest::collection::vec((key(), value), 0..12);
    proptest::collection::vec(batch, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_store_behaves_like_a_map(
        batches in batches(), from in key(), to in key(), get in key(),
    ) {
        let disk = Disk::default();
        let kv = create(&*disk.mount());
        let mut map = Map::new();
        for batch in &batches {
            put(&kv, batch).unwrap();
            for (key, value) in batch {
                change(&mut map, key, value.as_deref());
            }
        }
        drop(kv);
        let mut kv = open(&*disk.mount()).unwrap();
        prop_assert_eq!(&all(&kv).unwrap(), &map);
        prop_assert_eq!(kv.get(&get).unwrap(), map.get(&get).cloned());
        let (from, to) = (Bound::Excluded(&from[..]), Bound::Included(&to[..]));
        let mut seen = Vec::new();
        kv.scan(Direction::Up, from, to, &mut |key, value| {
            seen.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        }).unwrap();
        prop_assert_eq!(seen, range(&map, from, to));
        kv.check().unwrap();
    }
}
