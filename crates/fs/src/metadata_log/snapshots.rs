//! Making a snapshot of this copy alone.
//!
//! The snapshot is made in the first step of a checkpoint: every size and time is in its record then, no operation is being applied,
//! and one transaction has the records and the snapshot.

use lockstep_types::{Osn, SnapshotId, Timestamp};

use super::MetadataLog;
use super::checkpoint::NewSnapshot;
use crate::error::StoreError;
use crate::namespace::Namespace;
use crate::namespace::snapshot_list::{SnapshotKind, SnapshotRecord};
use crate::tree::Tree;

/// The id of a new snapshot of this copy, behind the operation `applied`. `None` if this copy has 255 of them since that operation.
fn local_id(namespace: &Namespace, applied: Osn) -> Option<SnapshotId> {
    let all = namespace.snapshots().all();
    let last = all.keys().rev().find(|id| id.osn == applied);
    let local = last.map_or(0, |id| id.local).checked_add(1)?;
    Some(SnapshotId {
        osn: applied,
        local,
    })
}

impl MetadataLog {
    /// Makes a snapshot of this copy. No write is under way, and no operation but those that wait for the other node.
    pub fn create_local_snapshot(
        &self,
        tree: Tree<'_>,
        name: String,
        kind: SnapshotKind,
        time: Timestamp,
    ) -> Result<SnapshotId, StoreError> {
        let Some(id) = local_id(tree.namespace, self.applied()) else {
            return Err(StoreError::TooManySnapshots);
        };
        let record = SnapshotRecord {
            name,
            time,
            kind,
            inos_below: tree.namespace.numbers().below(),
            is_deleted: false,
        };
        self.create_snapshot(tree, id, record).map(|()| id)
    }

    /// Makes a snapshot in a checkpoint. No write is under way, and no operation but those that wait for the other node.
    pub fn create_snapshot(
        &self,
        tree: Tree<'_>,
        id: SnapshotId,
        record: SnapshotRecord,
    ) -> Result<(), StoreError> {
        let _alone = self.checkpointing.lock();
        tree.disk().check_not_poisoned()?;
        let limit = tree.namespace.numbers().limit();
        let snapshot = NewSnapshot { id, record };
        let run = self.checkpoint_run(tree)?;
        let made = run.write(limit, Some(self.boot), Some(snapshot));
        if made.is_err() {
            // The records in memory may have the snapshot.
            tree.namespace.delete_snapshot(id);
        }
        made
    }
}
