//! The disk below a store, and whether a sync of this store has failed.
//!
//! Invariant: once a sync has failed, this store never again promises durability. Over a
//! [fenced](crate::backing::poison) disk the same holds for every later process, until an operator acts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_types::backing::{Backing, Space};

use crate::error::StoreError;

/// The disk below one store.
pub struct StoreDisk {
    backing: Arc<dyn Backing>,
    is_poisoned: AtomicBool,
}

impl StoreDisk {
    /// The disk that `backing` reaches, of which no sync has failed yet.
    pub fn new(backing: Arc<dyn Backing>) -> Self {
        Self {
            backing,
            is_poisoned: AtomicBool::new(false),
        }
    }

    /// Access to the files.
    pub const fn backing(&self) -> &Arc<dyn Backing> {
        &self.backing
    }

    /// Whether a sync has failed.
    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned.load(Ordering::Acquire) || self.backing.is_poisoned()
    }

    /// Refuses once a sync has failed.
    pub fn check_not_poisoned(&self) -> Result<(), StoreError> {
        if self.is_poisoned() {
            return Err(StoreError::Poisoned);
        }
        Ok(())
    }

    /// Passes on the result of a sync. A failure poisons the disk, unless the sync never reached the disk.
    pub fn poison_on_error<T, E: Into<StoreError>>(
        &self,
        result: Result<T, E>,
    ) -> Result<T, StoreError> {
        result.map_err(|error| {
            let error = error.into();
            if error.poisons() {
                self.backing.poison(&error.to_string());
                self.is_poisoned.store(true, Ordering::Release);
            }
            error
        })
    }

    /// The same, of a change that a full disk leaves undone.
    pub fn poison_unless_full<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match result {
            Err(error) if error.is_full_disk() => Err(error),
            made => self.poison_on_error(made),
        }
    }

    /// Total and free space.
    pub fn space(&self) -> Result<Space, StoreError> {
        self.backing.space().map_err(StoreError::disk("stat", "."))
    }

    /// The names in a directory.
    pub fn list(&self, directory: &str) -> Result<Vec<String>, StoreError> {
        let names = self.backing.list(directory);
        names.map_err(StoreError::disk("list", directory))
    }

    /// Makes the names in a directory durable.
    pub fn sync_dir(&self, directory: &str) -> Result<(), StoreError> {
        let synced = self.backing.sync_dir(directory);
        self.poison_on_error(synced.map_err(StoreError::disk("sync the names in", directory)))
    }
}
