//! Removing the content of freed inodes, and the directories that this leaves empty.
//!
//! A directory is noted when content in it was removed, when content could not be created in it, and when the store
//! is opened, as an earlier process may have left it empty. The disk decides whether it is empty, in the call that
//! removes it. So no lock keeps other threads from creating content: a thread that finds the directory removed
//! creates it again ([`Backing::open_or_create`]).
//!
//! Invariants:
//! - The removal of content is announced before. Its sums go first (P32). Content that an observer has moved away loses its mark only once its new
//!   name is durable.
//! - Content is removed only after the freeing of its inode is durable. Otherwise a power loss could bring back a
//!   name, by a rename that was never synced, without the content.
//! - A note of the [`DirtySet`] on a directory goes only if the directory was removed after the note was made.
//!   Content in a new directory of that name is noted after the removal, and keeps its note.
//!
//! Locks: `collecting` before every other lock. `freed` and `empty_dirs` are held for no call of the disk.
//!
//! [`Backing::open_or_create`]: lockstep_types::backing::Backing::open_or_create

use std::collections::{BTreeMap, BTreeSet};

use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

use super::before_change::Observers;
use super::dirty::DirtySet;
use crate::error::StoreError;
use crate::namespace::{Namespace, keys};
use crate::paths::{CONTENT_DIR, content_dir, content_owner, content_path, is_content_dir};
use crate::store_disk::StoreDisk;

/// Directories that one call tries to remove. After a large store was opened, every directory is noted, and each may
/// cost a read from the disk.
const DIRS_PER_CALL: usize = 256;

/// Freed inodes whose content is measured: each costs a call of the disk.
const FREED_MEASURED_MAX: usize = 256;

/// Content that is to be removed, and directories that may be empty.
#[derive(Default)]
pub struct ContentRemoval {
    /// Freed inodes whose content may still be on the disk.
    freed: Mutex<Vec<Ino>>,
    /// Held by the one thread that removes content.
    collecting: Mutex<()>,
    /// Paths of directories that may be empty.
    empty_dirs: Mutex<BTreeSet<String>>,
    /// Whether content without an inode may be there.
    image: Mutex<ImageProgress>,
}

/// How far the store has received the namespace of the other node. An image fits content before its inode arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ImageProgress {
    /// Every inode has arrived.
    #[default]
    Whole,
    /// An image is being received.
    Begun,
    /// An earlier image was not received to its end, or may not have been: content without an inode may be there.
    Interrupted,
}

/// Freed content.
impl ContentRemoval {
    /// These inodes were freed.
    pub fn note_freed(&self, inos: impl IntoIterator<Item = Ino>) {
        self.freed.lock().extend(inos);
    }

    /// Takes over the freed inodes that an earlier process has left in the namespace.
    pub fn load(&self, namespace: &Namespace) -> Result<(), StoreError> {
        let keys = namespace.keys(&keys::table(keys::GARBAGE))?;
        *self.freed.lock() = keys.iter().filter_map(|key| keys::ino_of(key)).collect();
        Ok(())
    }

    /// The freed inodes whose content may still be on the disk.
    pub fn freed(&self) -> Vec<Ino> {
        self.freed.lock().clone()
    }

    /// Bytes that freed content takes on the disk, of as many files as can be measured quickly.
    pub fn freed_bytes(&self, disk: &StoreDisk) -> u64 {
        let freed: Vec<Ino> = {
            let freed = self.freed.lock();
            freed.iter().take(FREED_MEASURED_MAX).copied().collect()
        };
        // A file that `stat` does not find was never written, or its content was removed meanwhile.
        let stats = freed
            .iter()
            .flat_map(|ino| disk.backing().stat(&content_path(*ino)));
        stats.map(|stat| stat.blocks.saturating_mul(512)).sum()
    }

