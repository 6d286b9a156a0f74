//! Snapshots that are given up: they miss an old value, because the disk had no room for the value.
//!
//! A snapshot of this node's own copy gives way to the changes of the copy: redundancy comes before a state to fall back to. Its *mark*, an
//! empty file, is durable before the first change that is not kept. So no opening of the store shows the snapshot again. Its
//! kept values go later, step by step ([`deletion`](super::deletion)), and then the mark.
//!
//! Locks: none.

use std::io;
use std::sync::Arc;

use lockstep_types::SnapshotId;
use lockstep_types::mutants::{Mutant, is_active};

use crate::error::StoreError;
use crate::paths::{GIVEN_UP_DIR, given_up_owner, given_up_path};
use crate::store_disk::StoreDisk;

/// The marks on a disk.
#[derive(Clone)]
pub struct GivenUpMarks(Arc<StoreDisk>);

impl GivenUpMarks {
    /// The marks on this disk.
    pub const fn new(disk: Arc<StoreDisk>) -> Self {
        Self(disk)
    }

    /// Marks a snapshot, durably.
    pub fn add(&self, id: SnapshotId) -> Result<(), StoreError> {
        if is_active(Mutant::GivenUpUnmarked) {
            return Ok(());
        }
        let path = given_up_path(id);
        let made = self.0.backing().open_or_create(&path);
        made.map_err(StoreError::disk("create", path))?;
        self.0.sync_dir(GIVEN_UP_DIR)?;
        self.0.sync_dir(".")
    }

    /// The snapshots with a mark.
    pub fn all(&self) -> Result<Vec<SnapshotId>, StoreError> {
        match self.0.backing().list(GIVEN_UP_DIR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            listed => {
                let names = listed.map_err(StoreError::disk("list", GIVEN_UP_DIR))?;
                Ok(names
                    .iter()
                    .filter_map(|name| given_up_owner(name))
                    .collect())
            }
        }
    }

    /// Removes the mark of a snapshot, if there is one. The snapshot is gone, durably.
    pub fn remove(&self, id: SnapshotId) -> Result<(), StoreError> {
        let path = given_up_path(id);
        match self.0.backing().remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => {
                removed.map_err(StoreError::disk("remove", path))?;
                // A mark that comes back would tear a later snapshot of the same number.
                self.0.sync_dir(GIVEN_UP_DIR)
            }
        }
    }
}
