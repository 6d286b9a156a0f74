//! Metadata operations: every change of a datastore except a write of bytes.
//!
//! A [`MetaRequest`] is a client's request. A [`MetaOp`] is an admitted request with its number and its time. It is
//! complete: equal stores stay equal when both apply it (paper, section 5). The primary takes every decision that
//! depends on clock, process or chance beforehand; the operation carries the results.

use serde::{Deserialize, Serialize};

use crate::attr::NodeKind;
use crate::id::{Ino, Osn};
use crate::inode_flags::InodeFlags;
use crate::name::FileName;
use crate::snapshot::{SnapshotId, SnapshotKind, SnapshotName};
use crate::time::Timestamp;

/// An admitted metadata operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaOp {
    /// The operation's place in the order of operations.
    pub osn: Osn,
    /// The primary's wall clock at admission: the value of every time that the operation sets to "now".
    pub time: Timestamp,
    /// The change.
    pub request: MetaRequest,
}

/// The change that a metadata operation makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaRequest {
    /// Creates an inode of any kind (`create`, `mknod`, `mkdir`, `symlink`).
    Create {
        /// Directory of the new name.
        parent: Ino,
        /// The new name.
        name: FileName,
        /// Number of the new inode, assigned by the primary.
        ino: Ino,
        /// Kind of the new inode.
        kind: NodeKind,
        /// The requested permission bits, before the umask. A default ACL of the parent replaces the umask.
        mode: u32,
        /// The caller's umask.
        umask: u32,
        /// Owner: the caller.
        uid: u32,
        /// The caller's group; a set-group-id parent overrides it.
        gid: u32,
        /// Device number, for device nodes.
        rdev: u32,
        /// Target, for symbolic links; else empty.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
    /// Gives an inode another name.
    Link {
        /// The inode.
        ino: Ino,
        /// Directory of the new name.
        parent: Ino,
        /// The new name.
        name: FileName,
    },
    /// Removes the name of anything but a directory.
    Unlink {
        /// Directory of the name.
        parent: Ino,
        /// The name.
        name: FileName,
    },
    /// Removes an empty directory.
    Rmdir {
        /// Directory of the name.
        parent: Ino,
        /// The name.
        name: FileName,
    },
    /// Moves a name, or swaps two.
    Rename {
        /// Directory of the old name.
        parent: Ino,
        /// The old name.
        name: FileName,
        /// Directory of the new name.
        new_parent: Ino,
        /// The new name.
        new_name: FileName,
        /// How to treat an existing target.
        mode: RenameMode,
    },
    /// Changes permission bits, owner and times. `None` keeps the old value; ctime always becomes the operation's
    /// time.
    SetAttr {
        /// The inode.
        ino: Ino,
        /// New permission bits.
        mode: Option<u32>,
        /// New owner.
        uid: Option<u32>,
        /// New group.
        gid: Option<u32>,
        /// New time of access.
        atime: Option<Timestamp>,
        /// New time of modification.
        mtime: Option<Timestamp>,
    },
    /// Sets the size of a file.
    Truncate {
        /// The file.
        ino: Ino,
        /// The file's new size in bytes.
        size: u64,
        /// Whether to drop the set-id bits, because the caller may not keep them.
        drop_set_id: bool,
    },
    /// `fallocate` in any of its modes.
    Allocate {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The mode.
        mode: AllocateMode,
    },
    /// Drops set-id bits and file capabilities before a write by a caller that may not keep them.
    DropPrivileges {
        /// The file.
        ino: Ino,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// The inode.
        ino: Ino,
        /// Name with its namespace prefix.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
        /// Whether the attribute must or must not exist.
        mode: XattrMode,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The inode.
        ino: Ino,
        /// Name with its namespace prefix.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Frees an inode that has no name and that no program has open.
    Reap {
        /// The inode.
        ino: Ino,
    },
    /// Frees those of some inodes that have no name. No program has one of them open.
    ReapAll {
        /// The inodes, at most [`REAPED_MAX`](crate::limits::REAPED_MAX).
        inos: Vec<Ino>,
    },
    /// Sets the flags of a file or a directory.
    SetFlags {
        /// The inode.
        ino: Ino,
        /// Its flags from now on.
        flags: InodeFlags,
    },
    /// Makes a snapshot of the datastore, whose moment is that of the operation (rule P35).
    SnapshotCreate {
        /// The name, which no other snapshot of the datastore has.
        name: SnapshotName,
        /// Why the snapshot is made.
        kind: SnapshotKind,
        /// Every inode of the datastore has a number below this. The primary fills this in once the operation has its number.
        inos_below: u64,
    },
    /// Gives a snapshot of the datastore another name. A scheduled snapshot is one of the user from then on.
    SnapshotRename {
        /// The snapshot.
        id: SnapshotId,
        /// Its name from now on.
        name: SnapshotName,
    },
    /// Deletes a snapshot of the datastore that no hold keeps. Each node then frees in the background what only this snapshot sees.
    SnapshotDelete {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Puts a hold on a snapshot of the datastore: the snapshot cannot be deleted until the hold is released.
    SnapshotHold {
        /// The snapshot.
        id: SnapshotId,
        /// The name of the hold, which no other hold of the snapshot has.
        hold: SnapshotName,
    },
    /// Takes a hold off a snapshot of the datastore.
    SnapshotRelease {
        /// The snapshot.
        id: SnapshotId,
        /// The name of the hold.
        hold: SnapshotName,
    },
    /// Takes a name away, and puts the inode into the trash that has no other name then (rule P38). No program asks for this: the primary
    /// makes the operation of a request while the datastore keeps a trash.
    IntoTrash {
        /// The request of the program.
        removal: NameRemoval,
    },
    /// Gives an inode of the trash a name again.
    TrashRestore {
        /// The inode.
        ino: Ino,
        /// Directory of the name.
        parent: Ino,
        /// The name.
        name: FileName,
    },
    /// Takes those of some inodes out of the trash that are in it. Each is to be freed then, like any inode without a name.
    TrashDrop {
        /// The inodes, at most [`REAPED_MAX`](crate::limits::REAPED_MAX).
        inos: Vec<Ino>,
    },
}

impl MetaRequest {
    /// Whether the operation changes the list of snapshots. Such an operation is on stable storage on each node before its answer.
    pub const fn is_on_snapshots(&self) -> bool {
        matches!(
            self,
            Self::SnapshotCreate { .. }
                | Self::SnapshotRename { .. }
                | Self::SnapshotDelete { .. }
                | Self::SnapshotHold { .. }
                | Self::SnapshotRelease { .. }
        )
    }

    /// The inode that the operation makes.
    pub const fn made(&self) -> Option<Ino> {
        match self {
            Self::Create { ino, .. }
            | Self::Rename {
                mode: RenameMode::Whiteout { ino, .. },
                ..
            } => Some(*ino),
            Self::IntoTrash { removal } => removal.made(),
            _ => None,
        }
    }

    /// The name of the operation for operators, that of the system call where there is one; and its inode, that of the
    /// directory for an operation on a name.
    pub fn describe(&self) -> (&'static str, Option<Ino>) {
        match self {
            Self::Create { parent, .. } => ("create", Some(*parent)),
            Self::Link { parent, .. } => ("link", Some(*parent)),
            Self::Unlink { parent, .. } => ("unlink", Some(*parent)),
            Self::Rmdir { parent, .. } => ("rmdir", Some(*parent)),
            Self::Rename { parent, .. } => ("rename", Some(*parent)),
            Self::SetAttr { ino, .. } => ("setattr", Some(*ino)),
            Self::Truncate { ino, .. } => ("truncate", Some(*ino)),
            Self::Allocate { ino, .. } => ("fallocate", Some(*ino)),
            Self::DropPrivileges { ino } => ("drop privileges", Some(*ino)),
            Self::SetXattr { ino, .. } => ("setxattr", Some(*ino)),
            Self::RemoveXattr { ino, .. } => ("removexattr", Some(*ino)),
            Self::Reap { ino } => ("free", Some(*ino)),
            Self::ReapAll { inos } => ("free", inos.first().copied()),
            Self::SetFlags { ino, .. } => ("chattr", Some(*ino)),
            Self::SnapshotCreate { .. } => ("snapshot create", None),
            Self::SnapshotRename { .. } => ("snapshot rename", None),
            Self::SnapshotDelete { .. } => ("snapshot delete", None),
            Self::SnapshotHold { .. } => ("snapshot hold", None),
            Self::SnapshotRelease { .. } => ("snapshot release", None),
            Self::IntoTrash { removal } => removal.request().describe(),
            Self::TrashRestore { parent, .. } => ("trash restore", Some(*parent)),
            Self::TrashDrop { inos } => ("trash drop", inos.first().copied()),
        }
    }
}

/// How a rename treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace the target.
    Replace,
    /// Fail if the target exists (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swap the two names (`RENAME_EXCHANGE`).
    Exchange,
    /// Replace the target, and leave a whiteout under the old name (`RENAME_WHITEOUT`): a character device with number
    /// zero. Refused for a whiteout itself.
    Whiteout {
        /// The inode of the whiteout.
        ino: Ino,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
    },
}

/// The modes of `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocateMode {
    /// Reserve space; grow the file to the end of the range.
    Allocate,
    /// Reserve space; keep the size.
    AllocateKeepSize,
    /// Free the range, which then reads as zeros; keep the size.
    PunchHole,
    /// Make the range zeros; grow the file to the end of the range.
    ZeroRange,
    /// Make the range zeros; keep the size.
    ZeroRangeKeepSize,
}

