//! A model of a POSIX file system, written to be obviously right and nothing else: files are byte
//! vectors, directories are lists of names, links are counted when somebody asks.

use std::collections::BTreeMap;

use lockstep_types::{
    AllocateMode, Errno, MetaOp, MetaRequest, NodeKind, RenameMode, Timestamp, XattrMode, limits,
};

use crate::model_acl as acl;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const CAPABILITIES: &[u8] = b"security.capability";

/// What is inside an inode.
#[derive(Clone, Debug)]
pub enum Inside {
    Bytes(Vec<u8>),
    /// Names in the order of `readdir`.
    Names(Vec<(Vec<u8>, u64)>),
    Target(Vec<u8>),
    Nothing,
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: NodeKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub inside: Inside,
}

/// A file system.
#[derive(Clone, Debug)]
pub struct Model {
    pub nodes: BTreeMap<u64, Node>,
    now: Timestamp,
}

type Done = Result<(), Errno>;

impl Model {
    pub fn new() -> Self {
        let root = Node {
            kind: NodeKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            xattrs: BTreeMap::new(),
            inside: Inside::Names(Vec::new()),
        };
        Self {
            nodes: BTreeMap::from([(1, root)]),
            now: Timestamp::default(),
        }
    }

    pub fn node(&self, ino: u64) -> Result<&Node, Errno> {
        self.nodes.get(&ino).ok_or(Errno::Stale)
    }

