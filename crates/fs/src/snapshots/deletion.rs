//! Deleting a snapshot: the history of records judges its values ([`crate::namespace`]), and this file judges kept blocks and bodies by
//! the same rule.
//!
//! Let P be the next older snapshot that is alive. A record of kept blocks goes if there is no P, or if P sees none of its blocks: older
//! records have these blocks, or they lie beyond the size that P sees. A record of a local snapshot that stays is moved behind those of
//! P. The same holds for a body.
//!
//! Invariant: a file goes after a checkpoint without its record.

use std::sync::Arc;

use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Ino, SnapshotId};

use super::content_at::KeptSource;
use crate::error::StoreError;
use crate::namespace::Deletion;
use crate::namespace::keys::{self, KeyRange};
use crate::namespace::record::{self, RecordChange};
use crate::paths::body_path;
use crate::snapshots::packs::touch::{Blocks, FileChunk, PackPlace, Touch};
use crate::store_disk::StoreDisk;

/// The space that one snapshot of a store takes alone: its deletion gives about so much back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceAlone {
    /// Bytes of kept blocks and of contents of freed files, without their headers.
    pub bytes: u64,
    /// Kept values of records.
    pub records: u64,
}

/// Entries of the index that one step judges.
const STEP_ENTRIES: usize = 2_000;

/// A deletion under way.
pub struct SnapshotDeletion<'a> {
    deletion: Deletion,
    source: &'a KeptSource,
    disk: &'a StoreDisk,
    /// Places in packs that no snapshot sees any more.
    places: Vec<(PackPlace, u32)>,
    /// Bodies that no snapshot sees any more.
    bodies: Vec<String>,
}

impl<'a> SnapshotDeletion<'a> {
    /// The deletion of a snapshot that is flagged as deleted, durably.
    pub const fn new(deletion: Deletion, source: &'a KeptSource, disk: &'a StoreDisk) -> Self {
        Self {
            deletion,
            source,
            disk,
            places: Vec::new(),
            bodies: Vec::new(),
        }
    }

    /// Judges some entries, in batches of their own. Returns whether the snapshot is gone from the records.
    pub fn step(&mut self) -> Result<bool, StoreError> {
        let namespace = &*self.source.namespace;
        let mut judge = KeptJudge {
            source: self.source,
            places: &mut self.places,
            bodies: &mut self.bodies,
            largest: None,
        };
        let mut judge = |key: &[u8], older: Option<SnapshotId>, batch: &[RecordChange]| {
            judge.judge(key, older, batch)
        };
        namespace.delete_step(&mut self.deletion, STEP_ENTRIES, &mut judge)?;
        Ok(namespace.end_deletion(&self.deletion))
    }

    /// The space that the deletion of a snapshot would give back, while the snapshot is alive. Judges all kept values since that snapshot, and changes nothing.
    pub fn weigh(mut self) -> Result<SpaceAlone, StoreError> {
        let namespace = &*self.source.namespace;
        let mut records = 0;
        while !self.deletion.is_over() {
            let mut judge = KeptJudge {
                source: self.source,
                places: &mut self.places,
                bodies: &mut self.bodies,
                largest: None,
            };
            let mut judge = |key: &[u8], older: Option<SnapshotId>, batch: &[RecordChange]| {
                judge.judge(key, older, batch)
            };
            let changes = namespace.judge_step(&mut self.deletion, &mut judge)?;
            let gone = changes
                .iter()
                .filter(|(key, value)| value.is_none() && key.first() == Some(&keys::HISTORY));
            records += gone.count() as u64;
        }
        let blocks = self.places.iter().map(|(_, count)| u64::from(*count));
        let mut bytes = blocks.sum::<u64>() * BLOCK_BYTES as u64;
        for path in &self.bodies {
            match self.disk.backing().stat(path) {
                Ok(stat) => bytes += stat.blocks * 512,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::disk("stat", path)(error)),
            }
        }
        Ok(SpaceAlone { bytes, records })
    }

    /// Removes the files that no snapshot needs. To be called after a checkpoint that has all steps.
    pub fn remove_files(&self) -> Result<(), StoreError> {
        for path in &self.bodies {
            match self.disk.backing().remove(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::disk("remove", path)(error));
                }
                _ => {}
            }
        }
        let snapshots = Arc::clone(&self.source.snapshots);
        let is_needless = |label: SnapshotId| !snapshots.is_needed_up_to(label);
        self.source.packs.remove(is_needless)?;
        self.source.packs.punch(&self.places)
    }
}

/// Judges the records of kept blocks and of bodies in one deletion.
struct KeptJudge<'a> {
    source: &'a KeptSource,
    /// Places in packs that no snapshot sees any more.
    places: &'a mut Vec<(PackPlace, u32)>,
    /// Bodies that no snapshot sees any more.
    bodies: &'a mut Vec<String>,
    /// The largest size of the last file that was judged, and the snapshot up to which it is that.
    largest: Option<(Ino, SnapshotId, u64)>,
}

