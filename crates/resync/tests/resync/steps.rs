//! Random changes to a store.

use lockstep_fs::StoreView;
use lockstep_types::{AllocateMode, Ino, MetaRequest, NodeKind, RenameMode, XattrMode};
use proptest::prelude::*;

use super::nodes::{Node, create, name};

/// A change; the numbers choose among the present inodes.
#[derive(Clone, Debug)]
pub enum Step {
    Create(u8, u8, NodeKind),
    Unlink(u8, u8),
    Rmdir(u8, u8),
    Reap(u8),
    Rename(u8, u8, u8, u8, bool),
    Link(u8, u8, u8),
    Write(u8, u64, usize, u8),
    Truncate(u8, u64),
    Punch(u8, u64, u64),
    Mode(u8, u32),
    Xattr(u8, u8, u8),
    Checkpoint,
}

/// Offsets around blocks and pieces, and far away.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..20_000u64,
        2 => 1_000_000..1_100_000u64,
        2 => 2_090_000..3_200_000u64,
        1 => Just(1 << 34),
    ]
}

pub fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => Just(NodeKind::File),
        2 => Just(NodeKind::Directory),
        1 => Just(NodeKind::Symlink),
        1 => Just(NodeKind::Fifo),
    ];
    let any = any::<u8>;
    prop_oneof![
        5 => (any(), 0..6u8, kind).prop_map(|(d, n, kind)| Step::Create(d, n, kind)),
        2 => (any(), 0..6u8).prop_map(|(d, n)| Step::Unlink(d, n)),
        1 => (any(), 0..6u8).prop_map(|(d, n)| Step::Rmdir(d, n)),
        1 => any().prop_map(Step::Reap),
        1 => (any(), 0..6u8, any(), 0..6u8, proptest::bool::ANY)
            .prop_map(|(d, n, e, m, swap)| Step::Rename(d, n, e, m, swap)),
        1 => (any(), any(), 0..6u8).prop_map(|(i, d, n)| Step::Link(i, d, n)),
        8 => (any(), offset(), 1..70_000usize, any())
            .prop_map(|(i, at, length, fill)| Step::Write(i, at, length, fill)),
        2 => (any(), offset()).prop_map(|(i, size)| Step::Truncate(i, size)),
        1 => (any(), offset(), 1..2_000_000u64).prop_map(|(i, at, n)| Step::Punch(i, at, n)),
        1 => (any(), 0..0o7777u32).prop_map(|(i, mode)| Step::Mode(i, mode)),
        2 => (any(), 0..4u8, any()).prop_map(|(i, n, value)| Step::Xattr(i, n, value)),
        1 => Just(Step::Checkpoint),
    ]
}

fn pick(node: &Node, number: u8, kind: Option<NodeKind>) -> Ino {
    let inodes = node.store().tree().inodes(1, u64::MAX, usize::MAX).unwrap();
    let fitting: Vec<Ino> = inodes
        .into_iter()
        .filter(|(_, found)| kind.is_none_or(|kind| kind == *found))
        .map(|(ino, _)| ino)
        .collect();
    match fitting.len() {
        0 => Ino::ROOT,
        count => fitting[usize::from(number) % count],
    }
}

fn directory(node: &Node, number: u8) -> Ino {
    pick(node, number, Some(NodeKind::Directory))
}

fn file(node: &Node, number: u8) -> Ino {
    pick(node, number, Some(NodeKind::File))
}

fn orphan(node: &Node, number: u8) -> Option<Ino> {
    let orphans = node.store().tree().orphans().unwrap();
    let count = orphans.len().max(1);
    orphans.get(usize::from(number) % count).copied()
}

fn entry(number: u8) -> lockstep_types::FileName {
    name(&format!("name-{number}"))
}

/// The change that a step makes on a node. A write has file, offset and bytes.
pub enum Change {
    Meta(MetaRequest),
    Write(Ino, u64, Vec<u8>),
    Checkpoint,
}

pub fn resolve(node: &Node, step: &Step) -> Change {
    let request = match *step {
        Step::Create(parent, number, kind) => create(
            directory(node, parent),
            &format!("name-{number}"),
            kind,
            node.store().next_ino().unwrap(),
        ),
        Step::Unlink(parent, number) => MetaRequest::Unlink {
            parent: directory(node, parent),
            name: entry(number),
        },
        Step::Rmdir(parent, number) => MetaRequest::Rmdir {
            parent: directory(node, parent),
            name: entry(number),
        },
        Step::Reap(number) => match orphan(node, number) {
            Some(ino) => MetaRequest::Reap { ino },
            None => return Change::Checkpoint,
        },
        Step::Rename(from, number, to, new, swap) => MetaRequest::Rename {
            parent: directory(node, from),
            name: entry(number),
            new_parent: directory(node, to),
            new_name: entry(new),
            mode: if swap {
                RenameMode::Exchange
            } else {
                RenameMode::Replace
            },
        },
        Step::Link(inode, parent, number) => MetaRequest::Link {
            ino: pick(node, inode, None),
            parent: directory(node, parent),
            name: entry(number),
        },
        Step::Write(number, offset, length, fill) => {
            return Change::Write(file(node, number), offset, vec![fill; length]);
        }
        Step::Truncate(number, size) => MetaRequest::Truncate {
            ino: file(node, number),
            size,
            drop_set_id: false,
        },
        Step::Punch(number, offset, length) => MetaRequest::Allocate {
            ino: file(node, number),
            offset,
            length,
            mode: AllocateMode::PunchHole,
        },
        Step::Mode(number, mode) => MetaRequest::SetAttr {
            ino: pick(node, number, None),
            mode: Some(mode),
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
        },
        Step::Xattr(number, key, value) => MetaRequest::SetXattr {
            ino: pick(node, number, None),
            name: format!("user.{key}").into_bytes(),
            value: vec![value; usize::from(value)],
            mode: XattrMode::Any,
        },
        Step::Checkpoint => return Change::Checkpoint,
    };
    Change::Meta(request)
}

/// Carries a step out on one node.
fn take(node: &Node, step: &Step) {
    match resolve(node, step) {
        Change::Meta(request) => drop(node.meta(request)),
        Change::Write(ino, offset, data) => drop(node.write(ino, offset, &data)),
        Change::Checkpoint => node.store().checkpoint().unwrap(),
    }
}

/// Carries steps out on one node.
pub fn take_all(node: &Node, steps: &[Step]) {
    for step in steps {
        take(node, step);
    }
}
