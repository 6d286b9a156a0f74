//! One piece of a scan: the next entries of each layer, and their merge.
//!
//! If a layer has more entries than were taken, its last taken entry is the end of its known part. The merge ends at
//! the first of these ends, its horizon. Entries after the horizon are read again.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, Range};

use crate::kv::{Direction, Each, Kv, KvError};

/// Most bytes of one layer in a chunk; at least one entry is taken, of any size.
const CHUNK_BYTES_MAX: usize = 256 << 10;

/// The new value of a key; `None` for a deleted key.
pub(super) type NewValue = Option<Box<[u8]>>;

/// The changes of one layer in memory.
pub(super) type LayerMap = BTreeMap<Box<[u8]>, NewValue>;

/// The next entries of one layer, in the direction of the scan.
#[derive(Default)]
pub(super) struct Chunk {
    /// Keys and values, one after the other.
    bytes: Vec<u8>,
    entries: Vec<ChunkEntry>,
    /// Whether the layer may have more.
    is_cut: bool,
}

/// The place of an entry in the bytes; a deleted key has no value.
struct ChunkEntry {
    key: Range<usize>,
    value: Option<Range<usize>>,
}

impl Chunk {
    pub(super) fn of_map(
        map: &LayerMap,
        direction: Direction,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        entries: usize,
    ) -> Self {
        let mut chunk = Self::default();
        if is_reversed(from, to) {
            return chunk;
        }
        let mut range = map.range::<[u8], _>((from, to));
        let mut next = || match direction {
            Direction::Up => range.next(),
            Direction::Down => range.next_back(),
        };
        while let Some((key, value)) = next() {
            if chunk.push(key, value.as_deref(), entries).is_break() {
                break;
            }
        }
        chunk
    }

    pub(super) fn of_base<K: Kv>(
        base: &K,
        direction: Direction,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        entries: usize,
    ) -> Result<Self, KvError> {
        let mut chunk = Self::default();
        base.scan(direction, from, to, &mut |key, value| {
            chunk.push(key, Some(value), entries)
        })?;
        Ok(chunk)
    }

    /// Breaks, without taking the entry, when the chunk is full.
    fn push(&mut self, key: &[u8], value: Option<&[u8]>, entries: usize) -> ControlFlow<()> {
        if self.entries.len() >= entries || self.bytes.len() >= CHUNK_BYTES_MAX {
            self.is_cut = true;
            return ControlFlow::Break(());
        }
        let key = self.append(key);
        let value = value.map(|value| self.append(value));
        self.entries.push(ChunkEntry { key, value });
        ControlFlow::Continue(())
    }

    fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.entries.iter().map(|entry| {
            let value = entry.value.as_ref().map(|value| self.slice(value));
            (self.slice(&entry.key), value)
        })
    }

    /// The last key, if the layer goes on after it.
    fn cut_at(&self) -> Option<&[u8]> {
        let last = self.entries.last().filter(|_| self.is_cut)?;
        Some(self.slice(&last.key))
    }
}

/// The next entries of all layers, the newest layer first.
pub(super) struct Merge {
    direction: Direction,
    layers: [Chunk; 3],
}

impl Merge {
    pub(super) fn new(direction: Direction, active: Chunk, frozen: Chunk, base: Chunk) -> Self {
        Self {
            direction,
            layers: [active, frozen, base],
        }
    }

    /// The last key up to which every layer is known; `None` if every layer is known completely.
    fn horizon(&self) -> Option<&[u8]> {
        let cuts = self.layers.iter().filter_map(Chunk::cut_at);
        cuts.min_by(|one, other| self.direction.compare(one, other))
    }

    pub(super) fn into_horizon(self) -> Option<Vec<u8>> {
        self.horizon().map(<[u8]>::to_vec)
    }

    /// Calls `each` for the keys up to the horizon that are not deleted.
    pub(super) fn for_each(&self, each: &mut Each<'_>) -> ControlFlow<()> {
        let horizon = self.horizon();
        let mut layers = self.layers.each_ref().map(|layer| layer.iter().peekable());
        loop {
            let heads = layers.iter_mut().filter_map(|layer| layer.peek());
            let first = |one: &&[u8], other: &&[u8]| self.direction.compare(one, other);
            let Some(key) = heads.map(|(key, _)| *key).min_by(first) else {
                return ControlFlow::Continue(());
            };
            if horizon.is_some_and(|horizon| self.direction.compare(key, horizon).is_gt()) {
                return ControlFlow::Continue(());
            }
            // Every layer moves past the key. The first layer that has the key decides.
            let found = layers
                .iter_mut()
                .filter_map(|layer| layer.next_if(|(head, _)| *head == key))
                .fold(None, |newest, (_, value)| newest.or(Some(value)));
            if let Some(Some(value)) = found {
                each(key, value)?;
            }
        }
    }
}

/// Whether `BTreeMap` refuses a range with a panic.
fn is_reversed(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Excluded(from), Bound::Excluded(to)) => from >= to,
        (
            Bound::Included(from) | Bound::Excluded(from),
            Bound::Included(to) | Bound::Excluded(to),
        ) => from > to,
        _ => false,
    }
}
