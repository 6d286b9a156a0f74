//! Bringing a store back to where a crash left it.
//!
//! Invariants: an operation of the log is planned on records that know every write before it, or
//! the times of that write would be lost for ever. The content part of an operation is carried out
//! again only if nothing proves that it was carried out before (rule P5): doing it again after a later write
//! would destroy what was written.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use lockstep_intentlog::{LogError, Position, Record, Replay};
use lockstep_types::{Ino, MetaOp, Osn, Timestamp};

use super::{PendingIntent, Store};
use crate::error::{OpError, StoreError};
use crate::keys;
use crate::plan::{self, Plan, View};
use crate::record::{self, Body, Checkpoint, Inode};
use crate::times::Slot;

/// What of an operation's content part is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Unknown,
    RolledBack,
}

/// The records of the log, with a look ahead.
struct Records {
    replay: Replay,
    ahead: VecDeque<(Position, Record)>,
}

impl Records {
    fn next(&mut self) -> Result<Option<(Position, Record)>, LogError> {
        match self.ahead.pop_front() {
            Some(found) => Ok(Some(found)),
            None => self.replay.next().transpose(),
        }
    }

    /// Operations are logged and carried out one at a time, so the next record of any operation
    /// proves that the one before it was carried out or taken back. Times of files prove nothing:
    /// they are logged at any moment.
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
                // It could not be carried out, and waits again.
                Record::Pending(op) if op.osn == osn => return Ok(Outcome::RolledBack),
                _ => return Ok(Outcome::Done),
            }
        }
    }
}

impl Store {
    /// Takes checkpoint, log and unflushed times together.
    pub(super) fn recover(
        &self,
        checkpoint: Checkpoint,
        replay: Replay,
        slots: &[Slot],
        content_decides: bool,
    ) -> Result<(), StoreError> {
        let newest = newest(slots);
        self.replay(checkpoint, replay, &newest)?;
        for slot in newest.values() {
            self.take_slot(slot)?;
        }
        if content_decides {
            self.take_lengths()?;
        }
        let garbage = self
            .keys(&keys::table(keys::GARBAGE))
            .map_err(OpError::into_store)?;
        *self.garbage.lock() = garbage.iter().filter_map(|key| keys::ino_of(key)).collect();
        Ok(())
    }

    /// Applies what the log says happened since the checkpoint.
    fn replay(
        &self,
        checkpoint: Checkpoint,
        replay: Replay,
        slots: &BTreeMap<Ino, Slot>,
    ) -> Result<(), StoreError> {
        let ahead = VecDeque::new();
        let mut records = Records { replay, ahead };
        let mut pending: BTreeMap<Osn, (Position, MetaOp)> = BTreeMap::new();
        while let Some((position, record)) = records.next()? {
            let fresh = position.get() >= checkpoint.log_position;
            let op = match record {
                Record::Pending(op) => {
                    pending.insert(op.osn, (position, op));
                    continue;
                }
                Record::RolledBack { osn } => {
                    pending.remove(&osn);
                    continue;
                }
                Record::FileTimes { ino, mtime, ctime } if fresh => {
                    self.replay_times(ino, mtime, ctime)?;
                    continue;
                }
                Record::Committed { osn } => pending.remove(&osn).map(|(_, op)| op),
                Record::CommittedOp(op) => Some(op),
                _ => None,
            };
            if let (Some(op), true) = (op, fresh) {
                let outcome = records.outcome(op.osn)?;
                self.replay_op(&op, outcome, slots)?;
            }
        }
        self.take_pending(pending);
        Ok(())
    }

    /// Intents without an outcome wait on.
    fn take_pending(&self, pending: BTreeMap<Osn, (Position, MetaOp)>) {
        let mut applying = self.applying.lock();
        let mut previous = applying.applied;
        for (osn, (position, op)) in pending {
            applying.pending.push(PendingIntent {
                op,
                previous,
                position,
            });
            previous = osn;
        }
    }

