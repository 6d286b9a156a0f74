//! Snapshots of the records of a store, without the content of files.
//!
//! The functions here fix the order of the durable steps. They belong to a caller that lets nothing else change the store meanwhile: the
//! moment of a snapshot is one at which no operation and no write is under way.

use std::sync::Arc;

use lockstep_types::{Errno, SnapshotId};

use super::facade::Store;
use crate::error::{OpError, StoreError};
use crate::metadata_log::MetadataLog;
use crate::namespace::RecordsAt;
use crate::snapshot_list::{SnapshotList, SnapshotRecord};
use crate::tree::Tree;

/// Kept values that one step of a deletion judges.
const STEP_MAX: usize = 2_000;

/// The history of the records of one store.
#[derive(Clone, Copy)]
pub struct RecordHistory<'a> {
    tree: Tree<'a>,
    log: &'a MetadataLog,
}

impl<'a> RecordHistory<'a> {
    /// The history of the records of a store.
    pub const fn of(store: &'a Store) -> Self {
        Self {
            tree: store.tree(),
            log: &store.metadata_log,
        }
    }

    /// The snapshots of this store.
    pub const fn snapshots(self) -> &'a Arc<SnapshotList> {
        self.tree.namespace.snapshots()
    }

    /// The records as of a snapshot.
    ///
    /// # Errors There is no such snapshot, or it is being deleted.
    pub fn at(self, id: SnapshotId) -> Result<RecordsAt<'a>, OpError> {
        Ok(self.tree.namespace.at(id).ok_or(Errno::Stale)?)
    }

    /// Makes a snapshot of this moment, which is durable at the return. No snapshot of this store is as new as `id`, every inode has a
    /// number below `inos_below` of the record, and nothing changes the store meanwhile.
    pub fn create(self, id: SnapshotId, snapshot: SnapshotRecord) -> Result<(), StoreError> {
        // Folds: the record of each file has its size.
        self.log.checkpoint(self.tree)?;
        self.tree.namespace.create_snapshot(id, snapshot);
        self.log.checkpoint(self.tree)
    }

    /// Gives a snapshot another name.
    ///
    /// # Errors There is no such snapshot.
    pub fn rename(self, id: SnapshotId, name: &str) -> Result<(), OpError> {
        let snapshot = self.snapshots().get(id).ok_or(Errno::Stale)?;
        let snapshot = SnapshotRecord {
            name: name.to_owned(),
            ..SnapshotRecord::clone(&snapshot)
        };
        self.tree.namespace.change_snapshot(id, snapshot);
        Ok(())
    }

    /// Deletes a snapshot, or goes on to delete it. Changes and reads may go on meanwhile.
    ///
    /// # Errors The snapshot does not exist, or the store failed: then a later call goes on.
    pub fn delete(self, id: SnapshotId) -> Result<(), OpError> {
        let namespace = self.tree.namespace;
        let mut deletion = namespace.delete_snapshot(id).ok_or(Errno::Stale)?;
        // From now on the snapshot is deleted also after a crash: no reader comes back that misses what the steps take.
        self.log.checkpoint(self.tree)?;
        while !namespace.delete_step(&mut deletion, STEP_MAX, &mut |_, _| Ok(Vec::new()))? {
            if self.log.needs_checkpoint(self.tree) {
                self.log.checkpoint(self.tree)?;
            }
        }
        namespace.end_deletion(&deletion);
        Ok(())
    }
}
