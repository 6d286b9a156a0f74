//! Operations on extended attributes, access control lists among them.

use lockstep_types::{Errno, Ino, NodeKind, XattrMode, limits};

use super::Draft;
use crate::acl::{self, Acl};
use crate::error::OpError;
use crate::keys;

impl Draft<'_> {
    /// Sets an extended attribute.
    pub(super) fn set_xattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), OpError> {
        if name.is_empty() || name.len() > limits::XATTR_NAME_BYTES_MAX {
            return Err(Errno::Range.into());
        }
        if value.len() > limits::XATTR_VALUE_BYTES_MAX {
            return Err(Errno::NoSpace.into());
        }
        self.inode(ino)?;
        let key = keys::xattr(ino, name);
        let exists = self.get(&key)?.is_some();
        match mode {
            XattrMode::Create if exists => return Err(Errno::Exists.into()),
            XattrMode::Replace if !exists => return Err(Errno::NoData.into()),
            _ => {}
        }
        let kept = match name {
            acl::ACCESS => self.set_access_acl(ino, value)?,
            acl::DEFAULT => self.set_default_acl(ino, value)?,
            _ => Some(value.to_vec()),
        };
        if kept.is_some() && !exists {
            self.check_names_fit(ino, name)?;
        }
        self.put(key, kept);
        self.touch(ino)?;
        self.answer(ino)
    }

    /// Shows an access list in the mode bits; keeps it only if it says more than they do.
    fn set_access_acl(&mut self, ino: Ino, value: &[u8]) -> Result<Option<Vec<u8>>, OpError> {
        if self.inode(ino)?.kind() == NodeKind::Symlink {
            return Err(Errno::NotSupported.into());
        }
        let Some(list) = Acl::parse(value)? else {
            return Ok(None);
        };
        let inode = self.inode_mut(ino)?;
        inode.mode = inode.mode & 0o7000 | list.mode_bits();
        Ok((!list.is_only_mode()).then(|| list.to_bytes()))
    }

    fn set_default_acl(&mut self, ino: Ino, value: &[u8]) -> Result<Option<Vec<u8>>, OpError> {
        if self.inode(ino)?.kind() != NodeKind::Directory {
            return Err(Errno::Access.into());
        }
        Ok(Acl::parse(value)?.map(|list| list.to_bytes()))
    }

    /// All names of an inode together must fit what the kernel can list.
    fn check_names_fit(&mut self, ino: Ino, name: &[u8]) -> Result<(), OpError> {
        let listed: usize = self
            .stored_keys(&keys::of_ino(keys::XATTRS, ino))?
            .iter()
            .map(|key| keys::rest_of(key).len() + 1)
            .sum();
        if listed + name.len() + 1 > limits::XATTR_LIST_BYTES_MAX {
            return Err(Errno::NoSpace.into());
        }
        Ok(())
    }

    /// Removes an extended attribute.
    pub(super) fn remove_xattr(&mut self, ino: Ino, name: &[u8]) -> Result<(), OpError> {
        self.inode(ino)?;
        let key = keys::xattr(ino, name);
        if self.get(&key)?.is_none() {
            return Err(Errno::NoData.into());
        }
        self.put(key, None);
        self.touch(ino)?;
        self.answer(ino)
    }
}