    fn replay_op(
        &self,
        op: &MetaOp,
        outcome: Outcome,
        slots: &BTreeMap<Ino, Slot>,
    ) -> Result<(), StoreError> {
        if outcome == Outcome::RolledBack {
            return Ok(());
        }
        let mut plan = self.plan_again(op)?;
        if self.take_times_before(op, &plan, slots)? {
            plan = self.plan_again(op)?;
        }
        if let (Some(effect), Outcome::Unknown) = (plan.content, outcome) {
            self.change_content(effect)?;
        }
        self.install(plan, &op.request);
        let mut applying = self.applying.lock();
        let applied = applying.applied.max(op.osn);
        self.note_applied(&mut applying, applied);
        Ok(())
    }

    fn plan_again(&self, op: &MetaOp) -> Result<Plan, StoreError> {
        plan::plan(self, op).map_err(|error| match error {
            OpError::Store(error) => error,
            OpError::Refused(errno) => StoreError::Diverged { osn: op.osn, errno },
        })
    }

    /// Puts the times of writes that came before `op` into the records it changes. Whether it
    /// did.
    fn take_times_before(
        &self,
        op: &MetaOp,
        plan: &Plan,
        slots: &BTreeMap<Ino, Slot>,
    ) -> Result<bool, StoreError> {
        let mut taken = false;
        for (ino, _) in &plan.inodes {
            let write = slots.get(ino).and_then(|slot| slot.last_write);
            if let Some((osn, time)) = write.filter(|(osn, _)| *osn < op.osn) {
                self.change_record(*ino, |inode| take_times(inode, osn, time))?;
                taken = true;
            }
        }
        Ok(taken)
    }

    fn replay_times(&self, ino: Ino, mtime: Timestamp, ctime: Timestamp) -> Result<(), StoreError> {
        self.change_record(ino, |inode| {
            inode.mtime = mtime;
            inode.ctime = ctime;
        })
    }

    fn change_record(&self, ino: Ino, change: impl FnOnce(&mut Inode)) -> Result<(), StoreError> {
        if let Some(mut inode) = self.stored_inode(ino).map_err(OpError::into_store)? {
            change(&mut inode);
            self.names
                .apply(vec![(keys::inode(ino), Some(record::encode(&inode)))]);
        }
        Ok(())
    }

    /// A file was being written: its content says how long it is, the slot when it was written.
    fn take_slot(&self, slot: &Slot) -> Result<(), StoreError> {
        let length = self.content_length(slot.ino)?;
        self.change_record(slot.ino, |inode| {
            if let Body::File { size } = &mut inode.body {
                *size = length;
            }
            if let Some((osn, time)) = slot.last_write {
                take_times(inode, osn, time);
            }
        })
    }

    /// Every file becomes as long as its content is: after a power loss, or when the table that
    /// tells which files were being written cannot be trusted.
    fn take_lengths(&self) -> Result<(), StoreError> {
        for ino in self.wrong_lengths()? {
            tracing::warn!(%ino, "taking the size of the file from its content");
            self.take_slot(&Slot {
                ino,
                last_write: None,
            })?;
        }
        Ok(())
    }

    /// Files whose content is not as long as their record says.
    fn wrong_lengths(&self) -> Result<Vec<Ino>, StoreError> {
        let mut wrong = Vec::new();
        let mut failed = None;
        let inodes = keys::table(keys::INODES);
        self.names
            .scan(inodes.from(), inodes.to(), &mut |key, value| {
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
            (Some(ino), Some(Body::File { size })) if self.content_length(ino)? != size => {
                Ok(Some(ino))
            }
            _ => Ok(None),
        }
    }
}

/// The newest slot of each file: a process that is killed just before it clears one may have taken another
/// for the same file.
fn newest(slots: &[Slot]) -> BTreeMap<Ino, Slot> {
    let written = |slot: &Slot| slot.last_write.map(|(osn, _)| osn);
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
