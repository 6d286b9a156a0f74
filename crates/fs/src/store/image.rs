//! Carrying the whole namespace from one node to the other.
//!
//! The sender walks the replicated tables in key order and sends chunk after chunk. The receiver makes its own tables
//! equal, range by range; a chunk that is equal already changes nothing. Metadata operations may go on at the sender,
//! which follows the changed records ([`crate::metadata_log`]) and sends them again. At the receiver there are no
//! operations.
//!
//! Invariants:
//! - The receiver's log is cut before the first chunk, and every received record is durable before the image is treated
//!   as complete. So the log never holds a record that a restart could apply to a half-changed namespace.
//! - The receiver is marked out of sync before the image begins and until it is complete.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use lockstep_types::{Ino, Osn, SnapshotId};
use serde::{Deserialize, Serialize};

use super::facade::Store;
use crate::error::{OpError, StoreError};
use crate::metadata_log::{ChangeFeed, ImageChange, MetadataLog};
use crate::namespace::keys::{self, KeyRange};
use crate::namespace::plan::last_serial;
use crate::namespace::record::{self, Body, Inode};
use crate::namespace::snapshot_list::{SnapshotBytes, SnapshotRecord};
use crate::tree::Tree;
use crate::view::StoreView;

/// One record of the namespace, as sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// Its value.
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
}

/// A run of records of one table, complete between `after` and its last record, or up to the end of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChunk {
    /// The table.
    pub table: u8,
    /// The key before the run; empty at the start of the table.
    #[serde(with = "serde_bytes")]
    pub after: Vec<u8>,
    /// The records, in order.
    pub records: Vec<ImageRecord>,
    /// Whether the table ends here.
    pub last: bool,
}

impl ImageChunk {
    /// The records of `table` after key `after`, about `bytes_max` bytes of them.
    pub fn read(
        view: &dyn StoreView,
        table: u8,
        after: &[u8],
        bytes_max: usize,
    ) -> Result<Self, OpError> {
        let mut chunk = Self {
            table,
            after: after.to_vec(),
            records: Vec::new(),
            last: true,
        };
        let mut bytes = 0;
        view.scan(&range_after(table, after), &mut |key, value| {
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
}

/// The namespace of one store, to be sent or received.
#[derive(Clone, Copy)]
pub struct ImageAccess<'a> {
    tree: Tree<'a>,
    log: &'a MetadataLog,
}

impl Store {
    /// The namespace, to be sent to the other node or received from it.
    pub fn image(&self) -> ImageAccess<'_> {
        ImageAccess {
            tree: self.tree(),
            log: &self.metadata_log,
        }
    }
}

/// The sender.
impl<'a> ImageAccess<'a> {
    /// Follows the records that metadata operations change from now on; more than `limit` records are too many. A new
    /// feed replaces an older one.
    pub fn follow_changes(self, limit: usize) -> ChangeFeed<'a> {
        self.log.follow_changes(self.tree, limit)
    }

    /// Takes sizes and times of files into their records, which are sent: makes a checkpoint.
    pub fn settle_records(self) -> Result<(), StoreError> {
        self.log.checkpoint(self.tree)
    }

    /// The last metadata operation that was applied.
    pub fn applied(self) -> Osn {
        self.log.applied()
    }

    /// Whether more changes wait to be taken than the follower accepts.
    pub fn changes_exceed(self) -> bool {
        self.log.changes_exceed()
    }

    /// Every inode number that was given out here, or came from the other node, is below this.
    pub fn inos_below(self) -> u64 {
        self.tree.namespace.numbers().below()
    }
}

