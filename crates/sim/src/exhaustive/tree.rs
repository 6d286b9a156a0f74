//! The tree in which small worlds begin, and the operations of their workloads.
//!
//! ```text
//! /d        directory
//! /d/f      10,000 bytes, extended attribute user.a
//! /d/g      one block
//! /d/z      empty
//! /d/k      another name of /d/g
//! /e        empty directory
//! ```
//!
//! Invariant: an operation depends only on the numbers of these inodes, on its own inode number and
//! on its mark.

use lockstep_types::{
    AllocateMode, FileName, Ino, MetaRequest, NodeKind, RenameMode, Timestamp, XattrMode,
};

use crate::history::CallRecord;
use crate::op::{Mark, Op, WriteOp};

/// Size of `/d/f`, in bytes.
const F_BYTES: u64 = 10_000;

/// The numbers of the inodes of the tree. An inode that is not made yet has the number of the root.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    /// `/d`.
    pub d: Ino,
    /// `/e`.
    pub e: Ino,
    /// `/d/f`.
    pub f: Ino,
    /// `/d/g` and `/d/k`.
    pub g: Ino,
    /// `/d/z`, or the file that an operation of the workload has made since.
    pub newest: Ino,
}

impl Default for Tree {
    fn default() -> Self {
        let root = Ino::ROOT;
        Self {
            d: root,
            e: root,
            f: root,
            g: root,
            newest: root,
        }
    }
}

/// Number of operations that make the tree.
pub const MAKING: u64 = 12;

impl Tree {
    /// Returns the tree that the operations of some calls have made.
    pub fn made_in(calls: &CallRecord) -> Self {
        let mut tree = Self::default();
        for (_, call) in calls.iter() {
            if let Op::Change(MetaRequest::Create { name, ino, .. }) = &call.op {
                match name.as_bytes() {
                    b"d" => tree.d = *ino,
                    b"e" => tree.e = *ino,
                    b"f" => tree.f = *ino,
                    b"g" => tree.g = *ino,
                    _ => tree.newest = *ino,
                }
            }
        }
        tree
    }

    /// Returns the operation with this number, below [`MAKING`], of the operations that make the
    /// tree. `spare` is a free inode number. Returns `None` when the tree is complete.
    pub fn make(&mut self, number: u64, spare: Ino) -> Option<Op> {
        let root = Ino::ROOT;
        Some(match number {
            0 => create(root, "d", NodeKind::Directory, into(&mut self.d, spare)),
            1 => create(root, "e", NodeKind::Directory, into(&mut self.e, spare)),
            2 => create(self.d, "f", NodeKind::File, into(&mut self.f, spare)),
            3 => create(self.d, "g", NodeKind::File, into(&mut self.g, spare)),
            4 => create(self.d, "z", NodeKind::File, into(&mut self.newest, spare)),
            5 => link(self.g, self.d, "k"),
            6 => write(self.f, FIRST, 0, F_BYTES),
            7 => write(self.g, FIRST, 0, 4096),
            8 => set_xattr(self.f, b"user.a", b"first"),
            9 => Op::Sync { ino: self.f },
            10 => Op::Sync { ino: self.g },
            11 => Op::Sync { ino: self.d },
            _ => return None,
        })
    }
}

/// Stores a new inode number in its field.
const fn into(field: &mut Ino, spare: Ino) -> Ino {
    *field = spare;
    spare
}

/// The context of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext {
    /// The tree.
    pub tree: Tree,
    /// A number for a new inode.
    pub spare: Ino,
    /// A mark that no other write has.
    pub mark: Mark,
}

/// One of the main operations.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// A description of the operation, for people.
    pub name: &'static str,
    make: fn(&RequestContext) -> Op,
}

impl Operation {
    /// Returns the operation as a request.
    pub fn request(&self, context: &RequestContext) -> Op {
        (self.make)(context)
    }
}

