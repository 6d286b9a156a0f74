//! The expected state of one client, from the answers that it received. The expected state may be
//! wrong, because other clients change the shared directory, and a power loss undoes operations.

use std::collections::BTreeMap;

use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest, NodeKind, RenameMode};

use crate::history::{Answer, Outcome};
use crate::op::Op;

/// A name in a directory.
pub(super) type Place = (Ino, FileName);

/// An inode that the client knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub ino: Ino,
    pub kind: NodeKind,
    /// Size in bytes, from the last answer about it.
    pub size: u64,
}

/// The expected state of one client.
#[derive(Debug, Default)]
pub(super) struct ClientModel {
    /// The inode that the client expects at each place.
    pub places: BTreeMap<Place, Known>,
    /// A name that the client found taken, although it does not know the inode.
    pub taken: Option<Place>,
}

impl ClientModel {
    /// Returns the inode that the client expects at a place.
    pub fn at(&self, parent: Ino, name: &FileName) -> Option<Known> {
        self.places.get(&(parent, name.clone())).copied()
    }

    /// Updates the expected state with the outcome of one of the client's own operations.
    pub fn learn(&mut self, op: &Op, outcome: &Outcome) {
        match outcome {
            Ok(answer) => self.succeeded(op, answer),
            Err(errno) => self.failed(op, *errno),
        }
    }

    fn succeeded(&mut self, op: &Op, answer: &Answer) {
        match (op, answer) {
            (Op::Change(request), _) => self.changed(request, answer),
            (Op::Lookup { parent, name }, Answer::Attr(attr)) => {
                self.put((*parent, name.clone()), attr);
            }
            (Op::GetAttr { ino }, Answer::Attr(attr)) => self.resize(*ino, |_| attr.size),
            (Op::Write(write), _) => self.resize(write.ino, |size| size.max(write.end())),
            (Op::ReadDir { directory }, Answer::Entries(entries)) => {
                self.places.retain(|(parent, _), _| parent != directory);
                for entry in entries {
                    let known = Known {
                        ino: entry.ino,
                        kind: entry.kind,
                        size: 0,
                    };
                    self.places.insert((*directory, entry.name.clone()), known);
                }
            }
            _ => {}
        }
    }

    fn changed(&mut self, request: &MetaRequest, answer: &Answer) {
        match request {
            MetaRequest::Create {
                parent,
                name,
                ino,
                kind,
                ..
            } => {
                let (ino, kind, size) = (*ino, *kind, 0);
                self.places
                    .insert((*parent, name.clone()), Known { ino, kind, size });
            }
            MetaRequest::Link { parent, name, .. } => {
                if let Answer::Attr(attr) = answer {
                    self.put((*parent, name.clone()), attr);
                }
            }
            MetaRequest::Unlink { parent, name } | MetaRequest::Rmdir { parent, name } => {
                self.places.remove(&(*parent, name.clone()));
            }
            MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } => self.renamed(
                (*parent, name.clone()),
                (*new_parent, new_name.clone()),
                *mode,
            ),
            MetaRequest::Truncate { ino, size, .. } => self.resize(*ino, |_| *size),
            _ => {}
        }
    }

    fn put(&mut self, place: Place, attr: &Attr) {
        let Attr {
            ino, kind, size, ..
        } = *attr;
        self.places.insert(place, Known { ino, kind, size });
    }

    fn renamed(&mut self, from: Place, to: Place, mode: RenameMode) {
        let moved = self.places.remove(&from);
        let target = self.places.remove(&to);
        if let (RenameMode::Exchange, Some(target)) = (mode, target) {
            self.places.insert(from, target);
        }
        if let Some(moved) = moved {
            self.places.insert(to, moved);
        }
    }

    fn resize(&mut self, ino: Ino, size: impl Fn(u64) -> u64) {
        for known in self.places.values_mut().filter(|known| known.ino == ino) {
            known.size = size(known.size);
        }
    }

    fn failed(&mut self, op: &Op, errno: Errno) {
        match (op, errno) {
            (
                Op::Change(
                    MetaRequest::Create { parent, name, .. }
                    | MetaRequest::Link { parent, name, .. },
                ),
                Errno::Exists,
            ) => self.taken = Some((*parent, name.clone())),
            (
                Op::Lookup { parent, name }
                | Op::Change(
                    MetaRequest::Unlink { parent, name }
                    | MetaRequest::Rmdir { parent, name }
                    | MetaRequest::Rename { parent, name, .. },
                ),
                Errno::NoEntry,
            ) => {
                self.places.remove(&(*parent, name.clone()));
            }
            (_, Errno::Stale | Errno::NoEntry) => self.forget(op),
            _ => {}
        }
    }

    /// Forgets every inode that an operation names, because one of these inodes is gone.
    fn forget(&mut self, op: &Op) {
        let gone = named(op);
        self.places.retain(|(parent, _), known| {
            !gone.contains(&Some(known.ino)) && !gone.contains(&Some(*parent))
        });
    }
}

/// Returns the inodes that an operation names by number, except the root.
fn named(op: &Op) -> [Option<Ino>; 2] {
    let inos = match op {
        Op::Write(write) => [Some(write.ino), None],
        Op::Read { ino, .. }
        | Op::Sync { ino }
        | Op::GetAttr { ino }
        | Op::GetXattr { ino, .. }
        | Op::ReadLink { ino } => [Some(*ino), None],
        Op::ReadDir { directory } => [Some(*directory), None],
        Op::Lookup { parent, .. } => [Some(*parent), None],
        Op::Change(request) => match request {
            MetaRequest::Create { parent, .. }
            | MetaRequest::Unlink { parent, .. }
            | MetaRequest::Rmdir { parent, .. } => [Some(*parent), None],
            MetaRequest::Link { ino, parent, .. } => [Some(*ino), Some(*parent)],
            MetaRequest::Rename {
                parent, new_parent, ..
            } => [Some(*parent), Some(*new_parent)],
            MetaRequest::SetAttr { ino, .. }
            | MetaRequest::Truncate { ino, .. }
            | MetaRequest::Allocate { ino, .. }
            | MetaRequest::DropPrivileges { ino }
            | MetaRequest::SetXattr { ino, .. }
            | MetaRequest::RemoveXattr { ino, .. }
            | MetaRequest::SetFlags { ino, .. }
            | MetaRequest::Reap { ino } => [Some(*ino), None],
            MetaRequest::ReapAll { .. }
            | MetaRequest::SnapshotCreate { .. }
            | MetaRequest::SnapshotRename { .. }
            | MetaRequest::SnapshotDelete { .. }
            | MetaRequest::SnapshotHold { .. }
            | MetaRequest::SnapshotRelease { .. }
            | MetaRequest::IntoTrash { .. }
            | MetaRequest::TrashRestore { .. }
            | MetaRequest::TrashDrop { .. } => [None, None],
        },
    };
    inos.map(|ino| ino.filter(|ino| *ino != Ino::ROOT))
}