/// The list of snapshots, which the end of an image carries.
impl ImageAccess<'_> {
    /// The snapshots of the datastore.
    pub fn snapshots(self) -> Vec<(SnapshotId, SnapshotRecord)> {
        let all = self.tree.namespace.snapshots().all();
        let taken = all.iter().filter(|(id, record)| record.is_taken(**id));
        taken
            .map(|(id, record)| (*id, SnapshotRecord::clone(record)))
            .collect()
    }

    /// The serial number of the snapshot of the datastore that was made last; zero if none was.
    pub fn last_serial(self) -> Result<u32, StoreError> {
        last_serial(&self.tree).map_err(OpError::into_store)
    }

    /// Makes this node's list of snapshots equal to the sender's, with names, kinds and holds. `last_serial` is the number of the sender's last snapshot. Those that only this node has are deleted. Of those that only
    /// the sender has, this node has no bytes: it notes them as missing.
    pub fn load_snapshots(self, theirs: &[(SnapshotId, SnapshotRecord)], last_serial: u32) {
        let namespace = self.tree.namespace;
        for (id, record) in self.snapshots() {
            match theirs.iter().find(|(their_id, _)| *their_id == id) {
                None => {
                    namespace.change_snapshot(id, |own| own.is_deleted = true);
                }
                Some((_, theirs)) => {
                    let (ours, theirs) = (record.shared(), theirs.shared());
                    if ours != theirs {
                        namespace.change_snapshot(id, |own| own.take_over(theirs));
                    }
                }
            }
        }
        let own = self.snapshots();
        for (id, theirs) in theirs {
            if !own.iter().any(|(own, _)| own == id) {
                // The rest of a snapshot whose deletion had begun here goes with its next deletion.
                let missing = SnapshotRecord {
                    bytes: SnapshotBytes::Missing,
                    ..theirs.clone()
                };
                namespace.create_snapshot(*id, missing);
            }
        }
        namespace.note_serial(last_serial);
    }
}

