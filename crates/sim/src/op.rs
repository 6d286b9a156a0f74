//! The request of a client, as plain data. The generator makes it, the world submits it, the
//! history keeps it, and the checkers judge it.
//!
//! Invariant: an operation contains everything that is needed to submit it and to predict its
//! outcome. No part of it is decided later.

use std::fmt;

use lockstep_types::{FileName, Ino, MetaRequest, NodeKind, RenameMode};

pub mod mark;

pub use mark::{Mark, Run};

/// One operation of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Any change except a write of bytes: `change`.
    Change(MetaRequest),
    /// `write`.
    Write(WriteOp),
    /// `read`.
    Read {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Number of bytes requested.
        length: u64,
    },
    /// `sync`.
    Sync {
        /// The file or directory.
        ino: Ino,
    },
    /// `lookup`.
    Lookup {
        /// The directory.
        parent: Ino,
        /// The name.
        name: FileName,
    },
    /// `getattr`.
    GetAttr {
        /// The inode.
        ino: Ino,
    },
    /// `readdir` of all entries.
    ReadDir {
        /// The directory.
        directory: Ino,
    },
    /// `getxattr`.
    GetXattr {
        /// The inode.
        ino: Ino,
        /// Name with its namespace prefix.
        name: Vec<u8>,
    },
    /// `readlink`.
    ReadLink {
        /// The symbolic link.
        ino: Ino,
    },
}

/// A write of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOp {
    /// The file.
    pub ino: Ino,
    /// The mark, which distinguishes the write from all other writes to this file.
    pub mark: Mark,
    /// First byte.
    pub offset: u64,
    /// Number of bytes, at least one.
    pub length: u64,
    /// Whether the write is answered only when it is on stable storage (`O_SYNC`).
    pub durable: bool,
}

impl WriteOp {
    /// Returns the bytes to write.
    pub fn bytes(&self) -> Vec<u8> {
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        mark::fill(self.ino, self.mark, self.offset, length)
    }

    /// Returns the offset after the last byte.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

impl Op {
    /// Returns the number of the inode that the operation makes, if it makes an inode.
    pub const fn makes(&self) -> Option<Ino> {
        match self {
            Self::Change(MetaRequest::Create { ino, .. }) => Some(*ino),
            _ => None,
        }
    }
}

impl fmt::Display for WriteOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let durable = if self.durable { "durable " } else { "" };
        let (ino, offset, end) = (self.ino, self.offset, self.end());
        write!(f, "{durable}write #{ino} [{offset}, {end}) {:?}", self.mark)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Change(request) => describe(request, f),
            Self::Write(write) => write.fmt(f),
            Self::Read {
                ino,
                offset,
                length,
            } => write!(f, "read #{ino} [{offset}, {})", offset + length),
            Self::Sync { ino } => write!(f, "sync #{ino}"),
            Self::Lookup { parent, name } => write!(f, "lookup #{parent}/{name:?}"),
            Self::GetAttr { ino } => write!(f, "getattr #{ino}"),
            Self::ReadDir { directory } => write!(f, "readdir #{directory}"),
            Self::GetXattr { ino, name } => {
                write!(f, "getxattr #{ino} {}", name.escape_ascii())
            }
            Self::ReadLink { ino } => write!(f, "readlink #{ino}"),
        }
    }
}

/// Writes a metadata operation in one line, without the parts that seldom matter.
fn describe(request: &MetaRequest, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match request {
        MetaRequest::Create {
            parent,
            name,
            ino,
            kind,
            mode,
            ..
        } => {
            let verb = match kind {
                NodeKind::File => "create",
                NodeKind::Directory => "mkdir",
                NodeKind::Symlink => "symlink",
                _ => "mknod",
            };
            write!(f, "{verb} #{parent}/{name:?} as #{ino} mode {mode:o}")
        }
        MetaRequest::Link { ino, parent, name } => write!(f, "link #{ino} as #{parent}/{name:?}"),
        MetaRequest::Unlink { parent, name } => write!(f, "unlink #{parent}/{name:?}"),
        MetaRequest::Rmdir { parent, name } => write!(f, "rmdir #{parent}/{name:?}"),
        MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
        } => {
            let how = match mode {
                RenameMode::Replace => "to",
                RenameMode::NoReplace => "to the free",
                RenameMode::Exchange => "in exchange for",
                RenameMode::Whiteout { .. } => "with a whiteout to",
            };
            write!(
                f,
                "rename #{parent}/{name:?} {how} #{new_parent}/{new_name:?}"
            )
        }
        MetaRequest::Truncate { ino, size, .. } => write!(f, "truncate #{ino} to {size}"),
        MetaRequest::Allocate {
            ino,
            offset,
            length,
            mode,
        } => write!(f, "{mode:?} #{ino} [{offset}, {})", offset + length),
        other => write!(f, "{other:?}"),
    }
}
