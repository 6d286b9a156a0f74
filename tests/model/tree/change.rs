//! What each metadata operation does to inodes and names.

use lockstep_types::limits::LINKS_MAX;
use lockstep_types::{
    Attr, Errno, FileName, Ino, MetaRequest, NodeKind, RenameMode, Timestamp, XattrMode,
};

use super::super::acl;
use super::{Inode, SET_GID, Tree, new_inode};

impl Tree {
    /// Does `request` at `time`; the answer is what `FileService::change` answers.
    pub fn apply(&mut self, time: Timestamp, request: MetaRequest) -> Result<Option<Attr>, Errno> {
        let subject = match request {
            MetaRequest::Create { .. } => Some(self.create(time, request)?),
            MetaRequest::Link { ino, parent, name } => {
                self.link(time, ino, parent, name)?;
                Some(ino)
            }
            MetaRequest::Unlink { parent, name } => {
                self.unlink(time, parent, &name)?;
                None
            }
            MetaRequest::Rmdir { parent, name } => {
                self.rmdir(time, parent, &name)?;
                None
            }
            MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } => {
                self.rename(time, (parent, name), (new_parent, new_name), mode)?;
                None
            }
            MetaRequest::Reap { ino } => {
                self.reap(ino);
                None
            }
            other => Some(self.change_inode(time, other)?),
        };
        subject.map(|ino| self.attr(ino)).transpose()
    }

    fn change_inode(&mut self, time: Timestamp, request: MetaRequest) -> Result<Ino, Errno> {
        match request {
            MetaRequest::SetAttr {
                ino,
                mode,
                uid,
                gid,
                atime,
                mtime,
            } => {
                let inode = self.inode_mut(ino)?;
                if let Some(mode) = mode {
                    inode.chmod(mode);
                }
                let attr = &mut inode.attr;
                attr.uid = uid.unwrap_or(attr.uid);
                attr.gid = gid.unwrap_or(attr.gid);
                attr.atime = atime.unwrap_or(attr.atime);
                attr.mtime = mtime.unwrap_or(attr.mtime);
                attr.ctime = time;
                Ok(ino)
            }
            MetaRequest::Truncate {
                ino,
                size,
                drop_set_id,
            } => self.truncate(time, ino, size, drop_set_id).map(|()| ino),
            MetaRequest::Allocate {
                ino,
                offset,
                length,
                mode,
            } => self
                .allocate(time, ino, (offset, length), mode)
                .map(|()| ino),
            MetaRequest::DropPrivileges { ino } => {
                let inode = self.inode_mut(ino)?;
                inode.drop_privileges();
                inode.attr.ctime = time;
                Ok(ino)
            }
            MetaRequest::SetXattr {
                ino,
                name,
                value,
                mode,
            } => self.set_xattr(time, ino, name, value, mode).map(|()| ino),
            MetaRequest::RemoveXattr { ino, name } => {
                let inode = self.inode_mut(ino)?;
                inode.xattrs.remove(&name).ok_or(Errno::NoData)?;
                inode.attr.ctime = time;
                Ok(ino)
            }
            _ => unreachable!("the others change names"),
        }
    }

    fn set_xattr(
        &mut self,
        time: Timestamp,
        ino: Ino,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: XattrMode,
    ) -> Result<(), Errno> {
        let inode = self.inode_mut(ino)?;
        match (mode, inode.xattrs.contains_key(&name)) {
            (XattrMode::Create, true) => return Err(Errno::Exists),
            (XattrMode::Replace, false) => return Err(Errno::NoData),
            _ => {}
        }
        if name == acl::ACCESS {
            inode.set_access(&value)?;
        } else if name == acl::DEFAULT && !inode.is_directory() {
            return Err(Errno::Access);
        } else {
            inode.xattrs.insert(name, value);
        }
        inode.attr.ctime = time;
        Ok(())
    }

    fn create(&mut self, time: Timestamp, request: MetaRequest) -> Result<Ino, Errno> {
        let MetaRequest::Create {
            parent,
            name,
            ino,
            kind,
            mode,
            umask,
            uid,
            gid,
            rdev,
            target,
        } = request
        else {
            unreachable!("only called for creations")
        };
        self.must_be_free(parent, &name)?;
        let above = self.inode(parent)?;
        let mut inode = new_inode(ino, kind, mode, time);
        let inherits_group = above.attr.mode & SET_GID != 0;
        inode.attr.uid = uid;
        inode.attr.gid = if inherits_group { above.attr.gid } else { gid };
        inode.attr.rdev = rdev;
        inode.attr.size = target.len() as u64;
        inode.target = target;
        match above.xattrs.get(acl::DEFAULT) {
            Some(default) if kind != NodeKind::Symlink => inode.inherit(default),
            _ => inode.attr.mode &= !umask,
        }
        if inherits_group && kind == NodeKind::Directory {
            inode.attr.mode |= SET_GID;
        }
        self.inodes.insert(ino, inode);
        self.put(time, parent, name, ino)?;
        Ok(ino)
    }

    fn link(
        &mut self,
        time: Timestamp,
        ino: Ino,
        parent: Ino,
        name: FileName,
    ) -> Result<(), Errno> {
        self.must_be_free(parent, &name)?;
        let inode = self.inode_mut(ino)?;
        match inode.attr.nlink {
            _ if inode.is_directory() => return Err(Errno::NotPermitted),
            0 => return Err(Errno::NoEntry),
            LINKS_MAX.. => return Err(Errno::TooManyLinks),
            _ => inode.attr.nlink += 1,
        }
        inode.attr.ctime = time;
        self.put(time, parent, name, ino)
    }

    fn unlink(&mut self, time: Timestamp, parent: Ino, name: &FileName) -> Result<(), Errno> {
        let ino = self.find(parent, name)?;
        if self.inode(ino)?.is_directory() {
            return Err(Errno::IsDirectory);
        }
        self.take(time, parent, name)?;
        self.drop_link(time, ino)
    }

    fn rmdir(&mut self, time: Timestamp, parent: Ino, name: &FileName) -> Result<(), Errno> {
        let ino = self.find(parent, name)?;
        if !self.directory(ino)?.by_name.is_empty() {
            return Err(Errno::NotEmpty);
        }
        self.take(time, parent, name)?;
        self.drop_link(time, ino)
    }

    fn rename(
        &mut self,
        time: Timestamp,
        (parent, name): (Ino, FileName),
        (new_parent, new_name): (Ino, FileName),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let moved = self.find(parent, &name)?;
        let target = self.directory(new_parent)?.get(&new_name);
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exists),
            (RenameMode::Exchange, None) => return Err(Errno::NoEntry),
            (_, Some(target)) if target == moved => return Ok(()),
            _ => {}
        }
        self.must_not_contain(moved, new_parent)?;
        match target {
            Some(target) if mode == RenameMode::Exchange => {
                self.must_not_contain(target, parent)?;
                self.take(time, new_parent, &new_name)?;
                self.take(time, parent, &name)?;
                self.put(time, parent, name, target)?;
                self.inode_mut(target)?.attr.ctime = time;
            }
            Some(target) => {
                self.must_be_replaceable(target, moved)?;
                self.take(time, new_parent, &new_name)?;
                self.drop_link(time, target)?;
                self.take(time, parent, &name)?;
            }
            None => self.take(time, parent, &name)?,
        }
        self.put(time, new_parent, new_name, moved)?;
        self.inode_mut(moved)?.attr.ctime = time;
        Ok(())
    }

    fn must_be_free(&self, parent: Ino, name: &FileName) -> Result<(), Errno> {
        let directory = self.inode(parent)?;
        if directory.attr.nlink == 0 {
            return Err(Errno::NoEntry);
        }
        match self.directory(parent)?.get(name) {
            Some(_) => Err(Errno::Exists),
            None => Ok(()),
        }
    }

    fn must_be_replaceable(&self, target: Ino, by: Ino) -> Result<(), Errno> {
        match (self.directory(target), self.directory(by)) {
            (Ok(_), Err(_)) => Err(Errno::IsDirectory),
            (Err(_), Ok(_)) => Err(Errno::NotDirectory),
            (Ok(names), Ok(_)) if !names.by_name.is_empty() => Err(Errno::NotEmpty),
            _ => Ok(()),
        }
    }

    /// A directory cannot move below itself.
    fn must_not_contain(&self, moved: Ino, mut below: Ino) -> Result<(), Errno> {
        while below != moved {
            if below == Ino::ROOT {
                return Ok(());
            }
            below = self.directory(below)?.parent;
        }
        Err(Errno::Invalid)
    }

    /// Gives `ino` a name; a directory's `..` follows.
    fn put(&mut self, time: Timestamp, parent: Ino, name: FileName, ino: Ino) -> Result<(), Errno> {
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        let is_directory = match &mut self.inode_mut(ino)?.names {
            Some(names) => {
                names.parent = parent;
                true
            }
            None => false,
        };
        let above = self.touch(time, parent)?;
        above.attr.nlink += u32::from(is_directory);
        let names = above.names.as_mut().ok_or(Errno::NotDirectory)?;
        names.insert(cookie, name, ino);
        Ok(())
    }

    /// Takes a name away.
    fn take(&mut self, time: Timestamp, parent: Ino, name: &FileName) -> Result<(), Errno> {
        let ino = self.find(parent, name)?;
        let is_directory = self.inode(ino)?.is_directory();
        let above = self.touch(time, parent)?;
        above.attr.nlink -= u32::from(is_directory);
        let names = above.names.as_mut().ok_or(Errno::NotDirectory)?;
        names.remove(name);
        Ok(())
    }

    fn touch(&mut self, time: Timestamp, directory: Ino) -> Result<&mut Inode, Errno> {
        let inode = self.inode_mut(directory)?;
        inode.attr.mtime = time;
        inode.attr.ctime = time;
        Ok(inode)
    }

    /// One name less; a directory has only one.
    fn drop_link(&mut self, time: Timestamp, ino: Ino) -> Result<(), Errno> {
        let inode = self.inode_mut(ino)?;
        inode.attr.nlink = if inode.is_directory() {
            0
        } else {
            inode.attr.nlink - 1
        };
        inode.attr.ctime = time;
        self.reap(ino);
        Ok(())
    }
}
