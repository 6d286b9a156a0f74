//! The content and the names that a power loss may take: those changed since they were last synced. A stop of the
//! process takes none of them.
//!
//! Invariants:
//! - A change is noted after it was made, under a number that grows.
//! - A note goes only when a sync has returned that began after the note. So a thread that finds no note relies on
//!   no sync that still runs, or that failed.
//! - The name of a file is on stable storage when a sync of the name has returned.
//!
//! Locks: `syncing_names` before the others; no two of the others at once. The disk is called under
//! `syncing_names` only.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use lockstep_types::Ino;
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::paths::{CONTENT_DIR, content_dir};
use crate::store_disk::StoreDisk;

/// Content and names that were not synced since they were changed.
#[derive(Default)]
pub struct DirtySet {
    contents: Mutex<Notes<Ino>>,
    /// Directories in which names were made.
    names: Mutex<Notes<String>>,
    /// Directories from which names were removed. A sync of a file does not need them.
    removals: Mutex<Notes<String>>,
    /// Held while a directory is synced: two threads would both find its note.
    syncing_names: Mutex<()>,
}

/// Changed things, each with the number of its last change.
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

impl<K: Eq + Hash + Ord + Clone> Notes<K> {
    fn note(&mut self, key: K) {
        self.last += 1;
        self.notes.insert(key, self.last);
    }

    /// A sync of one thing, which began at `number`, has returned.
    fn synced<Q: Eq + Hash + ?Sized>(&mut self, key: &Q, number: u64)
    where
        K: Borrow<Q>,
    {
        if self.notes.get(key).is_some_and(|noted| *noted <= number) {
            self.notes.remove(key);
        }
    }

    /// A sync of the whole disk, which began at `number`, has returned.
    fn all_synced(&mut self, number: u64) {
        self.notes.retain(|_, noted| *noted > number);
    }

    /// All of them, in an order that each run of the same calls has.
    fn all(&self) -> Vec<K> {
        let mut all: Vec<K> = self.notes.keys().cloned().collect();
        all.sort_unstable();
        all
    }
}

/// The last changes noted when a sync of the whole disk began. The sync covers them and all earlier ones.
pub struct DiskSync {
    contents: u64,
    names: NotedNames,
}

/// The last changes of names noted at some moment.
#[derive(Clone, Copy)]
pub struct NotedNames {
    names: u64,
    removals: u64,
}

impl DirtySet {
    /// The content of a file was changed.
    pub fn content_changed(&self, ino: Ino) {
        self.contents.lock().note(ino);
    }

    /// The content of a file was removed.
    pub fn forget(&self, ino: Ino) {
        self.contents.lock().notes.remove(&ino);
    }

    /// The last change of content noted, of any file. A sync that begins now covers this change and all earlier ones.
    pub fn now(&self) -> u64 {
        self.contents.lock().last
    }

    /// A sync of one file, which began at `number`, has returned.
    pub fn synced(&self, ino: Ino, number: u64) {
        self.contents.lock().synced(&ino, number);
    }

    /// A sync of the whole disk begins.
    pub fn begin_all(&self) -> DiskSync {
        DiskSync {
            contents: self.now(),
            names: self.noted_names(),
        }
    }

    /// A sync of the whole disk has returned.
    pub fn all_synced(&self, sync: &DiskSync) {
        self.contents.lock().all_synced(sync.contents);
        self.names.lock().all_synced(sync.names.names);
        self.removals.lock().all_synced(sync.names.removals);
    }

    /// A content file was created.
    pub fn name_made(&self, ino: Ino) {
        self.names.lock().note(content_dir(ino));
    }

    /// Names were perhaps made in these directories.
    pub fn names_made_in(&self, dirs: impl IntoIterator<Item = String>) {
        let mut names = self.names.lock();
        dirs.into_iter().for_each(|dir| names.note(dir));
    }

    /// A content file was removed.
    pub fn name_removed(&self, ino: Ino) {
        self.removals.lock().note(content_dir(ino));
    }

    /// The last names noted so far.
    pub fn noted_names(&self) -> NotedNames {
        NotedNames {
            names: self.names.lock().last,
            removals: self.removals.lock().last,
        }
    }

    /// A directory was removed after `noted`: its notes up to then need no sync. The directory above all content
    /// does.
    pub fn directory_removed(&self, dir: &str, noted: NotedNames) {
        self.names.lock().synced(dir, noted.names);
        let mut removals = self.removals.lock();
        removals.synced(dir, noted.removals);
        removals.note(CONTENT_DIR.to_owned());
    }

    /// All files with changed content.
    pub fn contents(&self) -> Vec<Ino> {
        self.contents.lock().all()
    }

    /// Number of directories in which names were made or removed.
    pub fn directories(&self) -> usize {
        self.names.lock().notes.len() + self.removals.lock().notes.len()
    }

    /// Makes the names in a directory durable, if any were made.
    pub fn sync_names(&self, disk: &StoreDisk, dir: &str) -> Result<(), StoreError> {
        let _alone = self.syncing_names.lock();
        let number = {
            let names = self.names.lock();
            if !names.notes.contains_key(dir) {
                return Ok(());
            }
            names.last
        };
        disk.sync_dir(dir)?;
        self.names.lock().synced(dir, number);
        Ok(())
    }

    /// The directories from which names were removed, and the number of the last removal.
    pub fn removals(&self) -> (Vec<String>, u64) {
        let removals = self.removals.lock();
        (removals.all(), removals.last)
    }

    /// A sync of a directory, which began at `number`, has returned: its removals are durable.
    pub fn removals_synced(&self, dir: &str, number: u64) {
        self.removals.lock().synced(dir, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ino(number: u64) -> Ino {
        Ino::new(number).unwrap()
    }

    /// A thread that finds no note relies on the disk.
    #[test]
    fn a_note_stays_until_a_sync_has_returned_that_began_after_it() {
        let dirty = DirtySet::default();
        dirty.content_changed(ino(2));
        dirty.content_changed(ino(3));
        let began = dirty.now();
        assert_eq!(dirty.contents().len(), 2, "while the sync runs");
        dirty.content_changed(ino(3));
        dirty.synced(ino(2), began);
        dirty.synced(ino(3), began);
        assert_eq!(dirty.contents(), [ino(3)], "changed since the sync began");
        dirty.content_changed(ino(4));
        let began = dirty.begin_all();
        dirty.content_changed(ino(5));
        dirty.all_synced(&began);
        assert_eq!(dirty.contents(), [ino(5)]);
        dirty.forget(ino(5));
        assert!(dirty.contents().is_empty());
    }

    #[test]
    fn a_directory_that_is_removed_takes_only_its_earlier_notes_along() {
        let dirty = DirtySet::default();
        let dir = content_dir(ino(2));
        let is_noted =
            |notes: &Mutex<Notes<String>>, dir: &str| notes.lock().notes.contains_key(dir);
        dirty.name_made(ino(2));
        dirty.name_removed(ino(2));
        let noted = dirty.noted_names();
        dirty.directory_removed(&dir, noted);
        assert!(!is_noted(&dirty.names, &dir));
        assert!(!is_noted(&dirty.removals, &dir));
        assert!(is_noted(&dirty.removals, CONTENT_DIR));
        let noted = dirty.noted_names();
        dirty.name_made(ino(3));
        dirty.name_removed(ino(3));
        dirty.directory_removed(&dir, noted);
        assert!(is_noted(&dirty.names, &dir), "recreated since");
        assert!(is_noted(&dirty.removals, &dir));
    }
}
