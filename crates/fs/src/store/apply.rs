//! Applying metadata operations: log record first, then the records of the namespace, then content.

use std::sync::atomic::Ordering;

use lockstep_intentlog::{Position, Record};
use lockstep_types::backing::BackingFile;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{AllocateMode, Attr, Ino, MetaOp, MetaRequest, Osn};

use super::{Applying, EPOCH_SHIFT, PendingIntent, Store};
use crate::error::{OpError, StoreError};
use crate::keys::{self, KeyRange};
use crate::plan::{self, ContentEffect, Plan, View};
use crate::record::{self, Body, Inode};

/// What an applied operation leaves to say.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// Attributes of the one inode made, linked or changed.
    pub attr: Option<Attr>,
    /// An inode that lost its last name: free it when nobody has it open.
    pub orphaned: Option<Ino>,
    /// The file whose content it changed.
    changed: Option<Ino>,
    /// Where the last record of the operation lies in the log.
    position: Position,
}

/// What logging an intent leaves to say.
#[derive(Clone, Copy, Debug)]
pub struct Intent {
    /// The metadata operation before it.
    pub previous: Osn,
    /// Where its record lies in the log.
    pub position: Position,
}

impl Store {
    /// Whether `op` would be refused now, without changing anything. Reserves the space that the
    /// operation needs, so that a full disk shows before the peer has agreed.
    pub fn validate(&self, op: &MetaOp) -> Result<(), OpError> {
        self.check_trust()?;
        plan::check_new(&op.request)?;
        let plan = plan::plan(self, op)?;
        if let Some(ContentEffect::Allocate(ino, mode, offset, length)) = plan.content
            && mode != AllocateMode::PunchHole
        {
            self.reserve_for(ino, offset, length)?;
        }
        Ok(())
    }

    /// Logs the intent of `op`, before it is sent to the peer (paper, section 5.1: PENDING).
    pub fn log_pending(&self, op: &MetaOp) -> Result<Intent, OpError> {
        self.check_trust()?;
        self.wait_for_log(may_make_room(&op.request))?;
        let mut applying = self.applying.lock();
        let position = self.log_record(&Record::Pending(op.clone()))?;
        let last = applying.pending.last().map(|intent| intent.op.osn);
        let previous = last.unwrap_or(applying.applied);
        applying.pending.push(PendingIntent {
            op: op.clone(),
            previous,
            position,
        });
        Ok(Intent { previous, position })
    }

    /// A pending operation and the one before it, to be sent again.
    pub fn pending(&self, osn: Osn) -> Option<(MetaOp, Osn)> {
        let applying = self.applying.lock();
        let intent = applying
            .pending
            .iter()
            .find(|intent| intent.op.osn == osn)?;
        Some((intent.op.clone(), intent.previous))
    }

    /// Whether a secondary that has got to `osn` is one that follows this store: it has all that is
    /// applied here, and besides at most what waits for its word (rule P8).
    pub fn is_followed_at(&self, osn: Osn) -> bool {
        let applying = self.applying.lock();
        let mut pending = applying.pending.iter();
        osn == applying.applied || pending.any(|intent| intent.op.osn == osn)
    }

    /// Applies a pending operation that the peer has committed; `None` if it is not pending,
    /// because it was refused here before it was sent.
    ///
    /// When this fails the operation stays pending, also for a process that follows, and nothing
    /// after it may be applied until it is rolled back: or this store would say that it has got
    /// further than an operation that it lacks (rule P8).
    pub fn commit_pending(&self, osn: Osn) -> Result<Option<Applied>, OpError> {
        let mut applying = self.applying.lock();
        let Some((at, mut intent)) = applying.take_pending(osn) else {
            return Ok(None);
        };
        let committed = Record::Committed { osn };
        let taken_back = Record::Pending(intent.op.clone());
        match self.apply_logged(&mut applying, &intent.op, &committed, &taken_back) {
            Ok(applied) => Ok(Some(applied)),
            Err(failure) => {
                intent.position = failure.taken_back.unwrap_or(intent.position);
                applying.pending.insert(at, intent);
                Err(diverged(osn, failure.error))
            }
        }
    }

    /// Drops a pending operation that the peer has refused or never got.
    pub fn roll_back(&self, osn: Osn) -> Result<(), StoreError> {
        let mut applying = self.applying.lock();
        if applying.take_pending(osn).is_some() {
            self.log_record(&Record::RolledBack { osn })?;
        }
        Ok(())
    }

    /// Logs and applies an operation at once: as secondary, or as a primary without a peer.
    pub fn commit(&self, op: &MetaOp) -> Result<Applied, OpError> {
        self.wait_for_log(may_make_room(&op.request))?;
        self.commit_at_once(op)
    }

    /// The same, but waits for no checkpoint: where [`Self::is_log_filling`], the caller has seen to one.
    pub fn commit_at_once(&self, op: &MetaOp) -> Result<Applied, OpError> {
        self.check_trust()?;
        plan::check_new(&op.request)?;
        let mut applying = self.applying.lock();
        let committed = Record::CommittedOp(op.clone());
        let taken_back = Record::RolledBack { osn: op.osn };
        let applied = self.apply_logged(&mut applying, op, &committed, &taken_back);
        applied.map_err(|failure| failure.error)
    }

