//! The names on a disk: the seen names, the durable names, and the changes in between.
//!
//! A power loss keeps or loses a change (making, removing, renaming) as a whole. The surviving changes are
//! done in their order, each only if it is still possible. A name is made only if the name is free and its
//! directory exists. A name is removed or renamed only if it still leads to the same file, or to an empty
//! directory. So a renamed file always has its old or its new name, unless the making of the file was lost.
//!
//! Paths in this module are clean: components with one `/` between, and `""` for the top.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use lockstep_types::Errno;

use super::loss::Survivors;
use crate::random::Random;

/// The number of an inode, never reused.
pub(super) type InodeNumber = u64;

/// The object to which a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    File(InodeNumber),
    Directory,
}

#[derive(Clone, Debug)]
enum Change {
    Make {
        path: String,
        entry: Entry,
    },
    Remove {
        path: String,
        entry: Entry,
    },
    Rename {
        from: String,
        to: String,
        entry: Entry,
    },
}

impl Change {
    fn paths(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::Make { path, .. } | Self::Remove { path, .. } => (path, None),
            Self::Rename { from, to, .. } => (from, Some(to)),
        };
        std::iter::once(first).chain(second).map(String::as_str)
    }

    /// Whether a sync of a directory covers it.
    fn is_in(&self, directory: &str) -> bool {
        let makes_way = |path: &str| {
            matches!(
                self,
                Self::Make {
                    entry: Entry::Directory,
                    ..
                }
            ) && is_at_or_above(path, directory)
        };
        self.paths()
            .any(|path| parent(path) == directory || makes_way(path))
    }
}

#[derive(Clone, Debug)]
struct Unsynced {
    number: u64,
    change: Change,
    /// A sync that should have covered the change has failed. Later syncs do not cover it either, unless they
    /// save a change that depends on it.
    is_lost: bool,
}

type Tree = BTreeMap<String, Entry>;

/// All names.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    seen: Tree,
    kept: Tree,
    unsynced: Vec<Unsynced>,
}

/// The directory of a path.
pub(super) fn parent(path: &str) -> &str {
    nearest_above(path).unwrap_or("")
}

/// The directory above a path, unless that directory is the top.
fn nearest_above(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(parent, _)| parent)
}

/// The directories above a path, the nearest first, without the top.
fn above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(nearest_above(path), |path| nearest_above(path))
}

fn is_at_or_above(path: &str, directory: &str) -> bool {
    let rest = directory.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The names directly in a directory.
fn inside<'a>(tree: &'a Tree, directory: &str) -> impl Iterator<Item = &'a str> {
    let prefix = if directory.is_empty() {
        String::new()
    } else {
        format!("{directory}/")
    };
    let from = (Bound::Excluded(prefix.as_str()), Bound::Unbounded);
    let names = tree.range::<str, _>(from).map(|(path, _)| path.as_str());
    names
        .map_while(move |path| path.strip_prefix(prefix.as_str()))
        .filter(|name| !name.contains('/'))
}

/// Does a change on a tree, if it is possible. Returns the file that lost its last name, if one did.
fn apply_change(tree: &mut Tree, change: &Change) -> Result<Option<InodeNumber>, Errno> {
    let has_parent = |tree: &Tree, path: &str| {
        let parent = parent(path);
        parent.is_empty() || tree.get(parent) == Some(&Entry::Directory)
    };
    let replaced = match change {
        Change::Make { path, entry } if !tree.contains_key(path) && has_parent(tree, path) => {
            tree.insert(path.clone(), *entry)
        }
        Change::Remove { path, entry }
            if tree.get(path) == Some(entry) && inside(tree, path).next().is_none() =>
        {
            tree.remove(path)
        }
        Change::Rename { from, to, entry }
            if tree.get(from) == Some(entry) && has_parent(tree, to) =>
        {
            tree.remove(from);
            tree.insert(to.clone(), *entry)
        }
        _ => return Err(Errno::NoEntry),
    };
    Ok(match replaced {
        Some(Entry::File(number)) => Some(number),
        Some(Entry::Directory) | None => None,
    })
}

