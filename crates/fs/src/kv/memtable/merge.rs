//! One piece of a scan: the next entries of each layer, and their merge.
//!
//! A layer that had more entries than were taken is known only up to the last one taken. The
//! merge ends at the first of these that the scan meets, its horizon; what lies after it is read again.

use std::ops::{Bound, ControlFlow, Range};

use super::{Direction, Kv, KvError, Map};
use crate::kv::Each;

/// Most bytes of one layer in a chunk; at least one entry is taken, whatever its size.
const CHUNK_BYTES_MAX: usize = 256 << 10;

/// The next entries of one layer, in the direction of the scan.
#[derive(Default)]
pub(super) struct Chunk {
    /// Keys and values, one after the other.
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Whether the layer may have more.
    is_cut: bool,
}

/// Where an entry lies in the bytes; no value where the key was deleted.
struct Entry {
    key: Range<usize>,
    value: Option<Range<usize>>,
}

impl Chunk {
    pub(super) fn of_map(
        map: &Map,
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
        self.entries.push(Entry { key, value });
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

    /// The last key, where the layer goes on after it.
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

    /// The last key of which everything is known; `None` when that is so for all keys.
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
            // Every layer moves past the key; the first that has it decides.
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

/// Whether a range is one that `BTreeMap` refuses with a panic.
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
