//! [`Store`]: the parts of a store, composed.
//!
//! The methods here add no state and no rule of their own. Where an operation needs two parts, the method fixes their
//! order.

use std::sync::Arc;

use lockstep_intentlog::Usage;
use lockstep_sums::SummedBytes;
use lockstep_types::backing::Backing;
use lockstep_types::{DatastoreUuid, Ino, MetaOp, Osn, StateVersion, Timestamp};

use super::whole_sync::sync_everything;
use crate::content::{ContentStore, SeekFor, SyncPoint, WriteTicket};
use crate::delta::{ChangeReaders, DeltaTracker};
use crate::error::{OpError, StoreError};
use crate::metadata_log::{Applied, Intents, MetadataLog};
use crate::namespace::{InoRanges, Namespace};
use crate::snapshots::content_at::KeptSource;
use crate::snapshots::keeper::BlockKeeper;
use crate::tree::Tree;

/// One node's copy of a datastore. Safe to use from many threads at once.
pub struct Store {
    pub(super) uuid: DatastoreUuid,
    pub(super) namespace: Arc<Namespace>,
    pub(super) content: ContentStore,
    pub(super) metadata_log: MetadataLog,
    pub(super) delta: Arc<DeltaTracker>,
    pub(super) readers: Arc<ChangeReaders>,
    pub(super) kept: KeptSource,
    pub(super) keeper: Arc<BlockKeeper>,
}

/// Identity and state.
impl Store {
    /// The datastore that this store is a copy of.
    pub const fn uuid(&self) -> DatastoreUuid {
        self.uuid
    }

    /// The disk below, for other tables of the same store.
    pub fn backing(&self) -> &Arc<dyn Backing> {
        self.content.disk().backing()
    }

    /// Namespace and content as clients see them.
    pub fn tree(&self) -> Tree<'_> {
        Tree {
            namespace: &self.namespace,
            content: &self.content,
        }
    }

    /// Highest OSN of a metadata operation applied here.
    pub fn applied(&self) -> Osn {
        self.metadata_log.applied()
    }

    /// The same, but for an operation that is being applied at this moment: never waits for the disk.
    pub fn applied_lately(&self) -> Osn {
        self.metadata_log.applied_lately()
    }

    /// Whether a sync failed: the store promises nothing more.
    pub fn is_poisoned(&self) -> bool {
        self.content.disk().is_poisoned()
    }

    /// A number for a new inode; never given out twice, even if power is lost (rule P13).
    pub fn next_ino(&self) -> Result<Ino, StoreError> {
        self.metadata_log.next_ino(self.tree())
    }

    /// Leaves out the next 16 million numbers of inodes or more, and goes on in `ranges`: the other node may have given these
    /// numbers out since this copy has heard of it. So no number that a program has from that node names another inode here.
    /// `further`, drawn at random, is the number of own ranges that are left out besides: this node may have given numbers of its
    /// own ranges out on a disk that is lost.
    pub fn skip_inos(&self, ranges: InoRanges, further: u16) -> Result<(), StoreError> {
        self.metadata_log.skip_inos(self.tree(), ranges, further)
    }

    /// First OSN sequence that may be given out: higher than any sequence given out before (rule P13).
    pub fn first_sequence(&self) -> u64 {
        self.metadata_log.first_sequence()
    }

    /// Notes that the OSN sequences below `end` were given out. The store does not record those of writes, and a primary may
    /// begin another session in the same generation (rule P13).
    pub fn note_given_sequences(&self, end: u64) {
        self.metadata_log.note_given(end);
    }

    /// How full the intent log is; `None` for a store opened for reading only.
    pub fn log_usage(&self) -> Option<Usage> {
        self.metadata_log.log_usage()
    }

    /// Whether an operation of the other node waits for a checkpoint. A store opened for reading only has no log.
    pub fn is_checkpoint_due(&self, op: &MetaOp) -> bool {
        self.metadata_log.is_checkpoint_due(self.tree(), op)
    }
}

/// Content.
impl Store {
    /// Whether there is a regular file of this number, to read and write: else the reason.
    pub fn check_file(&self, ino: Ino) -> Result<(), OpError> {
        self.content.file(&self.namespace, ino).map(drop)
    }