/// All operations that workloads contain.
pub const OPERATIONS: [Operation; 43] = [
    // Operations that make names.
    of("create a file", |a| {
        create(a.tree.d, "n", NodeKind::File, a.spare)
    }),
    of("make a directory", |a| {
        create(a.tree.d, "m", NodeKind::Directory, a.spare)
    }),
    of("make a symbolic link", |a| {
        create(a.tree.d, "s", NodeKind::Symlink, a.spare)
    }),
    of("link a file", |a| link(a.tree.f, a.tree.e, "n")),
    // Operations that write content.
    of("write to a new file", |a| {
        write_to(a, a.tree.newest, 0, 5000)
    }),
    of("overwrite a block", |a| write_to(a, a.tree.f, 4096, 4096)),
    of("overwrite within a block", |a| {
        write_to(a, a.tree.f, 5000, 300)
    }),
    of("overwrite across blocks", |a| {
        write_to(a, a.tree.f, 3000, 6000)
    }),
    of("append within a block", |a| {
        write_to(a, a.tree.f, F_BYTES, 200)
    }),
    of("append across blocks", |a| {
        write_to(a, a.tree.f, F_BYTES, 9000)
    }),
    of("write behind a gap", |a| write_to(a, a.tree.f, 30_000, 100)),
    of("durably write to a new file", |a| {
        durable(write_to(a, a.tree.newest, 0, 5000))
    }),
    of("durably overwrite", |a| {
        durable(write_to(a, a.tree.f, 3000, 6000))
    }),
    of("durably append", |a| {
        durable(write_to(a, a.tree.f, F_BYTES, 200))
    }),
    of("sync a file", |a| Op::Sync { ino: a.tree.f }),
    of("sync a new file", |a| Op::Sync { ino: a.tree.newest }),
    of("sync a directory", |a| Op::Sync { ino: a.tree.d }),
    // Operations on size and space.
    of("truncate to nothing", |a| truncate(a.tree.f, 0)),
    of("truncate within a block", |a| truncate(a.tree.f, 5000)),
    of("truncate to a larger size", |a| truncate(a.tree.f, 20_000)),
    of("allocate behind the end", |a| {
        allocate(a.tree.f, 9000, 9000, AllocateMode::Allocate)
    }),
    of("allocate and keep the size", |a| {
        allocate(a.tree.f, 9000, 9000, AllocateMode::AllocateKeepSize)
    }),
    of("punch a block", |a| {
        allocate(a.tree.f, 4096, 4096, AllocateMode::PunchHole)
    }),
    of("punch across blocks", |a| {
        allocate(a.tree.f, 3000, 6000, AllocateMode::PunchHole)
    }),
    of("make zeros across blocks", |a| {
        allocate(a.tree.f, 3000, 6000, AllocateMode::ZeroRange)
    }),
    of("make zeros behind the end", |a| {
        allocate(a.tree.f, 9000, 9000, AllocateMode::ZeroRange)
    }),
    // Operations that remove names.
    of("unlink a file", |a| unlink(a.tree.d, "f")),
    of("unlink one of two names", |a| unlink(a.tree.d, "k")),
    of("unlink a new file", |a| unlink(a.tree.d, "n")),
    of("remove a directory", |_| {
        Op::Change(MetaRequest::Rmdir {
            parent: Ino::ROOT,
            name: name("e"),
        })
    }),
    // Operations that move names.
    of("rename to a free name", |a| {
        rename((a.tree.d, "f"), (a.tree.d, "n"), RenameMode::Replace)
    }),
    of("rename over a file", |a| {
        rename((a.tree.d, "f"), (a.tree.d, "z"), RenameMode::Replace)
    }),
    of("rename over one of two names", |a| {
        rename((a.tree.d, "f"), (a.tree.d, "k"), RenameMode::Replace)
    }),
    of("rename to another directory", |a| {
        rename((a.tree.d, "f"), (a.tree.e, "n"), RenameMode::NoReplace)
    }),
    of("rename without replacing, onto a file", |a| {
        rename((a.tree.d, "f"), (a.tree.d, "g"), RenameMode::NoReplace)
    }),
    of("exchange two files", |a| {
        rename((a.tree.d, "f"), (a.tree.d, "z"), RenameMode::Exchange)
    }),
    of("exchange a file and a directory", |a| {
        rename((a.tree.d, "f"), (Ino::ROOT, "e"), RenameMode::Exchange)
    }),
    of("rename a directory", |a| {
        rename((Ino::ROOT, "e"), (a.tree.d, "m"), RenameMode::Replace)
    }),
    // Operations on attributes.
    of("set the mode", |a| {
        set_attr(a.tree.f, Some(0o600), None, None)
    }),
    of("set the owner", |a| set_attr(a.tree.f, None, Some(7), None)),
    of("set the times", |a| {
        let time = Timestamp {
            secs: 1_000_000,
            nanos: 5,
        };
        set_attr(a.tree.f, None, None, Some(time))
    }),
    of("set an extended attribute", |a| {
        set_xattr(a.tree.f, b"user.a", &[a.mark.get(); 40])
    }),
    of("remove an extended attribute", |a| {
        Op::Change(MetaRequest::RemoveXattr {
            ino: a.tree.f,
            name: b"user.a".to_vec(),
        })
    }),
];

