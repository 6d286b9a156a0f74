//! The history of the records: the values that snapshots see, the list of snapshots, and the records as of one of them.
//!
//! All snapshots of a store are one chain, ordered by [`SnapshotId`]. A change of a record keeps the old value once for the newest snapshot that
//! is alive, and labels it with that snapshot ([`first_touch`]). As of a snapshot a record has the first kept value with a label from that snapshot
//! on, else its present value ([`reading`]). Most new records say by themselves that no snapshot sees them ([`births`]).
//!
//! Kept values are in table `h`, their index by label in `e`, the snapshots in `p` ([`keys`]). A kept value goes into the batch of the change
//! itself: a checkpoint has both or none, and a replay of the log makes both anew. Only replicated tables have a history.
//!
//! Nothing here makes anything durable, logs anything, or knows content.
//!
//! Locks, in the order in which they may be taken: `changing`, `removing`; then those of the memtable.
//! - `changing` is held from the look-up of old values until the batch is in the memtable. So of two threads that change one record, the second
//!   does not keep the value of the first for an older one. A deletion holds it for a batch of its steps: no change relies on a kept value
//!   that goes. While no snapshot is alive, changes do not take this lock.
//! - `removing` is held exclusively while a batch is applied that takes kept values away, and shared by a reader from the present
//!   value to the kept ones.

mod arrived;
mod births;
mod deletion;
mod first_touch;
mod kept;
mod merge;
mod reading;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use lockstep_types::SnapshotId;
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::{Mutex, RwLock};

use self::deletion::Judge;
use self::first_touch::{FirstTouch, Keep, Memory};
use crate::error::StoreError;
use crate::kv::memtable::Memtable;
use crate::kv::redb::RedbKv;
use crate::namespace::keys;
use crate::namespace::record::{self, RecordChange};
use crate::namespace::snapshot_list::{SnapshotList, SnapshotRecord};

pub use self::deletion::{BlockJudge, Deletion};
pub use self::kept::KeptValue;
pub use self::reading::RecordsAt;

/// Entries of the index that a deletion judges in one batch. Changes wait meanwhile.
const JUDGED_MAX: usize = 128;

/// See the head of this file.
pub struct History {
    snapshots: Arc<SnapshotList>,
    changing: Mutex<Memory>,
    removing: RwLock<()>,
}

impl History {
    /// The history in these records.
    ///
    /// # Errors A record of a snapshot cannot be read.
    pub fn load(records: &Memtable<RedbKv>) -> Result<Self, StoreError> {
        let mut snapshots = BTreeMap::new();
        let mut failed = None;
        let range = keys::table(keys::SNAPSHOTS);
        records.scan(range.from(), range.to(), &mut |key, value| {
            let id = key.get(1..).and_then(SnapshotId::from_bytes);
            let record: Option<SnapshotRecord> = record::decode(value);
            let Some((id, record)) = id.zip(record) else {
                failed = Some(StoreError::unreadable(key));
                return ControlFlow::Break(());
            };
            snapshots.insert(id, Arc::new(record));
            ControlFlow::Continue(())
        })?;
        failed.map_or(Ok(()), Err)?;
        Ok(Self {
            snapshots: Arc::new(SnapshotList::new(snapshots)),
            changing: Mutex::default(),
            removing: RwLock::new(()),
        })
    }

    /// The snapshots of the store.
    pub const fn snapshots(&self) -> &Arc<SnapshotList> {
        &self.snapshots
    }

    /// Whether changes keep old values.
    pub fn keeps(&self) -> bool {
        self.snapshots.keeps()
    }

