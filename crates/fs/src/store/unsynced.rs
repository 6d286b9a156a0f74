//! What of the content lies in the cache of the system only: a process that stops loses nothing of
//! it, a power loss may.
//!
//! Invariants: content is noted here after it was changed, with a number that grows. A note goes only
//! when a sync that began after it has returned, so that whoever finds none relies on no sync that still
//! runs, or that failed. So it is with the names of files. A file's name is on stable storage when a sync of it
//! has returned.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use lockstep_types::Ino;
use lockstep_types::backing::Backing;
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

use super::Store;
use crate::error::StoreError;
use crate::files::{CONTENT_DIR, content_dir};

/// With more files than this, the whole disk is synced at once rather than each file.
const SYNC_EACH_MAX: usize = 256;

/// Directories of names that are remembered; with more, the whole disk is synced.
const DIRECTORIES_MAX: usize = 16 << 10;

/// Content and names that were not synced since they were changed.
#[derive(Default)]
pub(super) struct Unsynced {
    contents: Mutex<Notes<Ino>>,
    /// Directories in which names were made.
    names: Mutex<Notes<String>>,
    /// Directories from which names were removed: a sync of a file has no need of that.
    removals: Mutex<Notes<String>>,
    /// Held while a directory is synced: two at once would both find it noted.
    syncing_names: Mutex<()>,
}

/// Things that were changed, each with the number of its last change.
struct Notes<K> {
    notes: HashMap<K, u64>,
    /// The last number given out.
    last: u64,
}

impl<K> Default for Notes<K> {
    fn default() -> Self {
        Self {
            notes: HashMap::new(),
            last: 0,
        }
    }
}

impl<K: Eq + Hash + Clone> Notes<K> {
    fn note(&mut self, key: K) {
        self.last += 1;
        self.notes.insert(key, self.last);
    }

    /// A sync of one thing has returned that began at `number`.
    fn synced<Q: Eq + Hash + ?Sized>(&mut self, key: &Q, number: u64)
    where
        K: Borrow<Q>,
    {
        if self.notes.get(key).is_some_and(|noted| *noted <= number) {
            self.notes.remove(key);
        }
    }

    /// A sync of the whole disk has returned that began at `number`.
    fn all_synced(&mut self, number: u64) {
        self.notes.retain(|_, noted| *noted > number);
    }

    fn all(&self) -> Vec<K> {
        self.notes.keys().cloned().collect()
    }
}

/// The last changes noted when a sync of the whole disk began: it covers all up to them.
struct Began {
    contents: u64,
    names: NotedNames,
}

/// The last changes of names that were noted at some moment.
#[derive(Clone, Copy)]
pub(super) struct NotedNames {
    names: u64,
    removals: u64,
}

impl Unsynced {
    pub(super) fn content_changed(&self, ino: Ino) {
        self.contents.lock().note(ino);
    }

    /// The content is gone.
    pub(super) fn forget(&self, ino: Ino) {
        self.contents.lock().notes.remove(&ino);
    }

    /// The last change of content noted, of any file: a sync that begins now covers all up to it.
    fn now(&self) -> u64 {
        self.contents.lock().last
    }

    /// A sync of one file has returned that began at `number`.
    fn synced(&self, ino: Ino, number: u64) {
        self.contents.lock().synced(&ino, number);
    }

    fn begin_all(&self) -> Began {
        Began {
            contents: self.now(),
            names: self.noted_names(),
        }
    }

    /// A sync of the whole disk has returned.
    fn all_synced(&self, began: &Began) {
        self.contents.lock().all_synced(began.contents);
        self.names.lock().all_synced(began.names.names);
        self.removals.lock().all_synced(began.names.removals);
    }

    fn name_made(&self, ino: Ino) {
        self.names.lock().note(content_dir(ino));
    }

    pub(super) fn name_removed(&self, ino: Ino) {
        self.removals.lock().note(content_dir(ino));
    }

    /// The last names noted so far.
    pub(super) fn noted_names(&self) -> NotedNames {
        NotedNames {
            names: self.names.lock().last,
            removals: self.removals.lock().last,
        }
    }

