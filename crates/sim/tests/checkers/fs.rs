//! A file system that is obviously right and loses on purpose what it may lose: files are byte
//! vectors, links are counted when somebody asks, nothing is undone or searched.

use std::collections::BTreeMap;

use lockstep_sim::check::{Body, Dump, Entry as DumpEntry, Inode};
use lockstep_sim::history::{Answer, Entry, Outcome};
use lockstep_sim::random::Random;
use lockstep_sim::workload::{Op, WriteOp};
use lockstep_types::{
    AllocateMode, Attr, Errno, FileName, Ino, MetaRequest, NodeKind, RenameMode, Timestamp,
    XattrMode,
};

const BLOCK: usize = 4096;

#[derive(Clone, Debug)]
pub struct Node {
    kind: NodeKind,
    mode: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    names: BTreeMap<FileName, Ino>,
    bytes: Vec<u8>,
}

impl Node {
    fn new(kind: NodeKind, mode: u32, owner: (u32, u32)) -> Self {
        Self {
            kind,
            mode,
            uid: owner.0,
            gid: owner.1,
            rdev: 0,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            names: BTreeMap::new(),
            bytes: Vec::new(),
        }
    }
}

type Nodes = BTreeMap<Ino, Node>;

/// What a file system does wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A read now and then brings old content.
    StaleRead,
    /// A sync makes nothing durable.
    SyncLies,
    /// A metadata operation now and then is done again later.
    Twice,
    /// What is left of the log lacks an operation in its middle.
    HoleInLog,
    /// A stop of the process loses what was not synced.
    CrashLoses,
    /// Of a write some blocks are now and then left out.
    HalfWrite,
}

/// The file system, with all that its disk could hold.
#[derive(Debug)]
pub struct Fs {
    pub bug: Option<Bug>,
    nodes: Nodes,
    /// The namespace that is surely on the disk, and the operations since.
    base: Nodes,
    log: Vec<MetaRequest>,
    /// What the content of each file may be on the disk, newest last.
    versions: BTreeMap<Ino, Vec<Vec<u8>>>,
}

impl Fs {
    pub fn new() -> Self {
        let root = Node::new(NodeKind::Directory, 0o755, (0, 0));
        let nodes = Nodes::from([(Ino::ROOT, root)]);
        Self {
            bug: None,
            base: nodes.clone(),
            nodes,
            log: Vec::new(),
            versions: BTreeMap::new(),
        }
    }

