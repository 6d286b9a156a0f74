//! The changes that a metadata operation makes.

use lockstep_types::{AllocateMode, Attr, Ino, SnapshotId, SnapshotName};

use crate::namespace::record::Inode;
use crate::namespace::snapshot_list::SnapshotRecord;

/// A change to the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentEffect {
    /// Cut or grow it to this many bytes.
    Resize(Ino, u64),
    /// Carry out `fallocate`, with offset and length in bytes.
    Allocate(Ino, AllocateMode, u64, u64),
}

impl ContentEffect {
    /// The file it changes.
    pub const fn ino(self) -> Ino {
        match self {
            Self::Resize(ino, _) | Self::Allocate(ino, ..) => ino,
        }
    }
}

/// A change to the list of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotChange {
    /// Make a snapshot of this moment.
    Create(SnapshotId, SnapshotRecord),
    /// Give a snapshot of the user another name, or make a scheduled one the user's own under that name.
    Rename(SnapshotId, String),
    /// Exchange the holds on a snapshot.
    Hold(SnapshotId, Vec<SnapshotName>),
    /// Flag a snapshot as deleted.
    Delete(SnapshotId),
}

/// The changes of one metadata operation.
#[derive(Debug, Default)]
pub struct Plan {
    /// Records to write (`Some`) or delete (`None`), all at once.
    pub batch: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// The change of content, if any.
    pub content: Option<ContentEffect>,
    /// Inodes whose record is written, with the record: the entries of open files must take them over.
    pub inodes: Vec<(Ino, Option<Inode>)>,
    /// A new regular file: none of its content is there yet.
    pub new_file: Option<Ino>,
    /// Attributes of the one inode made, linked or changed.
    pub attr: Option<Attr>,
    /// An inode that lost its last name, or was freed.
    pub orphaned: Option<Ino>,
    /// An inode that went into the trash with its last name, or got a name again.
    pub trash_moved: Option<Ino>,
    /// The change to the list of snapshots, if any.
    pub snapshot: Option<SnapshotChange>,
}
