//! Carrying the whole namespace from one node to the other.
//!
//! The sender walks the replicated tables in key order and sends chunk after chunk; the receiver
//! makes its own tables equal, range by range, so that chunks which are equal already change
//! nothing. Metadata operations may go on at the sender, which follows what they change
//! ([`super::changes`]) and sends that again; at the receiver there are none. The receiver's log is cut
//! before the first chunk, and all that was received is durable before the image counts as complete:
//! so there is never anything in the log that a restart could apply to a half-changed namespace. The
//! receiver must be marked out of sync before and until the image is complete.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use lockstep_types::{Ino, Osn};
use serde::{Deserialize, Serialize};

use super::{ImageChange, Store};
use crate::error::StoreError;
use crate::keys::{self, KeyRange};
use crate::record::{self, Body, Inode};

/// One record of the namespace, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// Its value.
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
}

/// A run of records of one table, complete between `after` and its last record, or up to the end
/// of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChunk {
    /// Which table.
    pub table: u8,
    /// The key the run follows; empty at the start of the table.
    #[serde(with = "serde_bytes")]
    pub after: Vec<u8>,
    /// The records, in order.
    pub records: Vec<ImageRecord>,
    /// Whether the table ends here.
    pub last: bool,
}

impl Store {
    /// The records of `table` after key `after`, about `bytes_max` bytes of them.
    pub fn image_chunk(
        &self,
        table: u8,
        after: &[u8],
        bytes_max: usize,
    ) -> Result<ImageChunk, StoreError> {
        let mut chunk = ImageChunk {
            table,
            after: after.to_vec(),
            records: Vec::new(),
            last: true,
        };
        let mut bytes = 0;
        let range = range_after(table, after);
        self.names
            .scan(range.from(), range.to(), &mut |key, value| {
                if bytes >= bytes_max {
                    chunk.last = false;
                    return ControlFlow::Break(());
                }
                bytes += key.len() + value.len();
                chunk.records.push(ImageRecord {
                    key: key.to_vec(),
                    value: value.to_vec(),
                });
                ControlFlow::Continue(())
            })?;
        Ok(chunk)
    }

    /// Gets ready to receive an image: whatever was pending is dropped, the log is cut.
    ///
    /// Content of freed inodes goes first: where the nodes went apart, the image may have other
    /// inodes by their numbers, whose content would go instead.
    pub fn begin_image(&self) -> Result<(), StoreError> {
        self.applying.lock().pending.clear();
        self.collect_garbage()?;
        self.checkpoint()?;
        self.files.clear();
        Ok(())
    }

    /// Makes this node's records equal to a chunk's. Returns how many differed.
    pub fn load_image_chunk(&self, chunk: &ImageChunk) -> Result<usize, StoreError> {
        let mut differing = self.records_to_change(chunk)?;
        let changed = differing.len();
        if chunk.table == keys::INODES {
            self.drop_freed_content(&mut differing);
            for record in &chunk.records {
                self.fit_content(&record.key, &record.value)?;
            }
        }
        self.names.apply(differing);
        if self.needs_checkpoint() {
            self.checkpoint()?;
        }
        Ok(changed)
    }