    /// Reads into `buffer` from `offset`; fewer bytes only at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize, OpError> {
        self.content.read(&self.namespace, ino, offset, buffer)
    }

    /// Next data or hole of a file at or after `offset`.
    pub fn seek(&self, ino: Ino, offset: u64, target: SeekFor) -> Result<u64, OpError> {
        self.content.seek(&self.namespace, ino, offset, target)
    }

    /// Marks a file as having unflushed writes, before its first byte is touched. `durable` says that the caller syncs
    /// the write.
    pub fn begin_write(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        durable: bool,
    ) -> Result<WriteTicket, OpError> {
        let bytes = (offset, length);
        self.metadata_log
            .begin_write(self.tree(), ino, bytes, durable)
    }

    /// Whether a write to a file can begin without a checkpoint.
    pub fn has_room_for_writes(&self, ino: Ino) -> bool {
        self.content.has_room_for_writes(ino)
    }

    /// Puts the bytes of a write in place, with the sums of their blocks if the caller has these. They are not yet durable. A size beyond the old one does not show yet.
    pub fn write_begun<'a>(
        &self,
        ticket: &WriteTicket,
        offset: u64,
        data: impl Into<SummedBytes<'a>>,
    ) -> Result<(), StoreError> {
        self.content.write(ticket, offset, data.into())
    }

    /// Makes size and time of a write visible. The time of the write with the highest OSN stays, in any order of
    /// completion, so that both nodes agree.
    pub fn complete_write(&self, ticket: &WriteTicket, end: u64, osn: Osn, time: Timestamp) {
        self.content.complete_write(ticket, end, osn, time);
    }

    /// All three steps of a write at once, as on the secondary.
    pub fn write<'a>(
        &self,
        ino: Ino,
        offset: u64,
        data: impl Into<SummedBytes<'a>>,
        osn: Osn,
        time: Timestamp,
    ) -> Result<(), OpError> {
        let data = data.into();
        let ticket = self.begin_write(ino, offset, data.len() as u64, false)?;
        let end = offset.saturating_add(data.len() as u64);
        if let Err(error) = self.write_begun(&ticket, offset, data) {
            ticket.abandon();
            return Err(error.into());
        }
        self.complete_write(&ticket, end, osn, time);
        Ok(())
    }

    /// Makes the bytes of a file durable (rule P11); with `times` the time of its last write too.
    ///
    /// Everything logged so far becomes durable as well: the file's name, owner and mode.
    pub fn sync_file(&self, ino: Ino, times: bool) -> Result<(), OpError> {
        self.content.disk().check_not_poisoned()?;
        if let Some(file) = self.content.file_in_use(ino).filter(|_| times) {
            self.metadata_log.log_times(self.tree(), &file)?;
        }
        // Also a file that is not in use: a checkpoint drops the entry of an unsynced file.
        self.content.sync_file(ino)?;
        self.sync_all_logged()?;
        Ok(())
    }

    /// The sync point of a sync of this file that begins now, on every node that counts in `state`.
    pub fn sync_point(&self, ino: Ino, state: StateVersion) -> Option<SyncPoint> {
        let applied = self.applied();
        self.content
            .sync_point(&self.namespace, ino, applied, state)
    }

    /// A sync that covers `point` has succeeded on every node that counts.
    pub fn note_synced(&self, ino: Ino, point: SyncPoint) {
        self.content.note_synced(ino, point);
    }

    /// Whether a sync of this file would have nothing to do.
    pub fn is_synced(&self, ino: Ino, state: StateVersion) -> bool {
        let point = self.sync_point(ino, state);
        point.is_some_and(|point| self.content.is_synced(ino, point))
    }
}

/// Metadata operations.
impl Store {
    /// Whether `op` would be refused now, without changing anything. Reserves the space that the operation needs, so
    /// that a full disk shows before the peer has agreed.
    pub fn validate(&self, op: &MetaOp) -> Result<(), OpError> {
        self.tree().validate(op)
    }

    /// Logs and applies an operation at once: as secondary, or as a primary without a peer.
    pub fn commit(&self, op: &MetaOp) -> Result<Applied, OpError> {
        self.metadata_log.commit(self.tree(), op)
    }

    /// The same, but waits for no checkpoint: there is none due ([`Self::is_checkpoint_due`]).
    pub fn commit_at_once(&self, op: &MetaOp) -> Result<Applied, OpError> {
        self.metadata_log.commit_at_once(self.tree(), op)
    }

    /// Makes an applied operation durable, with the content that it changed.
    pub fn sync_applied(&self, applied: &Applied) -> Result<(), StoreError> {
        self.metadata_log.sync_applied(self.tree(), applied)
    }

    /// Makes every operation applied so far durable, by this process or an earlier one, with the content they changed.
    pub fn sync_all_applied(&self) -> Result<(), StoreError> {
        self.content.disk().check_not_poisoned()?;
        self.content.sync_all()?;
        self.sync_all_logged()
    }

    /// Makes every metadata operation applied so far durable.
    pub fn sync_all_logged(&self) -> Result<(), StoreError> {
        self.metadata_log.sync_all_logged(self.content.disk())
    }
}

/// Metadata operations that wait for the peer.
impl Store {
    /// Operations that wait for the peer's answer.
    pub fn intents(&self) -> Intents<'_> {
        Intents::new(&self.metadata_log, self.tree())
    }
}

/// Upkeep.
impl Store {
    /// Whether a checkpoint is due.
    pub fn needs_checkpoint(&self) -> bool {
        self.metadata_log.needs_checkpoint(self.tree())
    }

    /// Makes a checkpoint. Operations go on meanwhile, but for the short time of its first step.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.metadata_log.checkpoint(self.tree())
    }

    /// Removes the content of freed inodes from the disk; returns of how many.
    pub fn collect_garbage(&self) -> Result<usize, StoreError> {
        self.metadata_log.collect_garbage(self.tree())
    }

    /// Removes empty directories of content, at most 256; returns how many. A later call tries again to remove a
    /// directory that could not be removed.
    pub fn remove_empty_directories(&self) -> Result<usize, StoreError> {
        self.content.remove_empty_directories()
    }

    /// Makes everything that the store holds durable.
    pub fn sync_everything(&self) -> Result<(), StoreError> {
        sync_everything(self.tree(), &self.metadata_log)
    }

    /// Makes everything durable that was changed so far, but no content of other programs on the same disk: content, its names and
    /// removals, the log, and sizes and times.
    pub(super) fn sync_everything_logged(&self) -> Result<(), StoreError> {
        self.sync_all_applied()?;
        self.content.sync().sync_removals(self.content.disk())?;
        self.checkpoint()
    }

    /// Makes everything durable, and notes a clean shutdown.
    pub fn close(&self) -> Result<(), StoreError> {
        self.content.disk().check_not_poisoned()?;
        self.collect_garbage()?;
        self.metadata_log.close(self.tree())
    }
}
