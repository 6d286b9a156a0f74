//! What of the content lies in the cache of the system only: a process that stops loses nothing of
//! it, a power loss may.
//!
//! Invariants: content is noted here after it was changed, and forgotten before it is synced, so
//! a change is never missed. A file's name is on stable storage when a sync of it has returned.

use std::collections::HashSet;

use lockstep_types::Ino;
use lockstep_types::backing::Backing;
use lockstep_types::deliberate::{Bug, is_on};
use parking_lot::Mutex;

use super::Store;
use crate::error::StoreError;
use crate::files::{CONTENT_DIR, content_dir, content_path};

/// With more files than this, the whole disk is synced at once rather than each file.
const SYNC_EACH_MAX: usize = 256;

/// Content and names that were not synced since they were changed.
#[derive(Default)]
pub(super) struct Unsynced {
    /// Files.
    contents: Mutex<HashSet<Ino>>,
    /// Directories in which names were made.
    names: Mutex<HashSet<String>>,
    /// Held while a directory is synced, so that nobody takes its name for durable before.
    syncing_names: Mutex<()>,
}

impl Unsynced {
    pub(super) fn content_changed(&self, ino: Ino) {
        self.contents.lock().insert(ino);
    }

    pub(super) fn forget(&self, ino: Ino) {
        self.contents.lock().remove(&ino);
    }

    fn all(&self) -> Vec<Ino> {
        self.contents.lock().iter().copied().collect()
    }

    fn sync_names(&self, backing: &dyn Backing, dir: &str) -> Result<(), StoreError> {
        let _alone = self.syncing_names.lock();
        if !self.names.lock().remove(dir) {
            return Ok(());
        }
        let synced = backing.sync_dir(dir);
        synced.map_err(|error| {
            self.names.lock().insert(dir.to_owned());
            StoreError::disk("sync the names in", dir)(error)
        })
    }
}

impl Store {
    /// A content file was made.
    pub(super) fn name_made(&self, ino: Ino) {
        self.unsynced.names.lock().insert(content_dir(ino));
    }

    /// An earlier process stopped before it had synced what it made: nothing is known to be
    /// durable.
    pub(super) fn doubt_names(&self) -> Result<(), StoreError> {
        let dirs = self
            .backing
            .list(CONTENT_DIR)
            .map_err(StoreError::disk("list", CONTENT_DIR))?;
        let dirs = dirs.iter().map(|dir| format!("{CONTENT_DIR}/{dir}"));
        self.unsynced.names.lock().extend(dirs);
        Ok(())
    }

    /// Puts the content of a file, and its name, on stable storage.
    pub(super) fn sync_content(&self, ino: Ino) -> Result<(), StoreError> {
        self.turns.share(ino, || self.sync_content_alone(ino))?;
        // Somebody else's sync may have met what ours should have.
        self.check_trust()
    }

    fn sync_content_alone(&self, ino: Ino) -> Result<(), StoreError> {
        self.check_trust()?;
        self.unsynced.forget(ino);
        if let Some(content) = self.content_of(ino)? {
            let synced = content
                .sync()
                .map_err(StoreError::disk("sync", content_path(ino)));
            self.trust(synced)?;
            if is_on(Bug::NoNameSync) {
                return Ok(());
            }
            let backing = self.backing.as_ref();
            self.trust(self.unsynced.sync_names(backing, &content_dir(ino)))?;
        }
        Ok(())
    }

    /// Puts all that the store holds on stable storage.
    pub fn sync_everything(&self) -> Result<(), StoreError> {
        let synced = self.backing.sync_all();
        self.trust(synced.map_err(StoreError::disk("sync", ".")))?;
        self.checkpoint()
    }

    /// Puts all content that was changed on stable storage.
    pub(super) fn sync_all_content(&self) -> Result<(), StoreError> {
        let mut changed = self.unsynced.all();
        if changed.len() > SYNC_EACH_MAX {
            let synced = self.backing.sync_all();
            return self.trust(synced.map_err(StoreError::disk("sync", ".")));
        }
        changed.sort_unstable();
        changed
            .into_iter()
            .try_for_each(|ino| self.sync_content(ino))
    }
}
