//! Inodes and names, and what each metadata operation does to them.

use std::collections::BTreeMap;

use lockstep_types::limits::{FILE_BYTES_MAX, LINKS_MAX};
use lockstep_types::{
    AllocateMode, Attr, Errno, FileName, Ino, MetaRequest, NodeKind, RenameMode, Timestamp,
    XattrMode,
};

use super::acl::{self, Acl};
use super::content::Content;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// The model is kept in memory: more than this in one `fallocate` is refused.
const ALLOCATE_MAX: u64 = 1 << 30;

/// One inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// All but the allocated space, which is computed.
    pub attr: Attr,
    /// Of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a regular file.
    pub content: Content,
    /// Of a directory.
    pub names: Option<Names>,
}

/// The names in a directory.
#[derive(Clone, Debug)]
pub struct Names {
    /// The directory above.
    pub parent: Ino,
    by_name: BTreeMap<FileName, u64>,
    by_cookie: BTreeMap<u64, (FileName, Ino)>,
}

impl Names {
    fn new(parent: Ino) -> Self {
        Self {
            parent,
            by_name: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
        }
    }

    /// Entries after position `cookie`, in order.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, FileName, Ino)> {
        let entries = self.by_cookie.range(cookie + 1..);
        entries.map(|(cookie, (name, ino))| (*cookie, name.clone(), *ino))
    }

    fn get(&self, name: &FileName) -> Option<Ino> {
        let cookie = self.by_name.get(name)?;
        self.by_cookie.get(cookie).map(|(_, ino)| *ino)
    }

    fn insert(&mut self, cookie: u64, name: FileName, ino: Ino) {
        self.by_name.insert(name.clone(), cookie);
        self.by_cookie.insert(cookie, (name, ino));
    }

    fn remove(&mut self, name: &FileName) {
        if let Some(cookie) = self.by_name.remove(name) {
            self.by_cookie.remove(&cookie);
        }
    }
}

/// All inodes of a file system.
pub struct Tree {
    inodes: BTreeMap<Ino, Inode>,
    holds: BTreeMap<Ino, u64>,
    last_ino: Ino,
    last_cookie: u64,
}

impl Default for Tree {
    fn default() -> Self {
        let root = new_inode(Ino::ROOT, NodeKind::Directory, 0o755, Timestamp::default());
        Self {
            inodes: BTreeMap::from([(Ino::ROOT, root)]),
            holds: BTreeMap::new(),
            last_ino: Ino::ROOT,
            last_cookie: 2,
        }
    }
}

fn new_inode(ino: Ino, kind: NodeKind, mode: u32, time: Timestamp) -> Inode {
    let is_directory = kind == NodeKind::Directory;
    Inode {
        attr: Attr {
            ino,
            kind,
            mode,
            uid: 0,
            gid: 0,
            nlink: if is_directory { 2 } else { 1 },
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
        },
        target: Vec::new(),
        xattrs: BTreeMap::new(),
        content: Content::default(),
        names: is_directory.then(|| Names::new(ino)),
    }
}

/// Looking.
impl Tree {
    /// How many inodes exist.
    pub fn inodes(&self) -> usize {
        self.inodes.len()
    }

    /// References on an inode.
    pub fn holds(&self, ino: Ino) -> u64 {
        self.holds.get(&ino).copied().unwrap_or(0)
    }

    /// An inode.
    pub fn inode(&self, ino: Ino) -> Result<&Inode, Errno> {
        self.inodes.get(&ino).ok_or(Errno::Stale)
    }

    fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(&ino).ok_or(Errno::Stale)
    }

    /// The names in a directory.
    pub fn directory(&self, ino: Ino) -> Result<&Names, Errno> {
        self.inode(ino)?.names.as_ref().ok_or(Errno::NotDirectory)
    }

    /// The inode a name leads to.
    pub fn find(&self, parent: Ino, name: &FileName) -> Result<Ino, Errno> {
        self.directory(parent)?.get(name).ok_or(Errno::NoEntry)
    }

    /// Attributes, with the allocated space.
    pub fn attr(&self, ino: Ino) -> Result<Attr, Errno> {
        let inode = self.inode(ino)?;
        Ok(Attr {
            blocks: inode.content.blocks(),
            ..inode.attr
        })
    }

    /// Up to `length` bytes at `offset`.
    pub fn read(&self, ino: Ino, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let inode = self.inode(ino)?;
        let rest = inode.attr.size.saturating_sub(offset);
        let length = usize::try_from(rest).unwrap_or(usize::MAX).min(length);
        Ok(inode.content.read(offset, length))
    }
}

/// References.
impl Tree {
    /// A number never given before.
    pub fn next_ino(&mut self) -> Ino {
        self.last_ino = self.last_ino.next();
        self.last_ino
    }

    /// Counts references.
    pub fn hold(&mut self, ino: Ino, count: u64) {
        *self.holds.entry(ino).or_default() += count;
    }

