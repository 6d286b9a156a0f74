//! Following what metadata operations change, so that the namespace can be carried over while they go on.
//!
//! Whoever sends the namespace follows the changes from before it reads the first record. Then each record
//! it has read is the newest, or its key is in what it takes here later. Only keys are kept, each once,
//! however often it changes; what is under them is read when it is taken. Sizes and times that a checkpoint
//! puts into records are no operations and are not followed: a resync carries these over with the content.
//!
//! Invariants: a key is noted under the lock `applying`, after the record was changed. Taking begins under
//! that lock too. So when no operation is under way, and nothing is left to take, all was taken as it is.

use std::collections::BTreeSet;

use lockstep_types::mutants::{Mutant, is_active};
use serde::{Deserialize, Serialize};

use super::Store;
use crate::error::StoreError;
use crate::keys;

/// A record that was changed, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChange {
    /// Its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// Its value; `None` where it was deleted.
    #[serde(with = "serde_bytes")]
    pub value: Option<Vec<u8>>,
}

/// The keys of replicated records that were changed and not taken yet.
#[derive(Default)]
pub(super) struct Changed {
    /// Counts those who have followed.
    follower: u64,
    /// `None` while nobody follows.
    keys: Option<BTreeSet<Vec<u8>>>,
    /// Of more than so many the follower has too many.
    limit: usize,
}

impl Changed {
    /// Whether anybody wants to know.
    pub(super) fn is_followed(&self) -> bool {
        self.keys.is_some() && !is_active(Mutant::ForgetChange)
    }

    /// These records were changed.
    pub(super) fn note(&mut self, changed: Vec<Vec<u8>>) {
        let is_replicated =
            |key: &Vec<u8>| key.first().is_some_and(|t| keys::REPLICATED.contains(t));
        if let Some(keys) = &mut self.keys {
            keys.extend(changed.into_iter().filter(is_replicated));
        }
    }
}

/// The changes of a store since this was made. Dropped, it ends the following.
pub struct Changes<'a> {
    store: &'a Store,
    follower: u64,
}

impl Store {
    /// Whether more changes wait to be taken than the follower wants.
    pub fn changes_exceed(&self) -> bool {
        let applying = self.applying.lock();
        let changed = &applying.changed;
        let keys = changed.keys.as_ref();
        keys.is_some_and(|keys| keys.len() > changed.limit)
    }

    /// Follows what metadata operations change from now on; more than `limit` records are too many. There
    /// is one follower at a time: the newest.
    pub fn follow_changes(&self, limit: usize) -> Changes<'_> {
        let mut applying = self.applying.lock();
        let changed = &mut applying.changed;
        changed.follower += 1;
        changed.keys = Some(BTreeSet::new());
        changed.limit = limit;
        Changes {
            store: self,
            follower: changed.follower,
        }
    }
}

impl Changes<'_> {
    /// How many records there are to take.
    pub fn len(&self) -> usize {
        self.with_keys(|keys| keys.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// From now on more than so many are too many.
    pub fn limit(&self, limit: usize) {
        let mut applying = self.store.applying.lock();
        if applying.changed.follower == self.follower {
            applying.changed.limit = limit;
        }
    }

    /// Takes up to `records_max` changed records, or so many as make up `bytes_max` bytes, but one at
    /// least if there is any. They are in the order of their keys, and each is there once: a record that
    /// changes again meanwhile is there to take the next time.
    pub fn take(
        &self,
        records_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<ImageChange>, StoreError> {
        // All keys under one hold of the lock: operations that come one after the other leave it seldom.
        let mut keys = self.with_keys(|keys| take_first(keys, records_max));
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max
            && let Some(key) = keys.pop_first()
        {
            let value = self.store.names.get(&key)?;
            bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            taken.push(ImageChange { key, value });
        }
        if !keys.is_empty() {
            self.with_keys(|left| left.append(&mut keys));
        }
        Ok(taken)
    }

    /// Runs `look` on what there is to take: on nothing, once somebody else follows.
    fn with_keys<T>(&self, look: impl FnOnce(&mut BTreeSet<Vec<u8>>) -> T) -> T {
        let mut applying = self.store.applying.lock();
        let changed = &mut applying.changed;
        match &mut changed.keys {
            Some(keys) if changed.follower == self.follower => look(keys),
            _ => look(&mut BTreeSet::new()),
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

impl Drop for Changes<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The process ends, perhaps while another thread has the lock for good.
            return;
        }
        let mut applying = self.store.applying.lock();
        if applying.changed.follower == self.follower {
            applying.changed.keys = None;
        }
    }
}