    /// Logs `record`, then does what `op` does. If its effect on content fails, `taken_back` says so.
    fn apply_logged(
        &self,
        applying: &mut Applying,
        op: &MetaOp,
        record: &Record,
        taken_back: &Record,
    ) -> Result<Applied, Failure> {
        let plan = plan::plan(self, op)?;
        let changed = plan.content.map(ContentEffect::ino);
        // Until the record has the new length, whoever looks at the file finds the old one here and does
        // not take the two for damage. Content that is damaged may be cut all the same.
        let _known = changed.map(|ino| self.file_for(ino));
        let position = match plan.content {
            Some(effect) => self.log_and_change_content(op.osn, record, effect, taken_back)?,
            None => self.log_record(record)?,
        };
        let (attr, orphaned) = (plan.attr, plan.orphaned);
        let followed = applying.changed.is_followed().then(|| keys_of(&plan));
        self.install(plan, &op.request);
        if let Some(keys) = followed {
            applying.changed.note(keys);
        }
        let applied = applying.applied.max(op.osn);
        self.note_applied(applying, applied);
        Ok(Applied {
            attr,
            orphaned,
            changed,
            position,
        })
    }

    /// Logs an operation, changes the content, and logs that it did, or `taken_back` (P5).
    fn log_and_change_content(
        &self,
        osn: Osn,
        record: &Record,
        effect: ContentEffect,
        taken_back: &Record,
    ) -> Result<Position, Failure> {
        let position = self.log()?.append_before_outcome(record)?;
        if let Err(error) = self.change_content(effect) {
            self.restore_length(effect.ino());
            return Err(Failure {
                error: error.into(),
                taken_back: Some(self.log_outcome(effect.ino(), taken_back)?),
            });
        }
        if is_active(Mutant::NoOutcomeLogged) {
            return Ok(position);
        }
        Ok(self.log_outcome(effect.ino(), &Record::Done { osn })?)
    }

    /// Logs what became of a change of content. Room for that was left, so a log that does not take it
    /// is broken; and without it nobody could tell, after a crash, whether writes came since. Until the
    /// next start settles it the file is not read.
    fn log_outcome(&self, ino: Ino, record: &Record) -> Result<Position, StoreError> {
        let logged = self.trust(self.log()?.append(record));
        if logged.is_err()
            && let Ok(file) = self.file_for(ino)
        {
            file.lose_track();
        }
        logged
    }

    /// Makes a plan visible: records, and what the file table knows of the same inodes.
    pub(super) fn install(&self, plan: Plan, request: &MetaRequest) {
        let freed = matches!(request, MetaRequest::Reap { .. });
        if let MetaRequest::Create { ino, .. } = request {
            // The number came from the other node: it is never given out here either.
            self.next_ino.fetch_max(ino.next().get(), Ordering::Relaxed);
        }
        self.names.apply(plan.batch);
        for (ino, inode) in plan.inodes {
            match inode.map(|inode| inode.body) {
                Some(Body::File { size }) => self.record_written(ino, size),
                None if freed => self.forget_file(ino),
                _ => {}
            }
        }
    }

    /// The record of a file was written with its unflushed times folded in.
    pub(super) fn record_written(&self, ino: Ino, size: u64) {
        let Some(file) = self.files.get(ino) else {
            return;
        };
        file.with_facts(|facts| {
            facts.size = size;
            // A process that follows finds it in the table of times; a power loss leaves no table.
            let unlogged = facts
                .last_write
                .filter(|(osn, _)| facts.logged != Some(*osn));
            facts.owes_time |= unlogged.is_some();
            facts.last_write = None;
        });
    }

    fn forget_file(&self, ino: Ino) {
        if let Some(file) = self.files.remove(ino)
            && let Some(slot) = file.with_facts(|facts| facts.slot.take())
        {
            self.times.clear(slot);
        }
        self.garbage.lock().push(ino);
    }

    /// Carries out the content part of an operation.
    pub(super) fn change_content(&self, effect: ContentEffect) -> Result<(), StoreError> {
        match effect {
            ContentEffect::Resize(ino, size) => match self.content_of(ino)? {
                None if size == 0 => Ok(()),
                _ => self.change_content_file(ino, "resize", |content| content.set_len(size)),
            },
            ContentEffect::Allocate(ino, mode, offset, length) => {
                let change = |content: &dyn BackingFile| match mode {
                    AllocateMode::PunchHole => content.punch_hole(offset, length),
                    AllocateMode::ZeroRange => content.zero_range(offset, length, false),
                    _ => content.zero_range(offset, length, true),
                };
                match mode {
                    AllocateMode::Allocate => self.allocate(ino, offset, length, false),
                    AllocateMode::AllocateKeepSize => self.allocate(ino, offset, length, true),
                    _ => self.change_content_file(ino, "allocate", change),
                }
            }
        }
    }