    fn node_mut(&mut self, ino: u64) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }

    pub fn names(&self, dir: u64) -> Result<&Vec<(Vec<u8>, u64)>, Errno> {
        match &self.node(dir)?.inside {
            Inside::Names(names) => Ok(names),
            _ => Err(Errno::NotDirectory),
        }
    }

    fn names_mut(&mut self, dir: u64) -> &mut Vec<(Vec<u8>, u64)> {
        let now = self.now;
        let node = self.node_mut(dir);
        (node.mtime, node.ctime) = (now, now);
        match &mut node.inside {
            Inside::Names(names) => names,
            _ => unreachable!("checked by the caller"),
        }
    }

    fn find(&self, dir: u64, name: &[u8]) -> Result<Option<u64>, Errno> {
        let found = self.names(dir)?.iter().find(|entry| entry.0 == name);
        Ok(found.map(|entry| entry.1))
    }

    fn is_dir(&self, ino: u64) -> bool {
        self.nodes[&ino].kind == NodeKind::Directory
    }

    /// The directory that has a name for `ino`, if one has.
    pub fn parent(&self, ino: u64) -> Option<u64> {
        let has = |dir: &u64| {
            self.names(*dir)
                .is_ok_and(|names| names.iter().any(|e| e.1 == ino))
        };
        self.nodes.keys().copied().find(has)
    }

    pub fn nlink(&self, ino: u64) -> u32 {
        let every = || {
            self.nodes
                .keys()
                .filter_map(|dir| self.names(*dir).ok())
                .flatten()
        };
        let count = if !self.is_dir(ino) {
            every().filter(|entry| entry.1 == ino).count()
        } else if ino == 1 || self.parent(ino).is_some() {
            2 + self
                .names(ino)
                .unwrap()
                .iter()
                .filter(|e| self.is_dir(e.1))
                .count()
        } else {
            0
        };
        u32::try_from(count).unwrap()
    }

    /// What an operation does, or why it may not.
    pub fn apply(&mut self, op: &MetaOp) -> Done {
        self.now = op.time;
        match &op.request {
            MetaRequest::Create { .. } => self.create(&op.request),
            MetaRequest::Link { ino, parent, name } => {
                self.link(ino.get(), parent.get(), name.as_bytes())
            }
            MetaRequest::Unlink { parent, name } => self.unlink(parent.get(), name.as_bytes()),
            MetaRequest::Rmdir { parent, name } => self.rmdir(parent.get(), name.as_bytes()),
            MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } => self.rename(
                (parent.get(), name.as_bytes()),
                (new_parent.get(), new_name.as_bytes()),
                *mode,
            ),
            MetaRequest::SetAttr {
                ino,
                mode,
                uid,
                gid,
                atime,
                mtime,
            } => self.set_attr(ino.get(), *mode, (*uid, *gid), (*atime, *mtime)),
            MetaRequest::Truncate {
                ino,
                size,
                drop_set_id,
            } => self.truncate(ino.get(), *size, *drop_set_id),
            MetaRequest::Allocate {
                ino,
                offset,
                length,
                mode,
            } => self.allocate(ino.get(), *offset, *length, *mode),
            MetaRequest::DropPrivileges { ino } => {
                self.node(ino.get())?;
                self.drop_set_id(ino.get());
                self.drop_capabilities(ino.get());
                self.changed(ino.get())
            }
            MetaRequest::SetXattr {
                ino,
                name,
                value,
                mode,
            } => self.set_xattr(ino.get(), name, value, *mode),
            MetaRequest::RemoveXattr { ino, name } => {
                self.node(ino.get())?;
                let removed = self.node_mut(ino.get()).xattrs.remove(name);
                removed.ok_or(Errno::NoData)?;
                self.changed(ino.get())
            }
            MetaRequest::Reap { ino } => {
                self.node(ino.get())?;
                if self.nlink(ino.get()) > 0 {
                    return Err(Errno::Busy);
                }
                self.nodes.remove(&ino.get());
                Ok(())
            }
        }
    }

    #[allow(clippy::unnecessary_wraps)] // reads as the last step of every operation
    fn changed(&mut self, ino: u64) -> Done {
        let now = self.now;
        self.node_mut(ino).ctime = now;
        Ok(())
    }

    fn content_changed(&mut self, ino: u64) -> Done {
        let now = self.now;
        self.node_mut(ino).mtime = now;
        self.changed(ino)
    }

    fn check_place(&self, dir: u64, name: &[u8]) -> Done {
        self.names(dir)?;
        if self.nlink(dir) == 0 {
            return Err(Errno::NoEntry);
        }
        match self.find(dir, name)? {
            Some(_) => Err(Errno::Exists),
            None => Ok(()),
        }
    }

    fn create(&mut self, request: &MetaRequest) -> Done {
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
            unreachable!("called for creations only")
        };
        self.check_place(parent.get(), name.as_bytes())?;
        let inside = match kind {
            NodeKind::File => Inside::Bytes(Vec::new()),
            NodeKind::Directory => Inside::Names(Vec::new()),
            NodeKind::Symlink if target.is_empty() => return Err(Errno::NoEntry),
            NodeKind::Symlink if target.len() > 4095 => return Err(Errno::NameTooLong),
            NodeKind::Symlink => Inside::Target(target.clone()),
            _ => Inside::Nothing,
        };
        let above = &self.nodes[&parent.get()];
        let group_bit = above.mode & 0o2000;
        let device = matches!(kind, NodeKind::CharDevice | NodeKind::BlockDevice);
        let inherited = if *kind == NodeKind::Directory {
            group_bit
        } else {
            0
        };
        let mut node = Node {
            kind: *kind,
            mode: mode & 0o7777 | inherited,
            uid: *uid,
            gid: if group_bit != 0 { above.gid } else { *gid },
            rdev: if device { *rdev } else { 0 },
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            xattrs: BTreeMap::new(),
            inside,
        };
        match above.xattrs.get(DEFAULT) {
            _ if *kind == NodeKind::Symlink => node.mode = 0o777,
            None => node.mode &= !(umask & 0o777),
            Some(default) => inherit(&mut node, default),
        }
        self.nodes.insert(ino.get(), node);
        self.names_mut(parent.get())
            .push((name.as_bytes().to_vec(), ino.get()));
        Ok(())
    }

    fn link(&mut self, ino: u64, dir: u64, name: &[u8]) -> Done {
        self.node(ino)?;
        if self.is_dir(ino) {
            return Err(Errno::NotPermitted);
        }
        if self.nlink(ino) == 0 {
            return Err(Errno::NoEntry);
        }
        self.check_place(dir, name)?;
        self.names_mut(dir).push((name.to_vec(), ino));
        self.changed(ino)
    }

    fn existing(&self, dir: u64, name: &[u8]) -> Result<u64, Errno> {
        self.find(dir, name)?.ok_or(Errno::NoEntry)
    }

    fn unlink(&mut self, dir: u64, name: &[u8]) -> Done {
        let ino = self.existing(dir, name)?;
        if self.is_dir(ino) {
            return Err(Errno::IsDirectory);
        }
        self.names_mut(dir).retain(|entry| entry.0 != name);
        self.changed(ino)
    }

    fn rmdir(&mut self, dir: u64, name: &[u8]) -> Done {
        let ino = self.existing(dir, name)?;
        if !self.is_dir(ino) {
            return Err(Errno::NotDirectory);
        }
        if !self.names(ino)?.is_empty() {
            return Err(Errno::NotEmpty);
        }
        self.names_mut(dir).retain(|entry| entry.0 != name);
        self.changed(ino)
    }

    /// Whether `inner` is `outer` or lies below it.
    fn is_below(&self, inner: u64, outer: u64) -> bool {
        inner == outer
            || self
                .parent(inner)
                .is_some_and(|above| self.is_below(above, outer))
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), mode: RenameMode) -> Done {
        let moved = self.existing(from.0, from.1)?;
        self.names(to.0)?;
        if self.nlink(to.0) == 0 {
            return Err(Errno::NoEntry);
        }
        let target = self.find(to.0, to.1)?;
        if self.is_dir(moved) && self.is_below(to.0, moved) {
            return Err(Errno::Invalid);
        }
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exists),
            (RenameMode::Exchange, None) => return Err(Errno::NoEntry),
            (_, Some(target)) if target == moved => return Ok(()),
            (RenameMode::Exchange, Some(target)) => return self.exchange(from, to, moved, target),
            (_, Some(target)) => self.check_replace(moved, target)?,
            (_, None) => {}
        }
        self.names_mut(from.0).retain(|entry| entry.0 != from.1);
        let names = self.names_mut(to.0);
        match names.iter_mut().find(|entry| entry.0 == to.1) {
            Some(entry) => entry.1 = moved,
            None => names.push((to.1.to_vec(), moved)),
        }
        self.changed(moved)?;
        target.map_or(Ok(()), |target| self.changed(target))
    }

    fn check_replace(&self, moved: u64, target: u64) -> Done {
        match (self.is_dir(moved), self.is_dir(target)) {
            (true, false) => Err(Errno::NotDirectory),
            (false, true) => Err(Errno::IsDirectory),
            (true, true) if !self.names(target)?.is_empty() => Err(Errno::NotEmpty),
            _ => Ok(()),
        }
    }

    fn exchange(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), moved: u64, target: u64) -> Done {
        if self.is_dir(target) && self.is_below(from.0, target) {
            return Err(Errno::Invalid);
        }
        for (dir, name, ino) in [(from.0, from.1, target), (to.0, to.1, moved)] {
            let names = self.names_mut(dir);
            names.iter_mut().find(|entry| entry.0 == name).unwrap().1 = ino;
        }
        self.changed(moved)?;
        self.changed(target)
    }

    fn set_attr(
        &mut self,
        ino: u64,
        mode: Option<u32>,
        (uid, gid): (Option<u32>, Option<u32>),
        (atime, mtime): (Option<Timestamp>, Option<Timestamp>),
    ) -> Done {
        let kind = self.node(ino)?.kind;
        if mode.is_some() && kind == NodeKind::Symlink {
            return Err(Errno::NotSupported);
        }
        if (uid.is_some() || gid.is_some()) && kind != NodeKind::Directory {
            self.drop_set_id(ino);
            self.drop_capabilities(ino);
        }
        let node = self.node_mut(ino);
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        node.atime = atime.unwrap_or(node.atime);
        node.mtime = mtime.unwrap_or(node.mtime);
        if let Some(mode) = mode {
            node.mode = mode & 0o7777;
            if let Some(list) = node.xattrs.get_mut(ACCESS) {
                *list = acl::to_bytes(&acl::chmod(acl::of_bytes(list), mode));
            }
        }
        self.changed(ino)
    }

    fn drop_set_id(&mut self, ino: u64) {
        let node = self.node_mut(ino);
        node.mode &= if node.mode & 0o010 != 0 {
            !0o6000
        } else {
            !0o4000
        };
    }

    fn drop_capabilities(&mut self, ino: u64) {
        self.node_mut(ino).xattrs.remove(CAPABILITIES);
    }

    pub fn bytes(&self, ino: u64) -> Result<&Vec<u8>, Errno> {
        match &self.node(ino)?.inside {
            Inside::Bytes(bytes) => Ok(bytes),
            Inside::Names(_) => Err(Errno::IsDirectory),
            _ => Err(Errno::Invalid),
        }
    }

    fn bytes_mut(&mut self, ino: u64) -> &mut Vec<u8> {
        match &mut self.node_mut(ino).inside {
            Inside::Bytes(bytes) => bytes,
            _ => unreachable!("checked by the caller"),
        }
    }

    fn truncate(&mut self, ino: u64, size: u64, drop_set_id: bool) -> Done {
        if size > limits::FILE_BYTES_MAX {
            return Err(Errno::TooBig);
        }
        self.bytes(ino)?;
        if drop_set_id {
            self.drop_set_id(ino);
        }
        self.drop_capabilities(ino);
        self.bytes_mut(ino)
            .resize(usize::try_from(size).unwrap(), 0);
        self.content_changed(ino)
    }

    fn allocate(&mut self, ino: u64, offset: u64, length: u64, mode: AllocateMode) -> Done {
        let end = offset.checked_add(length).ok_or(Errno::TooBig)?;
        if length == 0 {
            return Err(Errno::Invalid);
        }
        if end > limits::FILE_BYTES_MAX {
            return Err(Errno::TooBig);
        }
        self.bytes(ino)?;
        self.drop_capabilities(ino);
        let (offset, end) = (
            usize::try_from(offset).unwrap(),
            usize::try_from(end).unwrap(),
        );
        let bytes = self.bytes_mut(ino);
        let grows = matches!(mode, AllocateMode::Allocate | AllocateMode::ZeroRange);
        if grows && end > bytes.len() {
            bytes.resize(end, 0);
        }
        if !matches!(
            mode,
            AllocateMode::Allocate | AllocateMode::AllocateKeepSize
        ) {
            bytes
                .iter_mut()
                .take(end)
                .skip(offset)
                .for_each(|byte| *byte = 0);
        }
        self.content_changed(ino)
    }

    /// A write of bytes, which is no metadata operation.
    pub fn write(&mut self, ino: u64, offset: usize, data: &[u8], time: Timestamp) -> Done {
        self.bytes(ino)?;
        self.now = time;
        let bytes = self.bytes_mut(ino);
        let end = offset + data.len();
        bytes.resize(bytes.len().max(end), 0);
        bytes[offset..end].copy_from_slice(data);
        self.content_changed(ino)
    }

    fn set_xattr(&mut self, ino: u64, name: &[u8], value: &[u8], mode: XattrMode) -> Done {
        let node = self.nodes.get_mut(&ino).ok_or(Errno::Stale)?;
        match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::Exists),
            (XattrMode::Replace, false) => return Err(Errno::NoData),
            _ => {}
        }
        let lines = match name {
            ACCESS if node.kind == NodeKind::Symlink => return Err(Errno::NotSupported),
            DEFAULT if node.kind != NodeKind::Directory => return Err(Errno::Access),
            ACCESS | DEFAULT if value.len() < 4 => return Err(Errno::Invalid),
            ACCESS | DEFAULT => acl::of_bytes(value).len(),
            _ => usize::MAX,
        };
        let says_no_more = name == ACCESS && lines == 3;
        if name == ACCESS && lines > 0 {
            node.mode = node.mode & 0o7000 | acl::mode(&acl::of_bytes(value));
        }
        if lines == 0 || says_no_more {
            node.xattrs.remove(name);
        } else {
            node.xattrs.insert(name.to_vec(), value.to_vec());
        }
        self.changed(ino)
    }
}

/// Hands a default list down.
fn inherit(node: &mut Node, default: &[u8]) {
    let list = acl::of_bytes(default);
    let granted = acl::mode(&list) & node.mode;
    let list = acl::chmod(list, granted);
    node.mode = node.mode & 0o7000 | granted;
    if list.len() > 3 {
        node.xattrs.insert(ACCESS.to_vec(), acl::to_bytes(&list));
    }
    if node.kind == NodeKind::Directory {
        node.xattrs.insert(DEFAULT.to_vec(), default.to_vec());
    }
}
