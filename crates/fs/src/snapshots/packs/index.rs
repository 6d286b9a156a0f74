//! The index of the packs: which blocks of a chunk are kept for which snapshots, as records of the namespace.
//!
//! A record has the touches of a chunk that were made for one newest snapshot. The touches of one record keep different blocks.
//! A block is that of a snapshot if the record is the first one at or behind the snapshot that has the block.
//!
//! Locks: none. The keeper of blocks lets one thread at a time change the records of a chunk.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Ino, SnapshotId};

use super::touch::{Blocks, FileChunk, KeptBlock, PackPlace, Touch};
use crate::error::StoreError;
use crate::namespace::Namespace;
use crate::namespace::keys::{self, KeyRange};
use crate::namespace::record::{self, RecordChange};

/// The touches of one record.
type Touches = Vec<Touch>;

/// See the head of this file.
#[derive(Clone)]
pub struct BlockIndex(Arc<Namespace>);

impl BlockIndex {
    /// The index in these records.
    pub const fn new(namespace: Arc<Namespace>) -> Self {
        Self(namespace)
    }

    /// Notes touches that are kept for `label`. A deletion changes no record of the index meanwhile.
    pub fn add(&self, label: SnapshotId, touches: &[(FileChunk, Touch)]) -> Result<(), StoreError> {
        self.0.put_kept(|| self.note(label, touches))
    }

    /// The place before which every group is in the index, as the last checkpoint has noted it.
    pub fn covers_to(&self) -> Result<PackPlace, StoreError> {
        match self.0.get(keys::PACKS)? {
            Some(place) => {
                record::decode(&place).ok_or_else(|| StoreError::unreadable(keys::PACKS))
            }
            None => Ok(PackPlace { pack: 0, block: 1 }),
        }
    }

    /// The blocks of a chunk that are kept for the snapshots from `ids` on, up to the last of `ids`.
    pub fn kept_since(
        &self,
        chunk: FileChunk,
        ids: RangeInclusive<SnapshotId>,
    ) -> Result<Blocks, StoreError> {
        let mut kept = Blocks::NONE;
        self.0.without_removals(|| {
            self.each_record(chunk, ids, &mut |touches| {
                kept = touches
                    .iter()
                    .fold(kept, |kept, touch| kept.with(touch.kept));
                ControlFlow::Continue(())
            })
        })?;
        Ok(kept)
    }

    /// The blocks of a chunk in the records from `first` on, up to but not including that of `end`.
    pub fn kept_between(
        &self,
        FileChunk { ino, number }: FileChunk,
        first: SnapshotId,
        end: SnapshotId,
    ) -> Result<Blocks, StoreError> {
        let first = keys::kept_blocks(ino, number, first);
        let range = KeyRange::between(first, keys::kept_blocks(ino, number, end));
        let mut kept = Blocks::NONE;
        self.each_in(&range, &mut |touches| {
            kept = touches
                .iter()
                .fold(kept, |kept, touch| kept.with(touch.kept));
            ControlFlow::Continue(())
        })?;
        Ok(kept)
    }

