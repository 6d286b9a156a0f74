//! Moving the records in memory and in the log into the durable namespace, so that memory and log can be cut.
//!
//! Order, and why: (1) while nothing is applied, fold unflushed sizes and times into the records, note the log
//! position, and freeze the records in memory; (2) note the keys of the operations in the trace of a node that serves alone, and commit the frozen records durably, with the position in the same
//! transaction; (3) only then cut the log and clear the time slots. A crash before (2) finds the old checkpoint and
//! the whole log; after it, the new one. A slot that outlives its use says what the record already says.
//!
//! Locks: the caller holds `checkpointing` of the metadata log. Step one takes `applying`.

use std::sync::Arc;

use lockstep_intentlog::{IntentLog, Position};
use lockstep_types::{BootId, SnapshotId};
use parking_lot::Mutex;

use super::applying::Applying;
use crate::content::OpenFile;
use crate::delta::DeltaTracker;
use crate::error::{OpError, StoreError};
use crate::namespace::Namespace;
use crate::namespace::keys;
use crate::namespace::plan::View;
use crate::namespace::record::{self, Checkpoint, RecordChange};
use crate::namespace::snapshot_list::SnapshotRecord;
use crate::snapshots::packs::Packs;
use crate::tree::Tree;

/// Bytes of records in memory before a checkpoint is due.
pub const MEMORY_BYTES_MAX: usize = 48 << 20;

/// A file whose size and times were folded into its record, with its last write. The write is `None` if a write was
/// under way, whose size and time the record does not have.
type FoldedFile = (Arc<OpenFile>, Option<u64>);

/// A snapshot that is to be made.
pub struct NewSnapshot {
    /// Which snapshot.
    pub id: SnapshotId,
    /// Its record.
    pub record: SnapshotRecord,
    /// Records that change with the snapshot, in the same checkpoint.
    pub beside: Vec<RecordChange>,
}

impl NewSnapshot {
    /// Makes the snapshot. No other record changes meanwhile.
    fn make(self, namespace: &Namespace) -> Result<(), StoreError> {
        namespace.create_snapshot(self.id, self.record);
        namespace.apply(self.beside)
    }
}

/// One checkpoint.
pub struct CheckpointRun<'a> {
    /// The log to cut.
    pub log: &'a IntentLog,
    /// Held during step one.
    pub applying: &'a Mutex<Applying>,
    /// The keys that the log has, and no other place yet.
    pub delta: &'a DeltaTracker,
    /// The kept blocks of files.
    pub packs: &'a Packs,
    /// The records and files.
    pub tree: Tree<'a>,
}

impl CheckpointRun<'_> {
    /// Makes the checkpoint, with a limit of inode numbers, and the run of the machine or none after a clean shutdown. `snapshot` is a new
    /// snapshot of the moment of the checkpoint.
    pub fn write(
        &self,
        ino_limit: u64,
        boot: Option<BootId>,
        snapshot: Option<NewSnapshot>,
    ) -> Result<(), StoreError> {
        // Records that an earlier checkpoint froze and could not write to a full disk go first. As long as they are
        // frozen, nothing else can be frozen. Otherwise this checkpoint would write only the older records, and cut
        // the log up to its own position.
        self.flush()?;
        let numbers = self.tree.namespace.numbers();
        let ino_limit = ino_limit.max(numbers.below());
        let (folded, keep_from) = self.take_cut(ino_limit, boot, snapshot)?;
        self.flush()?;
        numbers.raise_limit(ino_limit);
        self.log.cut(keep_from);
        self.tree.content.checkpointed(&folded);
        Ok(())
    }

    /// Writes the frozen records. On a full disk they stay frozen, and nothing is poisoned. The trace has their keys before.
    fn flush(&self) -> Result<(), StoreError> {
        let disk = self.tree.disk();
        disk.poison_unless_full(self.delta.trace().before_checkpoint())?;
        match self.tree.namespace.flush() {
            Err(error) if error.is_full_disk() => Err(error.into()),
            flushed => self.tree.disk().poison_on_error(flushed),
        }
    }

    /// Step one: folds, notes the position, freezes. Returns the folded files, and the position from which the log is
    /// still needed.
    fn take_cut(
        &self,
        ino_limit: u64,
        boot: Option<BootId>,
        snapshot: Option<NewSnapshot>,
    ) -> Result<(Vec<FoldedFile>, Position), StoreError> {
        let applying = self.applying.lock();
        let mut folded = Vec::new();
        let mut batch = Vec::new();
        for file in self.tree.content.unflushed_files() {
            // Before the record is made: a write that begins in between keeps the slot.
            let settled = file.settled_write();
            let inode = self.tree.inode(file.ino()).map_err(OpError::into_store)?;
            if let Some(inode) = inode {
                batch.push((keys::inode(file.ino()), Some(record::encode(&inode))));
            }
            folded.push((file, settled));
        }
        batch.extend(self.packs.checkpoint());
        let position = self.log.tail();
        let keep_from = applying.log_needed_from(position);
        let checkpoint = Checkpoint {
            log_position: position.get(),
            log_keep_from: keep_from.get(),
            applied: applying.applied,
            ino_limit,
            epoch: applying.epoch,
            boot,
        };
        batch.push((keys::CHECKPOINT.to_vec(), Some(record::encode(&checkpoint))));
        // Nothing is frozen and no log is cut unless the old values of the folded records are kept. On an error the sizes and times stay where
        // they are, and the next checkpoint takes them again.
        self.tree.namespace.apply(batch)?;
        if let Some(snapshot) = snapshot {
            snapshot.make(self.tree.namespace)?;
        }
        self.tree.namespace.freeze();
        Ok((folded, keep_from))
    }
}
