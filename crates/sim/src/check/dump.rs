//! The whole of a store as plain data, taken when nothing is under way.

use std::collections::BTreeMap;

use lockstep_types::{FileName, Ino, NodeKind, Timestamp};

/// Everything a store holds of a datastore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// All inodes, those without a name included.
    pub inodes: BTreeMap<Ino, Inode>,
}

/// One inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// What kind it is.
    pub kind: NodeKind,
    /// Permission bits with set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u32,
    /// Device number, else zero.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What only one kind of inode has.
    pub body: Body,
}

/// What only one kind of inode has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// All bytes of a file.
    File(Vec<u8>),
    /// All entries of a directory, in the order of their cookies.
    Directory(Vec<Entry>),
    /// Where a symbolic link points.
    Symlink(Vec<u8>),
    /// Nothing: pipes, sockets, devices.
    Nothing,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the order of `readdir`.
    pub cookie: u64,
    /// Its name.
    pub name: FileName,
    /// Where it leads.
    pub ino: Ino,
}

impl Dump {
    /// Where a name leads.
    pub fn lookup(&self, parent: Ino, name: &FileName) -> Option<Ino> {
        let Body::Directory(entries) = &self.inodes.get(&parent)?.body else {
            return None;
        };
        let entry = entries.iter().find(|entry| entry.name == *name)?;
        Some(entry.ino)
    }

    /// The bytes of a file.
    pub fn bytes(&self, ino: Ino) -> Option<&[u8]> {
        match &self.inodes.get(&ino)?.body {
            Body::File(bytes) => Some(bytes),
            _ => None,
        }
    }
}
