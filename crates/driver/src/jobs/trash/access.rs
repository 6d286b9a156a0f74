//! The trash in the store of a node, for the commands and for the keeper of its limits: marks, ledger, limits, and operations on it.

use std::ops::ControlFlow;

use lockstep_fs::plan::View;
use lockstep_fs::record::{Body, TrashMark};
use lockstep_fs::{OpError, StoreView};
use lockstep_types::limits::TRASH_INODES_MAX;
use lockstep_types::{Errno, Ino};

use crate::engine::Engine;
use crate::engine::trash_ledger::{TrashLedger, TrashLimits, TrashedInode};
use crate::report::CommandFailure;

/// Inodes whose marks are read at once.
const PAGE: usize = 1_000;
/// Bytes in a block of `stat`.
const STAT_BLOCK_BYTES: u64 = 512;

/// See the head of this file.
#[derive(Clone, Copy)]
pub(crate) struct TrashAccess<'a> {
    pub ledger: &'a TrashLedger,
    pub engine: &'a Engine,
}

impl<'a> TrashAccess<'a> {
    /// The trash in the store of a node.
    pub fn of(engine: &'a Engine) -> Self {
        Self {
            engine,
            ledger: &engine.references.trash,
        }
    }

    /// The limits of this moment.
    pub fn limits(self) -> TrashLimits {
        let policy = self.engine.config.current().policies.trash;
        let disk = self.engine.store.capacity().space();
        let disk_bytes = disk.map_or(u64::MAX, |space| space.total_bytes);
        TrashLimits {
            age_secs: policy.age.seconds(),
            bytes: policy.bytes_max(disk_bytes),
            inodes: TRASH_INODES_MAX,
        }
    }

    /// Inodes that are to leave the trash now, at most as many as one operation takes.
    pub fn outdated(self) -> Vec<Ino> {
        let now = self.engine.host.time_of_day().secs;
        self.ledger.outdated(self.limits(), now)
    }

    /// The marks of the inodes in the trash from an inode on, at most `max`.
    pub fn marks(self, first: Ino, max: usize) -> Result<Vec<(Ino, TrashMark)>, OpError> {
        let mut marks = Vec::new();
        let each = &mut |ino, mark| {
            marks.push((ino, mark));
            if marks.len() < max {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        self.engine.store.tree().each_in_trash(first, each)?;
        Ok(marks)
    }

    /// Fills the ledger from the marks of all inodes in the trash.
    pub fn read_all(self) -> Result<(), OpError> {
        self.ledger.begin_reading();
        let mut first = Some(Ino::ROOT);
        while let Some(from) = first {
            let page = self.marks(from, PAGE)?;
            for (ino, mark) in &page {
                self.put(*ino, Some(mark))?;
            }
            let is_full = page.len() == PAGE;
            first = page.last().filter(|_| is_full).map(|(ino, _)| ino.next());
        }
        self.ledger.end_reading();
        Ok(())
    }

    /// Tells the ledger what the mark of an inode says.
    pub fn read(self, ino: Ino) -> Result<(), OpError> {
        let mark = self.engine.store.tree().trash_mark(ino)?;
        self.put(ino, mark.as_ref())
    }

    fn put(self, ino: Ino, mark: Option<&TrashMark>) -> Result<(), OpError> {
        let Some(mark) = mark else {
            self.ledger.put(ino, None);
            return Ok(());
        };
        let tree = self.engine.store.tree();
        let inode = tree.inode(ino)?;
        let is_file = inode.is_some_and(|inode| matches!(inode.body, Body::File { .. }));
        let bytes = if is_file {
            tree.content_stat(ino)?.blocks * STAT_BLOCK_BYTES
        } else {
            0
        };
        let found = TrashedInode {
            osn: mark.osn,
            secs: mark.time.secs,
            bytes,
        };
        self.ledger.put(ino, Some(found));
        Ok(())
    }

    /// A failure of the disk, for an operator.
    pub fn failed(self, error: &OpError) -> CommandFailure {
        let errno = self.engine.log_and_errno(error);
        CommandFailure::new(errno.to_string(), "see the log of this node")
    }

    /// The refusal of an operation for which no better reason is known.
    pub fn refused(self, errno: Errno) -> CommandFailure {
        let datastore = self.engine.name();
        match errno {
            Errno::Again | Errno::Io if !self.engine.poison.has_failed() => CommandFailure::new(
                "the role of this node has changed meanwhile, or the node stops: a part may be done",
                format!(
                    "see `lockstep trash list {datastore}` on the primary, and give the command again there"
                ),
            ),
            _ => CommandFailure::new(
                errno.to_string(),
                format!("see `lockstep status {datastore}`, and docs/operations/disks.md"),
            ),
        }
    }
}
