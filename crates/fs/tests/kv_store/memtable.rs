//! The in-memory table against a plain map, alone and with concurrent readers.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use lockstep_fs::kv::memtable::Memtable;
use lockstep_fs::kv::redb::{RedbKv, RedbOptions};
use lockstep_fs::kv::{Direction, Each, Kv, KvChanges, KvError};
use lockstep_lossy::disk::{CallClass, Disk};
use lockstep_types::Errno;
use parking_lot::Mutex;
use proptest::prelude::*;

use crate::model::{Map, MapKv, all, change, range, range_in};

type Pair = (Vec<u8>, Option<Vec<u8>>);

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<Pair>),
    Freeze,
    Flush,
    Get(Vec<u8>),
    Scan(Bound<Vec<u8>>, Bound<Vec<u8>>, usize),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    (0..400u32).prop_map(|number| format!("{number:03}").into_bytes())
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        Just(Bound::Unbounded),
        key().prop_map(Bound::Included),
        key().prop_map(Bound::Excluded),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let value = proptest::option::weighted(0.7, proptest::collection::vec(any::<u8>(), 0..40));
    let batch = proptest::collection::vec((key(), value), 0..120);
    prop_oneof![
        4 => batch.prop_map(Step::Apply),
        2 => Just(Step::Freeze),
        2 => Just(Step::Flush),
        2 => key().prop_map(Step::Get),
        3 => (bound(), bound(), 1..500usize).prop_map(|(from, to, take)| Step::Scan(from, to, take)),
    ]
}

