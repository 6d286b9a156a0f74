//! Operations on snapshots of the datastore. What they decide depends on nothing that one node alone has: neither on snapshots of
//! its own copy, nor on those that it is still deleting.

use lockstep_types::limits::SNAPSHOTS_MAX;
use lockstep_types::{Errno, SnapshotId, SnapshotKind, SnapshotName};

use super::draft::PlanDraft;
use super::outcome::SnapshotChange;
use crate::error::{OpError, StoreError};
use crate::namespace::keys;
use crate::namespace::record;
use crate::namespace::snapshot_list::{SnapshotBytes, SnapshotRecord};

/// Makes a snapshot of the moment of the operation.
pub(super) fn create(
    draft: &mut PlanDraft<'_>,
    name: &SnapshotName,
    kind: SnapshotKind,
    inos_below: u64,
) -> Result<(), OpError> {
    let taken = taken(draft)?;
    if taken.len() >= SNAPSHOTS_MAX {
        return Err(Errno::QuotaExceeded.into());
    }
    check_free(&taken, name)?;
    let snapshot = SnapshotRecord {
        name: name.as_str().to_owned(),
        time: draft.time(),
        kind,
        inos_below,
        is_deleted: false,
        bytes: SnapshotBytes::Unsettled,
    };
    let id = SnapshotId::of_operation(draft.osn());
    draft.snapshot(SnapshotChange::Create(id, snapshot));
    Ok(())
}

/// Gives a snapshot another name.
pub(super) fn rename(
    draft: &mut PlanDraft<'_>,
    id: SnapshotId,
    name: &SnapshotName,
) -> Result<(), OpError> {
    let taken = taken(draft)?;
    let snapshot = find(&taken, id)?;
    if snapshot.name != name.as_str() {
        check_free(&taken, name)?;
    }
    draft.snapshot(SnapshotChange::Rename(id, name.as_str().to_owned()));
    Ok(())
}

/// Flags a snapshot as deleted.
pub(super) fn delete(draft: &mut PlanDraft<'_>, id: SnapshotId) -> Result<(), OpError> {
    find(&taken(draft)?, id)?;
    draft.snapshot(SnapshotChange::Delete(id));
    Ok(())
}

/// The snapshots of the datastore that are not deleted.
fn taken(draft: &PlanDraft<'_>) -> Result<Vec<(SnapshotId, SnapshotRecord)>, OpError> {
    let mut taken = Vec::new();
    for key in draft.stored_keys(&keys::table(keys::SNAPSHOTS))? {
        let unreadable = || StoreError::unreadable(&key);
        let id = keys::snapshot_of(&key).ok_or_else(unreadable)?;
        let value = draft.get(&key)?;
        let snapshot: Option<SnapshotRecord> = value.as_deref().and_then(record::decode);
        let snapshot = snapshot.ok_or_else(unreadable)?;
        if snapshot.is_taken(id) {
            taken.push((id, snapshot));
        }
    }
    Ok(taken)
}

fn find(
    taken: &[(SnapshotId, SnapshotRecord)],
    id: SnapshotId,
) -> Result<&SnapshotRecord, OpError> {
    let found = taken.iter().find(|(other, _)| *other == id);
    Ok(found.map(|(_, snapshot)| snapshot).ok_or(Errno::NoEntry)?)
}

fn check_free(taken: &[(SnapshotId, SnapshotRecord)], name: &SnapshotName) -> Result<(), OpError> {
    let mut names = taken.iter().map(|(_, snapshot)| &snapshot.name);
    if names.any(|other| other == name.as_str()) {
        return Err(Errno::Exists.into());
    }
    Ok(())
}
