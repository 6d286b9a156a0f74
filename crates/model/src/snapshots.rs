//! Snapshots: a deep copy of the file system at each.

use std::sync::Arc;

use lockstep_types::limits::{SNAPSHOT_HOLDS_MAX, SNAPSHOTS_MAX};
use lockstep_types::{Errno, MetaOp, MetaRequest, SnapshotId, SnapshotKind, SnapshotName};

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
            MetaRequest::SnapshotCreate { name, kind, .. } => {
                if self.snapshots.len() >= SNAPSHOTS_MAX {
                    return Err(Errno::QuotaExceeded);
                }
                self.check_name(name)?;
                let mut copy = self.clone();
                copy.snapshots.clear();
                let snapshot = Snapshot {
                    name: name.clone(),
                    kind: *kind,
                    holds: Vec::new(),
                    copy: Arc::new(copy),
                };
                self.snapshots
                    .insert(SnapshotId::of_operation(op.osn), snapshot);
            }
            MetaRequest::SnapshotRename { id, name } => {
                let old = &self.snapshots.get(id).ok_or(Errno::NoEntry)?.name;
                if old == name {
                    return Ok(());
                }
                self.check_name(name)?;
                let snapshot = self.snapshots.get_mut(id).unwrap();
                snapshot.name = name.clone();
                snapshot.kind = SnapshotKind::User;
            }
            MetaRequest::SnapshotDelete { id } => {
                let snapshot = self.snapshots.get(id).ok_or(Errno::NoEntry)?;
                if !snapshot.holds.is_empty() {
                    return Err(Errno::Busy);
                }
                self.snapshots.remove(id);
            }
            MetaRequest::SnapshotHold { id, hold } => {
                let holds = &mut self.snapshots.get_mut(id).ok_or(Errno::NoEntry)?.holds;
                if holds.contains(hold) {
                    return Err(Errno::Exists);
                }
                if holds.len() >= SNAPSHOT_HOLDS_MAX {
                    return Err(Errno::QuotaExceeded);
                }
                holds.push(hold.clone());
            }
            MetaRequest::SnapshotRelease { id, hold } => {
                let holds = &mut self.snapshots.get_mut(id).ok_or(Errno::NoEntry)?.holds;
                let place = holds.iter().position(|other| other == hold);
                holds.remove(place.ok_or(Errno::NoData)?);
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
