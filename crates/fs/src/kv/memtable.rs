//! The newest changes of a store, in memory, before they reach the store on the disk.
//!
//! A change is applied to the active map at once. From time to time the active map is frozen and written to the base in
//! one durable transaction, while changes go on in a new active map. The maps do not survive the process. The intent
//! log does: it is replayed after a restart, and may forget a change only once the change was flushed.
//!
//! Invariants:
//! - The newest layer that knows a key decides: active, then frozen, then base. A deletion is an
//!   entry like any other and hides what lies below.
//! - A batch is in one layer as a whole, and readers see all of it or none.
//! - The frozen map is dropped only after the base has it, so no reader finds a gap.
//! - Between two reads of one chunk of a scan (from the maps, then from the base) nothing is
//!   frozen: otherwise the base could show half of a batch whose other half the maps still hide.
//!
//! No lock is held while a callback runs or the base syncs.

mod merge;

use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use self::merge::{Chunk, LayerMap, Merge, NewValue};
use super::{Direction, Each, Kv, KvError};

/// Memory of a changed key and its value beyond their bytes, roughly.
const ENTRY_BYTES: usize = 64;

/// Entries that a scan takes from each layer at once: few at first, for a caller that breaks soon; then more.
const CHUNK_ENTRIES_FIRST: usize = 64;
const CHUNK_ENTRIES_MAX: usize = 1024;

#[derive(Default)]
struct Layers {
    active: LayerMap,
    active_bytes: usize,
    frozen: Option<Arc<LayerMap>>,
}

impl Layers {
    /// The newest change of a key in memory.
    fn get(&self, key: &[u8]) -> Option<&NewValue> {
        let frozen = || self.frozen.as_ref()?.get(key);
        self.active.get(key).or_else(frozen)
    }

    fn put(&mut self, key: Box<[u8]>, value: NewValue) {
        let value_bytes = |value: &NewValue| value.as_ref().map_or(0, |value| value.len());
        let (key_bytes, new_bytes) = (key.len(), value_bytes(&value));
        match self.active.insert(key, value) {
            Some(old) => self.active_bytes -= value_bytes(&old),
            None => self.active_bytes += key_bytes + ENTRY_BYTES,
        }
        self.active_bytes += new_bytes;
    }
}

/// An in-memory table of changes over a base store. All calls may come from many threads at once.
pub struct Memtable<K> {
    base: K,
    layers: RwLock<Layers>,
    /// Shared while a chunk of a scan is read, exclusive while the active map is frozen.
    freezing: RwLock<()>,
    /// Held by the one flush at a time.
    flushing: Mutex<()>,
}

impl<K: Kv> Memtable<K> {
    /// An empty table over `base`.
    pub fn new(base: K) -> Self {
        Self {
            base,
            layers: RwLock::default(),
            freezing: RwLock::new(()),
            flushing: Mutex::new(()),
        }
    }

    /// The store below, without unflushed changes.
    pub fn base(&self) -> &K {
        &self.base
    }

    /// Makes a batch of new values, and of deletions (`None`), visible to all readers at once. Of several changes of
    /// one key the last one holds. Not durable.
    pub fn apply<B, V>(&self, batch: impl IntoIterator<Item = (B, Option<V>)>)
    where
        B: Into<Box<[u8]>>,
        V: Into<Box<[u8]>>,
    {
        let batch: Vec<_> = batch
            .into_iter()
            .map(|(key, value)| (key.into(), value.map(Into::into)))
            .collect();
        let mut layers = self.layers.write();
        for (key, value) in batch {
            layers.put(key, value);
        }
    }

    /// The newest value of `key`, if it has one.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        if let Some(change) = self.layers.read().get(key) {
            return Ok(change.as_deref().map(<[u8]>::to_vec));
        }
        self.base.get(key)
    }

    /// Calls `each` for the keys from `from` to `to`, in order, until it breaks. Read in chunks:
    /// each is of one moment, a batch that is applied between two chunks may show in the later
    /// one only. `each` may call this table.
    pub fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        each: &mut Each<'_>,
    ) -> Result<(), KvError> {
        self.scan_in(Direction::Up, from, to, each)
    }

    /// The same from the last key to the first.
    pub fn scan_down(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        each: &mut Each<'_>,
    ) -> Result<(), KvError> {
        self.scan_in(Direction::Down, from, to, each)
    }

    fn scan_in(
        &self,
        direction: Direction,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        each: &mut Each<'_>,
    ) -> Result<(), KvError> {
        let mut entries = CHUNK_ENTRIES_FIRST;
        let (mut from, mut to) = (from.map(<[u8]>::to_vec), to.map(<[u8]>::to_vec));
        loop {
            let (low, high) = (from.as_ref(), to.as_ref());
            let (low, high) = (low.map(Vec::as_slice), high.map(Vec::as_slice));
            let merge = self.read_chunk(direction, low, high, entries)?;
            if merge.for_each(each).is_break() {
                return Ok(());
            }
            match (merge.into_horizon(), direction) {
                (Some(last), Direction::Up) => from = Bound::Excluded(last),
                (Some(last), Direction::Down) => to = Bound::Excluded(last),
                (None, _) => return Ok(()),
            }
            entries = (entries * 2).min(CHUNK_ENTRIES_MAX);
        }
    }

    fn read_chunk(
        &self,
        direction: Direction,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        entries: usize,
    ) -> Result<Merge, KvError> {
        let _not_frozen_meanwhile = self.freezing.read();
        let (active, frozen) = {
            let layers = self.layers.read();
            let active = Chunk::of_map(&layers.active, direction, from, to, entries);
            (active, layers.frozen.clone())
        };
        let frozen = frozen.map(|frozen| Chunk::of_map(&frozen, direction, from, to, entries));
        let base = Chunk::of_base(&self.base, direction, from, to, entries)?;
        let frozen = frozen.unwrap_or_default();
        Ok(Merge::new(direction, active, frozen, base))
    }

    /// Sets the active map aside to be flushed and starts a new one. Returns `false` when the map is empty, or the last
    /// frozen map was not flushed yet.
    pub fn freeze(&self) -> bool {
        let _no_chunk_is_read = self.freezing.write();
        let mut layers = self.layers.write();
        if layers.frozen.is_some() || layers.active.is_empty() {
            return false;
        }
        layers.active_bytes = 0;
        layers.frozen = Some(Arc::new(mem::take(&mut layers.active)));
        true
    }

    /// Writes the frozen map to the base and returns once it is durable there; does nothing when nothing is frozen. If
    /// this fails, the map stays frozen and may be flushed again.
    pub fn flush(&self) -> Result<(), KvError> {
        let _one_at_a_time = self.flushing.lock();
        let Some(frozen) = self.layers.read().frozen.clone() else {
            return Ok(());
        };
        let mut changes = frozen.iter().map(|(key, value)| (&**key, value.as_deref()));
        self.base.commit_durable(&mut changes)?;
        // Dropped at the end, without the lock: freeing many entries takes a while.
        let _flushed = self.layers.write().frozen.take();
        Ok(())
    }

    /// Changed keys in the active map.
    pub fn len(&self) -> usize {
        self.layers.read().active.len()
    }

    /// Whether the active map has no change.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory of the active map in bytes, roughly.
    pub fn bytes(&self) -> usize {
        self.layers.read().active_bytes
    }
}
