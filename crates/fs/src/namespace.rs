//! The namespace of a store: the records of inodes, directory entries and extended attributes, and the counter of
//! inode numbers.
//!
//! [`keys`] and [`record`] give the form of records, [`crate::kv`] stores them, [`plan`] works out the records that an
//! operation changes.
//!
//! Records are read and written here without their meaning to a client: a record of a file with unflushed writes
//! is behind ([`crate::tree`] puts the unflushed size and times over it). No method here makes anything durable but
//! [`Namespace::flush`], which a checkpoint calls.
//!
//! Every batch of changes goes through [`Namespace::apply`]: with it goes what the newest snapshot sees ([`history`]).
//!
//! Locks: those of the history, and those inside the memtable. No lock is held between two calls.

pub mod acl;
mod history;
mod ino_numbers;
pub mod keys;
pub mod last_use;
pub mod plan;
pub mod record;
pub mod snapshot_list;

use std::ops::ControlFlow;
use std::sync::Arc;

use lockstep_types::backing::Backing;
use lockstep_types::{Ino, SnapshotId};

use self::history::History;
use self::ino_numbers::InoNumbers;
pub use self::ino_numbers::InoRanges;
use self::keys::KeyRange;
use self::record::{Checkpoint, Inode, RecordChange};
use crate::error::StoreError;
use crate::kv::memtable::Memtable;
use crate::kv::redb::{RedbKv, RedbOptions};
use crate::kv::{Each, KvError};
use crate::namespace::snapshot_list::{SnapshotList, SnapshotRecord};
use crate::paths::NAMESPACE_FILE;

pub use self::history::{BlockJudge, Deletion, KeptValue, RecordsAt};

/// All records of one store, the newest in memory.
pub struct Namespace {
    records: Memtable<RedbKv>,
    numbers: InoNumbers,
    history: History,
}

impl Namespace {
    /// Opens the namespace as the last checkpoint left it.
    pub fn open(backing: &dyn Backing) -> Result<(Self, Checkpoint), StoreError> {
        let kv = RedbKv::open(backing, NAMESPACE_FILE, RedbOptions::default())?;
        let records = Memtable::new(kv);
        let checkpoint = read_checkpoint(&records)?;
        let namespace = Self {
            numbers: InoNumbers::new(checkpoint.ino_limit),
            history: History::load(&records)?,
            records,
        };
        Ok((namespace, checkpoint))
    }

    /// The counter of inode numbers.
    pub const fn numbers(&self) -> &InoNumbers {
        &self.numbers
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.records.get(key)
    }

    /// The keys of a range, in order.
    pub fn keys(&self, range: &KeyRange) -> Result<Vec<Vec<u8>>, KvError> {
        let mut keys = Vec::new();
        self.scan(range, &mut |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        Ok(keys)
    }

    /// Calls `each` with the records of a range, in the order of their keys, until `each` breaks.
    pub fn scan(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), KvError> {
        self.records.scan(range.from(), range.to(), each)
    }

    /// The same from the last key to the first.
    pub fn scan_down(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), KvError> {
        self.records.scan_down(range.from(), range.to(), each)
    }

    /// The record of an inode, without unflushed size and times.
    pub fn inode(&self, ino: Ino) -> Result<Option<Inode>, StoreError> {
        let key = keys::inode(ino);
        let Some(bytes) = self.records.get(&key)? else {
            return Ok(None);
        };
        match record::decode(&bytes) {
            Some(inode) => Ok(Some(inode)),
            None => Err(StoreError::unreadable(&key)),
        }
    }

    /// Changes the record of an inode, if the inode exists.
    pub fn change_inode(
        &self,
        ino: Ino,
        change: impl FnOnce(&mut Inode),
    ) -> Result<(), StoreError> {
        if let Some(mut inode) = self.inode(ino)? {
            change(&mut inode);
            self.apply([(keys::inode(ino), Some(record::encode(&inode)))])?;
        }
        Ok(())
    }

    /// Makes a batch of changes visible to all readers at once, with the old values that snapshots see. They are not durable.
    ///
    /// # Errors An old value could not be read: nothing has changed. Without a snapshot there is no error.
    pub fn apply(&self, batch: impl IntoIterator<Item = RecordChange>) -> Result<(), StoreError> {
        if !self.history.keeps() {
            self.records.apply(batch);
            return Ok(());
        }
        self.history
            .apply(&self.records, batch.into_iter().collect())
    }

    /// Memory that records take until a checkpoint, in bytes, roughly.
    pub fn bytes(&self) -> usize {
        self.records.bytes()
    }

    /// Sets the changed records aside for [`Self::flush`].
    pub fn freeze(&self) {
        self.records.freeze();
    }

    /// Writes the frozen records to the disk and makes them durable.
    pub fn flush(&self) -> Result<(), KvError> {
        self.records.flush()
    }
}

/// Snapshots. None of these changes is durable before a checkpoint.
impl Namespace {
    /// The snapshots of this store.
    pub const fn snapshots(&self) -> &Arc<SnapshotList> {
        self.history.snapshots()
    }

    /// Makes a snapshot of this moment, newer than every snapshot that this store has or had; a local one may have the number of one
    /// that is deleted to the end.
    ///
    /// The caller has folded every unflushed size and time into its record, and lets no other change of records begin meanwhile: a change
    /// that began before keeps nothing for the new snapshot.
    pub fn create_snapshot(&self, id: SnapshotId, snapshot: SnapshotRecord) {
        self.history.set(&self.records, id, snapshot);
    }

