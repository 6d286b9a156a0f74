//! Values of records that arrive for a snapshot S of which this node lacks the bytes (rule P37).
//!
//! The other node sends the values that it has kept for S. They get the label S here. An older snapshot P that this node has whole must see them
//! as little as before: P resolves a record by the first kept value from P on. So where this node has kept nothing between P and S, and the
//! arrived value is another one than P sees, the value that P sees gets the label P first. Such a record was changed on the other node and
//! changed back, and never on this one.

use lockstep_types::SnapshotId;

use super::kept;
use crate::error::StoreError;
use crate::kv::memtable::Memtable;
use crate::kv::redb::RedbKv;
use crate::namespace::record::RecordChange;

/// The changes that put these values for S. `older` is P, if there is one.
pub(super) fn changes(
    records: &Memtable<RedbKv>,
    (id, older): (SnapshotId, Option<SnapshotId>),
    values: Vec<RecordChange>,
) -> Result<Vec<RecordChange>, StoreError> {
    let mut changes = Vec::with_capacity(2 * values.len());
    for (key, value) in values {
        if let Some(older) = older {
            let seen = seen_through(records, &key, id, older)?;
            if let Some((key, seen)) = seen.filter(|(_, seen)| *seen != value) {
                changes.extend(kept::put(&key, older, seen.as_deref()));
            }
        }
        changes.extend(kept::put(&key, id, value.as_deref()));
    }
    Ok(changes)
}

/// A record with the value that P sees behind S; `None` if P sees a value that was kept before, or has arrived for S already.
fn seen_through(
    records: &Memtable<RedbKv>,
    key: &[u8],
    id: SnapshotId,
    older: SnapshotId,
) -> Result<Option<RecordChange>, StoreError> {
    let present = records.get(key)?;
    Ok(match kept::find(records, key, older, 1)?.pop() {
        Some(kept) if kept.id <= id => None,
        Some(kept) => Some((key.to_vec(), kept.value)),
        None => Some((key.to_vec(), present)),
    })
}
