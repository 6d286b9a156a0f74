//! One entry of a difference.

use std::ops::Range;

use lockstep_types::{Ino, NodeKind};

use crate::namespace::record::{Body, Inode};

/// The change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DiffChange {
    /// The inode has come, with this name.
    Created,
    /// The inode is gone, and its name.
    Deleted,
    /// The inode has this name in place of another one.
    Renamed,
    /// The inode has this name besides another one.
    Linked,
    /// The name is gone, and the inode has another one, or had.
    Unlinked,
    /// The inode has the name that it had, and has changed.
    Changed,
}

/// Bytes of a file that differ: whole blocks of 4 KiB, but for the end of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffRange {
    /// The bytes.
    pub bytes: Range<u64>,
    /// All of them are zeros now.
    pub is_zero: bool,
}

/// An attribute of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DiffAttribute {
    /// Permission bits.
    Mode,
    /// Flags.
    Flags,
    /// Owner.
    Owner,
    /// Group.
    Group,
    /// Number of hard links.
    Links,
    /// Size of a file.
    Size,
    /// Last access.
    Atime,
    /// Last change of content.
    Mtime,
    /// Last change of content or attributes.
    Ctime,
    /// Target of a symbolic link.
    Target,
    /// Device number.
    Device,
}

/// The attributes in which two records of an inode differ.
pub fn changed_attributes(old: &Inode, new: &Inode) -> Vec<DiffAttribute> {
    fn target(inode: &Inode) -> Option<&[u8]> {
        match &inode.body {
            Body::Symlink { target } => Some(target),
            _ => None,
        }
    }
    let device = |inode: &Inode| inode.attr(Ino::ROOT).rdev;
    let all = [
        (DiffAttribute::Mode, old.bits.mode != new.bits.mode),
        (DiffAttribute::Flags, old.bits.flags != new.bits.flags),
        (DiffAttribute::Owner, old.uid != new.uid),
        (DiffAttribute::Group, old.gid != new.gid),
        (DiffAttribute::Links, old.nlink != new.nlink),
        (
            DiffAttribute::Size,
            old.body.file_size() != new.body.file_size(),
        ),
        (DiffAttribute::Atime, old.atime != new.atime),
        (DiffAttribute::Mtime, old.mtime != new.mtime),
        (DiffAttribute::Ctime, old.ctime != new.ctime),
        (DiffAttribute::Target, target(old) != target(new)),
        (DiffAttribute::Device, device(old) != device(new)),
    ];
    let changed = all.into_iter().filter(|(_, differs)| *differs);
    changed.map(|(attribute, _)| attribute).collect()
}

/// A difference between two moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffEntry {
    /// The change.
    pub change: DiffChange,
    /// The path from the root of the datastore, without a slash in front; `.` is the root. That of the newer moment, and that of the older one
    /// where the name is gone.
    pub path: Vec<u8>,
    /// A path of the inode at the older moment, if it is renamed or linked and was there.
    pub from: Option<Vec<u8>>,
    /// The inode, and its kind.
    pub node: (Ino, NodeKind),
    /// The size of a file at the newer moment; of one that is gone, at the older moment.
    pub size: Option<u64>,
    /// The attributes that differ; none of an inode that has come or gone.
    pub attributes: Vec<DiffAttribute>,
    /// Whether extended attributes differ; false for an inode that has come or gone.
    pub xattrs: bool,
    /// The bytes of a file that differ, in order, up to its size: with that size and these bytes the older content becomes the newer one.
    pub ranges: Vec<DiffRange>,
    /// An entry of the same file came before, and this one has further ranges.
    pub continued: bool,
}

impl DiffEntry {
    /// Whether nothing has the path any more.
    pub const fn is_gone(&self) -> bool {
        matches!(self.change, DiffChange::Deleted | DiffChange::Unlinked)
    }
}

/// Adds bytes behind the others.
pub fn push_range(ranges: &mut Vec<DiffRange>, bytes: Range<u64>, is_zero: bool) {
    match ranges.last_mut() {
        Some(last) if last.bytes.end == bytes.start && last.is_zero == is_zero => {
            last.bytes.end = bytes.end;
        }
        _ => ranges.push(DiffRange { bytes, is_zero }),
    }
}