impl Names {
    /// Returns the object to which a path leads.
    pub(super) fn find(&self, path: &str) -> Result<Entry, Errno> {
        if path.is_empty() {
            return Ok(Entry::Directory);
        }
        if let Some(entry) = self.seen.get(path) {
            return Ok(*entry);
        }
        let is_file = |path| matches!(self.seen.get(path), Some(Entry::File(_)));
        let error = if above(path).any(is_file) {
            Errno::NotDirectory
        } else {
            Errno::NoEntry
        };
        Err(error)
    }

    /// Returns the file to which a path leads.
    pub(super) fn file(&self, path: &str) -> Result<InodeNumber, Errno> {
        match self.find(path)? {
            Entry::File(number) => Ok(number),
            Entry::Directory => Err(Errno::IsDirectory),
        }
    }

    /// Every file with its path, sorted by path.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, InodeNumber)> {
        files_of(&self.seen)
    }

    /// Every file with a durable name.
    pub(super) fn kept_files(&self) -> impl Iterator<Item = (&str, InodeNumber)> {
        files_of(&self.kept)
    }

    /// Every seen directory.
    pub(super) fn directories(&self) -> impl Iterator<Item = &str> {
        directories_of(&self.seen)
    }

    /// Every directory with a durable name.
    pub(super) fn kept_directories(&self) -> impl Iterator<Item = &str> {
        directories_of(&self.kept)
    }

    /// The names in a directory; none if the directory is missing.
    pub(super) fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        match self.find(path) {
            Ok(Entry::Directory) => Ok(inside(&self.seen, path).map(str::to_owned).collect()),
            Ok(Entry::File(_)) => Err(Errno::NotDirectory),
            Err(Errno::NoEntry) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Directories that must be made before a path can be, the highest first.
    pub(super) fn missing_above(&self, path: &str) -> Vec<String> {
        let missing = above(path).filter(|path| !self.seen.contains_key(*path));
        let mut missing: Vec<String> = missing.map(str::to_owned).collect();
        missing.reverse();
        missing
    }

    fn change(&mut self, change: Change, number: u64) -> Result<Option<InodeNumber>, Errno> {
        let done = apply_change(&mut self.seen, &change)?;
        self.unsynced.push(Unsynced {
            number,
            change,
            is_lost: false,
        });
        Ok(done)
    }

    /// Makes a name.
    pub(super) fn make(&mut self, path: &str, entry: Entry, number: u64) -> Result<(), Errno> {
        let path = path.to_owned();
        self.change(Change::Make { path, entry }, number).map(drop)
    }

    /// Removes the name of a file, and returns the file.
    pub(super) fn remove(&mut self, path: &str, number: u64) -> Result<InodeNumber, Errno> {
        let file = self.file(path)?;
        let path = path.to_owned();
        self.change(
            Change::Remove {
                path,
                entry: Entry::File(file),
            },
            number,
        )?;
        Ok(file)
    }

    /// Removes the name of an empty directory.
    pub(super) fn remove_directory(&mut self, path: &str, number: u64) -> Result<(), Errno> {
        match self.find(path)? {
            Entry::Directory => {}
            Entry::File(_) => return Err(Errno::NotDirectory),
        }
        if inside(&self.seen, path).next().is_some() {
            return Err(Errno::NotEmpty);
        }
        let (path, entry) = (path.to_owned(), Entry::Directory);
        self.change(Change::Remove { path, entry }, number)
            .map(drop)
    }

    /// Renames a file, and returns the file that had the new name before.
    pub(super) fn rename(
        &mut self,
        from: &str,
        to: &str,
        number: u64,
    ) -> Result<Option<InodeNumber>, Errno> {
        let file = self.file(from)?;
        match self.find(to) {
            Ok(Entry::Directory) => return Err(Errno::IsDirectory),
            Ok(Entry::File(replaced)) if replaced == file => return Ok(None),
            Ok(Entry::File(_)) | Err(Errno::NoEntry) => {}
            Err(error) => return Err(error),
        }
        let (from, to) = (from.to_owned(), to.to_owned());
        self.change(
            Change::Rename {
                from,
                to,
                entry: Entry::File(file),
            },
            number,
        )
    }

    /// Makes durable the names in a directory, its own name and the names of the directories above it.
    /// Returns the files that a power loss can no longer bring back.
    pub(super) fn sync(&mut self, directory: &str) -> Vec<InodeNumber> {
        self.make_durable(|change| change.is_in(directory))
    }

    /// Makes all names durable.
    pub(super) fn sync_all(&mut self) -> Vec<InodeNumber> {
        self.make_durable(|_| true)
    }

    /// Makes durable the changes that a sync covers, and the changes on which they depend.
    fn make_durable(&mut self, covers: impl Fn(&Change) -> bool) -> Vec<InodeNumber> {
        let mut saved = Vec::new();
        let mut left = Vec::new();
        let mut needed = BTreeSet::new();
        let mut emptied = BTreeSet::new();
        for unsynced in std::mem::take(&mut self.unsynced).into_iter().rev() {
            let change = &unsynced.change;
            // A directory is removed only after its entries.
            let is_needed = change
                .paths()
                .any(|path| needed.contains(path) || above(path).any(|dir| emptied.contains(dir)));
            if !is_needed && (unsynced.is_lost || !covers(change)) {
                left.push(unsynced);
                continue;
            }
            let paths = change
                .paths()
                .flat_map(|path| std::iter::once(path).chain(above(path)));
            needed.extend(paths.map(str::to_owned));
            if let Change::Remove {
                path,
                entry: Entry::Directory,
            } = change
            {
                emptied.insert(path.clone());
            }
            saved.push(unsynced.change);
        }
        left.reverse();
        self.unsynced = left;
        let done = saved
            .iter()
            .rev()
            .map(|change| apply_change(&mut self.kept, change));
        done.flatten().flatten().collect()
    }

    /// Fails a sync of a directory: the changes that it should have saved are clean from now on.
    pub(super) fn fail_sync(&mut self, directory: &str) {
        self.give_up(|change| change.is_in(directory));
    }

    /// Fails a sync of all names.
    pub(super) fn fail_sync_all(&mut self) {
        self.give_up(|_| true);
    }

    fn give_up(&mut self, covers: impl Fn(&Change) -> bool) {
        let covered = self
            .unsynced
            .iter_mut()
            .filter(|unsynced| covers(&unsynced.change));
        covered.for_each(|unsynced| unsynced.is_lost = true);
    }

    /// Loses power: chooses the surviving changes, whose result becomes the seen state.
    pub(super) fn lose_power(&mut self, survivors: Survivors, random: &mut Random) {
        for unsynced in std::mem::take(&mut self.unsynced) {
            let mixed = matches!(survivors, Survivors::Mixed { .. });
            if survivors.keep(unsynced.number, random) && (mixed || !unsynced.is_lost) {
                // A change that is no longer possible is lost with the change on which it depended.
                let _ = apply_change(&mut self.kept, &unsynced.change);
            }
        }
        self.seen = self.kept.clone();
    }

    /// Number of changes that are not on stable storage.
    pub(super) fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// The number of the first change that is not on stable storage.
    pub(super) fn first_change(&self) -> Option<u64> {
        self.unsynced.first().map(|unsynced| unsynced.number)
    }
}

fn files_of(tree: &Tree) -> impl Iterator<Item = (&str, InodeNumber)> {
    tree.iter().filter_map(|(path, entry)| match entry {
        Entry::File(number) => Some((path.as_str(), *number)),
        Entry::Directory => None,
    })
}

fn directories_of(tree: &Tree) -> impl Iterator<Item = &str> {
    let directories = tree.iter().filter(|(_, entry)| **entry == Entry::Directory);
    directories.map(|(path, _)| path.as_str())
}
