//! The namespace of an adopted directory, in a file of its own until the adoption is complete.
//!
//! Invariant: the file has all names of the directory, on stable storage, before the first file is taken. So an adoption
//! that goes on later finds in the file what is to be taken, and by which number.

use std::ops::ControlFlow;
use std::sync::Arc;

use lockstep_types::backing::Backing;
use lockstep_types::{FileName, Ino, NodeKind};

use super::error::AdoptError;
use super::source::ADOPTED;
use crate::error::StoreError;
use crate::kv::KvError;
use crate::kv::memtable::Memtable;
use crate::kv::redb::{RedbKv, RedbOptions};
use crate::namespace::keys::{self, KeyRange};
use crate::namespace::record::RecordChange;
use crate::namespace::record::{self, Body, Checkpoint, EntryRecord, Inode, NamedEntry};
use crate::paths::ADOPTED_NAMES_FILE;

/// Memory that records take before they go to the disk.
const MEMORY_BYTES_MAX: usize = 64 << 20;

/// See the head of this file.
pub(super) struct NamesDraft {
    records: Memtable<RedbKv>,
}

/// One entry of a directory.
pub(super) struct DraftEntry {
    pub cookie: u64,
    pub entry: NamedEntry,
}

impl NamesDraft {
    /// Makes an empty namespace. An earlier one that was not complete is removed.
    pub fn create(backing: &Arc<dyn Backing>) -> Result<Self, AdoptError> {
        Self::discard(backing)?;
        let options = RedbOptions::default();
        let kv = RedbKv::create(backing.as_ref(), ADOPTED_NAMES_FILE, options)?;
        let records = Memtable::new(kv);
        Ok(Self { records })
    }

