//! The namespace of a store: the records of inodes, directory entries and extended attributes, and the counter of
//! inode numbers.
//!
//! [`keys`] and [`record`] give the form of records, [`crate::kv`] stores them, [`plan`] works out the records that an
//! operation changes.
//!
//! Records are read and written here without their meaning to a client: a record of a file with unflushed writes
//! is behind ([`crate::tree`] puts the unflushed size and times over it). No method here makes anything durable but
//! [`Namespace::flush`], which a checkpoint calls.
//!
//! Locks: those inside the memtable. No lock is held between two calls.

pub mod acl;
mod ino_numbers;
pub mod keys;
pub mod plan;
pub mod record;

use std::ops::ControlFlow;

use lockstep_types::Ino;
use lockstep_types::backing::Backing;

use self::ino_numbers::InoNumbers;
pub use self::ino_numbers::InoRanges;
use self::keys::KeyRange;
use self::record::{Checkpoint, Inode};
use crate::error::StoreError;
use crate::kv::memtable::Memtable;
use crate::kv::redb::{RedbKv, RedbOptions};
use crate::kv::{Each, KvError};
use crate::paths::NAMESPACE_FILE;

/// A record to write (`Some`) or to delete (`None`), under its key.
pub type RecordChange = (Vec<u8>, Option<Vec<u8>>);

/// All records of one store, the newest in memory.
pub struct Namespace {
    records: Memtable<RedbKv>,
    numbers: InoNumbers,
}

impl Namespace {
    /// Opens the namespace as the last checkpoint left it.
    pub fn open(backing: &dyn Backing) -> Result<(Self, Checkpoint), StoreError> {
        let kv = RedbKv::open(backing, NAMESPACE_FILE, RedbOptions::default())?;
        let records = Memtable::new(kv);
        let checkpoint = read_checkpoint(&records)?;
        let numbers = InoNumbers::new(checkpoint.ino_limit);
        Ok((Self { records, numbers }, checkpoint))
    }

    /// The counter of inode numbers.
    pub const fn numbers(&self) -> &InoNumbers {
        &self.numbers
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.records.get(key)
    }

    /// The keys of a range, in order.
    pub fn keys(&self, range: &KeyRange) -> Result<Vec<Vec<u8>>, KvError> {
        let mut keys = Vec::new();
        self.scan(range, &mut |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        Ok(keys)
    }

    /// Calls `each` with the records of a range, in the order of their keys, until `each` breaks.
    pub fn scan(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), KvError> {
        self.records.scan(range.from(), range.to(), each)
    }

    /// The same from the last key to the first.
    pub fn scan_down(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), KvError> {
        self.records.scan_down(range.from(), range.to(), each)
    }

    /// The record of an inode, without unflushed size and times.
    pub fn inode(&self, ino: Ino) -> Result<Option<Inode>, StoreError> {
        let key = keys::inode(ino);
        let Some(bytes) = self.records.get(&key)? else {
            return Ok(None);
        };
        match record::decode(&bytes) {
            Some(inode) => Ok(Some(inode)),
            None => Err(StoreError::unreadable(&key)),
        }
    }

    /// Changes the record of an inode, if the inode exists.
    pub fn change_inode(
        &self,
        ino: Ino,
        change: impl FnOnce(&mut Inode),
    ) -> Result<(), StoreError> {
        if let Some(mut inode) = self.inode(ino)? {
            change(&mut inode);
            self.apply([(keys::inode(ino), Some(record::encode(&inode)))]);
        }
        Ok(())
    }

    /// Makes a batch of changes visible to all readers at once. They are not durable.
    pub fn apply(&self, batch: impl IntoIterator<Item = RecordChange>) {
        self.records.apply(batch);
    }

    /// Memory that records take until a checkpoint, in bytes, roughly.
    pub fn bytes(&self) -> usize {
        self.records.bytes()
    }

    /// Sets the changed records aside for [`Self::flush`].
    pub fn freeze(&self) {
        self.records.freeze();
    }

    /// Writes the frozen records to the disk and makes them durable.
    pub fn flush(&self) -> Result<(), KvError> {
        self.records.flush()
    }
}

fn read_checkpoint(records: &Memtable<RedbKv>) -> Result<Checkpoint, StoreError> {
    records
        .get(keys::CHECKPOINT)?
        .as_deref()
        .and_then(record::decode)
        .ok_or_else(|| StoreError::Damaged {
            what: "the checkpoint record is missing or cannot be read".to_owned(),
        })
}
