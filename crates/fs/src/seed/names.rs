//! The records of a seed, and the namespace that an import makes of them.
//!
//! Invariant: the namespace is complete only if each record could be read, the sums fit, and the list of the contents names exactly the files
//! that have bytes by their records.

use std::io;
use std::sync::Arc;

use lockstep_types::Ino;
use lockstep_types::backing::Backing;

use super::contents::{ContentEntry, ContentList};
use super::error::SeedError;
use super::manifest::SeedManifest;
use super::part::{PartReader, PartWriter};
use crate::kv::memtable::Memtable;
use crate::kv::redb::{RedbKv, RedbOptions};
use crate::namespace::keys;
use crate::namespace::record::{self, Body, Checkpoint, EntryRecord, Inode, NamedEntry};
use crate::paths::ADOPTED_NAMES_FILE;

/// The file in the directory of a seed.
pub(super) const RECORDS_FILE: &str = "records";
/// Memory that records take before they go to the disk.
const MEMORY_BYTES_MAX: usize = 64 << 20;
/// Longest key of a record, in bytes.
const KEY_BYTES_MAX: u32 = 1 << 10;
/// Longest value of a record, in bytes.
const VALUE_BYTES_MAX: u32 = 1 << 20;

/// Appends a record: the lengths of key and value as four bytes each, the lowest byte first, and both.
pub(super) fn push_record(records: &mut PartWriter, key: &[u8], value: &[u8]) -> io::Result<()> {
    for bytes in [key, value] {
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        records.push(&length.to_le_bytes())?;
    }
    records.push(key)?;
    records.push(value)
}

/// Makes a namespace of the records of a seed, on stable storage, in a file of its own in the directory of the store. An earlier one is
/// removed. `show` is called now and then with the number of inodes so far.
pub(super) fn load(
    seed: &dyn Backing,
    manifest: &SeedManifest,
    store: &Arc<dyn Backing>,
    show: &mut dyn FnMut(u64) -> Result<(), SeedError>,
) -> Result<(), SeedError> {
    discard(store)?;
    let kv = RedbKv::create(store.as_ref(), ADOPTED_NAMES_FILE, RedbOptions::default())?;
    let mut loading = NamesLoading {
        draft: Memtable::new(kv),
        records: PartReader::open(seed, RECORDS_FILE, &manifest.records)?,
        contents: ContentList::open(seed, &manifest.contents)?,
        last: Vec::new(),
        counts: (0, 0, 0),
    };
    while loading.next()? {
        show(loading.counts.0)?;
    }
    loading.finish(manifest)
}

/// Removes the namespace, if there is one.
pub(super) fn discard(store: &Arc<dyn Backing>) -> Result<(), SeedError> {
    match store.remove(ADOPTED_NAMES_FILE) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(SeedError::disk("remove", ADOPTED_NAMES_FILE)(error))
        }
        _ => Ok(()),
    }
}

struct NamesLoading {
    draft: Memtable<RedbKv>,
    records: PartReader,
    contents: ContentList,
    /// The last key.
    last: Vec<u8>,
    /// Inodes, regular files, and files with bytes.
    counts: (u64, u64, u64),
}

impl NamesLoading {
    /// Loads the next record. Returns false at the end.
    fn next(&mut self) -> Result<bool, SeedError> {
        let mut lengths = [0; 8];
        if !self.records.take(&mut lengths)? {
            return Ok(false);
        }
        let (key_bytes, value_bytes) = lengths.split_at(4);
        let length = |bytes: &[u8]| bytes.try_into().map_or(u32::MAX, u32::from_le_bytes);
        let (key_bytes, value_bytes) = (length(key_bytes), length(value_bytes));
        if key_bytes > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            return Err(self.records.damaged("a record is too long"));
        }
        let mut record = vec![0; key_bytes as usize + value_bytes as usize];
        if !record.is_empty() && !self.records.take(&mut record)? {
            return Err(self.records.damaged("it ends in the middle of a record"));
        }
        let value = record.split_off(key_bytes as usize);
        self.put(record, value)?;
        Ok(true)
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), SeedError> {
        if key <= self.last || !keys::is_replicated(&key) {
            return Err(self.records.damaged("its keys are out of order"));
        }
        if !self.is_readable(&key, &value)? {
            let what = format!("the record under {} cannot be read", key.escape_ascii());
            return Err(self.records.damaged(&what));
        }
        self.draft.apply([(key.clone(), Some(value))]);
        self.last = key;
        if self.draft.bytes() > MEMORY_BYTES_MAX {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), SeedError> {
        self.draft.freeze();
        Ok(self.draft.flush()?)
    }

    /// Whether a record is one. Counts the inodes.
    fn is_readable(&mut self, key: &[u8], value: &[u8]) -> Result<bool, SeedError> {
        let Some(ino) = keys::ino_of(key) else {
            return Ok(false);
        };
        Ok(match key.first() {
            Some(&keys::INODES) => match record::decode::<Inode>(value) {
                Some(inode) if key == keys::inode(ino) => {
                    self.count(ino, &inode)?;
                    true
                }
                _ => false,
            },
            Some(&keys::ENTRIES) => record::decode::<EntryRecord>(value).is_some(),
            Some(&keys::COOKIES) => {
                keys::rest_of(key).len() == 8 && record::decode::<NamedEntry>(value).is_some()
            }
            _ => true,
        })
    }

    /// Counts an inode, and takes its content from the list.
    fn count(&mut self, ino: Ino, inode: &Inode) -> Result<(), SeedError> {
        self.counts.0 += 1;
        let Body::File { size } = inode.body else {
            return Ok(());
        };
        self.counts.1 += 1;
        if size == 0 {
            return Ok(());
        }
        self.counts.2 += 1;
        match self.contents.next()? {
            Some(ContentEntry {
                ino: listed,
                size: listed_size,
                ..
            }) if (listed, listed_size) == (ino, size) => Ok(()),
            _ => {
                let what = format!("its list of contents lacks inode {ino} of {size} bytes");
                Err(self.records.damaged(&what))
            }
        }
    }

    /// Checks the sums and the counts, and ends the namespace.
    fn finish(mut self, manifest: &SeedManifest) -> Result<(), SeedError> {
        let totals = &manifest.totals;
        let is_listed = self.contents.next()?.is_none();
        let counted = self.counts == (totals.inodes, totals.files, totals.contents);
        if !is_listed || !counted {
            return Err(self
                .records
                .damaged("its counts are not those of the manifest"));
        }
        let root = self.draft.get(&keys::inode(Ino::ROOT))?;
        let root: Option<Inode> = root.as_deref().and_then(record::decode);
        if !root.is_some_and(|root| root.is_directory()) {
            return Err(self.records.damaged("it has no root directory"));
        }
        let snapshot = &manifest.snapshot;
        let checkpoint = Checkpoint {
            log_position: 0,
            log_keep_from: 0,
            applied: snapshot.osn,
            ino_limit: snapshot.inos_below,
            epoch: 0,
            boot: None,
        };
        let local = [
            (keys::CHECKPOINT, record::encode(&checkpoint)),
            (keys::LAST_SERIAL, record::encode(&snapshot.serial)),
        ];
        let local = local.map(|(key, value)| (key.to_vec(), Some(value)));
        self.draft.apply(local);
        self.flush()?;
        self.records.check()?;
        self.contents.check()
    }
}