impl KeptJudge<'_> {
    /// The changes of records that the deletion makes of the record under `key`, seen from P.
    fn judge(
        &mut self,
        key: &[u8],
        older: Option<SnapshotId>,
        batch: &[RecordChange],
    ) -> Result<Vec<RecordChange>, StoreError> {
        let unreadable = || StoreError::unreadable(key);
        let ino = keys::ino_of(key).ok_or_else(unreadable)?;
        let label = keys::snapshot_of(key).ok_or_else(unreadable)?;
        let Some(value) = self.source.namespace.get(key)? else {
            // An entry of the index without its record.
            return Ok(vec![(keys::kept_index(label, key), None)]);
        };
        let changes = if key.first() == Some(&keys::BODIES) {
            let file: SnapshotId = record::decode(&value).ok_or_else(unreadable)?;
            self.judge_body(ino, label, file, older)?
        } else {
            let number = keys::chunk_of(key).ok_or_else(unreadable)?;
            let touches: Vec<Touch> = record::decode(&value).ok_or_else(unreadable)?;
            self.judge_touches((FileChunk { ino, number }, label), touches, older, batch)?
        };
        let Some(mut changes) = changes else {
            return Ok(Vec::new());
        };
        changes.push((key.to_vec(), None));
        changes.push((keys::kept_index(label, key), None));
        Ok(changes)
    }

    /// The records in place of a body's; `None` if the body's stays.
    fn judge_body(
        &mut self,
        ino: Ino,
        label: SnapshotId,
        file: SnapshotId,
        older: Option<SnapshotId>,
    ) -> Result<Option<Vec<RecordChange>>, StoreError> {
        // The label may be that of a later snapshot than the last one that sees the inode.
        let seer = match older {
            Some(older) => self.source.bodies.newest_seer(ino, older)?,
            None => None,
        };
        let is_seen = match seer {
            Some(seer) => {
                let hiding = KeyRange::between(keys::body(ino, seer), keys::body(ino, label));
                self.source.namespace.keys(&hiding)?.is_empty()
            }
            None => false,
        };
        let Some(older) = older.filter(|_| is_seen) else {
            self.bodies.push(body_path(ino, file));
            return Ok(Some(Vec::new()));
        };
        if !label.is_local() {
            return Ok(None);
        }
        // Its blocks may have the labels of all snapshots of the datastore up to this one.
        let newest = SnapshotId::of_operation(label.osn).max(older);
        let key = keys::body(ino, newest);
        Ok(Some(vec![
            (keys::kept_index(newest, &key), Some(Vec::new())),
            (key, Some(record::encode(&file))),
        ]))
    }

    /// The records in place of these touches; `None` if they stay.
    fn judge_touches(
        &mut self,
        (chunk, label): (FileChunk, SnapshotId),
        touches: Vec<Touch>,
        older: Option<SnapshotId>,
        batch: &[RecordChange],
    ) -> Result<Option<Vec<RecordChange>>, StoreError> {
        let seen = match older {
            Some(older) => self.seen(chunk, older, label)?,
            None => Blocks::NONE,
        };
        let is_seen = touches.iter().any(|touch| !touch.kept.and(seen).is_empty());
        let Some(older) = older.filter(|_| is_seen) else {
            let places = touches
                .iter()
                .map(|touch| (touch.place, touch.dense.count()));
            self.places.extend(places.filter(|(_, blocks)| *blocks > 0));
            return Ok(Some(Vec::new()));
        };
        if !label.is_local() {
            return Ok(None);
        }
        // A block that a deleted snapshot in between has kept for P must not come before that one.
        let seen_parts = touches.into_iter().map(|mut touch| {
            touch.kept = touch.kept.and(seen);
            touch
        });
        self.source
            .packs
            .index()
            .append((older, chunk), seen_parts.collect(), batch)
            .map(Some)
    }

    /// The blocks of a chunk that snapshot `older` sees, or an older one, and for which no record from `older` on before that with `label` has the bytes.
    fn seen(
        &mut self,
        chunk: FileChunk,
        older: SnapshotId,
        label: SnapshotId,
    ) -> Result<Blocks, StoreError> {
        let body = self.source.bodies.label_since(chunk.ino, older)?;
        if body.is_some_and(|last| last < label) {
            // The blocks are those of a later content of this number: a resync has brought an inode back that this node had freed alone.
            return Ok(Blocks::NONE);
        }
        // An older one than P may see zeros behind the size that P sees.
        let size = match self.largest {
            Some((ino, of, size)) if (ino, of) == (chunk.ino, older) => size,
            _ => self.source.namespace.largest_size_kept(older, chunk.ino)?,
        };
        self.largest = Some((chunk.ino, older, size));
        let visible = chunk.blocks_before(size);
        let hidden = self
            .source
            .packs
            .index()
            .kept_between(chunk, older, label)?;
        Ok(visible.without(hidden))
    }
}