fn scan<K: Kv>(
    table: &Memtable<K>,
    from: Bound<&[u8]>,
    to: Bound<&[u8]>,
    take: usize,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut seen = Vec::new();
    let mut each = |key: &[u8], value: &[u8]| {
        seen.push((key.to_vec(), value.to_vec()));
        if seen.len() == take {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    table.scan(from, to, &mut each).unwrap();
    seen
}

fn scan_down<K: Kv>(
    table: &Memtable<K>,
    from: Bound<&[u8]>,
    to: Bound<&[u8]>,
    take: usize,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut seen = Vec::new();
    let mut each = |key: &[u8], value: &[u8]| {
        seen.push((key.to_vec(), value.to_vec()));
        if seen.len() == take {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    table.scan_down(from, to, &mut each).unwrap();
    seen
}

fn run(table: &Memtable<impl Kv>, map: &mut Map, step: &Step) -> Result<(), TestCaseError> {
    match step {
        Step::Apply(batch) => {
            table.apply(batch.iter().cloned());
            for (key, value) in batch {
                change(map, key, value.as_deref());
            }
        }
        Step::Freeze => {
            let was_empty = table.is_empty();
            if table.freeze() {
                prop_assert!(!was_empty);
                prop_assert_eq!((table.len(), table.bytes()), (0, 0));
            }
        }
        Step::Flush => table.flush().unwrap(),
        Step::Get(key) => prop_assert_eq!(table.get(key).unwrap(), map.get(key).cloned()),
        Step::Scan(from, to, take) => {
            let (from, to) = (from.as_ref().map(|k| &k[..]), to.as_ref().map(|k| &k[..]));
            let mut expected = range(map, from, to);
            expected.truncate(*take);
            prop_assert_eq!(scan(table, from, to, *take), expected);
            let mut expected = range_in(map, Direction::Down, from, to);
            expected.truncate(*take);
            prop_assert_eq!(scan_down(table, from, to, *take), expected);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_table_behaves_like_a_map(steps in proptest::collection::vec(step(), 1..40)) {
        let table = Memtable::new(MapKv::default());
        let mut map = Map::new();
        for step in &steps {
            run(&table, &mut map, step)?;
        }
        let whole = scan(&table, Bound::Unbounded, Bound::Unbounded, usize::MAX);
        prop_assert_eq!(whole, map.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn all_that_was_applied_reaches_the_base(steps in proptest::collection::vec(step(), 1..20)) {
        let table = Memtable::new(MapKv::default());
        let mut map = Map::new();
        for step in &steps {
            run(&table, &mut map, step)?;
        }
        for _ in 0..2 {
            table.flush().unwrap();
            table.freeze();
        }
        table.flush().unwrap();
        prop_assert_eq!(all(table.base()).unwrap(), map);
    }
}

#[test]
fn bytes_and_length_follow_the_active_map() {
    let table = Memtable::new(MapKv::default());
    table.apply([(&b"key"[..], Some(&b"value"[..]))]);
    let once = table.bytes();
    table.apply([(&b"key"[..], Some(&b"value"[..]))]);
    assert_eq!((table.len(), table.bytes()), (1, once));
    table.apply([(&b"key"[..], None::<&[u8]>)]);
    assert_eq!((table.len(), table.bytes()), (1, once - 5));
}

#[test]
fn a_failed_flush_keeps_everything_and_may_be_repeated() {
    let disk = Disk::default();
    let base = RedbKv::create(&*disk.mount(), "db", RedbOptions::default()).unwrap();
    let table = Memtable::new(base);
    table.apply([(&b"a"[..], Some(&b"1"[..]))]);
    assert!(table.freeze());
    disk.fail_calls(CallClass::Write, Errno::NoSpace);
    assert!(matches!(table.flush(), Err(KvError::Io { .. })));
    assert_eq!(table.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    table.apply([(&b"b"[..], Some(&b"2"[..]))]);
    assert!(!table.freeze(), "what is frozen is not yet flushed");
    disk.stop_failing();
    table.flush().unwrap();
    assert_eq!(all(table.base()).unwrap().len(), 1);
    assert!(table.freeze());
    table.flush().unwrap();
    assert_eq!(all(table.base()).unwrap().len(), 2);
}

#[test]
fn entries_larger_than_a_chunk_are_all_seen() {
    let table = Memtable::new(MapKv::default());
    let value = vec![1; 300 << 10];
    for number in 0..5u8 {
        table.apply([(vec![number], Some(value.clone()))]);
    }
    assert_eq!(scan(&table, Bound::Unbounded, Bound::Unbounded, 9).len(), 5);
}

/// One writer moves a set of keys from round to round, each round in one batch, while another thread freezes
/// and flushes. At every moment all keys belong to the same round.
#[test]
fn readers_never_see_half_a_batch_or_a_gap() {
    const KEYS: u8 = 20;
    let table = Memtable::new(MapKv::default());
    let put = |round: u32| {
        let value = round.to_le_bytes().to_vec();
        let moved = vec![b'r', u8::try_from(round % 2).unwrap()];
        let gone = vec![b'r', u8::try_from((round + 1) % 2).unwrap()];
        let keys = (0..KEYS).map(|key| (vec![key], Some(value.clone())));
        table.apply(keys.chain([(moved, Some(value.clone())), (gone, None)]));
    };
    put(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                let mut newest = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let seen = scan(&table, Bound::Unbounded, Bound::Unbounded, 99);
                    assert_eq!(seen.len(), usize::from(KEYS) + 1);
                    assert!(seen.iter().all(|(_, value)| *value == seen[0].1));
                    assert!(table.get(&[KEYS - 1]).unwrap().is_some());
                    newest.clone_from(&seen[0].1);
                }
                assert!(!newest.is_empty());
            });
        }
        let flusher = threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                table.freeze();
                table.flush().unwrap();
            }
        });
        for round in 1..20_000 {
            put(round);
        }
        done.store(true, Ordering::Relaxed);
        flusher.join().unwrap();
    });
}

/// A base that lets another thread apply, freeze and flush a batch during each scan. This is the worst moment
/// for a scan of the table, which has read the maps but not yet the base.
#[derive(Default)]
struct Meddler {
    map: MapKv,
    table: Mutex<Weak<Memtable<Meddler>>>,
}

impl Meddler {
    fn meddle(&self) {
        let table = std::mem::take(&mut *self.table.lock());
        let Some(table) = table.upgrade() else { return };
        let (sender, done) = mpsc::channel();
        std::thread::spawn(move || {
            table.apply([(&b"1"[..], Some(&b"new"[..])), (b"2", Some(b"new"))]);
            table.freeze();
            table.flush().unwrap();
            let _ = sender.send(());
        });
        // A correct table makes the thread wait for this scan, so this wait runs out. Its length does not
        // change the outcome.
        let _ = done.recv_timeout(Duration::from_millis(100));
    }
}

impl Kv for Meddler {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.map.get(key)
    }

    fn scan(
        &self,
        direction: Direction,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        each: &mut Each<'_>,
    ) -> Result<(), KvError> {
        self.meddle();
        self.map.scan(direction, from, to, each)
    }

    fn commit_durable(&self, changes: &mut KvChanges<'_>) -> Result<(), KvError> {
        self.map.commit_durable(changes)
    }

    fn check(&mut self) -> Result<(), KvError> {
        self.map.check()
    }
}

#[test]
fn a_flush_in_the_middle_of_a_scan_shows_no_half_batch() {
    let table = Arc::new(Memtable::new(Meddler::default()));
    table.apply([(&b"1"[..], Some(&b"old"[..]))]);
    *table.base().table.lock() = Arc::downgrade(&table);
    let seen = scan(&table, Bound::Unbounded, Bound::Unbounded, 9);
    assert_eq!(seen, [(b"1".to_vec(), b"old".to_vec())]);
}
