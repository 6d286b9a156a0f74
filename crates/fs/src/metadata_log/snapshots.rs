//! Making a snapshot of the store.
//!
//! No write is under way, and no operation but the one that makes the snapshot: the caller sees to that (rule P35). Two ways:
//! - *An operation* makes a snapshot of the datastore. The sizes and times of the files that were written since the last checkpoint go into
//!   their records first, and into the log: a replay would find other sizes in the content, those of later writes. So the cost is that of these
//!   files, of which there are at most as many as slots, and of no checkpoint.
//! - *A checkpoint* makes a snapshot of this copy alone, in its first step: every size and time is in its record then, no operation is being
//!   applied, and one transaction has the records and the snapshot.

use lockstep_intentlog::{FOLDED_MAX, FoldedFile, Record};
use lockstep_types::mutants::{Mutant, is_active};

use super::MetadataLog;
use super::checkpoint::NewSnapshot;
use crate::error::{OpError, StoreError};
use crate::namespace::keys;
use crate::namespace::plan::{SnapshotChange, View};
use crate::namespace::record::{self, Body, Inode};
use crate::namespace::snapshot_list::SnapshotBytes;
use crate::tree::Tree;

impl NewSnapshot {
    /// Makes the snapshot, durably. No write is under way, and no operation but those that wait for the other node.
    ///
    /// # Errors
    /// There is no such snapshot, or it is being deleted.
    pub fn take(self, log: &MetadataLog, tree: Tree<'_>) -> Result<(), StoreError> {
        let id = self.id;
        let _alone = log.checkpointing.lock();
        let limit = tree.namespace.numbers().limit();
        let taken = log.checkpoint_alone(tree, limit, Some(log.boot), Some(self));
        if taken.is_err() {
            // The records in memory may have the snapshot.
            tree.namespace.delete_snapshot(id);
        }
        taken
    }
}

impl MetadataLog {
    /// Before an operation makes a snapshot: takes the sizes and times of written files into their records, and logs them. The caller
    /// holds `applying`.
    pub(super) fn fold_before(
        &self,
        tree: Tree<'_>,
        change: Option<&SnapshotChange>,
    ) -> Result<(), StoreError> {
        if !matches!(change, Some(SnapshotChange::Create(..))) {
            return Ok(());
        }
        let (mut folded, mut batch) = (Vec::new(), Vec::new());
        for file in tree.content.unflushed_files() {
            let ino = file.ino();
            let Some(inode) = tree.inode(ino).map_err(OpError::into_store)? else {
                continue;
            };
            folded.extend(inode.body.file_size().map(|size| FoldedFile {
                ino,
                size,
                mtime: inode.mtime,
                ctime: inode.ctime,
            }));
            batch.push((keys::inode(ino), Some(record::encode(&inode))));
        }
        if !is_active(Mutant::FoldUnlogged) {
            for files in folded.chunks(FOLDED_MAX) {
                self.log_record(tree.disk(), &Record::Folded(files.to_vec()))?;
            }
        }
        // As in [`Tree::install`].
        tree.disk().poison_on_error(tree.namespace.apply(batch))
    }
}

/// Gives files the sizes and times that a snapshot sees, for a replay.
pub(super) fn replay_folded(tree: Tree<'_>, files: &[FoldedFile]) -> Result<(), StoreError> {
    for file in files {
        tree.namespace.change_inode(file.ino, |inode: &mut Inode| {
            if let Body::File { size } = &mut inode.body {
                *size = file.size;
            }
            inode.mtime = file.mtime;
            inode.ctime = file.ctime;
        })?;
    }
    Ok(())
}

/// After a loss of power: content that was not on stable storage may be lost, and with it bytes that snapshots see.
pub(super) fn note_torn(tree: Tree<'_>) {
    let namespace = tree.namespace;
    for (id, snapshot) in namespace.snapshots().all().iter() {
        if snapshot.bytes == SnapshotBytes::Unsettled && !is_active(Mutant::TornUnnoted) {
            namespace.change_snapshot(*id, |record| record.bytes = SnapshotBytes::Torn);
        }
    }
}
