//! The differences between a snapshot and a later moment, as a rollback needs them.

use std::ops::Range;

/// The change of a name or an inode since the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileChange {
    /// A name of a new inode.
    Created,
    /// The name of an inode that is gone.
    Deleted,
    /// An inode has another name instead of one that it had.
    Renamed,
    /// A further name of an inode.
    Linked,
    /// A name is gone, and the inode has others.
    Unlinked,
    /// Bytes or attributes of an inode that has kept its names.
    Changed,
}

/// One difference between a snapshot and a later moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDifference {
    /// The change since the snapshot.
    pub change: FileChange,
    /// The path from the root at the later moment; in the snapshot where the name is gone.
    pub path: Vec<u8>,
    /// A path of the inode in the snapshot, for a renamed or linked one that was there.
    pub old_path: Option<Vec<u8>>,
    /// The inode.
    pub ino: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether the flags differ that `chattr` sets.
    pub flags: bool,
    /// Whether the extended attributes differ.
    pub xattrs: bool,
    /// The bytes of the file that differ.
    pub ranges: Vec<Range<u64>>,
}

impl FileDifference {
    /// The name that the later moment has and the snapshot has not.
    pub(crate) fn gone(&self) -> Option<&[u8]> {
        let has_come = matches!(
            self.change,
            FileChange::Created | FileChange::Renamed | FileChange::Linked
        );
        has_come.then_some(&self.path)
    }

    /// The name that the snapshot has and the later moment has not.
    pub(crate) fn back(&self) -> Option<&[u8]> {
        match self.change {
            FileChange::Deleted | FileChange::Unlinked => Some(&self.path),
            FileChange::Renamed => self.old_path.as_deref(),
            FileChange::Created | FileChange::Linked | FileChange::Changed => None,
        }
    }

    /// Whether the snapshot has the inode.
    pub(crate) fn was_there(&self) -> bool {
        match self.change {
            FileChange::Created => false,
            FileChange::Linked => self.old_path.is_some(),
            FileChange::Deleted
            | FileChange::Renamed
            | FileChange::Unlinked
            | FileChange::Changed => true,
        }
    }
}