    /// Where the wanted blocks of a chunk lie, as the first of the snapshots `ids` sees them: a number and a place for each block that is
    /// kept for one of `ids`.
    pub fn find(
        &self,
        chunk: FileChunk,
        wanted: Blocks,
        ids: RangeInclusive<SnapshotId>,
    ) -> Result<Vec<(u32, KeptBlock)>, StoreError> {
        let (mut found, mut wanted) = (Vec::new(), wanted);
        let mut take = |touches: Touches| {
            for touch in touches {
                let here = touch.kept.and(wanted);
                wanted = wanted.without(here);
                found.extend(
                    here.numbers()
                        .filter_map(|block| Some((block, touch.find(block)?))),
                );
            }
            if wanted.is_empty() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        self.0
            .without_removals(|| self.each_record(chunk, ids, &mut take))?;
        Ok(found)
    }

    /// The first chunk from `from` on of which a block is kept for one of `ids`, if there is one.
    pub fn next_chunk(
        &self,
        ino: Ino,
        from: u64,
        ids: &RangeInclusive<SnapshotId>,
    ) -> Result<Option<u64>, StoreError> {
        self.0.without_removals(|| self.seek_chunk(ino, from, ids))
    }

    fn seek_chunk(
        &self,
        ino: Ino,
        from: u64,
        ids: &RangeInclusive<SnapshotId>,
    ) -> Result<Option<u64>, StoreError> {
        let mut from = from;
        loop {
            // The records of older snapshots, of which a chunk may have hundreds, are left out by the key.
            let first = keys::kept_blocks(ino, from, *ids.start());
            let range = keys::of_ino(keys::KEPT_BLOCKS, ino).starting_at(&first);
            let mut found = None;
            self.0.scan(&range, &mut |key, _| {
                found = keys::chunk_of(key).zip(keys::snapshot_of(key));
                ControlFlow::Break(())
            })?;
            match found {
                None => return Ok(None),
                Some((number, id)) if ids.contains(&id) => return Ok(Some(number)),
                Some((number, _)) if number > from => from = number,
                Some(_) => match from.checked_add(1) {
                    Some(next) => from = next,
                    None => return Ok(None),
                },
            }
        }
    }

    /// The records that note these touches, kept for `label`. A touch that a record has already is left out: a pack may be read again.
    fn note(
        &self,
        label: SnapshotId,
        touches: &[(FileChunk, Touch)],
    ) -> Result<Vec<RecordChange>, StoreError> {
        let mut batch: Vec<RecordChange> = Vec::with_capacity(2 * touches.len());
        for (chunk, touch) in touches {
            let key = keys::kept_blocks(chunk.ino, chunk.number, label);
            let earlier = batch.iter().rev().find(|(of, _)| *of == key);
            let stored = match earlier {
                Some((_, value)) => value.clone(),
                None => self.0.get(&key)?,
            };
            let mut noted: Touches = match &stored {
                Some(value) => record::decode(value).ok_or_else(|| StoreError::unreadable(&key))?,
                None => Vec::new(),
            };
            if is_active(Mutant::KeepTwice) {
                noted.clear();
            }
            if noted.iter().any(|it| !it.kept.and(touch.kept).is_empty()) {
                continue;
            }
            noted.push(touch.clone());
            if stored.is_none() {
                batch.push((keys::kept_index(label, &key), Some(Vec::new())));
            }
            batch.push((key, Some(record::encode(&noted))));
        }
        Ok(batch)
    }

    /// The records that put these touches behind those that are kept for `label`: where both have a block, the earlier one counts. `batch`: the changes that come
    /// before.
    pub fn append(
        &self,
        (label, chunk): (SnapshotId, FileChunk),
        touches: Vec<Touch>,
        batch: &[RecordChange],
    ) -> Result<Vec<RecordChange>, StoreError> {
        let key = keys::kept_blocks(chunk.ino, chunk.number, label);
        let before = batch.iter().rev().find(|(of, _)| *of == key);
        let stored = match before {
            Some((_, value)) => value.clone(),
            None => self.0.get(&key)?,
        };
        let mut noted: Touches = match stored {
            Some(value) => record::decode(&value).ok_or_else(|| StoreError::unreadable(&key))?,
            None => Vec::new(),
        };
        noted.extend(touches);
        Ok(vec![
            (keys::kept_index(label, &key), Some(Vec::new())),
            (key, Some(record::encode(&noted))),
        ])
    }

    fn each_record(
        &self,
        FileChunk { ino, number }: FileChunk,
        ids: RangeInclusive<SnapshotId>,
        each: &mut dyn FnMut(Touches) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let first = keys::kept_blocks(ino, number, *ids.start());
        let last = keys::kept_blocks(ino, number, *ids.end());
        self.each_in(&KeyRange::inclusive(first, last), each)
    }

    fn each_in(
        &self,
        range: &KeyRange,
        each: &mut dyn FnMut(Touches) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let mut unreadable = None;
        self.0.scan(range, &mut |key, value| {
            if let Some(touches) = record::decode(value) {
                return each(touches);
            }
            unreadable = Some(StoreError::unreadable(key));
            ControlFlow::Break(())
        })?;
        unreadable.map_or(Ok(()), Err)
    }
}
