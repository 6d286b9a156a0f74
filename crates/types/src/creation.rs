//! The request for a new inode, part by part.

use crate::attr::NodeKind;
use crate::id::Ino;
use crate::name::FileName;
use crate::op::MetaRequest;

/// A request for a new inode that is not complete. Without more, the inode belongs to root, and has no permission bit, no device
/// number and no target.
#[derive(Clone, Debug)]
#[must_use]
pub struct Creation {
    parent: Ino,
    name: FileName,
    ino: Ino,
    kind: NodeKind,
    mode: u32,
    umask: u32,
    owner: (u32, u32),
    rdev: u32,
    target: Vec<u8>,
}

impl MetaRequest {
    /// Begins a request for a new inode with a name in a directory.
    pub const fn creation(parent: Ino, name: FileName, ino: Ino, kind: NodeKind) -> Creation {
        Creation {
            parent,
            name,
            ino,
            kind,
            mode: 0,
            umask: 0,
            owner: (0, 0),
            rdev: 0,
            target: Vec::new(),
        }
    }
}

impl Creation {
    /// Sets the permission bits, before the umask.
    pub const fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the umask of the caller.
    pub const fn umask(mut self, umask: u32) -> Self {
        self.umask = umask;
        self
    }

    /// Sets the owner and the group.
    pub const fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// Sets the number of a device.
    pub const fn rdev(mut self, rdev: u32) -> Self {
        self.rdev = rdev;
        self
    }

    /// Sets the target of a symbolic link.
    pub fn target(mut self, target: Vec<u8>) -> Self {
        self.target = target;
        self
    }

    /// Returns the request.
    pub fn request(self) -> MetaRequest {
        let (uid, gid) = self.owner;
        MetaRequest::Create {
            parent: self.parent,
            name: self.name,
            ino: self.ino,
            kind: self.kind,
            mode: self.mode,
            umask: self.umask,
            uid,
            gid,
            rdev: self.rdev,
            target: self.target,
        }
    }
}