    /// Does what is asked.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Change(request) => {
                let answer = change(&mut self.nodes, request)?;
                self.log.push(request.clone());
                self.note_version(request);
                Ok(answer.map_or(Answer::Done, |ino| Answer::Attr(self.attr(ino))))
            }
            Op::Write(write) => self.write(write, write.end()),
            Op::Read {
                ino,
                offset,
                length,
            } => {
                let bytes = file(&self.nodes, *ino)?;
                let from = usize::try_from(*offset).unwrap().min(bytes.len());
                let to = usize::try_from(offset + length).unwrap().min(bytes.len());
                Ok(Answer::read(*ino, *offset, &bytes[from..to]))
            }
            Op::Sync { .. } if self.bug == Some(Bug::SyncLies) => Ok(Answer::Done),
            Op::Sync { ino } => {
                self.sync_log();
                if let Ok(bytes) = file(&self.nodes, *ino) {
                    self.versions.insert(*ino, vec![bytes.clone()]);
                }
                Ok(Answer::Done)
            }
            Op::Lookup { parent, name } => {
                let above = self.nodes.get(parent).ok_or(Errno::NoEntry)?;
                let ino = above.names.get(name).ok_or(Errno::NoEntry)?;
                Ok(Answer::Attr(self.attr(*ino)))
            }
            Op::GetAttr { ino } => {
                self.nodes.get(ino).ok_or(Errno::Stale)?;
                Ok(Answer::Attr(self.attr(*ino)))
            }
            Op::ReadDir { directory } => {
                let names = &directory_of(&self.nodes, *directory)?.names;
                let entry = |(name, ino): (&FileName, &Ino)| Entry {
                    name: name.clone(),
                    ino: *ino,
                    kind: self.nodes[ino].kind,
                };
                Ok(Answer::Entries(names.iter().map(entry).collect()))
            }
            Op::GetXattr { ino, name } => {
                let node = self.nodes.get(ino).ok_or(Errno::NoData)?;
                let value = node.xattrs.get(name).ok_or(Errno::NoData)?;
                Ok(Answer::Value(value.clone()))
            }
            Op::ReadLink { ino } => {
                let node = self.nodes.get(ino).ok_or(Errno::Stale)?;
                match node.kind {
                    NodeKind::Symlink => Ok(Answer::Value(node.target.clone())),
                    _ => Err(Errno::Invalid),
                }
            }
        }
    }

    /// Writes the part of a write before `end`: all of it, or what a crash left of it.
    pub fn write(&mut self, write: &WriteOp, end: u64) -> Outcome {
        file(&self.nodes, write.ino)?;
        let node = self.nodes.get_mut(&write.ino).unwrap();
        put(&mut node.bytes, write, end);
        let newest = node.bytes.clone();
        let versions = self
            .versions
            .entry(write.ino)
            .or_insert_with(|| vec![Vec::new()]);
        if write.durable && end == write.end() {
            for version in versions {
                put(version, write, end);
            }
            self.sync_log();
        }
        self.versions.get_mut(&write.ino).unwrap().push(newest);
        Ok(Answer::Done)
    }

    fn note_version(&mut self, request: &MetaRequest) {
        if let MetaRequest::Truncate { ino, .. } | MetaRequest::Allocate { ino, .. } = request {
            let newest = self.nodes[ino].bytes.clone();
            let versions = self
                .versions
                .entry(*ino)
                .or_insert_with(|| vec![Vec::new()]);
            versions.push(newest);
        }
    }

    fn sync_log(&mut self) {
        self.base = self.nodes.clone();
        self.log.clear();
    }

    /// The disk forgets pages of content that were not synced.
    pub fn lose_content(&mut self, random: &mut Random) {
        for (ino, node) in &mut self.nodes {
            if let Some(versions) = self.versions.get_mut(ino) {
                node.bytes = blend(versions, random);
                *versions = vec![node.bytes.clone()];
            }
        }
    }

    /// The disk forgets the end of the log, and content.
    pub fn lose_all(&mut self, random: &mut Random) {
        let kept = usize::try_from(random.below(self.log.len() as u64 + 1)).unwrap();
        let hole = usize::try_from(random.below(self.log.len() as u64 + 1)).unwrap();
        let hole = (self.bug == Some(Bug::HoleInLog)).then_some(hole);
        self.nodes = self.base.clone();
        for (index, request) in self.log.iter().enumerate().take(kept) {
            if Some(index) != hole {
                let done = change(&mut self.nodes, request);
                assert!(
                    done.is_ok() || hole.is_some(),
                    "what was done once is done again"
                );
            }
        }
        self.lose_content(random);
        self.sync_log();
    }

    /// What a file held when it was last on the disk.
    pub fn read_old(&self, ino: Ino, offset: u64, length: u64) -> Option<Answer> {
        let bytes = self.versions.get(&ino)?.first()?;
        let from = usize::try_from(offset).unwrap().min(bytes.len());
        let to = usize::try_from(offset + length).unwrap().min(bytes.len());
        Some(Answer::read(ino, offset, &bytes[from..to]))
    }

    /// Frees an inode without a name, if there is one.
    pub fn reap(&mut self) {
        let dead = self.nodes.keys().find(|ino| nlink(&self.nodes, **ino) == 0);
        if let Some(ino) = dead.copied() {
            self.nodes.remove(&ino);
        }
    }

    fn attr(&self, ino: Ino) -> Attr {
        let node = &self.nodes[&ino];
        Attr {
            ino,
            kind: node.kind,
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            nlink: nlink(&self.nodes, ino),
            rdev: node.rdev,
            size: node.bytes.len() as u64,
            blocks: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
        }
    }

    pub fn dump(&self) -> Dump {
        let inode = |(ino, node): (&Ino, &Node)| {
            let attr = self.attr(*ino);
            let entries = (3..)
                .zip(&node.names)
                .map(|(cookie, (name, ino))| DumpEntry {
                    cookie,
                    name: name.clone(),
                    ino: *ino,
                });
            let inode = Inode {
                kind: attr.kind,
                mode: attr.mode,
                uid: attr.uid,
                gid: attr.gid,
                nlink: attr.nlink,
                rdev: attr.rdev,
                size: attr.size,
                atime: attr.atime,
                mtime: attr.mtime,
                ctime: attr.ctime,
                xattrs: node.xattrs.clone(),
                body: match node.kind {
                    NodeKind::File => Body::File(node.bytes.clone()),
                    NodeKind::Directory => Body::Directory(entries.collect()),
                    NodeKind::Symlink => Body::Symlink(node.target.clone()),
                    _ => Body::Nothing,
                },
            };
            (*ino, inode)
        };
        Dump {
            inodes: self.nodes.iter().map(inode).collect(),
        }
    }
}