    /// Makes a batch visible, with the old values that the newest snapshot sees.
    ///
    /// # Errors An old value cannot be read: nothing has changed.
    pub fn apply(
        &self,
        records: &Memtable<RedbKv>,
        mut batch: Vec<RecordChange>,
    ) -> Result<(), StoreError> {
        let mut memory = self.changing.lock();
        // The last snapshot may have gone since the caller looked.
        let Some(mut touch) = FirstTouch::new(records, &self.snapshots, &mut memory) else {
            records.apply(batch);
            return Ok(());
        };
        let mut keep = if is_active(Mutant::HistoryMissesFold) && is_fold(&batch) {
            Keep::default()
        } else {
            touch.keep(&batch)?
        };
        batch.append(&mut keep.changes);
        {
            let _no_reader = keep.removes.then(|| self.removing.write());
            records.apply(batch);
        }
        keep.note(&mut memory);
        Ok(())
    }

    /// Runs `body`, which finds all kept values of its beginning: none of them goes or moves meanwhile. It asks nothing of the history.
    pub fn without_removals<T>(&self, body: impl FnOnce() -> T) -> T {
        let _nothing_is_removed = self.removing.read();
        body()
    }

    /// The values of a record that are kept, the oldest first.
    pub fn kept_values(
        &self,
        records: &Memtable<RedbKv>,
        key: &[u8],
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let _nothing_is_removed = self.removing.read();
        let kept = kept::find(records, key, SnapshotId::FIRST, usize::MAX)?;
        Ok(kept.into_iter().filter_map(|kept| kept.value).collect())
    }

    /// The records as of a snapshot; `None` if it is not alive.
    pub fn at<'a>(
        &'a self,
        records: &'a Memtable<RedbKv>,
        id: SnapshotId,
    ) -> Option<RecordsAt<'a>> {
        let snapshot = self.snapshots.get(id)?;
        let place = (&*self.snapshots, &self.removing);
        Some(RecordsAt::new(records, place, id, snapshot))
    }
}

/// Notes the serial number of the snapshot of the datastore that was made last.
pub fn note_serial(records: &Memtable<RedbKv>, last: u32) {
    records.apply([(keys::LAST_SERIAL.to_vec(), Some(record::encode(&last)))]);
}

/// Whether a batch is that of a checkpoint, with the sizes and times of files.
fn is_fold(batch: &[RecordChange]) -> bool {
    batch.iter().any(|(key, _)| key == keys::CHECKPOINT)
}

/// Changes of the list. The record goes first, so that a snapshot in the list has a record. Both change under `changing`.
impl History {
    /// Puts the record of a new snapshot.
    pub fn set(&self, records: &Memtable<RedbKv>, id: SnapshotId, snapshot: SnapshotRecord) {
        let mut memory = self.changing.lock();
        if snapshot.serial > 0 {
            note_serial(records, snapshot.serial);
        }
        self.put(records, &mut memory, id, snapshot);
    }

    /// Changes the record of a snapshot. Returns whether there is such a snapshot.
    pub fn change(
        &self,
        records: &Memtable<RedbKv>,
        id: SnapshotId,
        change: impl FnOnce(&mut SnapshotRecord),
    ) -> bool {
        let mut memory = self.changing.lock();
        let Some(old) = self.snapshots.all().get(&id).map(Arc::clone) else {
            return false;
        };
        let mut new = SnapshotRecord::clone(&old);
        change(&mut new);
        if new != *old {
            self.put(records, &mut memory, id, new);
        }
        true
    }

    fn put(
        &self,
        records: &Memtable<RedbKv>,
        memory: &mut Memory,
        id: SnapshotId,
        snapshot: SnapshotRecord,
    ) {
        let value = record::encode(&snapshot);
        records.apply([(keys::snapshot(id), Some(value))]);
        self.snapshots.set(id, Some(snapshot));
        // A local snapshot may have the label of one that is gone.
        memory.clear();
    }

    /// Makes records visible that have no history themselves, which `make` gives. No deletion takes or moves kept values in between.
    pub fn put_kept(
        &self,
        records: &Memtable<RedbKv>,
        make: impl FnOnce() -> Result<Vec<RecordChange>, StoreError>,
    ) -> Result<(), StoreError> {
        let _alone = self.changing.lock();
        records.apply(make()?);
        Ok(())
    }

