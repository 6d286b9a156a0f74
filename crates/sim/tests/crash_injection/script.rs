//! The requests of the clients, as data that proptest can shrink, and the source that makes these
//! requests.
//!
//! A step names its object by a place: one of few names in one of few directories. The source knows
//! the inode at a place from the answers to the clients. If the source knows no inode there, the
//! step becomes a lookup of the place. So every step makes a request.

use std::collections::BTreeMap;

use lockstep_sim::history::{Answer, Outcome};
use lockstep_sim::op::{Mark, Op, WriteOp};
use lockstep_sim::workload::Source;
use lockstep_types::{
    AllocateMode, Errno, FileName, Ino, MetaRequest, NodeKind, RenameMode, Timestamp, XattrMode,
};

/// A name in a directory: in the root, or in a directory that the first clients make in the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of the directory. 0 is the root.
    pub directory: u8,
    pub name: u8,
}

/// One request.
#[derive(Clone, Debug)]
pub enum Step {
    Look(Place),
    List(Place),
    Read(Place, Range),
    Write(Place, Range),
    WriteDurably(Place, Range),
    Sync(Place),
    SyncDirectory(Place),
    Make(Place, NodeKind),
    Truncate(Place, u64),
    Space(Place, Range, AllocateMode),
    Link(Place, Place),
    Unlink(Place),
    Rmdir(Place),
    Rename(Place, Place, RenameMode),
    SetMode(Place, u32),
    SetTimes(Place, i64),
    SetXattr(Place, u8),
    RemoveXattr(Place),
}

/// A range of bytes in a file.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub offset: u64,
    /// Number of bytes, at least one.
    pub length: u64,
}

/// A source that makes the requests of each client in their order.
pub struct Script {
    /// The outstanding steps of each client, the last step first.
    outstanding: Vec<Vec<Step>>,
    /// The expected inode at each place.
    known: BTreeMap<(Ino, FileName), Ino>,
    /// The last mark given to a write of each file.
    marks: BTreeMap<Ino, u8>,
}

impl Script {
    pub fn new(clients: Vec<Vec<Step>>) -> Self {
        let reversed = |steps: Vec<Step>| steps.into_iter().rev().collect();
        Self {
            outstanding: clients.into_iter().map(reversed).collect(),
            known: BTreeMap::new(),
            marks: BTreeMap::new(),
        }
    }

    /// Returns the directory of a place. Returns the directory's name in the root if the directory
    /// is not known.
    fn directory(&self, place: Place) -> Result<Ino, FileName> {
        if place.directory == 0 {
            return Ok(Ino::ROOT);
        }
        let name = name(&format!("d{}", place.directory));
        let known = self.known.get(&(Ino::ROOT, name.clone()));
        known.copied().ok_or(name)
    }

    /// Returns the inode at a place. Returns a lookup of the place if the inode is not known.
    fn inode(&self, parent: Ino, place: Place) -> Result<Ino, Op> {
        let name = name_of(place);
        let known = self.known.get(&(parent, name.clone())).copied();
        known.ok_or(Op::Lookup { parent, name })
    }

    fn request(&mut self, step: &Step, spare: Ino) -> Op {
        let place = step.place();
        let parent = match self.directory(place) {
            Ok(parent) => parent,
            Err(name) => return make(Ino::ROOT, name, NodeKind::Directory, spare),
        };
        let name = name_of(place);
        match step {
            Step::Look(_) => Op::Lookup { parent, name },
            Step::List(_) => Op::ReadDir { directory: parent },
            Step::SyncDirectory(_) => Op::Sync { ino: parent },
            Step::Make(_, kind) => make(parent, name, *kind, spare),
            Step::Unlink(_) => Op::Change(MetaRequest::Unlink { parent, name }),
            Step::Rmdir(_) => Op::Change(MetaRequest::Rmdir { parent, name }),
            Step::Rename(_, to, mode) => match self.directory(*to) {
                Ok(new_parent) => Op::Change(MetaRequest::Rename {
                    parent,
                    name,
                    new_parent,
                    new_name: name_of(*to),
                    mode: *mode,
                }),
                Err(name) => make(Ino::ROOT, name, NodeKind::Directory, spare),
            },
            Step::Link(_, to) => match (self.inode(parent, place), self.directory(*to)) {
                (Ok(ino), Ok(parent)) => Op::Change(MetaRequest::Link {
                    ino,
                    parent,
                    name: name_of(*to),
                }),
                (Err(lookup), _) => lookup,
                (_, Err(name)) => make(Ino::ROOT, name, NodeKind::Directory, spare),
            },
            of_inode => match self.inode(parent, place) {
                Ok(ino) => self.request_on(of_inode, ino),
                Err(lookup) => lookup,
            },
        }
    }

    /// Returns the request of a step on an inode.
    fn request_on(&mut self, step: &Step, ino: Ino) -> Op {
        match *step {
            Step::Read(_, Range { offset, length }) => Op::Read {
                ino,
                offset,
                length,
            },
            Step::Write(_, range) => self.write(ino, range, false),
            Step::WriteDurably(_, range) => self.write(ino, range, true),
            Step::Sync(_) => Op::Sync { ino },
            Step::Truncate(_, size) => Op::Change(MetaRequest::Truncate {
                ino,
                size,
                drop_set_id: false,
            }),
            Step::Space(_, Range { offset, length }, mode) => Op::Change(MetaRequest::Allocate {
                ino,
                offset,
                length,
                mode,
            }),
            Step::SetMode(_, mode) => set_attr(ino, Some(mode), None),
            Step::SetTimes(_, secs) => set_attr(ino, None, Some(Timestamp { secs, nanos: 0 })),
            Step::SetXattr(_, value) => Op::Change(MetaRequest::SetXattr {
                ino,
                name: b"user.a".to_vec(),
                value: vec![value; 20],
                mode: XattrMode::Any,
            }),
            Step::RemoveXattr(_) => Op::Change(MetaRequest::RemoveXattr {
                ino,
                name: b"user.a".to_vec(),
            }),
            _ => Op::GetAttr { ino },
        }
    }

