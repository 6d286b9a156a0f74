//! Operations on names: making, linking, removing, moving, and freeing what lost its last name.

use lockstep_types::{Errno, FileName, Ino, MetaRequest, NodeKind, RenameMode, limits};

use super::Draft;
use crate::acl::{self, Acl};
use crate::error::OpError;
use crate::keys;
use crate::record::{Body, Entry, FIRST_COOKIE, Inode};

const SET_GROUP_ID: u32 = 0o2000;
/// Deeper nesting than any path can name; stops a walk up a damaged tree.
const DEPTH_MAX: usize = 1 << 20;

impl Draft<'_> {
    /// Makes a node of any kind.
    pub(super) fn create(&mut self, request: &MetaRequest) -> Result<(), OpError> {
        let MetaRequest::Create {
            parent,
            name,
            ino,
            kind,
            ..
        } = request
        else {
            return Err(Errno::Invalid.into());
        };
        self.check_new_entry(*parent, name, *kind)?;
        let inode = self.new_inode(request)?;
        self.add_inode(*ino, inode)?;
        self.add_entry(*parent, name, *ino, *kind)?;
        self.inherit(request)?;
        self.answer(*ino)
    }

    /// A name can be added: the directory is one, has a name itself, and has no such entry.
    fn check_new_entry(
        &mut self,
        parent: Ino,
        name: &FileName,
        kind: NodeKind,
    ) -> Result<(), OpError> {
        let directory = self.inode(parent)?;
        if !directory.is_directory() {
            return Err(Errno::NotDirectory.into());
        }
        if directory.nlink == 0 {
            return Err(Errno::NoEntry.into());
        }
        if kind == NodeKind::Directory && directory.nlink >= limits::LINKS_MAX {
            return Err(Errno::TooManyLinks.into());
        }
        match self.entry(parent, name)? {
            Some(_) => Err(Errno::Exists.into()),
            None => Ok(()),
        }
    }

    fn new_inode(&mut self, request: &MetaRequest) -> Result<Inode, OpError> {
        let MetaRequest::Create {
            parent,
            kind,
            mode,
            uid,
            gid,
            rdev,
            target,
            ..
        } = request
        else {
            return Err(Errno::Invalid.into());
        };
        let (above_mode, above_gid) = {
            let above = self.inode(*parent)?;
            (above.mode, above.gid)
        };
        let inherits_group = above_mode & SET_GROUP_ID != 0;
        let is_directory = *kind == NodeKind::Directory;
        let mut mode = mode & 0o7777;
        if inherits_group && is_directory {
            mode |= SET_GROUP_ID;
        }
        let time = self.time();
        Ok(Inode {
            mode,
            uid: *uid,
            gid: if inherits_group { above_gid } else { *gid },
            nlink: if is_directory { 2 } else { 1 },
            atime: time,
            mtime: time,
            ctime: time,
            osn: self.osn(),
            body: new_body(*kind, *parent, *rdev, target)?,
        })
    }

    /// Applies the parent's default ACL to the new inode, or else the umask.
    fn inherit(&mut self, request: &MetaRequest) -> Result<(), OpError> {
        let MetaRequest::Create {
            parent,
            ino,
            kind,
            umask,
            ..
        } = request
        else {
            return Err(Errno::Invalid.into());
        };
        if *kind == NodeKind::Symlink {
            self.inode_mut(*ino)?.mode = 0o777;
            return Ok(());
        }
        let default = self.get(&keys::xattr(*parent, acl::DEFAULT))?;
        let parsed = default.as_deref().map(Acl::parse).transpose()?.flatten();
        let Some(mut list) = parsed else {
            self.inode_mut(*ino)?.mode &= !(umask & 0o777);
            return Ok(());
        };
        let inode = self.inode_mut(*ino)?;
        inode.mode = inode.mode & 0o7000 | list.inherit(inode.mode);
        if !list.is_only_mode() {
            self.put(keys::xattr(*ino, acl::ACCESS), Some(list.to_bytes()));
        }
        if *kind == NodeKind::Directory {
            self.put(keys::xattr(*ino, acl::DEFAULT), default);
        }
        Ok(())
    }

    fn add_entry(
        &mut self,
        parent: Ino,
        name: &FileName,
        ino: Ino,
        kind: NodeKind,
    ) -> Result<(), OpError> {
        let cookie = self.directory_mut(parent)?.add(kind == NodeKind::Directory);
        self.put_entry(parent, name, Entry { ino, kind, cookie });
        Ok(())
    }

    /// Gives an inode another name.
    pub(super) fn link(&mut self, ino: Ino, parent: Ino, name: &FileName) -> Result<(), OpError> {
        let inode = self.inode(ino)?;
        let kind = inode.kind();
        match inode.nlink {
            _ if kind == NodeKind::Directory => return Err(Errno::NotPermitted.into()),
            0 => return Err(Errno::NoEntry.into()),
            limits::LINKS_MAX.. => return Err(Errno::TooManyLinks.into()),
            _ => {}
        }
        self.check_new_entry(parent, name, kind)?;
        self.add_entry(parent, name, ino, kind)?;
        self.touch(ino)?.nlink += 1;
        self.answer(ino)
    }

    fn existing(&mut self, parent: Ino, name: &FileName) -> Result<Entry, OpError> {
        if !self.inode(parent)?.is_directory() {
            return Err(Errno::NotDirectory.into());
        }
        Ok(self.entry(parent, name)?.ok_or(Errno::NoEntry)?)
    }

    /// Removes the name of anything but a directory.
    pub(super) fn unlink(&mut self, parent: Ino, name: &FileName) -> Result<(), OpError> {
        let entry = self.existing(parent, name)?;
        if entry.kind == NodeKind::Directory {
            return Err(Errno::IsDirectory.into());
        }
        self.delete_entry(parent, name, entry);
        self.directory_mut(parent)?.remove(false);
        self.drop_link(entry.ino)
    }

    /// Takes one link from an inode that is no directory.
    fn drop_link(&mut self, ino: Ino) -> Result<(), OpError> {
        let inode = self.touch(ino)?;
        inode.nlink = inode.nlink.saturating_sub(1);
        if inode.nlink == 0 {
            self.orphaned(ino);
        }
        Ok(())
    }

    /// Removes an empty directory.
    pub(super) fn rmdir(&mut self, parent: Ino, name: &FileName) -> Result<(), OpError> {
        let entry = self.existing(parent, name)?;
        if entry.kind != NodeKind::Directory {
            return Err(Errno::NotDirectory.into());
        }
        self.check_empty(entry.ino)?;
        self.delete_entry(parent, name, entry);
        self.directory_mut(parent)?.remove(true);
        self.drop_directory(entry.ino)
    }

    fn check_empty(&mut self, directory: Ino) -> Result<(), OpError> {
        match self.inode(directory)?.body {
            Body::Directory { entries: 0, .. } => Ok(()),
            Body::Directory { .. } => Err(Errno::NotEmpty.into()),
            _ => Err(Errno::NotDirectory.into()),
        }
    }

    fn drop_directory(&mut self, ino: Ino) -> Result<(), OpError> {
        self.touch(ino)?.nlink = 0;
        self.orphaned(ino);
        Ok(())
    }

    /// Moves a name, or swaps two.
    pub(super) fn rename(
        &mut self,
        from: (Ino, &FileName),
        to: (Ino, &FileName),
        mode: RenameMode,
    ) -> Result<(), OpError> {
        let moved = self.existing(from.0, from.1)?;
        let target = {
            let directory = self.inode(to.0)?;
            if !directory.is_directory() {
                return Err(Errno::NotDirectory.into());
            }
            if directory.nlink == 0 {
                return Err(Errno::NoEntry.into());
            }
            self.entry(to.0, to.1)?
        };
        self.check_no_loop(moved, to.0)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => Err(Errno::Exists.into()),
            (RenameMode::Exchange, None) => Err(Errno::NoEntry.into()),
            (_, Some(target)) if target.ino == moved.ino => Ok(()),
            (RenameMode::Exchange, Some(target)) => self.exchange((from, moved), (to, target)),
            (_, Some(target)) => self.replace((from, moved), (to, target)),
            (_, None) => self.move_entry((from, moved), to),
        }
    }

    /// A directory must not come to lie below itself.
    fn check_no_loop(&mut self, moved: Entry, new_parent: Ino) -> Result<(), OpError> {
        if moved.kind != NodeKind::Directory {
            return Ok(());
        }
        let mut at = new_parent;
        for _ in 0..DEPTH_MAX {
            if at == moved.ino {
                return Err(Errno::Invalid.into());
            }
            match self.inode(at)?.body {
                Body::Directory { parent, .. } if parent != at => at = parent,
                _ => return Ok(()),
            }
        }
        Err(Errno::Invalid.into())
    }

    fn move_entry(
        &mut self,
        (from, moved): ((Ino, &FileName), Entry),
        to: (Ino, &FileName),
    ) -> Result<(), OpError> {
        let is_directory = moved.kind == NodeKind::Directory;
        if is_directory && from.0 != to.0 && self.inode(to.0)?.nlink >= limits::LINKS_MAX {
            return Err(Errno::TooManyLinks.into());
        }
        self.delete_entry(from.0, from.1, moved);
        self.directory_mut(from.0)?.remove(is_directory);
        self.add_entry(to.0, to.1, moved.ino, moved.kind)?;
        self.moved(moved, to.0)
    }

    /// Notes on an inode that it was moved.
    fn moved(&mut self, entry: Entry, new_parent: Ino) -> Result<(), OpError> {
        let inode = self.touch(entry.ino)?;
        if let Body::Directory { parent, .. } = &mut inode.body {
            *parent = new_parent;
        }
        Ok(())
    }

    fn replace(
        &mut self,
        (from, moved): ((Ino, &FileName), Entry),
        (to, target): ((Ino, &FileName), Entry),
    ) -> Result<(), OpError> {
        let is_directory = moved.kind == NodeKind::Directory;
        match (is_directory, target.kind == NodeKind::Directory) {
            (true, true) => self.check_empty(target.ino)?,
            (true, false) => return Err(Errno::NotDirectory.into()),
            (false, true) => return Err(Errno::IsDirectory.into()),
            (false, false) => {}
        }
        self.delete_entry(from.0, from.1, moved);
        self.directory_mut(from.0)?.remove(is_directory);
        // The name keeps its place in readdir order; a directory replaces a directory, so the
        // count of links of the new parent stays.
        self.directory_mut(to.0)?;
        let cookie = target.cookie;
        self.put_entry(to.0, to.1, Entry { cookie, ..moved });
        self.moved(moved, to.0)?;
        if is_directory {
            self.drop_directory(target.ino)
        } else {
            self.drop_link(target.ino)
        }
    }

    fn exchange(
        &mut self,
        (from, moved): ((Ino, &FileName), Entry),
        (to, target): ((Ino, &FileName), Entry),
    ) -> Result<(), OpError> {
        self.check_no_loop(target, from.0)?;
        let (moved_dir, target_dir) = (
            u32::from(moved.kind == NodeKind::Directory),
            u32::from(target.kind == NodeKind::Directory),
        );
        let above = self.directory_mut(from.0)?;
        *above.nlink = *above.nlink + target_dir - moved_dir;
        let above = self.directory_mut(to.0)?;
        *above.nlink = *above.nlink + moved_dir - target_dir;
        let (here, there) = (moved.cookie, target.cookie);
        self.put_entry(
            from.0,
            from.1,
            Entry {
                cookie: here,
                ..target
            },
        );
        self.put_entry(
            to.0,
            to.1,
            Entry {
                cookie: there,
                ..moved
            },
        );
        self.moved(moved, to.0)?;
        self.moved(target, from.0)
    }

    /// Frees an inode that has no name any more.
    pub(super) fn reap(&mut self, ino: Ino) -> Result<(), OpError> {
        let (nlink, kind) = {
            let inode = self.inode(ino)?;
            (inode.nlink, inode.kind())
        };
        if nlink != 0 {
            return Err(Errno::Busy.into());
        }
        for key in self.stored_keys(&keys::of_ino(keys::XATTRS, ino))? {
            self.put(key, None);
        }
        self.put(keys::orphan(ino), None);
        if kind == NodeKind::File {
            self.put(keys::garbage(ino), Some(Vec::new()));
        }
        self.drop_inode(ino)
    }
}

fn new_body(kind: NodeKind, parent: Ino, rdev: u32, target: &[u8]) -> Result<Body, OpError> {
    Ok(match kind {
        NodeKind::File => Body::File { size: 0 },
        NodeKind::Directory => Body::Directory {
            parent,
            next_cookie: FIRST_COOKIE,
            entries: 0,
        },
        NodeKind::Symlink => match target.len() {
            0 => return Err(Errno::NoEntry.into()),
            1..=limits::SYMLINK_BYTES_MAX => Body::Symlink {
                target: target.to_vec(),
            },
            _ => return Err(Errno::NameTooLong.into()),
        },
        NodeKind::Fifo => Body::Fifo,
        NodeKind::Socket => Body::Socket,
        NodeKind::CharDevice => Body::CharDevice { rdev },
        NodeKind::BlockDevice => Body::BlockDevice { rdev },
    })
}
