//! A right file system that loses on purpose each change that a disk may lose. A [`Bug`] makes the file system wrong.
//!
//! The present state is a [`Model`]. Beside the model stand the states that the disk may hold: a base with the
//! metadata operations since, and the versions of each content.

use std::collections::BTreeMap;

use lockstep_model::{Body as ModelBody, Content, Model};
use lockstep_sim::check::{Body, Dump, Entry as DumpEntry, Inode};
use lockstep_sim::history::{Answer, Entry, Outcome};
use lockstep_sim::op::{Op, WriteOp};
use lockstep_sim::random::Random;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest, Timestamp};

const BLOCK: usize = 4096;
/// The checkers ignore times.
const TIME: Timestamp = Timestamp { secs: 0, nanos: 0 };

/// A deliberate fault of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A read sometimes returns old content.
    StaleRead,
    /// A sync makes nothing durable.
    SyncLies,
    /// A metadata operation is sometimes done again later.
    Twice,
    /// The log that survives a power loss lacks an operation in its middle.
    HoleInLog,
    /// A crash of the process loses unsynced changes.
    CrashLoses,
    /// A write sometimes leaves out some blocks.
    HalfWrite,
}

/// The file system, with all states that its disk may hold.
#[derive(Debug, Default)]
pub struct Fs {
    pub bug: Option<Bug>,
    model: Model,
    /// A namespace on stable storage, and the operations since.
    base: Model,
    log: Vec<MetaRequest>,
    /// The contents that the disk may hold of each file, the newest last.
    versions: BTreeMap<Ino, Vec<Vec<u8>>>,
}