    fn write(&mut self, ino: Ino, range: Range, durable: bool) -> Op {
        let last = self.marks.entry(ino).or_insert(0);
        // No case has more writes to a file than there are marks.
        *last = last.checked_add(1).unwrap();
        Op::Write(WriteOp {
            ino,
            mark: Mark::new(*last).unwrap(),
            offset: range.offset,
            length: range.length,
            durable,
        })
    }

    fn learn(&mut self, op: &Op, answer: &Answer) {
        match (op, answer) {
            (Op::Lookup { parent, name }, Answer::Attr(attr)) => {
                self.known.insert((*parent, name.clone()), attr.ino);
            }
            (Op::Change(request), _) => self.learn_change(request),
            _ => {}
        }
    }

    fn learn_change(&mut self, request: &MetaRequest) {
        match request {
            MetaRequest::Create {
                parent, name, ino, ..
            }
            | MetaRequest::Link { ino, parent, name } => {
                self.known.insert((*parent, name.clone()), *ino);
            }
            MetaRequest::Unlink { parent, name } | MetaRequest::Rmdir { parent, name } => {
                self.known.remove(&(*parent, name.clone()));
            }
            MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } => {
                let (from, to) = ((*parent, name.clone()), (*new_parent, new_name.clone()));
                let (moved, there) = (self.known.remove(&from), self.known.remove(&to));
                if let (RenameMode::Exchange, Some(there)) = (mode, there) {
                    self.known.insert(from, there);
                }
                if let Some(moved) = moved {
                    self.known.insert(to, moved);
                }
            }
            _ => {}
        }
    }

    /// Forgets the objects of an operation: they are gone, or were replaced.
    fn forget(&mut self, op: &Op) {
        let gone = match op {
            Op::Write(write) => write.ino,
            Op::Read { ino, .. }
            | Op::Sync { ino }
            | Op::GetAttr { ino }
            | Op::ReadDir { directory: ino }
            | Op::Lookup { parent: ino, .. } => *ino,
            Op::Change(request) => match request {
                MetaRequest::Create { parent, name, .. }
                | MetaRequest::Unlink { parent, name }
                | MetaRequest::Rmdir { parent, name }
                | MetaRequest::Rename { parent, name, .. } => {
                    self.known.remove(&(*parent, name.clone()));
                    *parent
                }
                MetaRequest::Link { ino, .. }
                | MetaRequest::SetAttr { ino, .. }
                | MetaRequest::Truncate { ino, .. }
                | MetaRequest::Allocate { ino, .. }
                | MetaRequest::SetXattr { ino, .. }
                | MetaRequest::RemoveXattr { ino, .. } => *ino,
                _ => return,
            },
            _ => return,
        };
        self.known
            .retain(|(parent, _), ino| *ino != gone && *parent != gone);
    }
}

impl Source for Script {
    fn next(&mut self, client: u32, spare: Ino) -> Option<Op> {
        let client = usize::try_from(client).unwrap();
        let step = self.outstanding.get_mut(client)?.pop()?;
        Some(self.request(&step, spare))
    }

    fn observe(&mut self, _client: u32, op: &Op, outcome: &Outcome) {
        match outcome {
            Ok(answer) => self.learn(op, answer),
            Err(Errno::Stale | Errno::NoEntry) => self.forget(op),
            Err(_) => {}
        }
    }
}

impl Step {
    /// Returns the place of the step.
    const fn place(&self) -> Place {
        match self {
            Self::Look(place)
            | Self::List(place)
            | Self::Read(place, _)
            | Self::Write(place, _)
            | Self::WriteDurably(place, _)
            | Self::Sync(place)
            | Self::SyncDirectory(place)
            | Self::Make(place, _)
            | Self::Truncate(place, _)
            | Self::Space(place, ..)
            | Self::Link(place, _)
            | Self::Unlink(place)
            | Self::Rmdir(place)
            | Self::Rename(place, ..)
            | Self::SetMode(place, _)
            | Self::SetTimes(place, _)
            | Self::SetXattr(place, _)
            | Self::RemoveXattr(place) => *place,
        }
    }
}

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

fn name_of(place: Place) -> FileName {
    name(&format!("n{}", place.name))
}

fn make(parent: Ino, name: FileName, kind: NodeKind, ino: Ino) -> Op {
    let target: &[u8] = match kind {
        NodeKind::Symlink => b"to/nowhere",
        _ => b"",
    };
    Op::Change(
        MetaRequest::creation(parent, name, ino, kind)
            .mode(0o755)
            .umask(0o022)
            .owner(1, 1)
            .target(target.to_vec())
            .request(),
    )
}

const fn set_attr(ino: Ino, mode: Option<u32>, time: Option<Timestamp>) -> Op {
    Op::Change(MetaRequest::SetAttr {
        ino,
        mode,
        uid: None,
        gid: None,
        atime: time,
        mtime: time,
    })
}
