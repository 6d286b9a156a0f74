//! The attributes of an inode, as `stat` returns them.

use serde::{Deserialize, Serialize};

use crate::id::Ino;
use crate::inode_flags::InodeFlags;
use crate::time::Timestamp;

/// The kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodeKind {
    /// A regular file, which has content.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix domain socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl NodeKind {
    /// The kind in the type bits of `st_mode`; `None` for unknown bits.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o010_000 => Self::Fifo,
            0o020_000 => Self::CharDevice,
            0o040_000 => Self::Directory,
            0o060_000 => Self::BlockDevice,
            0o100_000 => Self::File,
            0o120_000 => Self::Symlink,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }
}

/// The attributes of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// The inode number.
    pub ino: Ino,
    /// The inode's kind.
    pub kind: NodeKind,
    /// Permission bits with set-id and sticky bits: `0o0000..=0o7777`.
    pub mode: u32,
    /// Flags.
    pub flags: InodeFlags,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links; for a directory, two and one more per subdirectory.
    pub nlink: u32,
    /// Device number of a device node; else zero.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes. No other attribute may differ between the nodes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
}

impl Attr {
    /// The attributes of an inode with one link and nothing else: it belongs to root, has no permission bit, no flag and no content,
    /// and all its times are zero.
    pub fn plain(ino: Ino, kind: NodeKind) -> Self {
        let time = Timestamp::default();
        Self {
            ino,
            kind,
            mode: 0,
            flags: InodeFlags::NONE,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }
}
