//! Operations on permission bits, owners and times.

use lockstep_types::{Errno, Ino, NodeKind, Timestamp};

use super::Draft;
use crate::acl::{self, Acl};
use crate::error::OpError;
use crate::keys;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;
/// Attribute of file capabilities, which fall with the set-id bits.
const CAPABILITIES: &[u8] = b"security.capability";

impl Draft<'_> {
    /// Changes permission bits, owner and times.
    pub(super) fn set_attr(
        &mut self,
        ino: Ino,
        mode: Option<u32>,
        (uid, gid): (Option<u32>, Option<u32>),
        (atime, mtime): (Option<Timestamp>, Option<Timestamp>),
    ) -> Result<(), OpError> {
        let owner_changes = uid.is_some() || gid.is_some();
        let inode = self.touch(ino)?;
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        inode.atime = atime.unwrap_or(inode.atime);
        inode.mtime = mtime.unwrap_or(inode.mtime);
        if owner_changes && inode.kind() != NodeKind::Directory {
            self.drop_set_id(ino)?;
            self.drop_capabilities(ino)?;
        }
        if let Some(mode) = mode {
            self.chmod(ino, mode)?;
        }
        self.answer(ino)
    }

    /// Sets the permission bits, in the access control list too.
    fn chmod(&mut self, ino: Ino, mode: u32) -> Result<(), OpError> {
        let inode = self.inode_mut(ino)?;
        if inode.kind() == NodeKind::Symlink {
            return Err(Errno::NotSupported.into());
        }
        inode.mode = mode & 0o7777;
        let key = keys::xattr(ino, acl::ACCESS);
        if let Some(bytes) = self.get(&key)?
            && let Some(mut list) = Acl::parse(&bytes)?
        {
            list.chmod(mode);
            self.put(key, Some(list.to_bytes()));
        }
        Ok(())
    }

    /// Clears set-user-id, and set-group-id where it means that (with group execution).
    pub(super) fn drop_set_id(&mut self, ino: Ino) -> Result<(), OpError> {
        let mode = self.inode(ino)?.mode;
        let mut kept = mode & !SET_USER_ID;
        if mode & GROUP_EXECUTE != 0 {
            kept &= !SET_GROUP_ID;
        }
        if kept != mode {
            self.inode_mut(ino)?.mode = kept;
        }
        Ok(())
    }

    /// Removes file capabilities.
    pub(super) fn drop_capabilities(&mut self, ino: Ino) -> Result<(), OpError> {
        let key = keys::xattr(ino, CAPABILITIES);
        if self.get(&key)?.is_some() {
            self.put(key, None);
        }
        Ok(())
    }

    /// Clears set-id bits and capabilities before a write.
    pub(super) fn drop_privileges(&mut self, ino: Ino) -> Result<(), OpError> {
        self.touch(ino)?;
        self.drop_set_id(ino)?;
        self.drop_capabilities(ino)?;
        self.answer(ino)
    }
}
