//! The locks of each operation (rule P4).
//!
//! Metadata operations lock names, not whole directories, if two operations do not conflict. The inodes behind the
//! names are looked up first, and again once the locks are held.

use lockstep_fs::{Store, StoreView};
use lockstep_paw_saw::{InFlightEntry, recovery_ranges};
use lockstep_repl::core::LockSet;
use lockstep_repl::lock::{BlockRange, LockKey, LockMode};
use lockstep_types::{FileName, Ino, MetaRequest, NodeKind};
use smallvec::SmallVec;

/// Inodes that the names in a request lead to.
pub(crate) type Targets = SmallVec<[Option<(Ino, NodeKind)>; 2]>;

/// The locks of a read.
pub(crate) fn read(ino: Ino, offset: u64, length: u64) -> LockSet {
    LockSet::from_slice(&[(
        LockKey::File(ino),
        LockMode::Read(BlockRange::new(offset, length)),
    )])
}

/// The locks of a write.
pub(crate) fn write(ino: Ino, offset: u64, length: u64) -> LockSet {
    LockSet::from_slice(&[(
        LockKey::File(ino),
        LockMode::Write(BlockRange::new(offset, length)),
    )])
}

/// The locks of the writes that were in flight when the previous process stopped.
pub(crate) fn under_way(old_paw: &[InFlightEntry]) -> Vec<LockSet> {
    let ranges = recovery_ranges(old_paw, &[]).into_iter();
    ranges
        .map(|range| write(range.ino, range.offset, range.length))
        .collect()
}

/// The inodes that the names in a request lead to now.
pub(crate) fn targets(store: &Store, request: &MetaRequest) -> Targets {
    let find = |parent: Ino, name: &FileName| {
        let attr = store.tree().lookup(parent, name).ok()?;
        Some((attr.ino, attr.kind))
    };
    match request {
        MetaRequest::IntoTrash { removal } => targets(store, &removal.request()),
        MetaRequest::Unlink { parent, name } | MetaRequest::Rmdir { parent, name } => {
            Targets::from_slice(&[find(*parent, name)])
        }
        MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            ..
        } => Targets::from_slice(&[find(*parent, name), find(*new_parent, new_name)]),
        _ => Targets::new(),
    }
}

/// The locks of a metadata operation whose names lead to `targets`.
pub(crate) fn metadata(request: &MetaRequest, targets: &Targets) -> LockSet {
    let mut locks = Chosen::default();
    match request {
        MetaRequest::Create {
            parent, name, kind, ..
        } => {
            locks.entry(*parent, name);
            if *kind == NodeKind::Directory {
                locks.add(LockKey::Subdirectories(*parent), LockMode::Exclusive);
            }
        }
        MetaRequest::Link { ino, parent, name } => {
            locks.entry(*parent, name);
            locks.add(LockKey::File(*ino), LockMode::Exclusive);
        }
        MetaRequest::TrashRestore { ino, parent, name } => {
            locks.entry(*parent, name);
            locks.add(LockKey::Subdirectories(*parent), LockMode::Exclusive);
            locks.add(LockKey::File(*ino), LockMode::Exclusive);
        }
        MetaRequest::IntoTrash { removal } => return metadata(&removal.request(), targets),
        MetaRequest::Unlink { parent, name } | MetaRequest::Rmdir { parent, name } => {
            locks.entry(*parent, name);
        }
        MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            ..
        } => {
            locks.rename((*parent, name), (*new_parent, new_name), targets);
        }
        MetaRequest::SetAttr { ino, .. }
        | MetaRequest::Truncate { ino, .. }
        | MetaRequest::Allocate { ino, .. }
        | MetaRequest::DropPrivileges { ino }
        | MetaRequest::SetXattr { ino, .. }
        | MetaRequest::RemoveXattr { ino, .. }
        | MetaRequest::SetFlags { ino, .. }
        | MetaRequest::Reap { ino } => locks.add(LockKey::File(*ino), LockMode::Exclusive),
        MetaRequest::SnapshotCreate { .. }
        | MetaRequest::SnapshotRename { .. }
        | MetaRequest::SnapshotDelete { .. }
        | MetaRequest::SnapshotHold { .. }
        | MetaRequest::SnapshotRelease { .. } => {
            locks.add(LockKey::Snapshots, LockMode::Exclusive);
        }
        MetaRequest::ReapAll { inos } | MetaRequest::TrashDrop { inos } => {
            for ino in inos {
                locks.add(LockKey::File(*ino), LockMode::Exclusive);
            }
        }
    }
    for (ino, _) in targets.iter().flatten() {
        locks.add(LockKey::File(*ino), LockMode::Exclusive);
    }
    locks.0
}

/// The chosen locks: each key once, in its strongest mode.
#[derive(Default)]
struct Chosen(LockSet);

impl Chosen {
    /// Locks a name, and keeps the directory that holds it.
    fn entry(&mut self, directory: Ino, name: &FileName) {
        self.add(LockKey::name(directory, name), LockMode::Exclusive);
        self.add(LockKey::File(directory), LockMode::Shared);
    }

    /// Locks the names of a rename, and the tree if a directory moves to another one.
    fn rename(&mut self, from: (Ino, &FileName), to: (Ino, &FileName), targets: &Targets) {
        self.entry(from.0, from.1);
        self.entry(to.0, to.1);
        let mut targets = targets.iter().flatten();
        let moves_directory = targets.any(|(_, kind)| *kind == NodeKind::Directory);
        if moves_directory && from.0 != to.0 {
            self.add(LockKey::Tree, LockMode::Exclusive);
            for directory in [from.0, to.0] {
                self.add(LockKey::Subdirectories(directory), LockMode::Exclusive);
            }
        }
    }

    fn add(&mut self, key: LockKey, mode: LockMode) {
        match self.0.iter_mut().find(|(held, _)| *held == key) {
            Some((_, held)) if *held == LockMode::Shared => *held = mode,
            Some(_) => {}
            None => self.0.push((key, mode)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::tests::creation;

    fn locks_of_creation(name: &str, kind: NodeKind) -> LockSet {
        let request = creation(Ino::new(7).unwrap(), name, kind);
        metadata(&request, &Targets::new())
    }

    fn are_apart(one: &LockSet, other: &LockSet) -> bool {
        let is_alone = |key: &LockKey, mode: &LockMode| {
            let mut of_other = other.iter();
            *mode == LockMode::Exclusive && of_other.any(|(held, _)| held == key)
        };
        !one.iter().any(|(key, mode)| is_alone(key, mode))
    }

    /// If both operations passed the check of the limit at once, the other node would refuse the second.
    #[test]
    fn directories_are_added_to_one_directory_one_after_the_other() {
        let directory = |name| locks_of_creation(name, NodeKind::Directory);
        let file = |name| locks_of_creation(name, NodeKind::File);
        assert!(!are_apart(&directory("a"), &directory("b")));
        assert!(are_apart(&directory("a"), &file("b")));
        assert!(are_apart(&file("a"), &file("b")));
        assert!(!are_apart(&file("a"), &file("a")));
    }
}
