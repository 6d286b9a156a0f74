//! Snapshots: a deep copy of the file system at each.

use std::sync::Arc;

use lockstep_types::limits::SNAPSHOTS_MAX;
use lockstep_types::{Errno, MetaOp, MetaRequest, SnapshotId, SnapshotName};

use crate::{Done, Effect, Model, Snapshot};

impl Model {
    /// Does an operation with a number: [`Self::apply`], also for the operations on snapshots.
    pub fn apply_op(&mut self, op: &MetaOp) -> Done<Effect> {
        if op.request.is_on_snapshots() {
            return self.change_snapshots(op).map(|()| Effect::default());
        }
        self.apply(op.time, &op.request)
    }

    fn change_snapshots(&mut self, op: &MetaOp) -> Done {
        match &op.request {
            MetaRequest::SnapshotCreate { name, .. } => {
                if self.snapshots.len() >= SNAPSHOTS_MAX {
                    return Err(Errno::QuotaExceeded);
                }
                self.check_name(name)?;
                let mut copy = self.clone();
                copy.snapshots.clear();
                let snapshot = Snapshot {
                    name: name.clone(),
                    copy: Arc::new(copy),
                };
                self.snapshots
                    .insert(SnapshotId::of_operation(op.osn), snapshot);
            }
            MetaRequest::SnapshotRename { id, name } => {
                let old = &self.snapshots.get(id).ok_or(Errno::NoEntry)?.name;
                if old != name {
                    self.check_name(name)?;
                }
                self.snapshots.get_mut(id).unwrap().name = name.clone();
            }
            MetaRequest::SnapshotDelete { id } => {
                self.snapshots.remove(id).ok_or(Errno::NoEntry)?;
            }
            _ => unreachable!("the other operations change the file system"),
        }
        Ok(())
    }

    fn check_name(&self, name: &SnapshotName) -> Done {
        let is_taken = self.snapshots.values().any(|other| other.name == *name);
        if is_taken { Err(Errno::Exists) } else { Ok(()) }
    }
}
