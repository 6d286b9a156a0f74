//! Directories of content that may hold nothing any more, and their removal.
//!
//! A directory is noted when content in it was removed, when content could not be made in it, and when the
//! store is opened, as an earlier process may have left it empty. The disk decides whether it is empty, in
//! the call that removes it. So nothing is held against threads that make content: one that finds
//! the directory removed makes it anew ([`Backing::open_or_create`]).
//!
//! Invariant: what [`Unsynced`] notes of a directory goes only if the directory was removed after that note
//! was made. Content in a new directory of that name is noted after the removal, and keeps its note.
//!
//! [`Backing::open_or_create`]: lockstep_types::backing::Backing::open_or_create
//! [`Unsynced`]: super::unsynced::Unsynced

use std::collections::BTreeSet;

use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

use super::Store;
use crate::error::StoreError;
use crate::files::{CONTENT_DIR, content_dir, is_content_dir};

/// Directories that are looked at in one go. After the opening of a large store all of them are noted,
/// and each may cost a read from the disk.
const AT_ONCE_MAX: usize = 256;

/// Paths of directories that may be empty.
#[derive(Default)]
pub(super) struct Emptied(Mutex<BTreeSet<String>>);

impl Emptied {
    /// Content was removed, or could not be made.
    pub(super) fn note(&self, ino: Ino) {
        if !is_active(Mutant::KeepDirectory) {
            self.0.lock().insert(content_dir(ino));
        }
    }

    /// Some of those noted, which are noted no more.
    fn take(&self) -> Vec<String> {
        let mut noted = self.0.lock();
        let some = std::iter::from_fn(|| noted.pop_first());
        some.take(AT_ONCE_MAX).collect()
    }
}

impl Store {
    /// Notes every directory of content.
    pub(super) fn doubt_directories(&self) -> Result<(), StoreError> {
        let names = self.backing.list(CONTENT_DIR);
        let names = names.map_err(StoreError::disk("list", CONTENT_DIR))?;
        let ours = names.iter().filter(|name| is_content_dir(name));
        let mut noted = self.emptied.0.lock();
        noted.extend(ours.map(|name| format!("{CONTENT_DIR}/{name}")));
        Ok(())
    }

    /// Removes directories of content that hold nothing, 256 at most; returns how many. One that
    /// cannot be removed is tried again the next time.
    pub fn remove_empty_directories(&self) -> Result<usize, StoreError> {
        self.check_trust()?;
        let (mut removed, mut failed) = (0, None);
        for path in self.emptied.take() {
            match self.remove_if_empty(&path) {
                Ok(is_removed) => removed += usize::from(is_removed),
                Err(error) => {
                    self.emptied.0.lock().insert(path);
                    failed = failed.or(Some(error));
                }
            }
        }
        failed.map_or(Ok(removed), Err)
    }

    fn remove_if_empty(&self, path: &str) -> Result<bool, StoreError> {
        let noted = self.unsynced.noted_names();
        let removed = self.backing.remove_empty_dir(path);
        let is_removed = removed.map_err(StoreError::disk("remove", path))?;
        if is_removed || is_active(Mutant::ForgetNames) {
            self.unsynced.directory_removed(path, noted);
        }
        Ok(is_removed)
    }
}