/// The condition under which an extended attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// No condition.
    Any,
    /// The attribute must not exist (`XATTR_CREATE`).
    Create,
    /// The attribute must exist (`XATTR_REPLACE`).
    Replace,
}

/// A request that may take the last name of an inode away, as [`MetaRequest::IntoTrash`] carries it. [`Self::request`] is the inverse of
/// [`Self::of`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameRemoval {
    /// [`MetaRequest::Unlink`].
    Unlink {
        /// Directory of the name.
        parent: Ino,
        /// The name.
        name: FileName,
    },
    /// [`MetaRequest::Rmdir`].
    Rmdir {
        /// Directory of the name.
        parent: Ino,
        /// The name.
        name: FileName,
    },
    /// [`MetaRequest::Rename`].
    Rename {
        /// Directory of the old name.
        parent: Ino,
        /// The old name.
        name: FileName,
        /// Directory of the new name.
        new_parent: Ino,
        /// The new name.
        new_name: FileName,
        /// How to treat an existing target.
        mode: RenameMode,
    },
}

impl NameRemoval {
    /// The removal that a request is; `None` for a request that takes no last name away.
    pub fn of(request: &MetaRequest) -> Option<Self> {
        Some(match request.clone() {
            MetaRequest::Unlink { parent, name } => Self::Unlink { parent, name },
            MetaRequest::Rmdir { parent, name } => Self::Rmdir { parent, name },
            MetaRequest::Rename {
                mode: RenameMode::NoReplace | RenameMode::Exchange,
                ..
            } => return None,
            MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } => Self::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            },
            _ => return None,
        })
    }

    /// The request of a program.
    pub fn request(&self) -> MetaRequest {
        match self.clone() {
            Self::Unlink { parent, name } => MetaRequest::Unlink { parent, name },
            Self::Rmdir { parent, name } => MetaRequest::Rmdir { parent, name },
            Self::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } => MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            },
        }
    }

    /// The inode that the operation makes: a whiteout.
    pub const fn made(&self) -> Option<Ino> {
        match self {
            Self::Rename {
                mode: RenameMode::Whiteout { ino, .. },
                ..
            } => Some(*ino),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_the_request_that_it_was_made_of() {
        let name = |text: &str| FileName::new(text.as_bytes()).unwrap();
        let rename = |mode| MetaRequest::Rename {
            parent: Ino::ROOT,
            name: name("a"),
            new_parent: Ino::ROOT,
            new_name: name("b"),
            mode,
        };
        let unlink = MetaRequest::Unlink {
            parent: Ino::ROOT,
            name: name("a"),
        };
        let rmdir = MetaRequest::Rmdir {
            parent: Ino::ROOT,
            name: name("a"),
        };
        for request in [unlink, rmdir, rename(RenameMode::Replace)] {
            assert_eq!(NameRemoval::of(&request).unwrap().request(), request);
        }
        for mode in [RenameMode::NoReplace, RenameMode::Exchange] {
            assert_eq!(NameRemoval::of(&rename(mode)), None, "no name is lost");
        }
    }
}
