//! The snapshots of a store, for a driver, a resync and an export.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{SnapshotId, Timestamp};

use super::facade::Store;
use crate::error::StoreError;
use crate::metadata_log::{MetadataLog, NewSnapshot};
use crate::namespace::record::RecordChange;
use crate::namespace::snapshot_list::{SnapshotBytes, SnapshotKind, SnapshotRecord};
use crate::namespace::{Deletion, RecordsAt, keys};
use crate::snapshots::content_at::KeptSource;
use crate::snapshots::deletion::{SnapshotDeletion, SpaceAlone};
use crate::snapshots::view::SnapshotView;
use crate::tree::Tree;

/// The snapshots of one store.
#[derive(Clone, Copy)]
pub struct SnapshotAccess<'a> {
    tree: Tree<'a>,
    log: &'a MetadataLog,
    source: &'a KeptSource,
}

/// Reading.
impl<'a> SnapshotAccess<'a> {
    /// The snapshots of a store.
    pub fn of(store: &'a Store) -> Self {
        Self {
            tree: store.tree(),
            log: &store.metadata_log,
            source: &store.kept,
        }
    }

    /// The snapshots, also those that are being deleted, the oldest first.
    pub fn all(self) -> Arc<BTreeMap<SnapshotId, Arc<SnapshotRecord>>> {
        self.source.snapshots.all()
    }

    /// Counts the changes of the list, since the opening of the store.
    pub fn changes(self) -> u64 {
        self.source.snapshots.changes()
    }

    /// The snapshots that are alive, the oldest first.
    pub fn list(self) -> Vec<(SnapshotId, Arc<SnapshotRecord>)> {
        let all = self.all();
        let alive = all.iter().filter(|(_, record)| !record.is_deleted);
        alive
            .map(|(id, record)| (*id, Arc::clone(record)))
            .collect()
    }

    /// The record of a snapshot; `None` if the snapshot is not alive.
    pub fn get(self, id: SnapshotId) -> Option<Arc<SnapshotRecord>> {
        self.source.snapshots.get(id)
    }

    /// The records as of a snapshot; `None` if the snapshot is not alive.
    pub fn records(self, id: SnapshotId) -> Option<RecordsAt<'a>> {
        self.tree.namespace.at(id)
    }

    /// The store as a snapshot sees it; `None` if the snapshot is not alive.
    pub fn view(self, id: SnapshotId) -> Option<SnapshotView<'a>> {
        let records = self.tree.namespace.at(id)?;
        Some(SnapshotView::new(
            records,
            self.tree.content,
            self.source.clone(),
        ))
    }

    /// The space that a snapshot takes alone; none for one that is not alive. Takes time in proportion to the kept values since the snapshot, and holds changes of records
    /// up for single steps.
    pub fn space_alone(self, id: SnapshotId) -> Result<SpaceAlone, StoreError> {
        if self.get(id).is_none() {
            return Ok(SpaceAlone::default());
        }
        SnapshotDeletion::new(Deletion::new(id), self.source, self.tree.disk()).weigh()
    }

    /// The keys of a table of kept values.
    pub fn kept_keys(self, table: u8) -> Result<Vec<Vec<u8>>, StoreError> {
        Ok(self.tree.namespace.keys(&keys::table(table))?)
    }
}

