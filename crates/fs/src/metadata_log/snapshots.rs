//! Making a snapshot of this copy alone.
//!
//! The snapshot is made in the first step of a checkpoint: every size and time is in its record then, no operation is being applied,
//! and one transaction has the records and the snapshot.

use lockstep_types::{Osn, SnapshotId, Timestamp};

use super::MetadataLog;
use super::checkpoint::CheckpointRun;
use crate::error::StoreError;
use crate::namespace::Namespace;
use crate::snapshot_list::{SnapshotKind, SnapshotRecord};
use crate::tree::Tree;

/// A snapshot that is to be made.
pub struct NewSnapshot {
    /// Which snapshot.
    pub id: SnapshotId,
    /// Its name.
    pub name: String,
    /// Why it is made.
    pub kind: SnapshotKind,
    /// When.
    pub time: Timestamp,
}

impl NewSnapshot {
    /// Makes the snapshot. No record changes meanwhile.
    pub(super) fn make(self, namespace: &Namespace) {
        let record = SnapshotRecord {
            name: self.name,
            time: self.time,
            kind: self.kind,
            inos_below: namespace.numbers().below(),
            is_deleted: false,
        };
        namespace.create_snapshot(self.id, record);
    }
}

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
        let _alone = self.checkpointing.lock();
        tree.disk().check_not_poisoned()?;
        let Some(id) = local_id(tree.namespace, self.applied()) else {
            return Err(StoreError::TooManySnapshots);
        };
        let snapshot = NewSnapshot {
            id,
            name,
            kind,
            time,
        };
        let run = CheckpointRun {
            log: self.log()?,
            applying: &self.applying,
            delta: &self.delta,
            packs: &self.packs,
            tree,
        };
        let made = run.write(
            tree.namespace.numbers().limit(),
            Some(self.boot),
            Some(snapshot),
        );
        if made.is_err() {
            // The records in memory may have the snapshot.
            tree.namespace.delete_snapshot(id);
        }
        made.map(|()| id)
    }
}
