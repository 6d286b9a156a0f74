//! The answer to a change reader: a walk over the names of the store, page by page, that tells the entries which the marks name.
//!
//! The walk reads the present. A name that comes, goes or moves while the walk goes on is marked again, and is in the next answer.
//!
//! - First the names that are gone: marked names of directories that exist.
//! - Then all names, in the order of their keys. An entry is *new* if its own name is marked, or that of a directory above it: a
//!   directory that was moved has the marks of its own name only. Any other entry is *changed* if its inode is marked.
//!
//! A name that is gone with its directory is not told: the name of the directory is. Each entry of a file with several names is
//! told.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use lockstep_types::{Ino, NodeKind};

use super::column::ReaderColumn;
use super::point::ChangePoint;
use super::reader::ChangeReader;
use crate::error::{OpError, StoreError};
use crate::namespace::keys;
use crate::namespace::record::{self, Body, EntryRecord};
use crate::view::StoreView;
use crate::view::directory_paths::{DirectoryPaths, join, parent_of};

/// Names that one page looks at.
const LOOKED_MAX: usize = 8192;
/// Bytes of the entries of a page, roughly. One entry may exceed them.
const PAGE_BYTES_MAX: usize = 128 << 10;
/// Most runs of bytes of an entry. The last one then has everything behind.
const RANGES_MAX: usize = 4096;
/// Deepest directory. No store has a deeper one that is not damaged.
const DEPTH_MAX: usize = 1 << 20;
/// Most directories of which the walk remembers whether they are new.
const KNOWN_MAX: usize = 64 << 10;

/// The change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// The name has come, or leads to another inode: copy all of it.
    New,
    /// The inode has changed.
    Changed,
    /// Nothing has this name any more.
    Removed,
}

/// An entry that may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedEntry {
    /// The path from the root of the datastore, without a slash in front; `.` is the root.
    pub path: Vec<u8>,
    /// The change.
    pub change: EntryChange,
    /// The inode and its kind; `None` if the name is gone.
    pub node: Option<(Ino, NodeKind)>,
    /// The size of a file.
    pub size: Option<u64>,
    /// Attributes or extended attributes may have changed.
    pub attributes: bool,
    /// The bytes of a file that may have changed, in order.
    pub ranges: Vec<Range<u64>>,
}

impl ChangedEntry {
    fn bytes(&self) -> usize {
        64 + self.path.len() + 16 * self.ranges.len()
    }
}

/// The place where the next page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WalkPlace {
    Root,
    Gone(Vec<u8>),
    Present(Vec<u8>),
    End,
}

/// A question whose answer was replaced by a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerReplaced;

/// See the head of this file.
pub struct ChangeWalk {
    reader: Arc<ChangeReader>,
    point: ChangePoint,
    place: WalkPlace,
    /// Directories whose names are marked.
    new_directories: HashSet<Ino>,
    /// Whether a directory is new, or one above it.
    known: HashMap<Ino, bool>,
    paths: DirectoryPaths,
}

/// Entries without their paths.
type FoundEntries = Vec<(Ino, ChangedEntry)>;

