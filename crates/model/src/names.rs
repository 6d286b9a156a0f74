//! The names in a directory.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_types::{FileName, Ino};

/// Names with the cookies that give their order. A newer name has a higher cookie.
#[derive(Clone, Debug, Default)]
pub struct Names {
    by_name: BTreeMap<FileName, u64>,
    by_cookie: BTreeMap<u64, (FileName, Ino)>,
    /// Cookies of the names that lead to directories.
    directories: BTreeSet<u64>,
}

impl Names {
    /// Returns the inode to which a name leads.
    pub fn get(&self, name: &FileName) -> Option<Ino> {
        let cookie = self.by_name.get(name)?;
        Some(self.by_cookie[cookie].1)
    }

    /// Whether the directory is empty.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Number of subdirectories.
    pub fn subdirectories(&self) -> usize {
        self.directories.len()
    }

    /// Returns all entries with their cookies, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &FileName, Ino)> {
        let entries = self.by_cookie.iter();
        entries.map(|(cookie, (name, ino))| (*cookie, name, *ino))
    }

    /// Returns the entries that a listing has after position `cookie`, the newest first. Zero is the start.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &FileName, Ino)> {
        let end = if cookie == 0 { u64::MAX } else { cookie };
        let entries = self.by_cookie.range(..end).rev();
        entries.map(|(cookie, (name, ino))| (*cookie, name, *ino))
    }

    /// Lets a name lead to `ino`, and returns the inode to which the name led before. A name that exists keeps its
    /// cookie.
    pub(crate) fn set(
        &mut self,
        cookie: u64,
        name: &FileName,
        ino: Ino,
        is_directory: bool,
    ) -> Option<Ino> {
        let cookie = *self.by_name.entry(name.clone()).or_insert(cookie);
        if is_directory {
            self.directories.insert(cookie);
        } else {
            self.directories.remove(&cookie);
        }
        let before = self.by_cookie.insert(cookie, (name.clone(), ino));
        before.map(|(_, ino)| ino)
    }

    /// Removes a name that exists.
    pub(crate) fn remove(&mut self, name: &FileName) -> Ino {
        let cookie = self.by_name.remove(name).expect("the caller has checked");
        self.directories.remove(&cookie);
        let (_, ino) = self.by_cookie.remove(&cookie).expect("both maps agree");
        ino
    }
}