/// A content that a disk may hold which was to hold `versions` one after the other.
fn blend(versions: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let length = random.pick(versions).len();
    let mut bytes = vec![0; length];
    for block in bytes.chunks_mut(BLOCK).enumerate() {
        let from = block.0 * BLOCK;
        let source = random.pick(versions);
        let source = source.get(from..).unwrap_or_default();
        block
            .1
            .iter_mut()
            .zip(source)
            .for_each(|(byte, source)| *byte = *source);
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, write: &WriteOp, end: u64) {
    let data = write.bytes();
    let length = usize::try_from(end.saturating_sub(write.offset))
        .unwrap()
        .min(data.len());
    let from = usize::try_from(write.offset).unwrap();
    if length > 0 {
        bytes.resize(bytes.len().max(from + length), 0);
        bytes[from..from + length].copy_from_slice(&data[..length]);
    }
}

fn file(nodes: &Nodes, ino: Ino) -> Result<&Vec<u8>, Errno> {
    let node = nodes.get(&ino).ok_or(Errno::Stale)?;
    match node.kind {
        NodeKind::File => Ok(&node.bytes),
        NodeKind::Directory => Err(Errno::IsDirectory),
        _ => Err(Errno::Invalid),
    }
}

fn directory_of(nodes: &Nodes, ino: Ino) -> Result<&Node, Errno> {
    let node = nodes.get(&ino).ok_or(Errno::Stale)?;
    match node.kind {
        NodeKind::Directory => Ok(node),
        _ => Err(Errno::NotDirectory),
    }
}

fn parent_of(nodes: &Nodes, ino: Ino) -> Option<Ino> {
    let has = |node: &Node| node.names.values().any(|child| *child == ino);
    nodes
        .iter()
        .find(|(_, node)| has(node))
        .map(|(parent, _)| *parent)
}

fn nlink(nodes: &Nodes, ino: Ino) -> u32 {
    let is_directory = |ino: &Ino| nodes[ino].kind == NodeKind::Directory;
    let children = nodes.values().flat_map(|node| node.names.values());
    let named = children.filter(|child| **child == ino).count();
    let count = match (is_directory(&ino), named) {
        (false, named) => named,
        (true, 0) if ino != Ino::ROOT => 0,
        _ => {
            2 + nodes[&ino]
                .names
                .values()
                .filter(|child| is_directory(child))
                .count()
        }
    };
    u32::try_from(count).unwrap()
}

/// Does a metadata operation, or nothing. The answer is the inode made or changed.
fn change(nodes: &mut Nodes, request: &MetaRequest) -> Result<Option<Ino>, Errno> {
    match request {
        MetaRequest::Create {
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
        } => {
            check_free(nodes, *parent, name)?;
            let mut node = Node::new(*kind, mode & !umask, (*uid, *gid));
            node.rdev = *rdev;
            if *kind == NodeKind::Symlink {
                node.mode = 0o777;
                node.target.clone_from(target);
            }
            nodes.insert(*ino, node);
            names(nodes, *parent).insert(name.clone(), *ino);
            Ok(Some(*ino))
        }
        MetaRequest::Link { ino, parent, name } => {
            let node = nodes.get(ino).ok_or(Errno::Stale)?;
            if node.kind == NodeKind::Directory {
                return Err(Errno::NotPermitted);
            }
            if nlink(nodes, *ino) == 0 {
                return Err(Errno::NoEntry);
            }
            check_free(nodes, *parent, name)?;
            names(nodes, *parent).insert(name.clone(), *ino);
            Ok(Some(*ino))
        }
        MetaRequest::Unlink { parent, name } => {
            let ino = existing(nodes, *parent, name)?;
            if nodes[&ino].kind == NodeKind::Directory {
                return Err(Errno::IsDirectory);
            }
            names(nodes, *parent).remove(name);
            Ok(None)
        }
        MetaRequest::Rmdir { parent, name } => {
            let ino = existing(nodes, *parent, name)?;
            if !directory_of(nodes, ino)?.names.is_empty() {
                return Err(Errno::NotEmpty);
            }
            names(nodes, *parent).remove(name);
            Ok(None)
        }
        MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
        } => rename(nodes, (*parent, name), (*new_parent, new_name), *mode).map(|()| None),
        _ => change_inode(nodes, request),
    }
}