impl ChangeWalk {
    /// The walk of the answer of `point`.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(super) fn begin(
        reader: Arc<ChangeReader>,
        point: ChangePoint,
        view: &dyn StoreView,
    ) -> Result<Self, OpError> {
        let mut new_directories = HashSet::new();
        for key in reader.older().names_after(&[]) {
            if let Some(entry) = entry_at(view, key)?
                && entry.kind == NodeKind::Directory
            {
                new_directories.insert(entry.ino);
            }
        }
        Ok(Self {
            reader,
            point,
            place: WalkPlace::Root,
            new_directories,
            known: HashMap::new(),
            paths: DirectoryPaths::default(),
        })
    }

    /// The next entries, perhaps none; `None` at the end.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn next_page(
        &mut self,
        view: &dyn StoreView,
    ) -> Result<Result<Option<Vec<ChangedEntry>>, AnswerReplaced>, OpError> {
        let reader = Arc::clone(&self.reader);
        let column = reader.older();
        if reader.points().turned != Some(self.point) {
            return Ok(Err(AnswerReplaced));
        }
        let found = match std::mem::replace(&mut self.place, WalkPlace::End) {
            WalkPlace::End => return Ok(Ok(None)),
            WalkPlace::Root => self.root(view, &column)?,
            WalkPlace::Gone(after) => self.gone(view, &column, &after)?,
            WalkPlace::Present(after) => self.present(view, &column, &after)?,
        };
        self.with_paths(view, found).map(|page| Ok(Some(page)))
    }

    fn root(
        &mut self,
        view: &dyn StoreView,
        column: &ReaderColumn,
    ) -> Result<FoundEntries, OpError> {
        self.place = WalkPlace::Gone(Vec::new());
        let node = (Ino::ROOT, NodeKind::Directory);
        let found = changed(view, column, node)?.map(|mut entry| {
            entry.path = b".".to_vec();
            (Ino::ROOT, entry)
        });
        Ok(found.into_iter().collect())
    }

    fn gone(
        &mut self,
        view: &dyn StoreView,
        column: &ReaderColumn,
        after: &[u8],
    ) -> Result<FoundEntries, OpError> {
        let mut found = Vec::new();
        let mut last = None;
        for key in column.names_after(after).take(LOOKED_MAX) {
            last = Some(key.clone());
            let directory = keys::ino_of(key).filter(|_| column.has_key(key));
            if let (Some(directory), None) = (directory, entry_at(view, key)?) {
                found.push((directory, of_name(key, EntryChange::Removed)));
            }
        }
        self.place = match last {
            Some(last) => WalkPlace::Gone(last),
            None => WalkPlace::Present(Vec::new()),
        };
        Ok(found)
    }

    fn present(
        &mut self,
        view: &dyn StoreView,
        column: &ReaderColumn,
        after: &[u8],
    ) -> Result<FoundEntries, OpError> {
        let range = keys::table(keys::ENTRIES);
        let range = if after.is_empty() {
            range
        } else {
            range.after(after)
        };
        let mut names = Vec::new();
        view.scan(&range, &mut |key, value| {
            names.push((key.to_vec(), record::decode::<EntryRecord>(value)));
            if names.len() == LOOKED_MAX {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        let is_end = names.len() < LOOKED_MAX;
        let (mut found, mut bytes) = (Vec::new(), 0);
        for (key, entry) in names {
            let entry = entry.ok_or_else(|| StoreError::unreadable(&key))?;
            if let Some((directory, entry)) = self.present_entry(view, column, &key, entry)? {
                bytes += entry.bytes();
                found.push((directory, entry));
            }
            if bytes > PAGE_BYTES_MAX {
                self.place = WalkPlace::Present(key);
                return Ok(found);
            }
            self.place = WalkPlace::Present(key);
        }
        if is_end {
            self.place = WalkPlace::End;
        }
        Ok(found)
    }

    fn present_entry(
        &mut self,
        view: &dyn StoreView,
        column: &ReaderColumn,
        key: &[u8],
        entry: EntryRecord,
    ) -> Result<Option<(Ino, ChangedEntry)>, OpError> {
        let Some(directory) = keys::ino_of(key) else {
            return Ok(None);
        };
        let node = (entry.ino, entry.kind);
        let is_new = column.has_key(key) || self.is_new(view, directory)?;
        let found = if is_new {
            let size = size_of(view, node)?;
            Some(ChangedEntry {
                node: Some(node),
                size,
                attributes: true,
                ranges: size
                    .filter(|size| *size > 0)
                    .map(|size| 0..size)
                    .into_iter()
                    .collect(),
                ..of_name(key, EntryChange::New)
            })
        } else {
            changed(view, column, node)?.map(|found| ChangedEntry {
                path: keys::rest_of(key).to_vec(),
                ..found
            })
        };
        Ok(found.map(|found| (directory, found)))
    }

    /// Whether the name of a directory, or of one above it, is marked.
    fn is_new(&mut self, view: &dyn StoreView, directory: Ino) -> Result<bool, OpError> {
        if self.new_directories.is_empty() {
            return Ok(false);
        }
        if self.known.len() > KNOWN_MAX {
            self.known.clear();
        }
        let (mut chain, mut at, mut is_new) = (Vec::new(), directory, false);
        while at != Ino::ROOT && chain.len() < DEPTH_MAX {
            if let Some(known) = self.known.get(&at) {
                is_new = *known;
                break;
            }
            chain.push(at);
            if self.new_directories.contains(&at) {
                is_new = true;
                break;
            }
            let Some(parent) = parent_of(view, at)? else {
                break;
            };
            at = parent;
        }
        self.known.extend(chain.into_iter().map(|at| (at, is_new)));
        Ok(is_new)
    }

    /// Puts the path of the directory before each name. An entry whose directory has left the tree meanwhile is left out: the next
    /// answer has it.
    fn with_paths(
        &mut self,
        view: &dyn StoreView,
        found: FoundEntries,
    ) -> Result<Vec<ChangedEntry>, OpError> {
        let directories: BTreeSet<Ino> = found.iter().map(|(directory, _)| *directory).collect();
        self.paths.find(view, &directories)?;
        let paths = &self.paths;
        let page = found.into_iter().filter_map(|(directory, mut entry)| {
            entry.path = join(paths.of(directory)?, &entry.path);
            Some(entry)
        });
        Ok(page.collect())
    }
}

fn of_name(key: &[u8], change: EntryChange) -> ChangedEntry {
    ChangedEntry {
        path: keys::rest_of(key).to_vec(),
        change,
        node: None,
        size: None,
        attributes: false,
        ranges: Vec::new(),
    }
}

fn entry_at(view: &dyn StoreView, key: &[u8]) -> Result<Option<EntryRecord>, OpError> {
    let Some(bytes) = view.get(key)? else {
        return Ok(None);
    };
    let entry = record::decode(&bytes).ok_or_else(|| StoreError::unreadable(key))?;
    Ok(Some(entry))
}

/// The size of a file; `None` for another inode, or if it is gone.
fn size_of(view: &dyn StoreView, (ino, kind): (Ino, NodeKind)) -> Result<Option<u64>, OpError> {
    if kind != NodeKind::File {
        return Ok(None);
    }
    Ok(view.inode(ino)?.and_then(|inode| match inode.body {
        Body::File { size } => Some(size),
        _ => None,
    }))
}

/// An inode whose name has not changed, without that name; `None` if nothing of it is marked.
fn changed(
    view: &dyn StoreView,
    column: &ReaderColumn,
    node: (Ino, NodeKind),
) -> Result<Option<ChangedEntry>, OpError> {
    let (ino, _) = node;
    let runs = column.notes().runs_of(ino);
    let attributes = column.has_attributes(ino);
    if runs.is_empty() && !attributes {
        return Ok(None);
    }
    let size = size_of(view, node)?;
    Ok(Some(ChangedEntry {
        path: Vec::new(),
        change: EntryChange::Changed,
        node: Some(node),
        size,
        attributes,
        ranges: cut(runs, size.unwrap_or(0)),
    }))
}

/// The runs within the size of a file, not too many.
fn cut(runs: Vec<Range<u64>>, size: u64) -> Vec<Range<u64>> {
    let within = runs.into_iter().filter(|run| run.start < size);
    let mut cut: Vec<_> = within.map(|run| run.start..run.end.min(size)).collect();
    if cut.len() > RANGES_MAX {
        cut.truncate(RANGES_MAX);
        if let Some(last) = cut.last_mut() {
            last.end = size;
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_runs_become_one_and_none_is_lost() {
        let part = |number: u64| 2 * number..2 * number + 1;
        let all: Vec<_> = (0..RANGES_MAX as u64 + 9).map(part).collect();
        let size = 2 * RANGES_MAX as u64 + 5;
        let runs = cut(all, size);
        assert_eq!(runs.len(), RANGES_MAX);
        assert_eq!(runs[0], part(0));
        assert_eq!(
            runs[RANGES_MAX - 1],
            part(RANGES_MAX as u64 - 1).start..size
        );
        let of_end = |start| cut(std::iter::once(start..u64::MAX).collect(), 7);
        assert_eq!(of_end(5).first(), Some(&(5..7)));
        assert!(of_end(7).is_empty());
    }
}
