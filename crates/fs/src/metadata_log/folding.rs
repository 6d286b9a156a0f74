//! The sizes and times that a snapshot of the datastore sees, and its bytes after a loss of power.
//!
//! An operation makes the snapshot while no write and no other operation is under way (rule P35). Before that, sizes and times of the files
//! that were written since the last checkpoint go into their records, and into the log: a replay would find other sizes in the
//! content, those of later writes. So a snapshot costs what these files cost, of which there are at most as many as slots, and no checkpoint.

use lockstep_intentlog::{FOLDED_MAX, FoldedTimes, Record};
use lockstep_types::mutants::{Mutant, is_active};

use crate::error::{OpError, StoreError};
use crate::namespace::keys;
use crate::namespace::plan::{SnapshotChange, View};
use crate::namespace::record::{self, Body, Inode};
use crate::namespace::snapshot_list::SnapshotBytes;
use crate::tree::Tree;

/// Before an operation makes a snapshot: takes the sizes and times of written files into their records, and has them logged. No operation is
/// being applied.
pub(super) fn fold_before(
    tree: Tree<'_>,
    change: Option<&SnapshotChange>,
    log: &dyn Fn(&Record) -> Result<(), StoreError>,
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
        folded.extend(inode.body.file_size().map(|size| FoldedTimes {
            ino,
            size,
            mtime: inode.mtime,
            ctime: inode.ctime,
        }));
        batch.push((keys::inode(ino), Some(record::encode(&inode))));
    }
    if !is_active(Mutant::FoldUnlogged) {
        for files in folded.chunks(FOLDED_MAX) {
            log(&Record::Folded(files.to_vec()))?;
        }
    }
    // As in [`Tree::install`].
    tree.disk().poison_on_error(tree.namespace.apply(batch))
}

/// Gives files the sizes and times that a snapshot sees, for a replay.
pub(super) fn replay_folded(tree: Tree<'_>, files: &[FoldedTimes]) -> Result<(), StoreError> {
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