/// Making and deleting.
impl SnapshotAccess<'_> {
    /// Makes a snapshot of this moment, which is durable when this returns. No snapshot of the store is as new as `id`, and every inode
    /// has a number below `inos_below` of the record.
    ///
    /// The caller lets no write and no other operation be under way.
    pub fn create(self, id: SnapshotId, record: SnapshotRecord) -> Result<(), StoreError> {
        let beside = Vec::new();
        NewSnapshot { id, record, beside }.take(self.log, self.tree)
    }

    /// Gives a snapshot another name, with the next checkpoint durably. Returns whether the snapshot is alive.
    pub fn rename(self, id: SnapshotId, name: &str) -> bool {
        let rename = |record: &mut SnapshotRecord| name.clone_into(&mut record.name);
        self.get(id).is_some() && self.tree.namespace.change_snapshot(id, rename)
    }

    /// Whether [`Self::settle`] or [`Self::resume_deletions`] has something to do.
    pub fn has_work(self) -> bool {
        let all = self.all();
        !self.unsettled().is_empty() || all.values().any(|record| record.is_deleted)
    }

    /// Puts the bytes of the snapshots that are there now on stable storage. From then on a loss of power does not tear them.
    pub fn settle(self) -> Result<(), StoreError> {
        let unsettled = self.unsettled();
        if unsettled.is_empty() {
            return Ok(());
        }
        if !is_active(Mutant::SettledUnsynced) {
            // The whole disk: a content that was freed since is among the bodies, and no list has it.
            self.tree.content.sync().sync_disk(self.tree.disk())?;
        }
        for id in unsettled {
            let settle = |record: &mut SnapshotRecord| record.bytes = SnapshotBytes::Settled;
            self.tree.namespace.change_snapshot(id, settle);
        }
        self.log.checkpoint(self.tree)
    }

    /// Whether the space of a deleted snapshot is being freed.
    pub fn is_deleting(self) -> bool {
        self.all().values().any(|record| record.is_deleted)
    }

    /// The snapshot that is the first to give way to programs on a full disk, with its name: one that was made for an arrival, then the oldest one of the
    /// schedule that no hold keeps.
    pub fn first_to_give_way(self) -> Option<(SnapshotId, String)> {
        let all = self.all();
        let oldest = |kind: SnapshotKind| {
            let mut of_kind = all.iter().filter(|(_, record)| record.kind == kind);
            of_kind.find(|(id, record)| record.is_taken(**id) && record.holds.is_empty())
        };
        let first = oldest(SnapshotKind::Arrival).or_else(|| oldest(SnapshotKind::Scheduled));
        first.map(|(id, record)| (*id, record.name.clone()))
    }

    fn unsettled(self) -> Vec<SnapshotId> {
        let all = self.all();
        let is_unsettled =
            |record: &SnapshotRecord| record.is_alive() && record.bytes == SnapshotBytes::Unsettled;
        let unsettled = all.iter().filter(|(_, record)| is_unsettled(record));
        unsettled.map(|(id, _)| *id).collect()
    }

    /// Makes a snapshot of this copy, as it is now. It is durable when this returns, with the bytes of its files as far as these are.
    ///
    /// The caller lets no write and no other operation be under way.
    pub fn create_local(
        self,
        name: String,
        kind: SnapshotKind,
        time: Timestamp,
    ) -> Result<SnapshotId, StoreError> {
        let kind = (kind, SnapshotBytes::Unsettled);
        self.create_local_beside(name, kind, time, |_| Vec::new())
    }

    /// The same, with what is known of the bytes, and with the records that `beside` gives for the id: one checkpoint has both.
    pub(super) fn create_local_beside(
        self,
        name: String,
        (kind, bytes): (SnapshotKind, SnapshotBytes),
        time: Timestamp,
        beside: impl FnOnce(SnapshotId) -> Vec<RecordChange>,
    ) -> Result<SnapshotId, StoreError> {
        let Some(id) = self.next_local_id()? else {
            return Err(StoreError::TooManySnapshots);
        };
        let record = SnapshotRecord {
            name,
            time,
            kind,
            inos_below: self.tree.namespace.numbers().below(),
            is_deleted: false,
            bytes,
            serial: 0,
            holds: Vec::new(),
        };
        // The number may be that of a snapshot that was given up, and is gone.
        self.source.given_up.remove(id)?;
        let new = NewSnapshot {
            id,
            record,
            beside: beside(id),
        };
        new.take(self.log, self.tree).map(|()| id)
    }

    /// The id of a new snapshot of this copy, behind its last operation. `None` if this copy has 255 of them since that operation.
    ///
    /// A write that began to keep blocks for a snapshot may end after the deletion of that snapshot: the number of a kept value is not given out
    /// again.
    fn next_local_id(self) -> Result<Option<SnapshotId>, StoreError> {
        let osn = self.log.applied();
        let all = self.all();
        let listed = all.keys().copied().filter(|id| id.osn == osn).max();
        let first = SnapshotId { osn, local: 0 };
        let end = SnapshotId {
            osn: osn.next(),
            local: 0,
        };
        let mut kept = None;
        let range = keys::kept_index_range(first, Some(end));
        self.tree.namespace.scan_down(&range, &mut |key, _| {
            kept = keys::label_of_index(key);
            ControlFlow::Break(())
        })?;
        let last = listed.max(kept).map_or(0, |id| id.local);
        Ok(last.checked_add(1).map(|local| SnapshotId { osn, local }))
    }

    /// Begins the deletion of a snapshot, durably: no reader sees the snapshot any more. Returns whether it was there.
    /// [`Self::go_on_deleting`] frees its space.
    pub fn begin_deletion(self, id: SnapshotId) -> Result<bool, StoreError> {
        let begun = self.tree.namespace.delete_snapshot(id).is_some();
        self.log.checkpoint(self.tree)?;
        Ok(begun)
    }

    /// Deletes the oldest lost copy, to make room. Returns its name; `None` if there is none.
    pub fn give_up_lost(self) -> Result<Option<String>, StoreError> {
        let all = self.list();
        let is_lost = |record: &SnapshotRecord| matches!(record.kind, SnapshotKind::Lost { .. });
        let Some((id, record)) = all.iter().find(|(_, record)| is_lost(record)) else {
            return Ok(None);
        };
        self.delete(*id)?;
        Ok(Some(record.name.clone()))
    }

    /// Deletes a snapshot, with everything that only this snapshot sees. Returns whether it was there. No reader sees the snapshot
    /// from the beginning on; a stop in between lets the deletion go on at the next opening.
    pub fn delete(self, id: SnapshotId) -> Result<bool, StoreError> {
        self.delete_while(id, &|| true)
    }

    /// The same, as long as `goes_on`.
    fn delete_while(self, id: SnapshotId, goes_on: &dyn Fn() -> bool) -> Result<bool, StoreError> {
        let Some(deletion) = self.tree.namespace.delete_snapshot(id) else {
            return Ok(false);
        };
        // From here on the flag outlives the process: nothing that is removed comes back into sight.
        self.log.checkpoint(self.tree)?;
        let mut deletion = SnapshotDeletion::new(deletion, self.source, self.tree.disk());
        while !deletion.step()? {
            if !goes_on() {
                break;
            }
            if self.log.needs_checkpoint(self.tree) {
                self.log.checkpoint(self.tree)?;
            }
        }
        self.log.checkpoint(self.tree)?;
        deletion.remove_files()?;
        self.source.given_up.remove(id)?;
        Ok(true)
    }

    /// Carries out the deletions that have begun: those of an earlier process, of snapshots that gave way to a full disk, and of fallbacks that
    /// nobody needs any more. Costs nothing if there are none.
    pub fn resume_deletions(self) -> Result<(), StoreError> {
        self.go_on_deleting(&|| true)
    }

    /// Goes on with all deletions that are not ended, as long as `goes_on`. Changes of clients wait for single steps of it.
    pub fn go_on_deleting(self, goes_on: &dyn Fn() -> bool) -> Result<(), StoreError> {
        let all = self.all();
        for (id, _) in all.iter().filter(|(_, record)| record.is_deleted) {
            if goes_on() {
                self.delete_while(*id, goes_on)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lockstep_intentlog::LogOptions;
    use lockstep_lossy::disk::Disk;
    use lockstep_types::{DatastoreUuid, Ino};

    use super::*;
    use crate::snapshots::packs::touch::{Blocks, FileChunk, NewTouch};
    use crate::store::OpenOptions;

    const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);

    /// A write that began to keep blocks for a snapshot ends after the deletion of the snapshot.
    #[test]
    fn the_number_of_a_kept_value_is_not_given_out_again() {
        let disk = Disk::default();
        Store::create(&disk.mount(), UUID, &LogOptions::default()).unwrap();
        let store = Store::open(disk.mount(), &OpenOptions::for_test(UUID))
            .unwrap()
            .store;
        let snapshots = SnapshotAccess::of(&store);
        let take = || {
            let kind = SnapshotKind::Fallback {
                is_exact: true,
                own_of: None,
            };
            let made = snapshots.create_local("s".to_owned(), kind, Timestamp::default());
            made.unwrap()
        };
        let first = take();
        assert!(snapshots.delete(first).unwrap());
        assert_eq!(take(), first, "nothing is kept for the first one");
        assert!(snapshots.delete(first).unwrap());
        let late = NewTouch {
            chunk: FileChunk {
                ino: Ino::ROOT,
                number: 0,
            },
            kept: Blocks::range(0, 1),
            dense: Blocks::range(0, 1),
            bytes: vec![1; 4096],
        };
        store.kept.packs.keep(first, vec![late]).unwrap();
        assert!(take() > first);
    }
}