const fn of(name: &'static str, make: fn(&RequestContext) -> Op) -> Operation {
    Operation { name, make }
}

/// The mark of the writes that make the tree.
const FIRST: Mark = match Mark::new(1) {
    Some(mark) => mark,
    None => unreachable!(),
};

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap_or_else(|_| unreachable!("letters make a name"))
}

fn create(parent: Ino, text: &str, kind: NodeKind, ino: Ino) -> Op {
    let target: &[u8] = if kind == NodeKind::Symlink {
        b"to/nowhere"
    } else {
        b""
    };
    let creation = MetaRequest::creation(parent, name(text), ino, kind)
        .mode(0o755)
        .umask(0o022)
        .owner(1, 1)
        .target(target.to_vec());
    Op::Change(creation.request())
}

fn link(ino: Ino, parent: Ino, text: &str) -> Op {
    let name = name(text);
    Op::Change(MetaRequest::Link { ino, parent, name })
}

fn unlink(parent: Ino, text: &str) -> Op {
    let name = name(text);
    Op::Change(MetaRequest::Unlink { parent, name })
}

fn rename(from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> Op {
    Op::Change(MetaRequest::Rename {
        parent: from.0,
        name: name(from.1),
        new_parent: to.0,
        new_name: name(to.1),
        mode,
    })
}

const fn write(ino: Ino, mark: Mark, offset: u64, length: u64) -> Op {
    Op::Write(WriteOp {
        ino,
        mark,
        offset,
        length,
        durable: false,
    })
}

const fn write_to(context: &RequestContext, ino: Ino, offset: u64, length: u64) -> Op {
    write(ino, context.mark, offset, length)
}

fn durable(op: Op) -> Op {
    match op {
        Op::Write(write) => Op::Write(WriteOp {
            durable: true,
            ..write
        }),
        op => op,
    }
}

const fn truncate(ino: Ino, size: u64) -> Op {
    Op::Change(MetaRequest::Truncate {
        ino,
        size,
        drop_set_id: false,
    })
}

const fn allocate(ino: Ino, offset: u64, length: u64, mode: AllocateMode) -> Op {
    Op::Change(MetaRequest::Allocate {
        ino,
        offset,
        length,
        mode,
    })
}

/// Sets a mode, an owner and group, or both times.
const fn set_attr(ino: Ino, mode: Option<u32>, owner: Option<u32>, time: Option<Timestamp>) -> Op {
    Op::Change(MetaRequest::SetAttr {
        ino,
        mode,
        uid: owner,
        gid: owner,
        atime: time,
        mtime: time,
    })
}

fn set_xattr(ino: Ino, name: &[u8], value: &[u8]) -> Op {
    Op::Change(MetaRequest::SetXattr {
        ino,
        name: name.to_vec(),
        value: value.to_vec(),
        mode: XattrMode::Any,
    })
}
