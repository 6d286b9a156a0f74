//! The complete content of a store as plain data, taken when nothing is under way.

use std::collections::BTreeMap;

use lockstep_types::{FileName, Ino, NodeKind, Timestamp};

/// All data of a datastore in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// All inodes, including inodes without a name.
    pub inodes: BTreeMap<Ino, Inode>,
}

/// One inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// The kind of the inode.
    pub kind: NodeKind,
    /// Permission bits with set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Device number, or zero if the inode is no device.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of content.
    pub mtime: Timestamp,
    /// Time of the last change of content or attributes.
    pub ctime: Timestamp,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The data that only one kind of inode has.
    pub body: Body,
}

/// The data that only one kind of inode has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// All bytes of a file.
    File(Vec<u8>),
    /// All entries of a directory, in the order of their cookies.
    Directory(Vec<Entry>),
    /// The target of a symbolic link.
    Symlink(Vec<u8>),
    /// No data: pipes, sockets, devices.
    Nothing,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The position of the entry in the order of `readdir`.
    pub cookie: u64,
    /// The name of the entry.
    pub name: FileName,
    /// The inode to which the entry leads.
    pub ino: Ino,
}

impl Dump {
    /// Returns the inode to which a name leads.
    pub fn lookup(&self, parent: Ino, name: &FileName) -> Option<Ino> {
        let Body::Directory(entries) = &self.inodes.get(&parent)?.body else {
            return None;
        };
        let entry = entries.iter().find(|entry| entry.name == *name)?;
        Some(entry.ino)
    }

    /// Returns the bytes of a file.
    pub fn bytes(&self, ino: Ino) -> Option<&[u8]> {
        match &self.inodes.get(&ino)?.body {
            Body::File(bytes) => Some(bytes),
            _ => None,
        }
    }
}