    /// Notes the serial number of the snapshot of the datastore that was made last, deleted or not.
    pub fn note_serial(&self, last: u32) {
        history::note_serial(&self.records, last);
    }

    /// Changes the record of a snapshot; not its moment or its `inos_below`. Returns whether there is such a snapshot.
    pub fn change_snapshot(
        &self,
        id: SnapshotId,
        change: impl FnOnce(&mut SnapshotRecord),
    ) -> bool {
        self.history.change(&self.records, id, change)
    }

    /// Flags a snapshot as deleted: no reader sees the snapshot any more. Returns the deletion, also of a snapshot that has the flag; `None` if there
    /// is no such snapshot.
    pub fn delete_snapshot(&self, id: SnapshotId) -> Option<Deletion> {
        let is_there = self.change_snapshot(id, |snapshot| snapshot.is_deleted = true);
        is_there.then(|| Deletion::new(id))
    }

    /// Removes kept values of a deleted snapshot that no other snapshot sees: judges at most `max` of them, in one batch or several. Returns
    /// whether all were judged.
    pub fn delete_step(
        &self,
        deletion: &mut Deletion,
        max: usize,
        blocks: &mut BlockJudge<'_>,
    ) -> Result<bool, StoreError> {
        self.history
            .delete_step(&self.records, deletion, max, blocks)?;
        Ok(deletion.is_over())
    }

    /// The changes that [`Self::delete_step`] would make next if a snapshot were deleted. Changes nothing.
    pub fn judge_step(
        &self,
        deletion: &mut Deletion,
        blocks: &mut BlockJudge<'_>,
    ) -> Result<Vec<RecordChange>, StoreError> {
        self.history.judge_step(&self.records, deletion, blocks)
    }

    /// Removes the record of a deleted snapshot, once [`Self::delete_step`] has judged everything. Until then nothing changes, and the
    /// answer is `false`.
    pub fn end_deletion(&self, deletion: &Deletion) -> bool {
        if deletion.is_over() {
            self.history.forget(&self.records, deletion.id());
        }
        deletion.is_over()
    }

    /// Makes changes of the index of kept blocks visible, which `make` gives: no deletion changes the index in between.
    pub fn put_kept(
        &self,
        make: impl FnOnce() -> Result<Vec<RecordChange>, StoreError>,
    ) -> Result<(), StoreError> {
        self.history.put_kept(&self.records, make)
    }

    /// Puts values of records as a snapshot sees them, of which this node lacks the bytes.
    pub fn put_arrived(&self, id: SnapshotId, values: Vec<RecordChange>) -> Result<(), StoreError> {
        self.history.put_arrived(&self.records, id, values)
    }

    /// The first kept value of a record with a label from `id` on.
    pub fn first_kept(&self, key: &[u8], id: SnapshotId) -> Result<Option<KeptValue>, StoreError> {
        self.history.first_kept(&self.records, key, id)
    }

    /// Changes the record of a snapshot if `is_right` for the list of the moment, which no other thread changes in between. Returns whether it was.
    pub fn change_snapshot_if(
        &self,
        id: SnapshotId,
        is_right: impl FnOnce(&SnapshotList) -> bool,
        change: impl FnOnce(&mut SnapshotRecord),
    ) -> bool {
        self.history.change_if(&self.records, id, is_right, change)
    }

    /// Runs `body`, which reads kept values by [`Self::get`] and [`Self::scan`]: none of them goes or moves meanwhile.
    pub fn without_removals<T>(&self, body: impl FnOnce() -> T) -> T {
        self.history.without_removals(body)
    }

    /// The size of a file as a snapshot sees it; `None` if the snapshot does not see the file.
    pub fn size_at(&self, id: SnapshotId, ino: Ino) -> Result<Option<u64>, StoreError> {
        let Some(records) = self.at(id) else {
            return Ok(None);
        };
        let inode = plan::View::inode(&records, ino).map_err(crate::OpError::into_store)?;
        Ok(inode.and_then(|inode| inode.body.file_size()))
    }

    /// The largest size of a file that any snapshot up to `newest` sees; 0 if none sees the file. `newest` is the newest snapshot.
    pub fn largest_size_kept(&self, newest: SnapshotId, ino: Ino) -> Result<u64, StoreError> {
        let mut largest = self.size_at(newest, ino)?;
        let kept = self.history.kept_values(&self.records, &keys::inode(ino))?;
        for value in kept {
            let kept: Option<Inode> = record::decode(&value);
            largest = largest.max(kept.and_then(|inode| inode.body.file_size()));
        }
        Ok(largest.unwrap_or(0))
    }

    /// The records as of a snapshot; `None` if it is not alive.
    pub fn at(&self, id: SnapshotId) -> Option<RecordsAt<'_>> {
        self.history.at(&self.records, id)
    }
}

fn read_checkpoint(records: &Memtable<RedbKv>) -> Result<Checkpoint, StoreError> {
    records
        .get(keys::CHECKPOINT)?
        .as_deref()
        .and_then(record::decode)
        .ok_or_else(|| StoreError::Damaged {
            what: "the checkpoint record is missing or cannot be read".to_owned(),
        })
}