fn change_inode(nodes: &mut Nodes, request: &MetaRequest) -> Result<Option<Ino>, Errno> {
    match request {
        MetaRequest::SetAttr {
            ino,
            mode,
            uid,
            gid,
            ..
        } => {
            let node = nodes.get_mut(ino).ok_or(Errno::Stale)?;
            if mode.is_some() && node.kind == NodeKind::Symlink {
                return Err(Errno::NotSupported);
            }
            if uid.is_some() && node.kind != NodeKind::Directory {
                node.mode &= if node.mode & 0o010 == 0 {
                    !0o4000
                } else {
                    !0o6000
                };
            }
            node.uid = uid.unwrap_or(node.uid);
            node.gid = gid.unwrap_or(node.gid);
            node.mode = mode.unwrap_or(node.mode);
            Ok(Some(*ino))
        }
        MetaRequest::SetXattr {
            ino,
            name,
            value,
            mode,
        } => {
            let node = nodes.get_mut(ino).ok_or(Errno::Stale)?;
            match (mode, node.xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return Err(Errno::Exists),
                (XattrMode::Replace, false) => return Err(Errno::NoData),
                _ => node.xattrs.insert(name.clone(), value.clone()),
            };
            Ok(Some(*ino))
        }
        MetaRequest::RemoveXattr { ino, name } => {
            let node = nodes.get_mut(ino).ok_or(Errno::Stale)?;
            node.xattrs.remove(name).ok_or(Errno::NoData)?;
            Ok(Some(*ino))
        }
        _ => change_content(nodes, request),
    }
}

fn change_content(nodes: &mut Nodes, request: &MetaRequest) -> Result<Option<Ino>, Errno> {
    match request {
        MetaRequest::Truncate { ino, size, .. } => {
            file(nodes, *ino)?;
            let bytes = &mut nodes.get_mut(ino).unwrap().bytes;
            bytes.resize(usize::try_from(*size).unwrap(), 0);
            Ok(Some(*ino))
        }
        MetaRequest::Allocate {
            ino,
            offset,
            length,
            mode,
        } => {
            file(nodes, *ino)?;
            let bytes = &mut nodes.get_mut(ino).unwrap().bytes;
            let (from, to) = (*offset, offset + length);
            let (from, to) = (usize::try_from(from).unwrap(), usize::try_from(to).unwrap());
            if matches!(mode, AllocateMode::Allocate | AllocateMode::ZeroRange) {
                bytes.resize(bytes.len().max(to), 0);
            }
            let zeroes = !matches!(
                mode,
                AllocateMode::Allocate | AllocateMode::AllocateKeepSize
            );
            let length = if zeroes { to - from } else { 0 };
            bytes
                .iter_mut()
                .skip(from)
                .take(length)
                .for_each(|byte| *byte = 0);
            Ok(Some(*ino))
        }
        other => panic!("{other:?} is never asked"),
    }
}

fn names(nodes: &mut Nodes, directory: Ino) -> &mut BTreeMap<FileName, Ino> {
    &mut nodes.get_mut(&directory).unwrap().names
}

fn check_free(nodes: &Nodes, parent: Ino, name: &FileName) -> Result<(), Errno> {
    let above = directory_of(nodes, parent)?;
    if nlink(nodes, parent) == 0 {
        return Err(Errno::NoEntry);
    }
    if above.names.contains_key(name) {
        return Err(Errno::Exists);
    }
    Ok(())
}

fn existing(nodes: &Nodes, parent: Ino, name: &FileName) -> Result<Ino, Errno> {
    let above = directory_of(nodes, parent)?;
    above.names.get(name).copied().ok_or(Errno::NoEntry)
}

fn is_below(nodes: &Nodes, inner: Ino, outer: Ino) -> bool {
    inner == outer || parent_of(nodes, inner).is_some_and(|above| is_below(nodes, above, outer))
}

fn rename(
    nodes: &mut Nodes,
    from: (Ino, &FileName),
    to: (Ino, &FileName),
    mode: RenameMode,
) -> Result<(), Errno> {
    let moved = existing(nodes, from.0, from.1)?;
    let target = directory_of(nodes, to.0)?.names.get(to.1).copied();
    if nlink(nodes, to.0) == 0 {
        return Err(Errno::NoEntry);
    }
    let is_directory = |nodes: &Nodes, ino: Ino| nodes[&ino].kind == NodeKind::Directory;
    if is_directory(nodes, moved) && is_below(nodes, to.0, moved) {
        return Err(Errno::Invalid);
    }
    match (mode, target) {
        (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exists),
        (RenameMode::Exchange, None) => return Err(Errno::NoEntry),
        (_, Some(target)) if target == moved => return Ok(()),
        (RenameMode::Exchange, Some(target)) => {
            if is_directory(nodes, target) && is_below(nodes, from.0, target) {
                return Err(Errno::Invalid);
            }
            names(nodes, from.0).insert(from.1.clone(), target);
            names(nodes, to.0).insert(to.1.clone(), moved);
            return Ok(());
        }
        (_, Some(target)) => match (is_directory(nodes, moved), is_directory(nodes, target)) {
            (true, true) if !nodes[&target].names.is_empty() => return Err(Errno::NotEmpty),
            (true, false) => return Err(Errno::NotDirectory),
            (false, true) => return Err(Errno::IsDirectory),
            _ => {}
        },
        (_, None) => {}
    }
    names(nodes, from.0).remove(from.1);
    names(nodes, to.0).insert(to.1.clone(), moved);
    Ok(())
}