/// The receiver.
impl ImageAccess<'_> {
    /// Gets ready to receive an image: drops pending operations and cuts the log.
    ///
    /// Removes the content of freed inodes first. If the nodes diverged, the image may have other inodes with the same
    /// numbers, and a later removal would take their content.
    pub fn begin(self) -> Result<(), StoreError> {
        self.log.drop_pending();
        self.log.collect_garbage(self.tree)?;
        self.log.checkpoint(self.tree)?;
        self.tree.content.forget_files();
        self.tree.content.removal().image_begins();
        Ok(())
    }

    /// An earlier process may have received an image, and not to its end.
    pub fn was_interrupted(self) {
        self.tree.content.removal().image_was_interrupted();
    }

    /// Makes this node's records equal to a chunk's. Returns how many differed.
    pub fn load_chunk(self, chunk: &ImageChunk) -> Result<usize, StoreError> {
        let mut differing = self.records_to_change(chunk)?;
        let changed = differing.len();
        let _under_way = self.log.readers.begin_change();
        self.log.readers.note_image(stays(&differing));
        let mut freed = Vec::new();
        if chunk.table == keys::INODES {
            freed = Self::mark_freed_content(&mut differing);
            for record in &chunk.records {
                self.fit_content(&record.key, &record.value)?;
            }
        }
        self.tree.namespace.apply(differing)?;
        self.tree.content.removal().note_freed(freed);
        if self.log.needs_checkpoint(self.tree) {
            self.log.checkpoint(self.tree)?;
        }
        Ok(changed)
    }

    /// Makes this node's records equal to records that the sender's operations have changed meanwhile. No key may occur
    /// twice: if one call creates and deletes a record, the deletion would be missed.
    pub fn load_changes(self, changes: &[ImageChange]) -> Result<(), StoreError> {
        let _under_way = self.log.readers.begin_change();
        let stay = changes.iter().map(|it| (&it.key, it.value.is_some()));
        self.log.readers.note_image(stay);
        let mut batch = BTreeMap::new();
        for change in changes {
            let is_inode = change.key.first() == Some(&keys::INODES);
            if is_inode && let Some(value) = &change.value {
                self.drop_earlier_content(&change.key)?;
                self.fit_content(&change.key, value)?;
            }
            let is_known =
                change.value.is_some() || self.tree.namespace.get(&change.key)?.is_some();
            if is_known {
                batch.insert(change.key.clone(), change.value.clone());
            }
        }
        let mut inodes = batch.split_off([keys::INODES].as_slice());
        let mut behind = inodes.split_off([keys::INODES + 1].as_slice());
        let freed = Self::mark_freed_content(&mut inodes);
        batch.append(&mut inodes);
        batch.append(&mut behind);
        self.tree.namespace.apply(batch)?;
        self.tree.content.removal().note_freed(freed);
        if self.log.needs_checkpoint(self.tree) {
            self.log.checkpoint(self.tree)?;
        }
        Ok(())
    }

    /// Removes freed content before a new inode with the same number arrives, which happens if the nodes diverged.
    fn drop_earlier_content(self, key: &[u8]) -> Result<(), StoreError> {
        if let Some(ino) = keys::ino_of(key)
            && self.tree.namespace.get(&keys::garbage(ino))?.is_some()
        {
            // The mark first: content that a snapshot sees is found by its mark after a stop.
            self.log.checkpoint(self.tree)?;
            self.log.collect_garbage(self.tree)?;
        }
        Ok(())
    }

    /// The changes that make this node's records equal to the chunk's.
    fn records_to_change(
        self,
        chunk: &ImageChunk,
    ) -> Result<BTreeMap<Vec<u8>, Option<Vec<u8>>>, StoreError> {
        let mut changes: BTreeMap<_, _> = chunk
            .records
            .iter()
            .map(|record| (record.key.clone(), Some(record.value.clone())))
            .collect();
        let end = chunk.records.last().map(|record| record.key.as_slice());
        let range = range_after(chunk.table, &chunk.after);
        self.tree.namespace.scan(&range, &mut |key, value| {
            if !chunk.last && end.is_none_or(|end| key > end) {
                return ControlFlow::Break(());
            }
            match changes.get(key) {
                Some(Some(theirs)) if theirs == value => drop(changes.remove(key)),
                Some(_) => {}
                None => drop(changes.insert(key.to_vec(), None)),
            }
            ControlFlow::Continue(())
        })?;
        Ok(changes)
    }

    /// Adds the marks of deleted inodes, whose content is to be removed. Returns the inodes. Their content is removed only once they are
    /// gone: the batch may fail.
    fn mark_freed_content(changes: &mut BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Vec<Ino> {
        let freed: Vec<Ino> = changes
            .iter()
            .filter(|(_, value)| value.is_none())
            .filter_map(|(key, _)| keys::ino_of(key))
            .collect();
        let marks = freed
            .iter()
            .map(|ino| (keys::garbage(*ino), Some(Vec::new())));
        changes.extend(marks);
        freed
    }

    /// Gives the content of a file the length that its record says.
    fn fit_content(self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let inode: Option<Inode> = record::decode(value);
        let found = inode.map(|inode| (inode.body, inode.bits.flags));
        match (keys::ino_of(key), found) {
            (Some(ino), Some((Body::File { size }, flags))) => {
                if let Some(file) = self.tree.content.file_in_use(ino) {
                    file.set_flags(flags);
                }
                self.tree.content.fit_length(ino, size)
            }
            _ => Ok(()),
        }
    }

    /// The image is complete but for the last changes. Does the work that takes long, so that [`Self::finish`] is short.
    pub fn prepare_finish(self) -> Result<(), StoreError> {
        let content = self.tree.content;
        content
            .removal()
            .find_left_by_image(content.disk(), self.tree.namespace)?;
        self.log.checkpoint(self.tree)?;
        self.log.collect_garbage(self.tree)?;
        Ok(())
    }

    /// The image is complete: makes it durable and takes over the sender's OSN. The sender has given out inode numbers
    /// below `inos_below`: this node gives none of them out, even if the inode is gone by now (rule P13).
    pub fn finish(self, applied: Osn, inos_below: u64) -> Result<(), StoreError> {
        self.log.set_applied(applied);
        self.tree.namespace.numbers().skip_below(inos_below);
        self.log.checkpoint(self.tree)?;
        self.tree.content.removal().image_ended();
        Ok(())
    }
}

/// The keys of changes, and whether there is a record afterwards.
fn stays(
    changes: &BTreeMap<Vec<u8>, Option<Vec<u8>>>,
) -> impl Iterator<Item = (&Vec<u8>, bool)> + Clone {
    changes.iter().map(|(key, value)| (key, value.is_some()))
}

fn range_after(table: u8, after: &[u8]) -> KeyRange {
    let range = keys::table(table);
    if after.is_empty() {
        range
    } else {
        range.after(after)
    }
}
