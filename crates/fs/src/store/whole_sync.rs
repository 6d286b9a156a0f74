//! Making a store durable as a whole, for the store and for a copy that is put back.

use crate::error::StoreError;
use crate::metadata_log::MetadataLog;
use crate::tree::Tree;

/// Makes everything that a store holds durable: the whole disk, and then a checkpoint.
///
/// # Errors
/// The disk fails, which poisons the store (P16), or is full.
pub(super) fn sync_everything(tree: Tree<'_>, log: &MetadataLog) -> Result<(), StoreError> {
    tree.content.sync().sync_disk(tree.disk())?;
    log.checkpoint(tree)
}
