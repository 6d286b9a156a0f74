//! The requests of the clients of a small world. First one client makes the tree. Then the clients
//! of the workload request its operations, one after the other or both at once.

use lockstep_types::{Ino, MetaRequest, NodeKind};

use super::tree::{Operation, RequestContext, Tree};
use crate::history::Outcome;
use crate::op::{Mark, Op};
use crate::workload::Source;

/// The mark of the first write of a workload.
const MARK: u8 = 2;

/// A source that makes the tree.
#[derive(Debug, Default)]
pub struct TreeMaker {
    tree: Tree,
    /// Number of operations requested.
    requested: u64,
}

impl Source for TreeMaker {
    fn next(&mut self, _client: u32, spare: Ino) -> Option<Op> {
        let op = self.tree.make(self.requested, spare)?;
        self.requested += 1;
        Some(op)
    }

    fn observe(&mut self, _client: u32, _op: &Op, _outcome: &Outcome) {}
}

/// A source that requests the steps of a workload.
#[derive(Debug)]
pub struct Script {
    tree: Tree,
    /// The outstanding steps of each client, with their marks. The last step is first.
    outstanding: Vec<Vec<(Step, Mark)>>,
    /// The inode of the last operation.
    touched: Option<Ino>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// An operation.
    Do(Operation),
    /// A sync of the inode of the previous operation.
    Sync,
}

impl Script {
    /// Returns a script in which each client requests its steps, on a tree.
    pub fn new(tree: Tree, clients: Vec<Vec<Step>>) -> Self {
        let mut marks = (MARK..).filter_map(Mark::new);
        let mut marked = |step| marks.next().map(|mark| (step, mark));
        let outstanding = clients.into_iter().map(|steps| {
            let mut outstanding: Vec<_> = steps.into_iter().filter_map(&mut marked).collect();
            outstanding.reverse();
            outstanding
        });
        Self {
            tree,
            outstanding: outstanding.collect(),
            touched: None,
        }
    }

    fn step(&mut self, step: Step, mark: Mark, spare: Ino) -> Op {
        let tree = self.tree;
        let op = match step {
            Step::Do(operation) => operation.request(&RequestContext { tree, spare, mark }),
            Step::Sync => Op::Sync {
                ino: self.touched.unwrap_or(tree.d),
            },
        };
        self.touched = touched(&op);
        if let Op::Change(MetaRequest::Create { ino, kind, .. }) = &op
            && *kind == NodeKind::File
        {
            self.tree.newest = *ino;
        }
        op
    }
}

/// Returns the inode that a sync after an operation names: the file, or the directory of the name.
const fn touched(op: &Op) -> Option<Ino> {
    match op {
        Op::Write(write) => Some(write.ino),
        Op::Change(request) => match request {
            MetaRequest::Create { parent, .. }
            | MetaRequest::Link { parent, .. }
            | MetaRequest::Unlink { parent, .. }
            | MetaRequest::Rmdir { parent, .. } => Some(*parent),
            MetaRequest::Rename { new_parent, .. } => Some(*new_parent),
            MetaRequest::SetAttr { ino, .. }
            | MetaRequest::Truncate { ino, .. }
            | MetaRequest::Allocate { ino, .. }
            | MetaRequest::DropPrivileges { ino }
            | MetaRequest::SetXattr { ino, .. }
            | MetaRequest::RemoveXattr { ino, .. }
            | MetaRequest::SetFlags { ino, .. }
            | MetaRequest::Reap { ino } => Some(*ino),
            MetaRequest::ReapAll { .. }
            | MetaRequest::SnapshotCreate { .. }
            | MetaRequest::SnapshotRename { .. }
            | MetaRequest::SnapshotDelete { .. }
            | MetaRequest::SnapshotHold { .. }
            | MetaRequest::SnapshotRelease { .. }
            | MetaRequest::IntoTrash { .. }
            | MetaRequest::TrashRestore { .. }
            | MetaRequest::TrashDrop { .. } => None,
        },
        Op::Sync { ino } => Some(*ino),
        _ => None,
    }
}

impl Source for Script {
    fn next(&mut self, client: u32, spare: Ino) -> Option<Op> {
        let steps = self.outstanding.get_mut(usize::try_from(client).ok()?)?;
        let (step, mark) = steps.pop()?;
        Some(self.step(step, mark, spare))
    }

    fn observe(&mut self, _client: u32, _op: &Op, _outcome: &Outcome) {}
}
