//! Following the records that metadata operations change, so that a resync can send the namespace while operations
//! go on.
//!
//! The sender begins to follow before it reads the first record. Then each record that it has read is either the
//! newest, or its key waits in the feed. The feed keeps only keys, each once, however often the record changes; the
//! value is read when the key is taken. Sizes and times that a checkpoint puts into records come from no operation and
//! are not followed: a resync sends them with the content. The record of an inode is taken with its unflushed size and
//! times: the receiver cuts the content to that size.
//!
//! Invariants: a key is noted under the lock of [`Applying`], after the record was changed. Taking keys begins under
//! the same lock. So when no operation is under way and no key is left, the sender has every record as it is.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::applying::Applying;
use crate::error::{OpError, StoreError};
use crate::namespace::keys;
use crate::namespace::plan::View;
use crate::namespace::record;
use crate::tree::Tree;

/// A changed record, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChange {
    /// Its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// Its value; `None` for a deleted record.
    #[serde(with = "serde_bytes")]
    pub value: Option<Vec<u8>>,
}

/// The changes of a namespace since the feed began. Dropping the feed ends it.
pub struct ChangeFeed<'a> {
    applying: &'a Mutex<Applying>,
    tree: Tree<'a>,
    follower: u64,
}

impl<'a> ChangeFeed<'a> {
    /// Begins to follow; more than `limit` records are too many. A new feed replaces an older one.
    pub(super) fn new(applying: &'a Mutex<Applying>, tree: Tree<'a>, limit: usize) -> Self {
        let follower = applying.lock().changed.follow(limit);
        Self {
            applying,
            tree,
            follower,
        }
    }

    /// Number of records to take.
    pub fn len(&self) -> usize {
        self.with_keys(|keys| keys.len())
    }

    /// Whether no record is left to take.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// From now on more records than `limit` are too many.
    pub fn limit(&self, limit: usize) {
        self.applying.lock().changed.set_limit(self.follower, limit);
    }

    /// Takes changed records in the order of their keys: up to `records_max`, or until they make up `bytes_max`
    /// bytes, but at least one if any is left. Each key is taken once. A record that changes again later is taken by a
    /// later call.
    pub fn take(
        &self,
        records_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<ImageChange>, StoreError> {
        // All keys under one hold of the lock: a run of operations seldom leaves the lock free.
        let mut keys = self.with_keys(|keys| take_first(keys, records_max));
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max
            && let Some(key) = keys.pop_first()
        {
            let value = self.value(&key)?;
            bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            taken.push(ImageChange { key, value });
        }
        if !keys.is_empty() {
            self.with_keys(|left| left.append(&mut keys));
        }
        Ok(taken)
    }

    /// Adds records to take.
    pub fn extend(&self, records: BTreeSet<Vec<u8>>) {
        self.with_keys(|keys| keys.extend(records));
    }

    /// The present value of a record.
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match keys::ino_of(key) {
            Some(ino) if key.first() == Some(&keys::INODES) => {
                let inode = self.tree.inode(ino).map_err(OpError::into_store)?;
                Ok(inode.map(|inode| record::encode(&inode)))
            }
            _ => Ok(self.tree.namespace.get(key)?),
        }
    }

    /// Runs `body` on the keys to take: on an empty set, once a newer feed follows.
    fn with_keys<T>(&self, body: impl FnOnce(&mut BTreeSet<Vec<u8>>) -> T) -> T {
        let mut applying = self.applying.lock();
        match applying.changed.keys_of(self.follower) {
            Some(keys) => body(keys),
            None => body(&mut BTreeSet::new()),
        }
    }
}

/// Takes the first `count` keys out.
fn take_first(keys: &mut BTreeSet<Vec<u8>>, count: usize) -> BTreeSet<Vec<u8>> {
    let rest = match keys.iter().nth(count).cloned() {
        Some(next) => keys.split_off(&next),
        None => BTreeSet::new(),
    };
    std::mem::replace(keys, rest)
}

impl Drop for ChangeFeed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The process ends, and another thread may never release the lock.
            return;
        }
        self.applying.lock().changed.end(self.follower);
    }
}