    /// Puts values of records as a snapshot sees them, of which this node lacks the bytes ([`arrived`]).
    ///
    /// # Errors A record cannot be read: nothing has changed.
    pub fn put_arrived(
        &self,
        records: &Memtable<RedbKv>,
        id: SnapshotId,
        values: Vec<RecordChange>,
    ) -> Result<(), StoreError> {
        let mut memory = self.changing.lock();
        let older = self.snapshots.older(id).map(|(id, _)| id);
        let changes = arrived::changes(records, (id, older), values)?;
        records.apply(changes);
        memory.clear();
        Ok(())
    }

    /// The first kept value of a record with a label from `id` on.
    pub fn first_kept(
        &self,
        records: &Memtable<RedbKv>,
        key: &[u8],
        id: SnapshotId,
    ) -> Result<Option<KeptValue>, StoreError> {
        let _nothing_is_removed = self.removing.read();
        Ok(kept::find(records, key, id, 1)?.pop())
    }

    /// Changes the record of a snapshot if `is_right` for the list of the moment. Returns whether it was.
    pub fn change_if(
        &self,
        records: &Memtable<RedbKv>,
        id: SnapshotId,
        is_right: impl FnOnce(&SnapshotList) -> bool,
        change: impl FnOnce(&mut SnapshotRecord),
    ) -> bool {
        let mut memory = self.changing.lock();
        let Some(mut new) = self.snapshots.all().get(&id).map(|it| (**it).clone()) else {
            return false;
        };
        if !is_right(&self.snapshots) {
            return false;
        }
        change(&mut new);
        self.put(records, &mut memory, id, new);
        true
    }

    /// Judges the next kept values of a snapshot that is being deleted, at most `max` of them.
    pub fn delete_step(
        &self,
        records: &Memtable<RedbKv>,
        deletion: &mut Deletion,
        max: usize,
        blocks: &mut BlockJudge<'_>,
    ) -> Result<(), StoreError> {
        let mut left = max;
        while left > 0 && !deletion.is_over() {
            let count = left.min(JUDGED_MAX);
            let mut memory = self.changing.lock();
            let changes = self.judge(records, deletion, count, blocks)?;
            // A value that is kept no more is kept again by the next change.
            memory.clear();
            let _no_reader = self.removing.write();
            records.apply(changes);
            left -= count;
        }
        Ok(())
    }

    /// The changes that [`Self::delete_step`] would make next for a snapshot, alive or not: judges at most [`JUDGED_MAX`] kept values, and changes nothing.
    pub fn judge_step(
        &self,
        records: &Memtable<RedbKv>,
        deletion: &mut Deletion,
        blocks: &mut BlockJudge<'_>,
    ) -> Result<Vec<RecordChange>, StoreError> {
        let _alone = self.changing.lock();
        self.judge(records, deletion, JUDGED_MAX, blocks)
    }

    fn judge(
        &self,
        records: &Memtable<RedbKv>,
        deletion: &mut Deletion,
        max: usize,
        blocks: &mut BlockJudge<'_>,
    ) -> Result<Vec<RecordChange>, StoreError> {
        let older = self.snapshots.older(deletion.id());
        let older = older.map(|(id, _)| (id, self.snapshots.inos_below(id)));
        // Values that have arrived for a snapshot are not judged while this node lacks others: the snapshot needs them in the end.
        let newer = self.snapshots.next_listed(deletion.id());
        Judge::new(records, older, newer).judge(deletion, max, blocks)
    }

    /// Takes the record of a snapshot away, of which nothing is kept any more. The record of one that is deleted no more stays: the other
    /// node has the snapshot.
    pub fn forget(&self, records: &Memtable<RedbKv>, id: SnapshotId) {
        let _alone = self.changing.lock();
        if !self
            .snapshots
            .all()
            .get(&id)
            .is_some_and(|it| it.is_deleted)
        {
            return;
        }
        records.apply([(keys::snapshot(id), None::<Vec<u8>>)]);
        self.snapshots.set(id, None);
    }
}
