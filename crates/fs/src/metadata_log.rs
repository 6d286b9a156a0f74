//! The metadata log of a store: the intent log, and the metadata operations that are applied by it.
//!
//! [`MetadataLog`] owns the log and the progress of operations. It plans an operation on a [`Tree`], logs it, changes the
//! content and installs the records. It makes checkpoints, which cut the log.
//!
//! Invariants:
//! - Metadata operations are applied one at a time, in the order of their log records. Each record is in the log before
//!   the first effect of its operation. So after a crash of the process only the last record of the log may have
//!   effects missing.
//! - If the content part of an operation fails, a record takes the operation back. If it succeeds, a record says so
//!   (P5).
//! - A failed operation stays pending until it is rolled back, and no later operation is applied (rule P8).
//! - The namespace in memory is the last checkpoint plus the log since. A checkpoint is atomic ([`checkpoint`]).
//!
//! Locks, in the order in which they may be taken: `checkpointing`, `applying`, `applied`; then the locks of the
//! content, of the namespace and of the delta. `applying` is held while an operation is applied, logged and carried out, and during
//! the first step of a checkpoint. `applied` is never held during a call of the disk.

mod applying;
mod change_feed;
mod changed_keys;
mod checkpoint;
mod folding;
mod intents;
mod replay;
mod snapshots;
mod times;

use std::sync::Arc;

use lockstep_intentlog::{IntentLog, Position, Record, Usage};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{AllocateMode, Attr, BootId, Generation, Ino, MetaOp, MetaRequest, Osn};
use parking_lot::Mutex;

use self::applying::Applying;
use self::checkpoint::{CheckpointRun, MEMORY_BYTES_MAX};
use crate::content::WriteTicket;
use crate::delta::{ChangeReaders, DeltaTracker};
use crate::error::{OpError, StoreError};
use crate::namespace::InoRanges;
use crate::namespace::plan::{self, ContentEffect, Plan};
use crate::snapshots::packs::Packs;
use crate::store_disk::StoreDisk;
use crate::tree::Tree;

pub use self::change_feed::{ChangeFeed, ImageChange};
pub use self::checkpoint::NewSnapshot;
pub use self::intents::{Intent, Intents};
pub use self::replay::{Leftover, recover};

/// Inode numbers reserved at a time: each reservation costs one sync.
const INO_RESERVE: u64 = 1 << 20;

/// The answer of an applied operation.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// Attributes of the one inode made, linked or changed.
    pub attr: Option<Attr>,
    /// An inode that lost its last name: free it when no client has it open.
    pub orphaned: Option<Ino>,
    /// An inode that went into the trash with its last name, or got a name again.
    pub trash_moved: Option<Ino>,
    /// Inodes may have left the trash: each is to be freed when no client has it open.
    pub empties_trash: bool,
    /// The file whose content the operation changed.
    changed: Option<Ino>,
    /// Where the last record of the operation lies in the log.
    position: Position,
    /// Whether the operation is on stable storage before its answer, also without `durability = "always"`.
    must_be_durable: bool,
}

impl Applied {
    /// Whether the operation is on stable storage before its answer, also without `durability = "always"`.
    pub const fn must_be_durable(&self) -> bool {
        self.must_be_durable
    }
}

/// The log of a store, and the progress of metadata operations.
pub struct MetadataLog {
    /// `None` in a store opened for reading only.
    log: Option<IntentLog>,
    applying: Mutex<Applying>,
    /// A copy of the OSN in `applying`, for threads that must not wait for the disk.
    applied: Mutex<Osn>,
    /// Held by the one checkpoint that may run.
    checkpointing: Mutex<()>,
    /// The changes since both copies were equal.
    delta: Arc<DeltaTracker>,
    /// Those that ask what has changed.
    pub(crate) readers: Arc<ChangeReaders>,
    /// The kept blocks of files, whose index is in the checkpoints.
    packs: Arc<Packs>,
    /// The run of the machine.
    boot: BootId,
}

impl MetadataLog {
    /// A metadata log that goes on from `applying`.
    pub fn new(
        log: Option<IntentLog>,
        applying: Applying,
        boot: BootId,
        ((delta, readers), packs): ((Arc<DeltaTracker>, Arc<ChangeReaders>), Arc<Packs>),
    ) -> Self {
        Self {
            log,
            applied: Mutex::new(applying.applied),
            applying: Mutex::new(applying),
            checkpointing: Mutex::new(()),
            delta,
            readers,
            packs,
            boot,
        }
    }

