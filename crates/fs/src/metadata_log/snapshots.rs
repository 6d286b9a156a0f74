//! Making a snapshot of this copy alone. An operation makes one of the datastore ([`folding`](super::folding)).
//!
//! The snapshot is made in the first step of a checkpoint: every size and time is in its record then, no operation is being applied,
//! and one transaction has the records and the snapshot.

use super::MetadataLog;
use super::checkpoint::NewSnapshot;
use crate::error::StoreError;
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
