//! The trash of a datastore, for operators (rule P38): its list on each node, and the commands of the primary that give names back and empty it.
//!
//! Each name is given back by one operation. A command that ends early has done a part, and goes on when it is given again.

mod access;
mod keeper;
mod restore;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;

use lockstep_fs::plan::View;
use lockstep_fs::record::TrashMark;
use lockstep_fs::view::directory_paths::DirectoryPaths;
use lockstep_fs::{OpError, StoreView};
use lockstep_types::limits::REAPED_MAX;
use lockstep_types::{FileName, Ino, MetaRequest, NodeKind, Timestamp};

use super::told_path::told_path;
use crate::engine::Engine;
use crate::ops::meta_pipeline::MetaPipeline;
use crate::ops::own_operation::carry_out;
use crate::report::{
    CommandFailure, RestoreQuestion, TrashEntry, TrashPage, TrashRestored, TrashStatus,
};
pub(crate) use keeper::TrashKeeper;

use access::TrashAccess;
use restore::{Restoring, TellNamed};

/// Entries of one part of the list.
const PAGE: usize = 500;

/// The path of an entry begins with this if the directory of its last name is gone.
const GONE: &[u8] = b"?";

/// The trash of a running datastore.
#[derive(Clone, Copy)]
pub(crate) struct TrashService<'a>(TrashAccess<'a>);

impl<'a> TrashService<'a> {
    /// The trash in the store of a node.
    pub fn of(engine: &'a Engine) -> Self {
        Self(TrashAccess::of(engine))
    }

    /// A part of the list, from an inode number on.
    ///
    /// # Errors
    /// The disk fails.
    pub fn list(self, from: u64) -> Result<TrashPage, CommandFailure> {
        self.page(from).map_err(|error| self.0.failed(&error))
    }

    fn page(self, from: u64) -> Result<TrashPage, OpError> {
        let Some(first) = Ino::new(from.max(Ino::ROOT.get())) else {
            return Ok(TrashPage::default());
        };
        let marks = self.0.marks(first, PAGE)?;
        let is_full = marks.len() == PAGE;
        let next = marks.last().filter(|_| is_full);
        let next = next.map(|(ino, _)| ino.next().get());
        let mut places = Vec::new();
        for (ino, mark) in marks {
            let (top, below) = self.place(&mark)?;
            places.push((ino, mark, top, below));
        }
        let tree = self.0.engine.store.tree();
        let wanted: BTreeSet<Ino> = places.iter().map(|it| it.2).collect();
        let mut paths = DirectoryPaths::default();
        paths.find(&tree, &wanted)?;
        let mut entries = Vec::new();
        for (ino, mark, top, below) in places {
            let Some(inode) = tree.inode(ino)? else {
                continue;
            };
            let mut path = paths.of(top).unwrap_or(GONE).to_vec();
            for name in below.iter().rev() {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name.as_bytes());
            }
            let (path, path_hex) = told_path(&path);
            entries.push(TrashEntry {
                inode: ino.get(),
                path,
                path_hex,
                kind: kind_word(inode.kind()).to_owned(),
                size: inode.body.file_size().unwrap_or(0),
                deleted: mark.time.utc(),
                deleted_secs: mark.time.secs,
                osn: mark.osn.to_string(),
            });
        }
        Ok(TrashPage { entries, next })
    }

    /// The place at which an inode had its last name: the lowest directory above that is not in the trash, and the names from the last one up.
    fn place(self, mark: &TrashMark) -> Result<(Ino, Vec<FileName>), OpError> {
        let tree = self.0.engine.store.tree();
        let (mut top, mut below) = (mark.parent, vec![mark.name.clone()]);
        while let Some(above) = tree.trash_mark(top)? {
            top = above.parent;
            below.push(above.name);
        }
        Ok((top, below))
    }

    /// Gives a file or a directory its name back, and the files that were deleted from the directory before.
    ///
    /// # Errors
    /// There is no such file, its place is taken, or the outcome is not known.
    pub fn restore(
        self,
        question: &RestoreQuestion,
        pipeline: &MetaPipeline,
        tell: TellNamed<'_>,
    ) -> Result<TrashRestored, CommandFailure> {
        Restoring::begin(self.0, pipeline, tell)?.run(question)
    }

    /// Takes everything out of the trash, or all files that were deleted before a moment. Returns the number of files and directories.
    ///
    /// # Errors
    /// The outcome is not known, or the disk fails. A part may be done.
    pub fn empty(
        self,
        before: Option<i64>,
        pipeline: &MetaPipeline,
    ) -> Result<u64, CommandFailure> {
        let (mut first, mut count) = (Some(Ino::ROOT), 0);
        while let Some(from) = first {
            let page = self
                .0
                .marks(from, REAPED_MAX)
                .map_err(|error| self.0.failed(&error))?;
            let is_full = page.len() == REAPED_MAX;
            first = page.last().filter(|_| is_full).map(|(ino, _)| ino.next());
            let due = page
                .iter()
                .filter(|(_, mark)| before.is_none_or(|it| mark.time.secs < it));
            let inos: Vec<Ino> = due.map(|(ino, _)| *ino).collect();
            if inos.is_empty() {
                continue;
            }
            count += inos.len() as u64;
            let done = carry_out(MetaRequest::TrashDrop { inos }, self.0.engine, pipeline);
            done.map_err(|errno| self.0.refused(errno))?;
        }
        Ok(count)
    }

    /// The extent of the trash, on a primary; `None` if nothing is in it and nothing gets there, or before it is known.
    pub fn status(self) -> Option<TrashStatus> {
        let usage = self.0.ledger.usage()?;
        let policy = self.0.engine.config.current().policies.trash;
        if policy.age.is_off() && usage.inodes == 0 {
            return None;
        }
        Some(TrashStatus {
            entries: usage.inodes,
            bytes: usage.bytes,
            bytes_max: self.0.limits().bytes,
            oldest: usage
                .oldest_secs
                .map(|secs| Timestamp { secs, nanos: 0 }.utc()),
            keeps: lockstep_types::Choice::word(policy.age).to_owned(),
        })
    }
}

const fn kind_word(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::File => "file",
        NodeKind::Directory => "directory",
        NodeKind::Symlink => "symlink",
        NodeKind::Fifo => "fifo",
        NodeKind::Socket => "socket",
        NodeKind::CharDevice => "char_device",
        NodeKind::BlockDevice => "block_device",
    }
}