    /// Highest OSN of a metadata operation applied.
    pub fn applied(&self) -> Osn {
        self.applying.lock().applied
    }

    /// The same, but for an operation that is being applied at this moment: never waits for the disk.
    pub fn applied_lately(&self) -> Osn {
        *self.applied.lock()
    }

    /// The namespace was replaced by one that has the operations up to `osn`.
    pub fn set_applied(&self, osn: Osn) {
        self.note_applied(&mut self.applying.lock(), osn);
    }

    /// Drops every pending operation, for a namespace that is replaced.
    pub fn drop_pending(&self) {
        self.applying.lock().drop_pending();
    }

    fn note_applied(&self, applying: &mut Applying, osn: Osn) {
        applying.applied = osn;
        *self.applied.lock() = osn;
    }

    /// First OSN sequence that may be given out (P13).
    pub fn first_sequence(&self) -> u64 {
        self.applying.lock().first_sequence()
    }

    /// Notes that the OSN sequences below `end` were given out (P13).
    pub fn note_given(&self, end: u64) {
        self.applying.lock().note_given(end);
    }

    /// Follows the records that metadata operations change from now on; more than `limit` records are too many.
    pub fn follow_changes<'a>(&'a self, tree: Tree<'a>, limit: usize) -> ChangeFeed<'a> {
        ChangeFeed::new(&self.applying, tree, limit)
    }

    /// Has the delta follow the primary of generation `base`. No operation is being applied at that moment.
    pub fn follow_primary(&self, base: Generation) {
        let applying = self.applying.lock();
        self.delta.follow(base, applying.applied);
    }

    /// Whether more changes wait to be taken than the follower accepts.
    pub fn changes_exceed(&self) -> bool {
        self.applying.lock().changed.exceed_limit()
    }
}

/// The log.
impl MetadataLog {
    fn log(&self) -> Result<&IntentLog, StoreError> {
        self.log.as_ref().ok_or(StoreError::ReadOnly)
    }

    /// How full the log is; `None` for a store opened for reading only.
    pub fn log_usage(&self) -> Option<Usage> {
        self.log.as_ref().map(IntentLog::usage)
    }

    /// Whether an operation of the other node waits for a checkpoint: because the log fills, or because the checkpoint must
    /// first note the number of a new inode (rule P13).
    pub fn is_checkpoint_due(&self, tree: Tree<'_>, op: &MetaOp) -> bool {
        self.log().is_ok_and(IntentLog::is_filling) || unreserved_ino(tree, op).is_some()
    }

    /// Appends a record. A log that refuses every further record poisons the disk.
    fn log_record(&self, disk: &StoreDisk, record: &Record) -> Result<Position, StoreError> {
        match self.log()?.append(record) {
            Err(error) if error.is_poison() => disk.poison_on_error(Err(error)),
            appended => Ok(appended?),
        }
    }

    /// Makes the log durable up to `position`.
    fn sync_log(&self, disk: &StoreDisk, position: Position) -> Result<(), StoreError> {
        disk.check_not_poisoned()?;
        disk.poison_on_error(self.log()?.sync(position))?;
        disk.check_not_poisoned()
    }

    /// Makes every metadata operation applied so far durable.
    pub fn sync_all_logged(&self, disk: &StoreDisk) -> Result<(), StoreError> {
        self.sync_log(disk, self.log()?.tail())
    }

    /// Makes an applied operation durable. The content that it changed goes first: once `Done` is in the log, no replay
    /// repeats the change (P5).
    pub fn sync_applied(&self, tree: Tree<'_>, applied: &Applied) -> Result<(), StoreError> {
        if let Some(ino) = applied
            .changed
            .filter(|_| !is_active(Mutant::NoContentSync))
        {
            tree.disk().check_not_poisoned()?;
            tree.content.sync_file(ino)?;
        }
        self.sync_log(tree.disk(), applied.position)
    }
}

/// Applying operations: the log record first, then the content, then the records of the namespace.
impl MetadataLog {
    /// Logs and applies an operation at once: as secondary, or as a primary without a peer.
    pub fn commit(&self, tree: Tree<'_>, op: &MetaOp) -> Result<Applied, OpError> {
        self.wait_for_log(tree, may_make_room(&op.request))?;
        if let Some(number) = unreserved_ino(tree, op) {
            self.reserve_inos(tree, number)?;
        }
        self.commit_at_once(tree, op)
    }