impl Fs {
    /// Does an operation.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Change(request) => {
                let effect = self.model.apply(TIME, request)?;
                self.log.push(request.clone());
                self.note_version(request);
                let subject = effect.subject;
                Ok(subject.map_or(Answer::Done, |ino| Answer::Attr(self.attr(ino))))
            }
            Op::Write(write) => self.write(write, write.end()),
            Op::Read {
                ino,
                offset,
                length,
            } => {
                let content = self.model.content(*ino)?;
                let bytes = content.read(*offset, usize::try_from(*length).unwrap());
                Ok(Answer::read(*ino, *offset, &bytes))
            }
            Op::Sync { .. } if self.bug == Some(Bug::SyncLies) => Ok(Answer::Done),
            Op::Sync { ino } => {
                self.sync_log();
                if let Ok(content) = self.model.content(*ino) {
                    self.versions.insert(*ino, vec![content.bytes()]);
                }
                Ok(Answer::Done)
            }
            _ => self.look(op),
        }
    }

    /// Does an operation that changes nothing and reads no content.
    fn look(&self, op: &Op) -> Outcome {
        match op {
            Op::Lookup { parent, name } => {
                let found = self.model.find(*parent, name);
                let ino = found.map_err(|_| Errno::NoEntry)?;
                Ok(Answer::Attr(self.attr(ino)))
            }
            Op::GetAttr { ino } => {
                self.model.node(*ino)?;
                Ok(Answer::Attr(self.attr(*ino)))
            }
            Op::ReadDir { directory } => {
                let entry = |(_, name, ino): (u64, &FileName, Ino)| Entry {
                    name: name.clone(),
                    ino,
                    kind: self.model.node(ino).unwrap().kind,
                };
                let names = self.model.names(*directory)?;
                let mut entries: Vec<_> = names.iter().map(entry).collect();
                entries.sort_by(|one, other| one.name.cmp(&other.name));
                Ok(Answer::Entries(entries))
            }
            Op::GetXattr { ino, name } => {
                let node = self.model.node(*ino).map_err(|_| Errno::NoData)?;
                let value = node.xattrs.get(name).ok_or(Errno::NoData)?;
                Ok(Answer::Value(value.clone()))
            }
            Op::ReadLink { ino } => Ok(Answer::Value(self.model.target(*ino)?.to_vec())),
            other => unreachable!("{other:?} is done elsewhere"),
        }
    }

    /// Writes the part of a write before `end`: the whole write, or the part that a crash left.
    pub fn write(&mut self, write: &WriteOp, end: u64) -> Outcome {
        let mut bytes = self.model.content(write.ino)?.bytes();
        put(&mut bytes, write, end);
        self.model.set_content(write.ino, &bytes).unwrap();
        let versions = self.versions.entry(write.ino).or_insert_with(unwritten);
        if write.durable && end == write.end() {
            for version in versions {
                put(version, write, end);
            }
            self.sync_log();
        }
        self.versions.get_mut(&write.ino).unwrap().push(bytes);
        Ok(Answer::Done)
    }

    fn note_version(&mut self, request: &MetaRequest) {
        if let MetaRequest::Truncate { ino, .. } | MetaRequest::Allocate { ino, .. } = request {
            let newest = self.model.content(*ino).unwrap().bytes();
            let versions = self.versions.entry(*ino).or_insert_with(unwritten);
            versions.push(newest);
        }
    }

    fn sync_log(&mut self) {
        self.base = self.model.clone();
        self.log.clear();
    }

    /// The disk forgets unsynced pages of content.
    pub fn lose_content(&mut self, random: &mut Random) {
        for (ino, versions) in &mut self.versions {
            if self.model.content(*ino).is_ok() {
                let left = blend(versions, random);
                self.model.set_content(*ino, &left).unwrap();
                *versions = vec![left];
            }
        }
    }

    /// The disk forgets the end of the log, and content.
    pub fn lose_all(&mut self, random: &mut Random) {
        let kept = usize::try_from(random.below(self.log.len() as u64 + 1)).unwrap();
        let hole = usize::try_from(random.below(self.log.len() as u64 + 1)).unwrap();
        let hole = (self.bug == Some(Bug::HoleInLog)).then_some(hole);
        self.model = self.base.clone();
        for (index, request) in self.log.iter().enumerate().take(kept) {
            if Some(index) != hole {
                let done = self.model.apply(TIME, request);
                assert!(
                    done.is_ok() || hole.is_some(),
                    "an operation that succeeded once succeeds again"
                );
            }
        }
        self.lose_content(random);
        self.sync_log();
    }

    /// Reads the content of a file at its last sync.
    pub fn read_old(&self, ino: Ino, offset: u64, length: u64) -> Option<Answer> {
        let old = Content::of(self.versions.get(&ino)?.first()?);
        let bytes = old.read(offset, usize::try_from(length).unwrap());
        Some(Answer::read(ino, offset, &bytes))
    }

    /// Frees an inode without a name, if there is one.
    pub fn reap(&mut self) {
        let orphan = self.model.orphans().next();
        if let Some(ino) = orphan {
            let reap = MetaRequest::Reap { ino };
            self.model.apply(TIME, &reap).unwrap();
        }
    }

    /// The attributes that the checkers judge.
    fn attr(&self, ino: Ino) -> Attr {
        Attr {
            size: self.model.content(ino).map_or(0, Content::size),
            blocks: 0,
            atime: TIME,
            mtime: TIME,
            ctime: TIME,
            ..self.model.attr(ino).unwrap()
        }
    }

    pub fn dump(&self) -> Dump {
        let inodes = self.model.nodes().map(|(ino, _)| (ino, self.inode(ino)));
        Dump {
            inodes: inodes.collect(),
        }
    }

    fn inode(&self, ino: Ino) -> Inode {
        let (attr, node) = (self.attr(ino), self.model.node(ino).unwrap());
        let entry = |(cookie, name, ino): (u64, &FileName, Ino)| DumpEntry {
            cookie,
            name: name.clone(),
            ino,
        };
        Inode {
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
            body: match &node.body {
                ModelBody::File(content) => Body::File(content.bytes()),
                ModelBody::Directory(names) => Body::Directory(names.iter().map(entry).collect()),
                ModelBody::Symlink(target) => Body::Symlink(target.clone()),
                ModelBody::Nothing => Body::Nothing,
            },
        }
    }
}

/// The versions of a file that was never written.
fn unwritten() -> Vec<Vec<u8>> {
    vec![Vec::new()]
}

/// Returns a content that a disk may hold after `versions` were written one after the other.
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
