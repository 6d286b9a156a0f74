//! What of the content lies in the cache of the system only: a process that stops loses nothing of
//! it, a power loss may.
//!
//! Invariants: content is noted here after it was changed, with a number that grows. A note goes only
//! when a sync that began after it has returned, so that whoever finds none relies on no sync that still
//! runs, or that failed. A file's name is on stable storage when a sync of it has returned.

use std::collections::{HashMap, HashSet};

use lockstep_types::Ino;
use lockstep_types::backing::Backing;
use lockstep_types::deliberate::{Bug, is_on};
use parking_lot::Mutex;

use super::Store;
use crate::error::StoreError;
use crate::files::{CONTENT_DIR, content_dir, content_path};

/// With more files than this, the whole disk is synced at once rather than each file.
const SYNC_EACH_MAX: usize = 256;

/// Directories of names that are remembered; with more, the whole disk is synced.
const DIRECTORIES_MAX: usize = 16 << 10;

/// Content and names that were not synced since they were changed.
#[derive(Default)]
pub(super) struct Unsynced {
    contents: Mutex<Contents>,
    /// Directories in which names were made.
    names: Mutex<HashSet<String>>,
    /// Directories from which names were removed: a sync of a file has no need of that.
    removals: Mutex<HashSet<String>>,
    /// Held while a directory is synced, so that nobody takes its name for durable before.
    syncing_names: Mutex<()>,
}

/// Files whose content was changed.
#[derive(Default)]
struct Contents {
    /// The number of the last change noted for each.
    notes: HashMap<Ino, u64>,
    /// The last number given out.
    last: u64,
}

impl Unsynced {
    pub(super) fn content_changed(&self, ino: Ino) {
        let mut contents = self.contents.lock();
        contents.last += 1;
        let number = contents.last;
        contents.notes.insert(ino, number);
    }

    /// The content is gone.
    pub(super) fn forget(&self, ino: Ino) {
        self.contents.lock().notes.remove(&ino);
    }

    /// The last change noted, of any file: a sync that begins now covers all up to it.
    fn now(&self) -> u64 {
        self.contents.lock().last
    }

    /// A sync of one file has returned that began at `number`.
    fn synced(&self, ino: Ino, number: u64) {
        let mut contents = self.contents.lock();
        if contents
            .notes
            .get(&ino)
            .is_some_and(|noted| *noted <= number)
        {
            contents.notes.remove(&ino);
        }
    }

    /// A sync of the whole disk has returned that began at `number`.
    fn all_synced(&self, number: u64) {
        self.contents
            .lock()
            .notes
            .retain(|_, noted| *noted > number);
    }

    pub(super) fn name_removed(&self, ino: Ino) {
        self.removals.lock().insert(content_dir(ino));
    }

    fn all(&self) -> Vec<Ino> {
        self.contents.lock().notes.keys().copied().collect()
    }

    /// Directories with names that were made or removed.
    fn directories(&self) -> usize {
        self.names.lock().len() + self.removals.lock().len()
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
        let number = self.unsynced.now();
        if let Some(content) = self.content_of(ino)? {
            let synced = content
                .sync()
                .map_err(StoreError::disk("sync", content_path(ino)));
            self.trust(synced)?;
            self.unsynced.synced(ino, number);
            if is_on(Bug::NoNameSync) {
                return Ok(());
            }
            let backing = self.backing.as_ref();
            self.trust(self.unsynced.sync_names(backing, &content_dir(ino)))?;
        } else {
            // What was noted could not even be made.
            self.unsynced.synced(ino, number);
        }
        Ok(())
    }

    /// Puts all that the store holds on stable storage.
    pub fn sync_everything(&self) -> Result<(), StoreError> {
        self.sync_disk()?;
        self.checkpoint()
    }

    /// Syncs the whole disk.
    pub(super) fn sync_disk(&self) -> Result<(), StoreError> {
        let number = self.unsynced.now();
        let synced = self.backing.sync_all();
        self.trust(synced.map_err(StoreError::disk("sync", ".")))?;
        self.unsynced.all_synced(number);
        Ok(())
    }

    /// Keeps what is remembered of names within its limit.
    pub(super) fn forget_directories(&self) -> Result<(), StoreError> {
        if self.unsynced.directories() > DIRECTORIES_MAX {
            self.sync_disk_with_names()?;
        }
        Ok(())
    }

    /// Syncs the whole disk, with all names in it. Who needs a name on stable storage waits meanwhile.
    fn sync_disk_with_names(&self) -> Result<(), StoreError> {
        let _alone = self.unsynced.syncing_names.lock();
        let names = std::mem::take(&mut *self.unsynced.names.lock());
        let removals = std::mem::take(&mut *self.unsynced.removals.lock());
        let synced = self.sync_disk();
        if synced.is_err() {
            self.unsynced.names.lock().extend(names);
            self.unsynced.removals.lock().extend(removals);
        }
        synced
    }

    /// Puts all content that was changed on stable storage.
    pub(super) fn sync_all_content(&self) -> Result<(), StoreError> {
        let mut changed = self.unsynced.all();
        if changed.len() > SYNC_EACH_MAX {
            return self.sync_disk();
        }
        changed.sort_unstable();
        changed
            .into_iter()
            .try_for_each(|ino| self.sync_content(ino))
    }

    /// Puts on stable storage that content was removed: what comes back with a power loss after a close
    /// in order nobody looks for.
    pub(super) fn sync_removals(&self) -> Result<(), StoreError> {
        if self.unsynced.removals.lock().len() > SYNC_EACH_MAX {
            return self.sync_disk_with_names();
        }
        let mut dirs: Vec<_> = std::mem::take(&mut *self.unsynced.removals.lock())
            .into_iter()
            .collect();
        dirs.sort_unstable();
        dirs.into_iter().try_for_each(|dir| {
            let synced = self.backing.sync_dir(&dir);
            self.trust(synced.map_err(StoreError::disk("sync the names in", dir)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ino(number: u64) -> Ino {
        Ino::new(number).unwrap()
    }

    /// Whoever finds no note may rely on the disk having it.
    #[test]
    fn a_note_stays_until_a_sync_has_returned_that_began_after_it() {
        let unsynced = Unsynced::default();
        unsynced.content_changed(ino(2));
        unsynced.content_changed(ino(3));
        let began = unsynced.now();
        assert_eq!(unsynced.all().len(), 2, "while the sync runs");
        unsynced.content_changed(ino(3));
        unsynced.synced(ino(2), began);
        unsynced.synced(ino(3), began);
        assert_eq!(unsynced.all(), [ino(3)], "changed since the sync began");
        unsynced.content_changed(ino(4));
        let began = unsynced.now();
        unsynced.content_changed(ino(5));
        unsynced.all_synced(began);
        assert_eq!(unsynced.all(), [ino(5)]);
        unsynced.forget(ino(5));
        assert!(unsynced.all().is_empty());
    }
}