    /// The same, but waits for no checkpoint: there is none due ([`Self::is_checkpoint_due`]).
    pub fn commit_at_once(&self, tree: Tree<'_>, op: &MetaOp) -> Result<Applied, OpError> {
        tree.disk().check_not_poisoned()?;
        plan::check_new(&op.request)?;
        let mut applying = self.applying.lock();
        let committed = Record::CommittedOp(op.clone());
        let taken_back = Record::RolledBack { osn: op.osn };
        let applied = self.apply_logged(tree, &mut applying, op, &committed, &taken_back);
        applied.map_err(|failure| failure.error)
    }

    /// Logs `record`, then carries out `op`. If its effect on content fails, logs `taken_back`.
    fn apply_logged(
        &self,
        tree: Tree<'_>,
        applying: &mut Applying,
        op: &MetaOp,
        record: &Record,
        taken_back: &Record,
    ) -> Result<Applied, FailedApply> {
        let plan = plan::plan(&tree, op)?;
        let _under_way = self.readers.begin_change();
        self.delta.note_operation(op.osn, &plan)?;
        self.readers.note_plan(&plan);
        folding::fold_before(tree, plan.snapshot.as_ref(), &|record| {
            self.log_record(tree.disk(), record).map(drop)
        })?;
        let changed = plan.content.map(ContentEffect::ino);
        // Until the record has the new length, other threads find the old length in the entry of the file, and do not
        // take the difference for damage. Content that is damaged already may be cut all the same.
        let _known = changed.map(|ino| tree.content.file(tree.namespace, ino));
        let position = match plan.content {
            Some(effect) => {
                self.log_and_change_content(tree, op.osn, record, effect, taken_back)?
            }
            None => self.log_record(tree.disk(), record)?,
        };
        let (attr, orphaned, trash_moved) = (plan.attr, plan.orphaned, plan.trash_moved);
        let followed = applying.changed.is_followed().then(|| keys_of(&plan));
        tree.install(plan, &op.request)?;
        if let Some(keys) = followed {
            applying.changed.note(keys);
        }
        let applied = applying.applied.max(op.osn);
        self.note_applied(applying, applied);
        Ok(Applied {
            attr,
            orphaned,
            trash_moved,
            empties_trash: matches!(op.request, MetaRequest::TrashDrop { .. }),
            changed,
            position,
            must_be_durable: op.request.is_on_snapshots(),
        })
    }

    /// Logs an operation, changes the content, and logs that the content is changed, or `taken_back` (P5).
    fn log_and_change_content(
        &self,
        tree: Tree<'_>,
        osn: Osn,
        record: &Record,
        effect: ContentEffect,
        taken_back: &Record,
    ) -> Result<Position, FailedApply> {
        let position = self.log()?.append_before_outcome(record)?;
        if let Err(error) = tree.content.apply(effect) {
            tree.restore_length(effect.ino());
            return Err(FailedApply {
                error: error.into(),
                taken_back: Some(self.log_outcome(tree, effect.ino(), taken_back)?),
            });
        }
        if is_active(Mutant::NoOutcomeLogged) {
            return Ok(position);
        }
        Ok(self.log_outcome(tree, effect.ino(), &Record::Done { osn })?)
    }

    /// Logs the outcome of a change of content. The log has kept room for this record, so a log that refuses it is
    /// broken. Without the record, recovery after a crash could not tell whether writes came since. The file is not
    /// read until the next start settles the outcome.
    fn log_outcome(
        &self,
        tree: Tree<'_>,
        ino: Ino,
        record: &Record,
    ) -> Result<Position, StoreError> {
        let logged = tree.disk().poison_on_error(self.log()?.append(record));
        if logged.is_err()
            && let Ok(file) = tree.content.file(tree.namespace, ino)
        {
            file.mark_indeterminate();
        }
        logged
    }
}