    /// Counts references that are gone; the last one frees an inode without a name.
    pub fn let_go(&mut self, ino: Ino, count: u64) {
        let held = self.holds.entry(ino).or_default();
        *held = held.checked_sub(count).expect("let go more than held");
        if *held == 0 {
            self.holds.remove(&ino);
            self.reap(ino);
        }
    }

    fn reap(&mut self, ino: Ino) {
        let is_dead = self.inodes.get(&ino).is_some_and(|i| i.attr.nlink == 0);
        if is_dead && self.holds(ino) == 0 {
            self.inodes.remove(&ino);
        }
    }
}

/// Content.
impl Tree {
    /// Writes at `offset`.
    pub fn write(
        &mut self,
        time: Timestamp,
        ino: Ino,
        offset: u64,
        data: &[u8],
        drop_set_id: bool,
    ) -> Result<(), Errno> {
        let end = end_of(offset, data.len() as u64)?;
        let inode = self.inode_mut(ino)?;
        inode.content.write(offset, data);
        inode.attr.size = inode.attr.size.max(end);
        inode.changed(time, drop_set_id);
        Ok(())
    }

    /// Copies; fewer bytes only at the end of the source.
    pub fn copy(
        &mut self,
        time: Timestamp,
        from: (Ino, u64),
        to: (Ino, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        let length = usize::try_from(length.min(ALLOCATE_MAX)).unwrap();
        let data = self.read(from.0, from.1, length)?;
        self.write(time, to.0, to.1, &data, false)?;
        Ok(data.len() as u64)
    }

    fn truncate(&mut self, time: Timestamp, ino: Ino, size: u64, drop: bool) -> Result<(), Errno> {
        end_of(0, size)?;
        let inode = self.inode_mut(ino)?;
        inode.content.truncate(size);
        inode.attr.size = size;
        inode.changed(time, drop);
        Ok(())
    }

    fn allocate(
        &mut self,
        time: Timestamp,
        ino: Ino,
        (offset, length): (u64, u64),
        mode: AllocateMode,
    ) -> Result<(), Errno> {
        let end = end_of(offset, length)?;
        let reserves = mode != AllocateMode::PunchHole;
        if reserves && length > ALLOCATE_MAX {
            return Err(Errno::NoSpace);
        }
        let inode = self.inode_mut(ino)?;
        if !matches!(
            mode,
            AllocateMode::Allocate | AllocateMode::AllocateKeepSize
        ) {
            inode.content.punch(offset, length);
        }
        if reserves {
            inode.content.allocate(offset, length);
        }
        if matches!(mode, AllocateMode::Allocate | AllocateMode::ZeroRange) {
            inode.attr.size = inode.attr.size.max(end);
        }
        inode.changed(time, false);
        Ok(())
    }
}

fn end_of(offset: u64, length: u64) -> Result<u64, Errno> {
    let end = offset.checked_add(length).ok_or(Errno::TooBig)?;
    if end > FILE_BYTES_MAX {
        return Err(Errno::TooBig);
    }
    Ok(end)
}

impl Inode {
    fn changed(&mut self, time: Timestamp, drop_set_id: bool) {
        self.attr.mtime = time;
        self.attr.ctime = time;
        if drop_set_id {
            self.drop_privileges();
        }
    }

    fn drop_privileges(&mut self) {
        let mode = &mut self.attr.mode;
        *mode &= !SET_UID;
        if *mode & GROUP_EXECUTE != 0 {
            *mode &= !SET_GID;
        }
        self.xattrs.remove(&b"security.capability"[..]);
    }

    fn is_directory(&self) -> bool {
        self.names.is_some()
    }

    /// Permission bits, and with them the access list.
    fn chmod(&mut self, mode: u32) {
        self.attr.mode = mode;
        if let Some(value) = self.xattrs.get_mut(acl::ACCESS) {
            let mut list = Acl::parse(value).expect("only lists are stored");
            list.chmod(mode);
            *value = list.encode();
        }
    }

    fn set_access(&mut self, value: &[u8]) -> Result<(), Errno> {
        let list = Acl::parse(value)?;
        self.attr.mode = list.mode(self.attr.mode);
        if list.is_minimal() {
            self.xattrs.remove(acl::ACCESS);
        } else {
            self.xattrs.insert(acl::ACCESS.to_vec(), value.to_vec());
        }
        Ok(())
    }

    /// What a directory's default list does to a new inode, instead of the umask.
    fn inherit(&mut self, default: &[u8]) {
        let mut list = Acl::parse(default).expect("only lists are stored");
        list.restrict(self.attr.mode);
        self.attr.mode = list.mode(self.attr.mode);
        if !list.is_minimal() {
            self.xattrs.insert(acl::ACCESS.to_vec(), list.encode());
        }
        if self.is_directory() {
            self.xattrs.insert(acl::DEFAULT.to_vec(), default.to_vec());
        }
    }
}

/// Metadata operations.
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