    /// A directory was removed after `noted`: nothing noted until then needs a sync of it any more, but
    /// one of the directory above all content.
    pub(super) fn directory_removed(&self, dir: &str, noted: NotedNames) {
        self.names.lock().synced(dir, noted.names);
        let mut removals = self.removals.lock();
        removals.synced(dir, noted.removals);
        removals.note(CONTENT_DIR.to_owned());
    }

    fn all(&self) -> Vec<Ino> {
        self.contents.lock().all()
    }

    /// Directories with names that were made or removed.
    fn directories(&self) -> usize {
        self.names.lock().notes.len() + self.removals.lock().notes.len()
    }

    fn sync_names(&self, backing: &dyn Backing, dir: &str) -> Result<(), StoreError> {
        let _alone = self.syncing_names.lock();
        let number = {
            let names = self.names.lock();
            if !names.notes.contains_key(dir) {
                return Ok(());
            }
            names.last
        };
        let synced = backing.sync_dir(dir);
        synced.map_err(StoreError::disk("sync the names in", dir))?;
        self.names.lock().synced(dir, number);
        Ok(())
    }
}

impl Store {
    /// A content file was made.
    pub(super) fn name_made(&self, ino: Ino) {
        self.unsynced.name_made(ino);
    }

    /// An earlier process stopped before it had synced what it made: nothing is known to be
    /// durable.
    pub(super) fn doubt_names(&self) -> Result<(), StoreError> {
        let dirs = self
            .backing
            .list(CONTENT_DIR)
            .map_err(StoreError::disk("list", CONTENT_DIR))?;
        let mut names = self.unsynced.names.lock();
        for dir in dirs {
            names.note(format!("{CONTENT_DIR}/{dir}"));
        }
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
            let synced = content.sync().map_err(StoreError::content("sync", ino));
            self.trust(synced)?;
            self.unsynced.synced(ino, number);
            if is_active(Mutant::NoNameSync) {
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
        let began = self.unsynced.begin_all();
        let synced = self.backing.sync_all();
        self.trust(synced.map_err(StoreError::disk("sync", ".")))?;
        self.unsynced.all_synced(&began);
        Ok(())
    }

    /// Keeps what is remembered of names within its limit.
    pub(super) fn forget_directories(&self) -> Result<(), StoreError> {
        if self.unsynced.directories() > DIRECTORIES_MAX {
            self.sync_disk()?;
        }
        Ok(())
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
        let (mut dirs, number) = {
            let removals = self.unsynced.removals.lock();
            (removals.all(), removals.last)
        };
        if dirs.len() > SYNC_EACH_MAX {
            return self.sync_disk();
        }
        dirs.sort_unstable();
        for dir in dirs {
            let synced = self.backing.sync_dir(&dir);
            self.trust(synced.map_err(StoreError::disk("sync the names in", dir.clone())))?;
            self.unsynced.removals.lock().synced(&dir, number);
        }
        Ok(())
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
        let began = unsynced.begin_all();
        unsynced.content_changed(ino(5));
        unsynced.all_synced(&began);
        assert_eq!(unsynced.all(), [ino(5)]);
        unsynced.forget(ino(5));
        assert!(unsynced.all().is_empty());
    }

    #[test]
    fn a_directory_that_is_removed_takes_only_its_earlier_notes_along() {
        let unsynced = Unsynced::default();
        let dir = content_dir(ino(2));
        let is_noted =
            |notes: &Mutex<Notes<String>>, dir: &str| notes.lock().notes.contains_key(dir);
        unsynced.name_made(ino(2));
        unsynced.name_removed(ino(2));
        let noted = unsynced.noted_names();
        unsynced.directory_removed(&dir, noted);
        assert!(!is_noted(&unsynced.names, &dir));
        assert!(!is_noted(&unsynced.removals, &dir));
        assert!(is_noted(&unsynced.removals, CONTENT_DIR));
        let noted = unsynced.noted_names();
        unsynced.name_made(ino(3));
        unsynced.name_removed(ino(3));
        unsynced.directory_removed(&dir, noted);
        assert!(is_noted(&unsynced.names, &dir), "made anew since");
        assert!(is_noted(&unsynced.removals, &dir));
    }
}