    /// Removes the namespace, if there is one.
    pub fn discard(backing: &Arc<dyn Backing>) -> Result<(), AdoptError> {
        match backing.remove(ADOPTED_NAMES_FILE) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(AdoptError::disk("remove", ADOPTED_NAMES_FILE)(error))
            }
            _ => Ok(()),
        }
    }

    /// Opens the namespace of an adoption that goes on.
    pub fn open(backing: &Arc<dyn Backing>) -> Result<Self, AdoptError> {
        let options = RedbOptions::default();
        let kv = RedbKv::open(backing.as_ref(), ADOPTED_NAMES_FILE, options)?;
        let records = Memtable::new(kv);
        Ok(Self { records })
    }

    /// Writes records.
    pub fn put(&self, batch: impl IntoIterator<Item = RecordChange>) -> Result<(), AdoptError> {
        self.records.apply(batch);
        if self.records.bytes() > MEMORY_BYTES_MAX {
            self.flush()?;
        }
        Ok(())
    }

    /// Puts all records on stable storage.
    pub fn flush(&self) -> Result<(), AdoptError> {
        self.records.freeze();
        Ok(self.records.flush()?)
    }

    /// Ends the namespace: every number below `ino_limit` may have been given out.
    pub fn finish(&self, ino_limit: Ino) -> Result<(), AdoptError> {
        let checkpoint = Checkpoint {
            log_position: 0,
            log_keep_from: 0,
            applied: ADOPTED,
            ino_limit: ino_limit.get(),
            epoch: 0,
            boot: None,
        };
        let record = Some(record::encode(&checkpoint));
        self.put([(keys::CHECKPOINT.to_vec(), record)])?;
        self.flush()
    }

    /// The record of an inode; an error if there is none.
    pub fn inode(&self, ino: Ino) -> Result<Inode, AdoptError> {
        let key = keys::inode(ino);
        let bytes = self.records.get(&key)?;
        let found = bytes.as_deref().and_then(record::decode);
        Ok(found.ok_or_else(|| StoreError::unreadable(&key))?)
    }

    /// Replaces the record of an inode.
    pub fn put_inode(&self, ino: Ino, inode: &Inode) -> Result<(), AdoptError> {
        self.put([(keys::inode(ino), Some(record::encode(inode)))])
    }

    /// Replaces the record of an inode and its extended attributes, at once and on stable storage.
    pub fn replace_inode<'a>(
        &self,
        ino: Ino,
        inode: &Inode,
        xattrs: impl Iterator<Item = (&'a [u8], Vec<u8>)>,
    ) -> Result<(), AdoptError> {
        let mut batch = Vec::new();
        self.scan(&keys::of_ino(keys::XATTRS, ino), |key, _| {
            batch.push((key.to_vec(), None));
            ControlFlow::Continue(())
        })?;
        batch.extend(xattrs.map(|(name, value)| (keys::xattr(ino, name), Some(value))));
        batch.push((keys::inode(ino), Some(record::encode(inode))));
        self.put(batch)?;
        self.flush()
    }

    /// The entries of a directory, in the order in which they were made.
    pub fn entries(&self, directory: Ino) -> Result<Vec<DraftEntry>, AdoptError> {
        let mut found = Vec::new();
        let mut unreadable = None;
        self.scan(&keys::of_ino(keys::COOKIES, directory), |key, value| {
            let cookie = keys::rest_of(key).try_into().map(u64::from_be_bytes);
            match (cookie, record::decode::<NamedEntry>(value)) {
                (Ok(cookie), Some(entry)) => found.push(DraftEntry { cookie, entry }),
                _ => unreadable = Some(StoreError::unreadable(key)),
            }
            ControlFlow::Continue(())
        })?;
        unreadable.map_or(Ok(found), |error| Err(error.into()))
    }

    /// Calls `each` with every inode.
    pub fn each_inode(&self, mut each: impl FnMut(Ino, Inode)) -> Result<(), AdoptError> {
        self.scan(&keys::table(keys::INODES), |key, value| {
            if let (Some(ino), Some(inode)) = (keys::ino_of(key), record::decode(value)) {
                each(ino, inode);
            }
            ControlFlow::Continue(())
        })
    }

    fn scan(
        &self,
        range: &KeyRange,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), AdoptError> {
        let scanned: Result<(), KvError> = self.records.scan(range.from(), range.to(), &mut each);
        Ok(scanned?)
    }

    /// Removes a name of an inode that is no directory, and the inode with its last name. Returns whether the inode is gone.
    pub fn drop_name(&self, directory: Ino, gone: &DraftEntry) -> Result<bool, AdoptError> {
        let NamedEntry { ino, name, .. } = &gone.entry;
        let mut above = self.inode(directory)?;
        if let Body::Directory { entries, .. } = &mut above.body {
            *entries = entries.saturating_sub(1);
        }
        let mut batch = vec![
            (keys::entry(directory, name.as_bytes()), None),
            (keys::cookie(directory, gone.cookie), None),
            (keys::inode(directory), Some(record::encode(&above))),
        ];
        let mut inode = self.inode(*ino)?;
        inode.nlink = inode.nlink.saturating_sub(1);
        let is_last = inode.nlink == 0;
        if is_last {
            self.scan(&keys::of_ino(keys::XATTRS, *ino), |key, _| {
                batch.push((key.to_vec(), None));
                ControlFlow::Continue(())
            })?;
        }
        let record = (!is_last).then(|| record::encode(&inode));
        batch.push((keys::inode(*ino), record));
        self.put(batch)?;
        Ok(is_last)
    }
}

/// The two records of an entry.
pub(super) fn entry_records(
    directory: Ino,
    name: &FileName,
    (ino, kind): (Ino, NodeKind),
    cookie: u64,
) -> [RecordChange; 2] {
    let entry = EntryRecord { ino, kind, cookie };
    let named = NamedEntry {
        ino,
        kind,
        name: name.clone(),
    };
    [
        (
            keys::entry(directory, name.as_bytes()),
            Some(record::encode(&entry)),
        ),
        (
            keys::cookie(directory, cookie),
            Some(record::encode(&named)),
        ),
    ]
}
