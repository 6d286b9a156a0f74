//! Operations on snapshots of the datastore. Their decisions depend on the snapshots of the datastore alone: neither on snapshots of the copy of one
//! node, nor on the progress of deletions.

use lockstep_types::limits::{SNAPSHOT_HOLDS_MAX, SNAPSHOTS_MAX};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, MetaOp, MetaRequest, SnapshotId, SnapshotIno, SnapshotName};

use super::outcome::SnapshotChange;
use super::view::View;
use crate::error::{OpError, StoreError};
use crate::namespace::keys;
use crate::namespace::record;
use crate::namespace::snapshot_list::{SnapshotBytes, SnapshotRecord};

/// The snapshots of the datastore that are not deleted.
type TakenSnapshots = Vec<(SnapshotId, SnapshotRecord)>;

/// The change of an operation; `None` if it is none on snapshots.
pub(super) fn plan(view: &dyn View, op: &MetaOp) -> Result<Option<SnapshotChange>, OpError> {
    Ok(match &op.request {
        MetaRequest::SnapshotCreate {
            name,
            kind,
            inos_below,
        } => {
            let taken = taken(view)?;
            if taken.len() >= SNAPSHOTS_MAX {
                return Err(Errno::QuotaExceeded.into());
            }
            check_free(&taken, name)?;
            let snapshot = SnapshotRecord {
                name: name.as_str().to_owned(),
                time: op.time,
                kind: *kind,
                inos_below: *inos_below,
                is_deleted: false,
                bytes: SnapshotBytes::Unsettled,
                serial: next_serial(last_serial(view)?, &taken),
                holds: Vec::new(),
            };
            let id = SnapshotId::of_operation(op.osn);
            Some(SnapshotChange::Create(id, snapshot))
        }
        MetaRequest::SnapshotRename { id, name } => {
            let taken = taken(view)?;
            if find(&taken, *id)?.name == name.as_str() {
                return Ok(None);
            }
            check_free(&taken, name)?;
            Some(SnapshotChange::Rename(*id, name.as_str().to_owned()))
        }
        MetaRequest::SnapshotDelete { id } => {
            let taken = taken(view)?;
            if !find(&taken, *id)?.holds.is_empty() && !is_active(Mutant::DeleteHeld) {
                return Err(Errno::Busy.into());
            }
            Some(SnapshotChange::Delete(*id))
        }
        MetaRequest::SnapshotHold { id, hold } => {
            let mut holds = find(&taken(view)?, *id)?.holds.clone();
            if holds.contains(hold) {
                return Err(Errno::Exists.into());
            }
            if holds.len() >= SNAPSHOT_HOLDS_MAX {
                return Err(Errno::QuotaExceeded.into());
            }
            holds.push(hold.clone());
            Some(SnapshotChange::Hold(*id, holds))
        }
        MetaRequest::SnapshotRelease { id, hold } => {
            let mut holds = find(&taken(view)?, *id)?.holds.clone();
            let place = holds.iter().position(|other| other == hold);
            holds.remove(place.ok_or(Errno::NoData)?);
            Some(SnapshotChange::Hold(*id, holds))
        }
        _ => None,
    })
}

fn taken(view: &dyn View) -> Result<TakenSnapshots, OpError> {
    let mut taken = TakenSnapshots::new();
    for key in view.keys(&keys::table(keys::SNAPSHOTS))? {
        let unreadable = || StoreError::unreadable(&key);
        let id = keys::snapshot_of(&key).ok_or_else(unreadable)?;
        let value = view.get(&key)?;
        let snapshot: Option<SnapshotRecord> = value.as_deref().and_then(record::decode);
        let snapshot = snapshot.ok_or_else(unreadable)?;
        if snapshot.is_taken(id) {
            taken.push((id, snapshot));
        }
    }
    Ok(taken)
}

/// The serial number of a new snapshot.
fn next_serial(last: u32, taken: &TakenSnapshots) -> u32 {
    let serials: Vec<u32> = taken.iter().map(|(_, it)| it.serial).collect();
    SnapshotIno::next_serial(last, &serials)
}

/// The serial number of the snapshot that was made last; zero if none was.
pub fn last_serial(view: &dyn View) -> Result<u32, OpError> {
    let Some(value) = view.get(keys::LAST_SERIAL)? else {
        return Ok(0);
    };
    let last = record::decode(&value);
    Ok(last.ok_or_else(|| StoreError::unreadable(keys::LAST_SERIAL))?)
}

fn find(taken: &TakenSnapshots, id: SnapshotId) -> Result<&SnapshotRecord, OpError> {
    let found = taken.iter().find(|(other, _)| *other == id);
    Ok(found.map(|(_, snapshot)| snapshot).ok_or(Errno::NoEntry)?)
}

fn check_free(taken: &TakenSnapshots, name: &SnapshotName) -> Result<(), OpError> {
    let mut names = taken.iter().map(|(_, snapshot)| &snapshot.name);
    if names.any(|other| other == name.as_str()) {
        return Err(Errno::Exists.into());
    }
    Ok(())
}
