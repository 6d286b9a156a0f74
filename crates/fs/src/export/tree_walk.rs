//! A walk over all names of a store in the order of a manifest: paths, compared name by name as bytes.
//!
//! Memory grows with the largest directories on one path, not with the depth or the size of the tree.

use std::ops::ControlFlow;
use std::vec::IntoIter;

use lockstep_types::{Attr, Ino, NodeKind};

use super::content_reader::ContentReader;
use super::error::ExportError;
use super::place::Xattrs;
use crate::error::OpError;
use crate::namespace::record::NamedEntry;
use crate::text::escaped;
use crate::view::StoreView;

/// A step of a walk.
pub(super) enum WalkStep {
    /// A name. After the name of a directory come the names in the directory, and then [`Self::Leave`]. The first name is the root.
    Name(NamedInode),
    /// All names in a directory are passed. The walk ends without this step for the root.
    Leave,
}

/// The inode of a name, with its last name; the root has an empty one.
pub(super) struct NamedInode {
    pub attr: Attr,
    pub xattrs: Xattrs,
    pub name: Vec<u8>,
}

/// A directory whose entries are being passed.
struct WalkLevel {
    entries: IntoIter<NamedEntry>,
    /// Length of the path before the directory's own name.
    path_before: usize,
}

/// See the head of this file.
pub(super) struct TreeWalk<'a> {
    view: &'a dyn StoreView,
    /// The levels of directories up to the root; `None` before the root.
    levels: Option<Vec<WalkLevel>>,
    path: Vec<u8>,
    /// Length of the path without the last name, once the name is passed.
    path_after: Option<usize>,
}

impl<'a> TreeWalk<'a> {
    pub fn new(view: &'a dyn StoreView) -> Self {
        Self {
            view,
            levels: None,
            path: Vec::new(),
            path_after: None,
        }
    }

    /// The path of the last step, relative to the root, which is `.`.
    pub fn path(&self) -> &[u8] {
        if self.path.is_empty() {
            b"."
        } else {
            &self.path
        }
    }

    /// The path of the last step, on one line.
    pub fn name(&self) -> String {
        escaped(self.path())
    }

    /// Names the last step in an error.
    pub fn read<T>(&self, read: Result<T, OpError>) -> Result<T, ExportError> {
        read.map_err(|source| ExportError::Read {
            name: self.name(),
            source,
        })
    }

    /// The content of the regular file of the last step. Content that does not fit its record is an error.
    pub fn content(&self, attr: &Attr) -> Result<ContentReader, ExportError> {
        self.read(self.view.check_content(attr.ino))?;
        let content = self.read(self.view.content(attr.ino).map_err(OpError::from))?;
        Ok(ContentReader::new(content, attr.size))
    }

    /// The target of the symbolic link of the last step; empty for another inode.
    pub fn target(&self, attr: &Attr) -> Result<Vec<u8>, ExportError> {
        match attr.kind {
            NodeKind::Symlink => self.read(self.view.readlink(attr.ino)),
            _ => Ok(Vec::new()),
        }
    }

    /// The next step; `None` at the end.
    pub fn next(&mut self) -> Result<Option<WalkStep>, ExportError> {
        if let Some(length) = self.path_after.take() {
            self.path.truncate(length);
        }
        let Some(levels) = &mut self.levels else {
            self.levels = Some(Vec::new());
            return self.pass(Ino::ROOT, Vec::new(), 0).map(Some);
        };
        let Some(level) = levels.last_mut() else {
            return Ok(None);
        };
        if let Some(entry) = level.entries.next() {
            return self.pass_entry(&entry).map(Some);
        }
        self.path_after = Some(level.path_before);
        levels.pop();
        Ok((!levels.is_empty()).then_some(WalkStep::Leave))
    }

    fn pass_entry(&mut self, entry: &NamedEntry) -> Result<WalkStep, ExportError> {
        let before = self.path.len();
        if before > 0 {
            self.path.push(b'/');
        }
        let name = entry.name.as_bytes();
        self.path.extend_from_slice(name);
        self.pass(entry.ino, name.to_vec(), before)
    }

    fn pass(
        &mut self,
        ino: Ino,
        name: Vec<u8>,
        path_before: usize,
    ) -> Result<WalkStep, ExportError> {
        let attr = self.read(self.view.getattr(ino))?;
        let xattrs = self.xattrs(ino)?;
        if attr.kind == NodeKind::Directory {
            let entries = self.entries(ino)?.into_iter();
            self.levels.get_or_insert_default().push(WalkLevel {
                entries,
                path_before,
            });
        } else {
            self.path_after = Some(path_before);
        }
        Ok(WalkStep::Name(NamedInode { attr, xattrs, name }))
    }

    fn entries(&self, directory: Ino) -> Result<Vec<NamedEntry>, ExportError> {
        let mut entries = Vec::new();
        let listed = self.view.readdir(directory, 0, &mut |_, entry| {
            entries.push(entry);
            ControlFlow::Continue(())
        });
        self.read(listed)?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn xattrs(&self, ino: Ino) -> Result<Xattrs, ExportError> {
        let names = self.read(self.view.listxattr(ino))?;
        let value = |name: Vec<u8>| -> Result<_, ExportError> {
            let value = self.read(self.view.getxattr(ino, &name))?;
            Ok((name, value))
        };
        names.into_iter().map(value).collect()
    }
}