    /// Makes this node's records equal to ones that the sender's operations have changed meanwhile. No key may
    /// be there twice: of a record that comes and goes in one call the end would be missed.
    pub fn load_image_changes(&self, changes: &[ImageChange]) -> Result<(), StoreError> {
        let mut batch = BTreeMap::new();
        for change in changes {
            let is_inode = change.key.first() == Some(&keys::INODES);
            if is_inode && let Some(value) = &change.value {
                self.drop_earlier_content(&change.key)?;
                self.fit_content(&change.key, value)?;
            }
            let is_known = change.value.is_some() || self.names.get(&change.key)?.is_some();
            if is_known {
                batch.insert(change.key.clone(), change.value.clone());
            }
        }
        let mut inodes = batch.split_off([keys::INODES].as_slice());
        let mut behind = inodes.split_off([keys::INODES + 1].as_slice());
        self.drop_freed_content(&mut inodes);
        batch.append(&mut inodes);
        batch.append(&mut behind);
        self.names.apply(batch);
        if self.needs_checkpoint() {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Removes content that is to be removed, before an inode comes that has the number of the one it was of:
    /// where the nodes went apart.
    fn drop_earlier_content(&self, key: &[u8]) -> Result<(), StoreError> {
        if let Some(ino) = keys::ino_of(key)
            && self.names.get(&keys::garbage(ino))?.is_some()
        {
            self.collect_garbage()?;
        }
        Ok(())
    }

    /// What is to be written or deleted so that our records equal the chunk's.
    fn records_to_change(
        &self,
        chunk: &ImageChunk,
    ) -> Result<BTreeMap<Vec<u8>, Option<Vec<u8>>>, StoreError> {
        let mut changes: BTreeMap<_, _> = chunk
            .records
            .iter()
            .map(|record| (record.key.clone(), Some(record.value.clone())))
            .collect();
        let end = chunk.records.last().map(|record| record.key.as_slice());
        let range = range_after(chunk.table, &chunk.after);
        self.names
            .scan(range.from(), range.to(), &mut |key, value| {
                if !chunk.last && end.is_none_or(|end| key > end) {
                    return ControlFlow::Break(());
                }
                match changes.get(key) {
                    Some(Some(ours)) if ours == value => drop(changes.remove(key)),
                    Some(_) => {}
                    None => drop(changes.insert(key.to_vec(), None)),
                }
                ControlFlow::Continue(())
            })?;
        Ok(changes)
    }

    /// Notes the content of inodes that go for removal.
    fn drop_freed_content(&self, changes: &mut BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
        let freed: Vec<Ino> = changes
            .iter()
            .filter(|(_, value)| value.is_none())
            .filter_map(|(key, _)| keys::ino_of(key))
            .collect();
        for ino in freed {
            changes.insert(keys::garbage(ino), Some(Vec::new()));
            self.garbage.lock().push(ino);
        }
    }

    /// Gives the content of a file the length that its record says.
    fn fit_content(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let inode: Option<Inode> = record::decode(value);
        match (keys::ino_of(key), inode.map(|inode| inode.body)) {
            (Some(ino), Some(Body::File { size })) => self.fit_length(ino, size),
            _ => Ok(()),
        }
    }

    pub(super) fn fit_length(&self, ino: Ino, size: u64) -> Result<(), StoreError> {
        if self.content_length(ino)? == size {
            return Ok(());
        }
        self.change_content_file(ino, "resize", |content| content.set_len(size))
    }

    /// Every inode number that was given out here, or came from the other node, is below this.
    pub fn inos_below(&self) -> u64 {
        self.next_ino.load(Ordering::Relaxed)
    }

    /// All of the image has come but for the last changes: does what takes time in proportion to the
    /// store, so that [`Self::finish_image`] takes little.
    pub fn settle_image(&self) -> Result<(), StoreError> {
        // A stop in the middle of an image leaves content that was fitted before its inode came.
        self.find_lost_content()?;
        self.checkpoint()?;
        self.collect_garbage()?;
        Ok(())
    }

    /// The image is complete: makes it durable and takes over the sender's OSN. The sender has given
    /// out inode numbers below `inos_below`: none of them is ever given out here, also if the inode
    /// is gone by now (rule P13).
    pub fn finish_image(&self, applied: Osn, inos_below: u64) -> Result<(), StoreError> {
        self.note_applied(&mut self.applying.lock(), applied);
        self.next_ino.fetch_max(inos_below, Ordering::Relaxed);
        self.checkpoint()
    }
}

fn range_after(table: u8, after: &[u8]) -> KeyRange {
    let range = keys::table(table);
    if after.is_empty() {
        range
    } else {
        range.after(after)
    }
}
