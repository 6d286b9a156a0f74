//! One inode.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_types::mode::{GROUP_EXECUTE, MODE_BITS, SET_GROUP_ID, SET_USER_ID};
use lockstep_types::xattr::{ACCESS_ACL, CAPABILITIES};
use lockstep_types::{FileName, Ino, InodeFlags, NodeKind, Timestamp};

use crate::acl::Acl;
use crate::content::Content;
use crate::names::Names;

/// The part of an inode that depends on its kind.
#[derive(Clone, Debug)]
pub enum Body {
    /// The bytes of a file.
    File(Content),
    /// The names in a directory.
    Directory(Names),
    /// The target of a symbolic link.
    Symlink(Vec<u8>),
    /// A device, pipe or socket.
    Nothing,
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Node {
    /// Kind.
    pub kind: NodeKind,
    /// Permission bits with set-id and sticky bits.
    pub mode: u32,
    /// Flags.
    pub flags: InodeFlags,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, or zero if the inode is no device.
    pub rdev: u32,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of content.
    pub mtime: Timestamp,
    /// Time of the last change.
    pub ctime: Timestamp,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The part that depends on the kind.
    pub body: Body,
    /// All names of the inode, each with its directory.
    pub links: BTreeSet<(Ino, FileName)>,
    /// The last name of an inode in the trash, and the time at which it was taken away.
    pub trashed: Option<(Ino, FileName, Timestamp)>,
}

impl Node {
    pub(crate) fn new(kind: NodeKind, body: Body, now: Timestamp) -> Self {
        Self {
            kind,
            mode: 0,
            flags: InodeFlags::NONE,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            xattrs: BTreeMap::new(),
            body,
            links: BTreeSet::new(),
            trashed: None,
        }
    }

    /// Drops the set-user-id bit, and the set-group-id bit of an executable file.
    pub(crate) fn drop_set_id(&mut self) {
        let dropped = if self.mode & GROUP_EXECUTE == 0 {
            SET_USER_ID
        } else {
            SET_USER_ID | SET_GROUP_ID
        };
        self.mode &= !dropped;
    }

    pub(crate) fn drop_capabilities(&mut self) {
        self.xattrs.remove(CAPABILITIES);
    }

    /// Sets the permission bits, and changes the access list with them.
    pub(crate) fn chmod(&mut self, mode: u32) {
        self.mode = mode & MODE_BITS;
        if let Some(value) = self.xattrs.get_mut(ACCESS_ACL) {
            let mut list = Acl::parse(value).expect("only valid lists are stored");
            list.chmod(mode);
            *value = list.encode();
        }
    }
}
