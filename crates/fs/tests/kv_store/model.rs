//! A plain map as a store, and helpers to fill and read any store.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use lockstep_fs::kv::{Direction, Each, Kv, KvChanges, KvError};
use parking_lot::Mutex;

pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store that is a map.
#[derive(Default)]
pub struct MapKv(Mutex<Map>);

impl Kv for MapKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        Ok(self.0.lock().get(key).cloned())
    }

    fn scan(
        &self,
        direction: Direction,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        each: &mut Each<'_>,
    ) -> Result<(), KvError> {
        for (key, value) in range_in(&self.0.lock(), direction, from, to) {
            if each(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit_durable(&self, changes: &mut KvChanges<'_>) -> Result<(), KvError> {
        let mut map = self.0.lock();
        for (key, value) in changes {
            change(&mut map, key, value);
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), KvError> {
        Ok(())
    }
}

pub fn change(map: &mut Map, key: &[u8], value: Option<&[u8]>) {
    match value {
        Some(value) => map.insert(key.to_vec(), value.to_vec()),
        None => map.remove(key),
    };
}

/// Returns the pairs that a scan in that direction must return.
pub fn range_in(
    map: &Map,
    direction: Direction,
    from: Bound<&[u8]>,
    to: Bound<&[u8]>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = range(map, from, to);
    if direction == Direction::Down {
        found.reverse();
    }
    found
}

/// Returns the pairs that an upward scan must return.
pub fn range(map: &Map, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let after = |key: &[u8]| match from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    };
    let before = |key: &[u8]| match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    };
    map.iter()
        .filter(|(key, _)| after(key) && before(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Commits these pairs.
pub fn put<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    kv: &dyn Kv,
    pairs: &[(K, Option<V>)],
) -> Result<(), KvError> {
    let as_slices = |(key, value): &'_ (K, Option<V>)| -> (Vec<u8>, Option<Vec<u8>>) {
        let value = value.as_ref().map(|value| value.as_ref().to_vec());
        (key.as_ref().to_vec(), value)
    };
    let pairs: Vec<_> = pairs.iter().map(as_slices).collect();
    kv.commit_durable(&mut pairs.iter().map(|(k, v)| (&k[..], v.as_deref())))
}

/// Scans all pairs of a store.
pub fn all(kv: &dyn Kv) -> Result<Map, KvError> {
    let mut map = Map::new();
    kv.scan(
        Direction::Up,
        Bound::Unbounded,
        Bound::Unbounded,
        &mut |key, value| {
            map.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        },
    )?;
    Ok(map)
}