    /// Takes back what a failed change of content left beyond the end of its file.
    fn restore_length(&self, ino: Ino) {
        let restored = match self.inode(ino) {
            Ok(Some(Inode {
                body: Body::File { size },
                ..
            })) => self.fit_length(ino, size),
            _ => Ok(()),
        };
        if let Err(error) = restored {
            tracing::warn!(%error, %ino, "could not take back a failed change of content");
        }
    }

    /// Intents that were logged and whose outcome this node does not know.
    pub fn in_doubt(&self) -> Vec<Osn> {
        let applying = self.applying.lock();
        applying
            .pending
            .iter()
            .map(|intent| intent.op.osn)
            .collect()
    }

    /// Makes an applied operation durable: the content it changed first, for once `Done` is in the
    /// log nobody does it again (P5).
    pub fn sync_applied(&self, applied: &Applied) -> Result<(), StoreError> {
        if let Some(ino) = applied
            .changed
            .filter(|_| !is_active(Mutant::NoContentSync))
        {
            self.check_trust()?;
            self.sync_content(ino)?;
        }
        self.sync_log(applied.position)
    }

    /// Makes every operation applied so far durable, by this process or an earlier one, with the
    /// content they changed.
    pub fn sync_all_applied(&self) -> Result<(), StoreError> {
        self.check_trust()?;
        if self.inherited_doubt {
            self.sync_disk()?;
        } else {
            self.sync_all_content()?;
        }
        self.sync_all_logged()
    }

    /// Makes the log durable up to `position`.
    pub(super) fn sync_log(&self, position: Position) -> Result<(), StoreError> {
        self.check_trust()?;
        self.trust(self.log()?.sync(position))?;
        self.check_trust()
    }

    /// Appends a record. A log that refuses to go on takes the store with it.
    pub(super) fn log_record(&self, record: &Record) -> Result<Position, StoreError> {
        match self.log()?.append(record) {
            Err(error) if error.is_poison() => self.trust(Err(error)),
            appended => Ok(appended?),
        }
    }
}

impl Applying {
    /// The opening whose numbers the operations have reached that are known here.
    pub(super) fn epoch_reached(&self) -> u32 {
        let pending = self.pending.iter().map(|intent| intent.op.osn);
        let highest = pending.fold(self.applied, Osn::max);
        u32::try_from(highest.sequence >> EPOCH_SHIFT).unwrap_or(u32::MAX - 1)
    }

    /// Takes out an intent, and tells its place.
    fn take_pending(&mut self, osn: Osn) -> Option<(usize, PendingIntent)> {
        let at = self
            .pending
            .iter()
            .position(|intent| intent.op.osn == osn)?;
        Some((at, self.pending.remove(at)))
    }
}

/// The keys of the records that a plan changes.
fn keys_of(plan: &Plan) -> Vec<Vec<u8>> {
    plan.batch.iter().map(|(key, _)| key.clone()).collect()
}

/// Whether a request may be one that gives room on the disk back.
const fn may_make_room(request: &MetaRequest) -> bool {
    matches!(
        request,
        MetaRequest::Unlink { .. }
            | MetaRequest::Rmdir { .. }
            | MetaRequest::Rename { .. }
            | MetaRequest::Truncate { .. }
            | MetaRequest::Allocate {
                mode: AllocateMode::PunchHole,
                ..
            }
            | MetaRequest::RemoveXattr { .. }
            | MetaRequest::Reap { .. }
    )
}

/// An operation that could not be applied.
struct Failure {
    error: OpError,
    /// Where the record lies that takes it back, if it was logged as committed.
    taken_back: Option<Position>,
}

impl<E: Into<OpError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            taken_back: None,
        }
    }
}

/// An operation that both sides had agreed on must apply; if it does not, the stores differ.
fn diverged(osn: Osn, error: OpError) -> OpError {
    match error {
        OpError::Refused(errno) => StoreError::Diverged { osn, errno }.into(),
        OpError::Store(error) => OpError::Store(error),
    }
}

impl View for Store {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OpError> {
        Ok(self.names.get(key)?)
    }

    fn keys(&self, range: &KeyRange) -> Result<Vec<Vec<u8>>, OpError> {
        let mut keys = Vec::new();
        self.names.scan(range.from(), range.to(), &mut |key, _| {
            keys.push(key.to_vec());
            std::ops::ControlFlow::Continue(())
        })?;
        Ok(keys)
    }

    fn inode(&self, ino: Ino) -> Result<Option<Inode>, OpError> {
        // Unflushed facts first: were the record read first, a checkpoint in between could take
        // them out of the table, and both readings would miss them.
        let unflushed = self
            .files
            .get(ino)
            .map(|file| file.with_facts(|facts| *facts));
        let Some(bytes) = self.names.get(&keys::inode(ino))? else {
            return Ok(None);
        };
        let mut inode: Inode = record::decode(&bytes).ok_or_else(|| StoreError::Damaged {
            what: format!("the record of inode {ino} cannot be read"),
        })?;
        if let Some(facts) = unflushed
            && let Body::File { size } = &mut inode.body
        {
            *size = facts.size;
            if let Some((_, time)) = facts.last_write {
                inode.mtime = time;
                inode.ctime = time;
            }
        }
        Ok(Some(inode))
    }
}
