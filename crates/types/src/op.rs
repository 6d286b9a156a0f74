//! Metadata operations: every change of a datastore other than a write of bytes.
//!
//! A [`MetaRequest`] is what a client asks. A [`MetaOp`] is that request once the primary has
//! admitted it: numbered, timed, and complete, so that applying it to equal stores gives equal
//! stores (paper, section 5). Whatever the clock, the process or chance would decide is decided
//! before, and carried in it.

use serde::{Deserialize, Serialize};

use crate::attr::NodeKind;
use crate::id::{Ino, Osn};
use crate::name::FileName;
use crate::time::Timestamp;

/// A metadata operation with its number and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaOp {
    /// Its place in the order of operations.
    pub osn: Osn,
    /// The primary's wall clock when it admitted the operation: every time it sets to "now".
    pub time: Timestamp,
    /// What to do.
    pub request: MetaRequest,
}

/// What a metadata operation does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaRequest {
    /// Makes a node of any kind (`create`, `mknod`, `mkdir`, `symlink`).
    Create {
        /// Directory to make it in.
        parent: Ino,
        /// Name to give it.
        name: FileName,
        /// Number of the new inode, assigned by the primary.
        ino: Ino,
        /// Kind of the new inode.
        kind: NodeKind,
        /// Permission bits as asked for, the umask not yet applied: a default ACL of the parent
        /// decides whether it counts.
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
        /// Directory to take it from.
        parent: Ino,
        /// Name to take.
        name: FileName,
        /// Directory to put it into.
        new_parent: Ino,
        /// Name to put.
        new_name: FileName,
        /// What to do about an existing target.
        mode: RenameMode,
    },
    /// Changes permission bits, owner and times. `None` leaves as is; ctime always becomes the
    /// operation's time.
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
        /// Its new size in bytes.
        size: u64,
        /// Drop set-id bits, because the caller may not keep them.
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
        /// What to do with them.
        mode: AllocateMode,
    },
    /// Drops set-id bits and file capabilities, before a write by somebody who may not keep them.
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
        /// Whether it must or must not exist.
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
    /// Frees an inode that has no name and that nobody has open any more.
    Reap {
        /// The inode.
        ino: Ino,
    },
}

/// What a rename does about an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swap the two (`RENAME_EXCHANGE`).
    Exchange,
}

/// The modes of `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocateMode {
    /// Reserve space and grow the file if the range ends beyond it.
    Allocate,
    /// Reserve space, keep the size.
    AllocateKeepSize,
    /// Free the range; it reads as zeros.
    PunchHole,
    /// Make the range zeros, growing the file if it ends beyond it.
    ZeroRange,
    /// Make the range zeros, keep the size.
    ZeroRangeKeepSize,
}

/// What setting an extended attribute asks of an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Nothing.
    Any,
    /// Not to be there (`XATTR_CREATE`).
    Create,
    /// To be there (`XATTR_REPLACE`).
    Replace,
}
