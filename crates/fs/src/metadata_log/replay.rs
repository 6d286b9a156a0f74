//! Bringing the records back to where a crash left the store: the last checkpoint, then the log since, then the sizes
//! and times of files that were being written.
//!
//! Invariants:
//! - An operation of the log is planned on records that have the time of every earlier write. Otherwise the time of
//!   such a write would be lost forever.
//! - The content part of an operation is carried out again only if no record of the log proves that it was carried out
//!   before (rule P5). To repeat it after a later write would destroy the bytes of the write.
//!
//! Replay runs before the store is used: it takes no lock of the metadata log.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{ControlFlow, Range};

use lockstep_intentlog::{LogError, Position, Record, Replay};
use lockstep_types::{AllocateMode, Errno, Ino, MetaOp, Osn, Timestamp};

use super::applying::Applying;
use super::folding;
use crate::content::before_change::{ByteChange, ByteEdit};
use crate::content::{ContentStore, UnflushedSlot};
use crate::delta::DeltaTracker;
use crate::error::{OpError, StoreError};
use crate::namespace::keys;
use crate::namespace::plan::{self, ContentEffect, Plan};
use crate::namespace::record::{self, Body, Checkpoint, Inode};
use crate::tree::Tree;

/// The outcome of the content part of an operation, as far as the log proves it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Unknown,
    RolledBack,
}

/// The records of the log, with a look ahead.
struct LogRecords {
    replay: Replay,
    ahead: VecDeque<(Position, Record)>,
}

impl LogRecords {
    fn next(&mut self) -> Result<Option<(Position, Record)>, LogError> {
        match self.ahead.pop_front() {
            Some(found) => Ok(Some(found)),
            None => self.replay.next().transpose(),
        }
    }

    /// Operations are logged and carried out one at a time. So the next record of any operation proves that the
    /// operation before it was carried out or rolled back. Times of files prove nothing: they are logged at any moment.
    fn outcome(&mut self, osn: Osn) -> Result<Outcome, LogError> {
        let mut at = 0;
        loop {
            if at == self.ahead.len() {
                match self.replay.next().transpose()? {
                    Some(found) => self.ahead.push_back(found),
                    None => return Ok(Outcome::Unknown),
                }
            }
            let Some((_, record)) = self.ahead.get(at) else {
                return Ok(Outcome::Unknown);
            };
            match record {
                Record::FileTimes { .. } => at += 1,
                Record::RolledBack { osn: back } if *back == osn => return Ok(Outcome::RolledBack),
                // The operation could not be carried out, and is pending again.
                Record::Pending(op) if op.osn == osn => return Ok(Outcome::RolledBack),
                _ => return Ok(Outcome::Done),
            }
        }
    }
}

/// State that recovery starts from, besides the tables.
pub struct Leftover<'a> {
    /// The last checkpoint.
    pub checkpoint: Checkpoint,
    /// The log.
    pub log: Replay,
    /// Slots of files that were being written.
    pub slots: &'a [UnflushedSlot],
    /// Hears of the operations of the log: the trace may lack them (rule P28).
    pub delta: &'a DeltaTracker,
    /// The machine has lost power since the last process.
    pub power_lost: bool,
    /// Every file takes its size from its content: after a power loss, or when the table that names the written files
    /// is damaged.
    pub content_decides: bool,
}

/// Takes checkpoint, log and unflushed times together. Returns the progress of operations.
pub fn recover(tree: Tree<'_>, leftover: Leftover<'_>) -> Result<Applying, StoreError> {
    let slots = newest(leftover.slots);
    let checkpoint = leftover.checkpoint;
    let mut recovery = Replayer {
        tree,
        slots: &slots,
        delta: leftover.delta,
        applying: Applying::new(checkpoint.applied, checkpoint.epoch),
    };
    recovery.replay(checkpoint.log_position, leftover.log)?;
    for slot in slots.values() {
        recovery.take_slot(slot)?;
    }
    if leftover.content_decides {
        recovery.take_lengths()?;
    }
    if leftover.power_lost {
        recovery.applying.note_power_lost();
        folding::note_torn(tree);
    }
    tree.content.removal().load(tree.namespace)?;
    Ok(recovery.applying)
}