/// Writes and freed content, which may wait for the log.
impl MetadataLog {
    /// Marks a file as having unflushed writes, before its first byte is touched. Makes a checkpoint if all slots are in
    /// use. `durable` says that the caller syncs the write.
    pub fn begin_write(
        &self,
        tree: Tree<'_>,
        ino: Ino,
        (offset, length): (u64, u64),
        durable: bool,
    ) -> Result<WriteTicket, OpError> {
        let mut file = tree
            .content
            .file_to_write(tree.namespace, ino, offset, length)?;
        let under_way = self.readers.begin_change();
        loop {
            match tree.content.begin_write(file, durable) {
                Ok(ticket) => return Ok(ticket.until_over(under_way)),
                Err(same) => file = same,
            }
            self.checkpoint(tree)?;
        }
    }

    /// Removes the content of freed inodes from the disk, once their freeing is durable; returns of how many.
    pub fn collect_garbage(&self, tree: Tree<'_>) -> Result<usize, StoreError> {
        let sync_log = || self.sync_all_logged(tree.disk());
        tree.content.collect_garbage(tree.namespace, sync_log)
    }
}

/// Checkpoints.
impl MetadataLog {
    /// Whether a checkpoint is due.
    pub fn needs_checkpoint(&self, tree: Tree<'_>) -> bool {
        self.log.as_ref().is_some_and(IntentLog::needs_checkpoint)
            || tree.content.is_table_filling()
            || tree.namespace.bytes() > MEMORY_BYTES_MAX
    }

    /// Makes a checkpoint. Operations go on meanwhile, but for the short time of its first step.
    pub fn checkpoint(&self, tree: Tree<'_>) -> Result<(), StoreError> {
        tree.content.sync().limit_noted_directories(tree.disk())?;
        let _alone = self.checkpointing.lock();
        self.checkpoint_alone(
            tree,
            tree.namespace.numbers().limit(),
            Some(self.boot),
            None,
        )
    }

    /// Waits until the log has room for an operation that begins now, if the log fills faster than checkpoints empty it
    /// (back-pressure). The rest of the log is for operations under way, and for operations that come while an intent
    /// without an answer of the other node keeps the log from being cut. A full disk takes no checkpoint: only an
    /// operation that may make room goes on.
    fn wait_for_log(&self, tree: Tree<'_>, may_make_room: bool) -> Result<(), StoreError> {
        if !self.log()?.is_filling() {
            return Ok(());
        }
        let _alone = self.checkpointing.lock();
        if !self.log()?.is_filling() {
            return Ok(());
        }
        match self.checkpoint_alone(
            tree,
            tree.namespace.numbers().limit(),
            Some(self.boot),
            None,
        ) {
            Err(error) if error.is_full_disk() && may_make_room => Ok(()),
            made => made,
        }
    }

    /// Makes a checkpoint with this limit of inode numbers, and the run of the machine or none after a clean shutdown. The caller holds `checkpointing`.
    fn checkpoint_alone(
        &self,
        tree: Tree<'_>,
        ino_limit: u64,
        boot: Option<BootId>,
        snapshot: Option<NewSnapshot>,
    ) -> Result<(), StoreError> {
        tree.disk().check_not_poisoned()?;
        let run = CheckpointRun {
            log: self.log()?,
            applying: &self.applying,
            delta: &self.delta,
            packs: &self.packs,
            tree,
        };
        run.write(ino_limit, boot, snapshot)
    }

    /// A number for a new inode; never given out twice, even if power is lost (rule P13).
    pub fn next_ino(&self, tree: Tree<'_>) -> Result<Ino, StoreError> {
        let numbers = tree.namespace.numbers();
        let number = numbers.take();
        if number >= numbers.limit() {
            self.reserve_inos(tree, number)?;
        }
        Ino::new(number).ok_or_else(|| StoreError::Damaged {
            what: "the counter of inode numbers is zero".to_owned(),
        })
    }

    /// Leaves numbers out that the other node may have given out since this copy has heard of it.
    pub fn skip_inos(
        &self,
        tree: Tree<'_>,
        ranges: InoRanges,
        further: u16,
    ) -> Result<(), StoreError> {
        let numbers = tree.namespace.numbers();
        numbers.leave_out(ranges, further);
        self.reserve_inos(tree, numbers.below())
    }

    fn reserve_inos(&self, tree: Tree<'_>, number: u64) -> Result<(), StoreError> {
        let _alone = self.checkpointing.lock();
        if number < tree.namespace.numbers().limit() {
            return Ok(());
        }
        self.checkpoint_alone(
            tree,
            number.saturating_add(INO_RESERVE),
            Some(self.boot),
            None,
        )
    }

