//! Births: which values say by themselves that their records were made after a snapshot.
//!
//! A record is *born* after a snapshot if its inode has a number from `inos_below` of the snapshot on, or if its cookie is one
//! that its directory had not given out at the snapshot. A snapshot does not see a record that is born after it, so most new
//! records need no kept "absent".
//!
//! The test relies on the records of the moment of the snapshot: every number in them is below `inos_below`, and every cookie
//! below the next cookie of its directory. Where the directory was no directory at that moment, it had no entries.
//!
//! A resync may take a directory back to a lower next cookie: that of another copy. Then a record is born after a snapshot, and an older
//! snapshot cannot see it by the birth. So nothing is left out, or removed, for a birth after one snapshot alone: the test is that of the
//! snapshot and of all older ones ([`next_cookie_until`]). Only a reader asks for one snapshot.

use lockstep_types::{Ino, Osn, SnapshotId};

use super::kept;
use crate::error::StoreError;
use crate::kv::memtable::Memtable;
use crate::kv::redb::RedbKv;
use crate::namespace::keys;
use crate::namespace::record::{self, Body, EntryRecord, Inode};

/// Whether the number in a key is one that was given out after the snapshot. No value of the record is needed then.
pub(super) fn is_new_number(key: &[u8], inos_below: u64) -> bool {
    keys::ino_of(key).is_some_and(|ino| ino.get() >= inos_below)
}

/// The directory and the cookie of an entry, found by cookie or by name; `None` for other records, and for those that cannot be
/// read.
pub(super) fn cookie_of(key: &[u8], value: &[u8]) -> Option<(Ino, u64)> {
    let directory = keys::ino_of(key)?;
    match *key.first()? {
        keys::COOKIES => {
            let cookie = keys::rest_of(key).try_into().ok()?;
            Some((directory, u64::from_be_bytes(cookie)))
        }
        keys::ENTRIES => {
            let entry: EntryRecord = record::decode(value)?;
            Some((directory, entry.cookie))
        }
        _ => None,
    }
}

/// The next cookie of the directory in an inode record; 0 if there is none, or it is of no directory.
fn cookie_in(key: &[u8], record: Option<&[u8]>) -> Result<u64, StoreError> {
    let Some(bytes) = record else {
        return Ok(0);
    };
    let inode: Inode = record::decode(bytes).ok_or_else(|| StoreError::unreadable(key))?;
    match inode.body {
        Body::Directory { next_cookie, .. } => Ok(next_cookie),
        _ => Ok(0),
    }
}

/// The cookie that a directory would have given out next as of a snapshot; 0 if it was no directory then. As with
/// [`kept::as_of`], no kept value is removed meanwhile.
pub(super) fn next_cookie(
    records: &Memtable<RedbKv>,
    directory: Ino,
    id: SnapshotId,
) -> Result<u64, StoreError> {
    let key = keys::inode(directory);
    cookie_in(&key, kept::as_of(records, &key, id)?.as_deref())
}

/// The highest next cookie of a directory as of a snapshot, or of any older one.
pub(super) fn next_cookie_until(
    records: &Memtable<RedbKv>,
    directory: Ino,
    id: SnapshotId,
) -> Result<u64, StoreError> {
    let key = keys::inode(directory);
    let first = SnapshotId::of_operation(Osn::ZERO);
    let mut highest = next_cookie(records, directory, id)?;
    for kept in kept::find(records, &key, first, usize::MAX)? {
        if kept.id < id {
            highest = highest.max(cookie_in(&key, kept.value.as_deref())?);
        }
    }
    Ok(highest)
}

/// Whether a record with this value is born after a snapshot. `next_cookie` looks a directory up.
pub(super) fn is_born<E>(
    key: &[u8],
    value: &[u8],
    inos_below: u64,
    next_cookie: impl FnOnce(Ino) -> Result<u64, E>,
) -> Result<bool, E> {
    if is_new_number(key, inos_below) {
        return Ok(true);
    }
    match cookie_of(key, value) {
        Some((directory, cookie)) => Ok(cookie >= next_cookie(directory)?),
        None => Ok(false),
    }
}