    /// Removes the content of freed inodes, and returns of how many. `sync_log` makes their freeing durable first.
    ///
    /// One thread at a time: a second caller relies on the content being gone that the first is removing.
    pub fn collect(
        &self,
        disk: &StoreDisk,
        dirty: &DirtySet,
        (namespace, observers): (&Namespace, &Observers),
        sync_log: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<usize, StoreError> {
        let _alone = self.collecting.lock();
        let freed: Vec<Ino> = std::mem::take(&mut *self.freed.lock());
        if freed.is_empty() {
            return Ok(0);
        }
        if let Err(error) = sync_log() {
            self.note_freed(freed);
            return Err(error);
        }
        let mut preserved = BTreeMap::new();
        let mut failed = Ok(());
        for (done, ino) in freed.iter().enumerate() {
            let moved = announce(disk, observers, *ino);
            let removed = match moved {
                Ok(Some(directory)) => {
                    preserved.insert(*ino, directory);
                    self.is_gone(dirty, *ino);
                    Ok(())
                }
                Ok(None) => self
                    .remove(disk, dirty, *ino)
                    .and_then(|()| namespace.apply([(keys::garbage(*ino), None)])),
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                self.note_freed(freed.iter().skip(done).copied());
                failed = Err(error);
                break;
            }
        }
        let settled = self.settle_preserved(disk, namespace, &preserved);
        failed.and(settled)?;
        Ok(freed.len())
    }

    /// Makes the names of preserved content durable, by directory, and drops the marks of its inodes.
    fn settle_preserved(
        &self,
        disk: &StoreDisk,
        namespace: &Namespace,
        preserved: &BTreeMap<Ino, String>,
    ) -> Result<(), StoreError> {
        let directories: BTreeSet<&String> = preserved.values().collect();
        let mut synced = directories.into_iter().map(|path| disk.sync_dir(path));
        if let Some(error) = synced.find_map(Result::err) {
            self.note_freed(preserved.keys().copied());
            return Err(error);
        }
        namespace.apply(preserved.keys().map(|ino| (keys::garbage(*ino), None)))
    }

    fn remove(&self, disk: &StoreDisk, dirty: &DirtySet, ino: Ino) -> Result<(), StoreError> {
        let path = content_path(ino);
        match disk.backing().remove(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::disk("remove", path)(error));
            }
            // The file never had content, or it was moved, or an earlier process has removed it.
            Err(_) => {}
            Ok(()) => self.is_gone(dirty, ino),
        }
        dirty.forget(ino);
        Ok(())
    }

    /// The content has no name in its directory any more.
    fn is_gone(&self, dirty: &DirtySet, ino: Ino) {
        dirty.name_removed(ino);
        self.may_be_empty(ino);
        dirty.forget(ino);
    }

    /// An image begins. An earlier one that has not ended never will.
    pub fn image_begins(&self) {
        let mut image = self.image.lock();
        *image = match *image {
            ImageProgress::Whole => ImageProgress::Begun,
            ImageProgress::Begun | ImageProgress::Interrupted => ImageProgress::Interrupted,
        };
    }

    /// An earlier process may have received an image, and not to its end.
    pub fn image_was_interrupted(&self) {
        *self.image.lock() = ImageProgress::Interrupted;
    }

    /// Notes the content for removal that an interrupted image has left without an inode. The walk over all content is left out if
    /// there was none.
    pub fn find_left_by_image(
        &self,
        disk: &StoreDisk,
        namespace: &Namespace,
    ) -> Result<(), StoreError> {
        if *self.image.lock() == ImageProgress::Interrupted {
            self.find_lost(disk, namespace)?;
            *self.image.lock() = ImageProgress::Begun;
        }
        Ok(())
    }

    /// Every inode of an image has arrived.
    pub fn image_ended(&self) {
        let mut image = self.image.lock();
        if *image == ImageProgress::Begun {
            *image = ImageProgress::Whole;
        }
    }

    /// Notes all content without an inode for removal: after a power loss the name of the content may have reached
    /// the disk and the inode not. Inode numbers are never given out again, so no client asks for this content.
    pub fn find_lost(&self, disk: &StoreDisk, namespace: &Namespace) -> Result<(), StoreError> {
        for directory in disk.list(CONTENT_DIR)? {
            for name in disk.list(&format!("{CONTENT_DIR}/{directory}"))? {
                let path = format!("{CONTENT_DIR}/{directory}/{name}");
                // A name that the store never gives is left alone.
                let Some(ino) = content_owner(&path) else {
                    continue;
                };
                let is_lost = namespace.inode(ino)?.is_none();
                if is_lost && namespace.get(&keys::garbage(ino))?.is_none() {
                    namespace.apply([(keys::garbage(ino), Some(Vec::new()))])?;
                    self.note_freed([ino]);
                }
            }
        }
        Ok(())
    }
}

/// Empty directories.
impl ContentRemoval {
    /// The directory of this content may be empty: content was removed, or could not be created.
    pub fn may_be_empty(&self, ino: Ino) {
        if !is_active(Mutant::KeepDirectory) {
            self.empty_dirs.lock().insert(content_dir(ino));
        }
    }

    /// Every directory of content may be empty.
    pub fn all_may_be_empty(&self, disk: &StoreDisk) -> Result<(), StoreError> {
        let names = disk.list(CONTENT_DIR)?;
        let ours = names.iter().filter(|name| is_content_dir(name));
        let mut noted = self.empty_dirs.lock();
        noted.extend(ours.map(|name| format!("{CONTENT_DIR}/{name}")));
        Ok(())
    }

    fn take_empty_dirs(&self) -> Vec<String> {
        let mut noted = self.empty_dirs.lock();
        let some = std::iter::from_fn(|| noted.pop_first());
        some.take(DIRS_PER_CALL).collect()
    }

    /// Removes directories that are empty, at most 256; returns how many. A later call tries again to remove a
    /// directory that could not be removed.
    pub fn remove_empty_dirs(
        &self,
        disk: &StoreDisk,
        dirty: &DirtySet,
    ) -> Result<usize, StoreError> {
        disk.check_not_poisoned()?;
        let (mut removed, mut failed) = (0, None);
        for path in self.take_empty_dirs() {
            match remove_if_empty(disk, dirty, &path) {
                Ok(is_removed) => removed += usize::from(is_removed),
                Err(error) => {
                    self.empty_dirs.lock().insert(path);
                    failed = failed.or(Some(error));
                }
            }
        }
        failed.map_or(Ok(removed), Err)
    }
}

/// Takes the sums of content away, and announces its removal. Returns the directory that has the content then, if an observer needs it.
fn announce(
    disk: &StoreDisk,
    observers: &Observers,
    ino: Ino,
) -> Result<Option<String>, StoreError> {
    // The sums first: content of the same number may come at once.
    observers.sums().removed(ino);
    observers.before_removal(disk, ino)
}

fn remove_if_empty(disk: &StoreDisk, dirty: &DirtySet, path: &str) -> Result<bool, StoreError> {
    let noted = dirty.noted_names();
    let removed = disk.backing().remove_empty_dir(path);
    let is_removed = removed.map_err(StoreError::disk("remove", path))?;
    if is_removed || is_active(Mutant::ForgetNames) {
        dirty.directory_removed(path, noted);
    }
    Ok(is_removed)
}