    /// Makes the recovered state durable, with a new epoch, before anything new is numbered (P13).
    pub fn start_epoch(&self, tree: Tree<'_>) -> Result<(), StoreError> {
        if !is_active(Mutant::NumbersAgain) {
            self.applying.lock().begin_epoch();
        }
        let limit = tree.namespace.numbers().below();
        let _alone = self.checkpointing.lock();
        self.checkpoint_alone(
            tree,
            limit.saturating_add(INO_RESERVE),
            Some(self.boot),
            None,
        )?;
        let epoch = self.applying.lock().epoch;
        let opened = self.delta.opened(epoch);
        tree.disk().poison_on_error(opened)?;
        self.readers.opened(epoch);
        Ok(())
    }

    /// Begins the trace of a node that serves alone (rule P28), unless there is one, or it would be of no use, or an operation
    /// waits that the other node may have done. Returns whether a trace has begun.
    pub fn begin_trace(&self, tree: Tree<'_>) -> Result<bool, StoreError> {
        self.delta.trace().end_if_over()?;
        if !self.delta.lacks_trace() {
            return Ok(false);
        }
        // No checkpoint owes the trace anything meanwhile.
        let _alone = self.checkpointing.lock();
        if !self.delta.lacks_trace() {
            return Ok(false);
        }
        self.delta.trace().prepare()?;
        let begun = {
            let applying = self.applying.lock();
            if applying.has_pending() {
                return Ok(false);
            }
            self.delta.begin_trace(tree.namespace.numbers().below())
        };
        let Some(begun) = begun else {
            return Ok(false);
        };
        let mut freed = Vec::new();
        for ino in begun.inodes() {
            if tree.namespace.inode(*ino)?.is_none() {
                freed.push(*ino);
            }
        }
        begun.complete(self.delta.trace(), freed.into_iter())?;
        Ok(self.delta.trace().is_active())
    }

    /// Makes everything durable, and notes a clean shutdown. The content of freed inodes is gone.
    pub fn close(&self, tree: Tree<'_>) -> Result<(), StoreError> {
        let _alone = self.checkpointing.lock();
        tree.content.sync_changed()?;
        tree.content.sync().sync_removals(tree.disk())?;
        // The log too: an intent that waits for the peer's answer is in no other place.
        self.sync_all_logged(tree.disk())?;
        let delta = self.delta.close(tree.disk().backing().as_ref());
        tree.disk().poison_on_error(delta)?;
        tree.disk().poison_on_error(self.readers.close())?;
        // A killed process of this run of the machine may have left unsynced content that this process does not know:
        // a power loss must still be noticed. And if the other node has not answered a write, the content may be longer
        // than its record says: as after a kill, the content decides.
        let has_unclean = tree.content.sync().has_unclean_predecessor();
        let is_in_doubt = has_unclean || tree.content.are_written();
        tree.content.observers().sums().close(!is_in_doubt);
        let boot = is_in_doubt.then_some(self.boot);
        self.checkpoint_alone(tree, tree.namespace.numbers().limit(), boot, None)
    }
}

/// The keys of the records that a plan changes.
fn keys_of(plan: &Plan) -> Vec<Vec<u8>> {
    plan.batch.iter().map(|(key, _)| key.clone()).collect()
}

/// The number of a new inode that the other node has given out, if a power loss could make this node forget the number.
fn unreserved_ino(tree: Tree<'_>, op: &MetaOp) -> Option<u64> {
    let made = op
        .request
        .made()
        .filter(|_| !is_active(Mutant::ForgetNumbers))?;
    Some(made.get()).filter(|number| *number >= tree.namespace.numbers().limit())
}

/// Whether a request may give back space on the disk.
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
            | MetaRequest::ReapAll { .. }
            | MetaRequest::SnapshotDelete { .. }
            | MetaRequest::IntoTrash { .. }
            | MetaRequest::TrashDrop { .. }
    )
}

/// An operation that could not be applied.
struct FailedApply {
    error: OpError,
    /// Where the record lies that takes the operation back, if it was logged as committed.
    taken_back: Option<Position>,
}

impl<E: Into<OpError>> From<E> for FailedApply {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            taken_back: None,
        }
    }
}