/// Recovery under way.
struct Replayer<'a> {
    tree: Tree<'a>,
    /// The newest slot of each file that was being written.
    slots: &'a BTreeMap<Ino, UnflushedSlot>,
    delta: &'a DeltaTracker,
    applying: Applying,
}

impl Replayer<'_> {
    /// Applies the operations that the log has since the checkpoint, which stands for everything before
    /// `checkpoint_position`.
    fn replay(&mut self, checkpoint_position: u64, replay: Replay) -> Result<(), StoreError> {
        let ahead = VecDeque::new();
        let mut records = LogRecords { replay, ahead };
        let mut pending: BTreeMap<Osn, (Position, MetaOp)> = BTreeMap::new();
        while let Some((position, record)) = records.next()? {
            let is_fresh = position.get() >= checkpoint_position;
            let op = match record {
                Record::Pending(op) => {
                    pending.insert(op.osn, (position, op));
                    continue;
                }
                Record::RolledBack { osn } => {
                    pending.remove(&osn);
                    continue;
                }
                Record::FileTimes { ino, mtime, ctime } if is_fresh => {
                    self.replay_times(ino, mtime, ctime)?;
                    continue;
                }
                Record::Folded(files) if is_fresh => {
                    folding::replay_folded(self.tree, &files)?;
                    continue;
                }
                Record::Committed { osn } => pending.remove(&osn).map(|(_, op)| op),
                Record::CommittedOp(op) => Some(op),
                _ => None,
            };
            if let (Some(op), true) = (op, is_fresh) {
                let outcome = records.outcome(op.osn)?;
                self.replay_op(&op, outcome)?;
            }
        }
        // Intents without an outcome wait on.
        for (position, op) in pending.into_values() {
            self.applying.add_pending(op, position);
        }
        Ok(())
    }

    fn replay_op(&mut self, op: &MetaOp, outcome: Outcome) -> Result<(), StoreError> {
        if outcome == Outcome::RolledBack {
            return Ok(());
        }
        let mut plan = self.plan(op)?;
        if self.take_times_before(op, &plan)? {
            plan = self.plan(op)?;
        }
        self.delta.note_replayed(&plan);
        if let (Some(effect), Outcome::Unknown) = (plan.content, outcome) {
            self.repeat(effect)?;
        }
        self.tree.install(plan, &op.request)?;
        self.applying.applied = self.applying.applied.max(op.osn);
        Ok(())
    }

    /// Carries the content part of an operation out again. A power loss may have taken the space back that the operation had
    /// reserved, and others may have filled the disk since. The bytes then change without the reservation, which no client was
    /// promised: a sync would have made it durable.
    fn repeat(&self, effect: ContentEffect) -> Result<(), StoreError> {
        let content = self.tree.content;
        match (content.apply(effect), effect) {
            (Err(error), ContentEffect::Allocate(ino, mode, offset, length))
                if error.errno() == Errno::NoSpace =>
            {
                tracing::warn!(%ino, %error, "space that the file had reserved is lost");
                change_unreserved(content, ino, mode, offset..offset.saturating_add(length))
            }
            (applied, _) => applied,
        }
    }

    fn plan(&self, op: &MetaOp) -> Result<Plan, StoreError> {
        plan::plan(&self.tree, op).map_err(|error| match error {
            OpError::Store(error) => error,
            OpError::Refused(errno) => StoreError::Diverged { osn: op.osn, errno },
        })
    }

    /// Puts the times of writes before `op` into the records that `op` changes. Returns whether a record changed.
    fn take_times_before(&self, op: &MetaOp, plan: &Plan) -> Result<bool, StoreError> {
        let mut taken = false;
        for (ino, _) in &plan.inodes {
            let write = self.slots.get(ino).and_then(|slot| slot.last_write);
            if let Some((osn, time)) = write.filter(|(osn, _)| *osn < op.osn) {
                let change = |inode: &mut Inode| take_times(inode, osn, time);
                self.tree.namespace.change_inode(*ino, change)?;
                taken = true;
            }
        }
        Ok(taken)
    }

    fn replay_times(&self, ino: Ino, mtime: Timestamp, ctime: Timestamp) -> Result<(), StoreError> {
        self.tree.namespace.change_inode(ino, |inode| {
            inode.mtime = mtime;
            inode.ctime = ctime;
        })
    }

    /// A file was being written: its content has the length, the slot the time of the last write.
    fn take_slot(&self, slot: &UnflushedSlot) -> Result<(), StoreError> {
        let length = self.tree.content.length(slot.ino)?;
        self.tree.namespace.change_inode(slot.ino, |inode| {
            if let Body::File { size } = &mut inode.body {
                *size = length;
            }
            if let Some((osn, time)) = slot.last_write {
                take_times(inode, osn, time);
            }
        })
    }

    /// Gives every file the length of its content.
    fn take_lengths(&self) -> Result<(), StoreError> {
        for ino in self.wrong_lengths()? {
            tracing::warn!(%ino, "taking the size of the file from its content");
            self.take_slot(&UnflushedSlot {
                ino,
                last_write: None,
            })?;
        }
        Ok(())
    }

    /// Files whose content has another length than their record says.
    fn wrong_lengths(&self) -> Result<Vec<Ino>, StoreError> {
        let mut wrong = Vec::new();
        let mut failed = None;
        let inodes = keys::table(keys::INODES);
        self.tree.namespace.scan(&inodes, &mut |key, value| {
            match self.is_wrong_length(key, value) {
                Ok(None) => {}
                Ok(Some(ino)) => wrong.push(ino),
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        failed.map_or(Ok(wrong), Err)
    }

    fn is_wrong_length(&self, key: &[u8], value: &[u8]) -> Result<Option<Ino>, StoreError> {
        let inode: Option<Inode> = record::decode(value);
        match (keys::ino_of(key), inode.map(|inode| inode.body)) {
            (Some(ino), Some(Body::File { size })) if self.tree.content.length(ino)? != size => {
                Ok(Some(ino))
            }
            _ => Ok(None),
        }
    }
}

/// Gives a file the bytes and the length of an allocation that reserves nothing.
fn change_unreserved(
    content: &ContentStore,
    ino: Ino,
    mode: AllocateMode,
    range: Range<u64>,
) -> Result<(), StoreError> {
    use AllocateMode::{Allocate, AllocateKeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize};
    let change = |edit: ByteEdit<'_>| content.change(&ByteChange { ino, edit });
    let is_cleared = matches!(mode, PunchHole | ZeroRange | ZeroRangeKeepSize);
    let is_extended = match mode {
        Allocate | ZeroRange => content.length(ino)? < range.end,
        AllocateKeepSize | ZeroRangeKeepSize | PunchHole => false,
    };
    if is_cleared {
        change(ByteEdit::Punch {
            offset: range.start,
            length: range.end - range.start,
        })?;
    }
    if is_extended {
        change(ByteEdit::Resize { size: range.end })?;
    }
    Ok(())
}

/// The newest slot of each file: a process that is killed just before it clears one may have taken another for the
/// same file.
fn newest(slots: &[UnflushedSlot]) -> BTreeMap<Ino, UnflushedSlot> {
    let written = |slot: &UnflushedSlot| slot.last_write.map(|(osn, _)| osn);
    let mut newest = BTreeMap::new();
    for slot in slots {
        let kept = newest.entry(slot.ino).or_insert(*slot);
        if written(kept) < written(slot) {
            *kept = *slot;
        }
    }
    newest
}

/// A write sets the times of an inode that no later operation has changed.
fn take_times(inode: &mut Inode, osn: Osn, time: Timestamp) {
    if osn > inode.osn {
        inode.mtime = time;
        inode.ctime = time;
    }
}
