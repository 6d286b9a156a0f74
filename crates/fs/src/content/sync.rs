//! Syncing content: which files, in which way, and for which thread.
//!
//! A sync of one file covers its bytes and its name (rule P11). With many changed files one sync of the whole disk
//! takes the place of many syncs. A failed sync poisons the disk.
//!
//! This file owns the [`DirtySet`] and the [`SyncCoalescer`]. It opens no content file: the caller passes an
//! [`OpenContent`].

use std::sync::Arc;

use lockstep_types::Ino;
use lockstep_types::backing::BackingFile;
use lockstep_types::mutants::{Mutant, is_active};

use super::dirty::DirtySet;
use super::sync_coalescer::SyncCoalescer;
use crate::error::StoreError;
use crate::paths::{CONTENT_DIR, content_dir};
use crate::store_disk::StoreDisk;

/// With more files than this, the whole disk is synced at once rather than each file.
const SYNC_EACH_MAX: usize = 256;

/// Directories of names that are noted. With more, the whole disk is synced.
const DIRECTORIES_MAX: usize = 16 << 10;

/// Opens the content file of an inode, if the content file exists.
pub type OpenContent<'a> = dyn Fn(Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError> + 'a;

/// Makes content durable.
pub struct ContentSync {
    dirty: Arc<DirtySet>,
    /// The syncs under way.
    coalescer: SyncCoalescer,
    /// An earlier process was killed and left content that may not be on stable storage.
    unclean_predecessor: bool,
}

impl ContentSync {
    /// Nothing is dirty yet.
    pub fn new(unclean_predecessor: bool) -> Self {
        Self {
            dirty: Arc::default(),
            coalescer: SyncCoalescer::default(),
            unclean_predecessor,
        }
    }

    /// The changes that no sync covers yet.
    pub const fn dirty(&self) -> &Arc<DirtySet> {
        &self.dirty
    }

    /// Whether the previous process was killed and may have left unsynced content.
    pub const fn has_unclean_predecessor(&self) -> bool {
        self.unclean_predecessor
    }

    /// Notes every directory of content: a previous process may have stopped before it synced new names.
    pub fn mark_names_dirty(&self, disk: &StoreDisk) -> Result<(), StoreError> {
        let dirs = disk.list(CONTENT_DIR)?;
        let dirs = dirs.into_iter().map(|dir| format!("{CONTENT_DIR}/{dir}"));
        self.dirty.names_made_in(dirs);
        Ok(())
    }

    /// Makes the content of a file, and its name, durable.
    pub fn sync_file(
        &self,
        disk: &StoreDisk,
        ino: Ino,
        open: &OpenContent<'_>,
    ) -> Result<(), StoreError> {
        self.coalescer
            .sync(ino, || self.sync_file_alone(disk, ino, open))?;
        // The kernel may have reported the failure of this file to the sync of another thread.
        disk.check_not_poisoned()
    }

    fn sync_file_alone(
        &self,
        disk: &StoreDisk,
        ino: Ino,
        open: &OpenContent<'_>,
    ) -> Result<(), StoreError> {
        disk.check_not_poisoned()?;
        let number = self.dirty.now();
        if let Some(content) = open(ino)? {
            let synced = content.sync().map_err(StoreError::content("sync", ino));
            disk.poison_on_error(synced)?;
            self.dirty.synced(ino, number);
            if is_active(Mutant::NoNameSync) {
                return Ok(());
            }
            self.dirty.sync_names(disk, &content_dir(ino))?;
        } else {
            // The note stands for a content file that could not be created.
            self.dirty.synced(ino, number);
        }
        Ok(())
    }

    /// Syncs the whole disk.
    pub fn sync_disk(&self, disk: &StoreDisk) -> Result<(), StoreError> {
        let sync = self.dirty.begin_all();
        let synced = disk.backing().sync_all();
        disk.poison_on_error(synced.map_err(StoreError::disk("sync", ".")))?;
        self.dirty.all_synced(&sync);
        Ok(())
    }

    /// Makes all changed content durable.
    pub fn sync_changed(&self, disk: &StoreDisk, open: &OpenContent<'_>) -> Result<(), StoreError> {
        let changed = self.dirty.contents();
        if changed.len() > SYNC_EACH_MAX {
            return self.sync_disk(disk);
        }
        changed
            .into_iter()
            .try_for_each(|ino| self.sync_file(disk, ino, open))
    }

    /// Makes all content durable that this process or an earlier one has changed.
    pub fn sync_all(&self, disk: &StoreDisk, open: &OpenContent<'_>) -> Result<(), StoreError> {
        if self.unclean_predecessor {
            self.sync_disk(disk)
        } else {
            self.sync_changed(disk, open)
        }
    }

    /// Makes the removal of content durable. After a clean shutdown no process looks for content that a power loss
    /// has brought back.
    pub fn sync_removals(&self, disk: &StoreDisk) -> Result<(), StoreError> {
        let (mut dirs, number) = self.dirty.removals();
        if dirs.len() > SYNC_EACH_MAX {
            return self.sync_disk(disk);
        }
        dirs.sort_unstable();
        for dir in dirs {
            disk.sync_dir(&dir)?;
            self.dirty.removals_synced(&dir, number);
        }
        Ok(())
    }

    /// Syncs the disk when too many directories are noted.
    pub fn limit_noted_directories(&self, disk: &StoreDisk) -> Result<(), StoreError> {
        if self.dirty.directories() > DIRECTORIES_MAX {
            self.sync_disk(disk)?;
        }
        Ok(())
    }
}
