//! One kept value: its bytes, and the look-up of those of one record.
//!
//! The value under a key of table `h` is one byte 0 if the record was absent, or one byte 1 and the value of the record. With
//! every kept value goes an entry of the index `e`, so both change in one batch.

use std::ops::ControlFlow;

use lockstep_types::SnapshotId;

use crate::error::StoreError;
use crate::kv::memtable::Memtable;
use crate::kv::redb::RedbKv;
use crate::namespace::keys;
use crate::namespace::record::RecordChange;

const ABSENT: u8 = 0;
const PRESENT: u8 = 1;

/// A kept value and its label, the newest snapshot that sees the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptValue {
    /// The label.
    pub id: SnapshotId,
    /// The value; `None` if the record was absent.
    pub value: Option<Vec<u8>>,
}

/// The bytes of a kept value.
pub(super) fn encode(value: Option<&[u8]>) -> Vec<u8> {
    match value {
        None => vec![ABSENT],
        Some(value) => [&[PRESENT], value].concat(),
    }
}

/// The value in the bytes under `key`.
pub(super) fn decode<'a>(key: &[u8], bytes: &'a [u8]) -> Result<Option<&'a [u8]>, StoreError> {
    match bytes.split_first() {
        Some((&ABSENT, [])) => Ok(None),
        Some((&PRESENT, value)) => Ok(Some(value)),
        _ => Err(StoreError::unreadable(key)),
    }
}

/// The changes that keep a value of record `key`.
pub(super) fn put(key: &[u8], id: SnapshotId, value: Option<&[u8]>) -> [RecordChange; 2] {
    let kept = keys::history(key, id);
    let index = (keys::kept_index(id, &kept), Some(Vec::new()));
    [(kept, Some(encode(value))), index]
}

/// The changes that remove the kept value of record `key` with this label.
pub(super) fn remove(key: &[u8], id: SnapshotId) -> [RecordChange; 2] {
    let kept = keys::history(key, id);
    let index = (keys::kept_index(id, &kept), None);
    [(kept, None), index]
}

/// The first kept values of record `key` with labels from `first` on, at most `max`, the oldest first.
pub(super) fn find(
    records: &Memtable<RedbKv>,
    key: &[u8],
    first: SnapshotId,
    max: usize,
) -> Result<Vec<KeptValue>, StoreError> {
    let mut found = Vec::new();
    let mut failed = None;
    let range = keys::history_of(key, first);
    records.scan(range.from(), range.to(), &mut |key, bytes| {
        match (keys::snapshot_of(key), decode(key, bytes)) {
            (Some(id), Ok(value)) => found.push(KeptValue {
                id,
                value: value.map(<[u8]>::to_vec),
            }),
            (_, value) => failed = Some(value.err().unwrap_or_else(|| StoreError::unreadable(key))),
        }
        if failed.is_some() || found.len() >= max {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    failed.map_or(Ok(found), Err)
}

/// The value of record `key` that snapshot `id` sees, regardless of its birth: the first kept value with a label from `id` on,
/// else the present value.
///
/// The present value is read first: a change in between keeps the value that was read. A removal of kept values in between would
/// lead to a wrong answer, and the caller excludes it.
pub(super) fn as_of(
    records: &Memtable<RedbKv>,
    key: &[u8],
    id: SnapshotId,
) -> Result<Option<Vec<u8>>, StoreError> {
    let present = records.get(key)?;
    let kept = find(records, key, id, 1)?.pop();
    Ok(kept.map_or(present, |kept| kept.value))
}
