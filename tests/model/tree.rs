//! Inodes, names and references; `change` holds what each metadata operation does to them.

use std::collections::BTreeMap;

use lockstep_types::limits::{FILE_BYTES_MAX, WRITE_BYTES_MAX};
use lockstep_types::{AllocateMode, Attr, Errno, FileName, Ino, NodeKind, Timestamp};

use super::acl::{self, Acl};
use super::content::Content;

mod change;

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

    /// Entries after position `cookie` (0: all), the newest first.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, FileName, Ino)> {
        let end = if cookie == 0 { u64::MAX } else { cookie };
        let entries = self.by_cookie.range(..end).rev();
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
        let length = length.min(WRITE_BYTES_MAX as u64);
        let data = self.read(from.0, from.1, usize::try_from(length).unwrap())?;
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
