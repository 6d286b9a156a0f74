//! Histories made by hand: calls follow one another, or overlap where the test says so.

use lockstep_sim::check::{Body, Dump, Entry as DumpEntry, Inode};
use lockstep_sim::history::{Answer, CallId, History, NodeEvent, Outcome, Stop};
use lockstep_sim::op::{Mark, Op, WriteOp};
use lockstep_sim::world::Side;
use lockstep_types::{
    Attr, FileName, Ino, MetaRequest, NodeKind, RenameMode, Timestamp, XattrMode,
};

pub const BLOCK: u64 = 4096;
/// The file of tests that need only one file.
pub const FILE: u64 = 2;

pub fn ino(raw: u64) -> Ino {
    Ino::new(raw).unwrap()
}

pub fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

pub fn mark(raw: u8) -> Mark {
    Mark::new(raw).unwrap()
}

/// A history, with a clock.
pub struct Hand {
    pub history: History,
    clock: u64,
}

impl Hand {
    /// A history in which the file `#2` was made with the name `f`.
    pub fn new() -> Self {
        let mut hand = Self {
            history: History::new(false),
            clock: 0,
        };
        hand.done(create(FILE, "f", NodeKind::File), Answer::Done);
        hand
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn invoke(&mut self, op: Op) -> CallId {
        let at = self.tick();
        self.history.invoked(0, op, at)
    }

    pub fn answer(&mut self, id: CallId, outcome: Outcome) {
        let at = self.tick();
        self.history.returned(id, outcome, at);
    }

    /// A call that ends before the next call begins.
    pub fn call(&mut self, op: Op, outcome: Outcome) {
        let id = self.invoke(op);
        self.answer(id, outcome);
    }

    pub fn done(&mut self, op: Op, answer: Answer) {
        self.call(op, Ok(answer));
    }

    /// A successful write.
    pub fn write(&mut self, op: Op) {
        self.done(op, Answer::Done);
    }

    /// A read of `length` bytes from the start of the file, which returns `bytes`.
    pub fn read(&mut self, length: u64, bytes: &[u8]) {
        let op = read(length);
        self.done(op, Answer::read(ino(FILE), 0, bytes));
    }

    pub fn primary(&mut self, stop: Stop) {
        for event in [
            NodeEvent::Crashed(stop),
            NodeEvent::Started,
            NodeEvent::Serves,
        ] {
            let at = self.tick();
            self.history.node(Side::A, event, at);
        }
    }
}

pub fn read(length: u64) -> Op {
    Op::Read {
        ino: ino(FILE),
        offset: 0,
        length,
    }
}

/// A write to the file, in blocks.
pub fn write(raw: u8, block: u64, blocks: u64) -> Op {
    Op::Write(write_op(raw, block, blocks))
}

fn write_op(raw: u8, block: u64, blocks: u64) -> WriteOp {
    WriteOp {
        ino: ino(FILE),
        mark: mark(raw),
        offset: block * BLOCK,
        length: blocks * BLOCK,
        durable: false,
    }
}

/// A durable write to the file, in blocks.
pub fn durable(raw: u8, block: u64, blocks: u64) -> Op {
    Op::Write(WriteOp {
        durable: true,
        ..write_op(raw, block, blocks)
    })
}

pub fn sync() -> Op {
    Op::Sync { ino: ino(FILE) }
}

/// Content of the file: one block per number, from the write with that mark. Zero stands for zeros.
pub fn blocks(marks: &[u8]) -> Vec<u8> {
    let block = |(number, raw): (u64, &u8)| match raw {
        0 => vec![0; 4096],
        _ => write_op(*raw, number, 1).bytes(),
    };
    (0..).zip(marks).flat_map(block).collect()
}

pub fn create(raw: u64, called: &str, kind: NodeKind) -> Op {
    Op::Change(
        MetaRequest::creation(Ino::ROOT, name(called), ino(raw), kind)
            .mode(0o644)
            .request(),
    )
}

pub fn link(raw: u64, called: &str) -> Op {
    Op::Change(MetaRequest::Link {
        ino: ino(raw),
        parent: Ino::ROOT,
        name: name(called),
    })
}

pub fn unlink(called: &str) -> Op {
    Op::Change(MetaRequest::Unlink {
        parent: Ino::ROOT,
        name: name(called),
    })
}

pub fn rmdir(called: &str) -> Op {
    Op::Change(MetaRequest::Rmdir {
        parent: Ino::ROOT,
        name: name(called),
    })
}

pub fn rename(from: &str, to: &str) -> Op {
    Op::Change(MetaRequest::Rename {
        parent: Ino::ROOT,
        name: name(from),
        new_parent: Ino::ROOT,
        new_name: name(to),
        mode: RenameMode::Replace,
    })
}

pub fn lookup(called: &str) -> Op {
    Op::Lookup {
        parent: Ino::ROOT,
        name: name(called),
    }
}

pub fn set_xattr(value: &str) -> Op {
    Op::Change(MetaRequest::SetXattr {
        ino: ino(FILE),
        name: b"user.count".to_vec(),
        value: value.as_bytes().to_vec(),
        mode: XattrMode::Any,
    })
}

pub fn truncate(size: u64) -> Op {
    Op::Change(MetaRequest::Truncate {
        ino: ino(FILE),
        size,
        drop_set_id: false,
    })
}

/// Attributes of a file.
pub fn attr(raw: u64, nlink: u32, size: u64) -> Attr {
    Attr {
        mode: 0o644,
        nlink,
        size,
        ..Attr::plain(ino(raw), NodeKind::File)
    }
}

fn inode(kind: NodeKind, nlink: u32, body: Body) -> Inode {
    Inode {
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        nlink,
        rdev: 0,
        size: 0,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        xattrs: std::collections::BTreeMap::new(),
        body,
    }
}

/// A store with these names in the root. Each name has the number of its inode. A name that ends in `d` is a
/// directory, and all other names are files with this content.
pub fn dump(names: &[(&str, u64)], content: &[u8]) -> Dump {
    let mut dump = Dump::default();
    for (called, raw) in names {
        let is_directory = called.ends_with('d');
        let new = if is_directory {
            inode(NodeKind::Directory, 2, Body::Directory(Vec::new()))
        } else {
            inode(NodeKind::File, 0, Body::File(content.to_vec()))
        };
        let inode = dump.inodes.entry(ino(*raw)).or_insert(new);
        inode.nlink += u32::from(!is_directory);
    }
    let directories = names
        .iter()
        .filter(|(called, _)| called.ends_with('d'))
        .count();
    let entries = (3..).zip(names).map(|(cookie, (called, raw))| DumpEntry {
        cookie,
        name: name(called),
        ino: ino(*raw),
    });
    let nlink = 2 + u32::try_from(directories).unwrap();
    let root = inode(
        NodeKind::Directory,
        nlink,
        Body::Directory(entries.collect()),
    );
    dump.inodes.insert(Ino::ROOT, root);
    dump
}
