//! Moving what is in memory and in the log into the durable namespace, so that both can be cut.
//!
//! Order, and why: (1) while nothing is applied, fold unflushed sizes and times into the records,
//! note the log position, and freeze the records in memory; (2) commit the frozen records durably,
//! with the position in the same transaction; (3) only then cut the log and clear the time slots.
//! A crash before (2) finds the old checkpoint and the whole log; after it, the new one. Slots that
//! outlive their use say what the records already say.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lockstep_intentlog::{IntentLog, Position};
use lockstep_types::{BootId, Ino};

use super::{Applying, Store};
use crate::error::{OpError, StoreError};
use crate::files::{CONTENT_DIR, FileState, content_owner, content_path};
use crate::keys;
use crate::plan::View;
use crate::record::{self, Checkpoint};

/// Records kept in memory before a checkpoint is due.
pub(super) const MEMORY_BYTES_MAX: usize = 48 << 20;

/// A file whose facts were folded into its record, and the last write it had begun then; none if
/// a write was still under way, whose size and time the record does not have.
struct Folded {
    file: Arc<FileState>,
    settled: Option<u64>,
}

impl Store {
    /// Makes a checkpoint. Operations go on meanwhile, but for the short time of step one.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.forget_directories()?;
        let _alone = self.checkpointing.lock();
        self.checkpoint_with_limit(self.ino_limit.load(Ordering::Acquire))
    }

    /// Waits until the log has room for what begins now, if it is filling faster than it is emptied
    /// (back-pressure); the rest of it is for what is under way, and for what comes while something that
    /// the other node has not answered keeps the log from being cut. On a full disk, which takes no
    /// checkpoint, only what may make room goes on.
    pub(super) fn wait_for_log(&self, may_make_room: bool) -> Result<(), StoreError> {
        if !self.log()?.is_filling() {
            return Ok(());
        }
        let _alone = self.checkpointing.lock();
        if !self.log()?.is_filling() {
            return Ok(());
        }
        match self.checkpoint_with_limit(self.ino_limit.load(Ordering::Acquire)) {
            Err(error) if error.is_full_disk() && may_make_room => Ok(()),
            made => made,
        }
    }

    /// Whether a metadata operation would wait for a checkpoint. A store that is only read has no log.
    pub fn is_log_filling(&self) -> bool {
        self.log().is_ok_and(IntentLog::is_filling)
    }

    /// The same as [`Self::checkpoint`] with a new limit of inode numbers; the caller holds
    /// `checkpointing`.
    pub(super) fn checkpoint_with_limit(&self, ino_limit: u64) -> Result<(), StoreError> {
        self.check_trust()?;
        self.write_checkpoint(ino_limit, Some(self.boot))
    }

    fn write_checkpoint(&self, ino_limit: u64, boot: Option<BootId>) -> Result<(), StoreError> {
        // What an earlier checkpoint froze and could not write, as the disk was full, goes first: as
        // long as it is frozen nothing else can be, and this one would cut the log up to its own
        // position after writing no more than the records of that one.
        self.flush_names()?;
        let ino_limit = ino_limit.max(self.next_ino.load(Ordering::Relaxed));
        let (folded, keep_from) = self.take_cut(ino_limit, boot)?;
        self.flush_names()?;
        self.ino_limit.fetch_max(ino_limit, Ordering::Release);
        self.log()?.cut(keep_from);
        self.files.close_idle();
        for folded in &folded {
            self.release_slot(folded);
        }
        Ok(())
    }

    /// Writes what is frozen. A full disk takes nothing back, and what was to be written stays frozen.
    fn flush_names(&self) -> Result<(), StoreError> {
        match self.names.flush() {
            Err(error) if error.is_full_disk() => Err(error.into()),
            flushed => self.trust(flushed),
        }
    }

    /// Step one: folds, notes the position, freezes. Returns what was folded and from where the
    /// log is still needed.
    fn take_cut(
        &self,
        ino_limit: u64,
        boot: Option<BootId>,
    ) -> Result<(Vec<Folded>, Position), StoreError> {
        let applying = self.applying.lock();
        let mut folded = Vec::new();
        let mut batch = Vec::new();
        for file in self.files.unflushed() {
            folded.push(self.fold(file, &mut batch)?);
        }
        let position = self.log()?.tail();
        let keep_from = applying.log_needed_from(position);
        let checkpoint = Checkpoint {
            log_position: position.get(),
            log_keep_from: keep_from.get(),
            applied: applying.applied,
            ino_limit,
            epoch: applying.epoch,
            boot,
        };
        batch.push((keys::CHECKPOINT.to_vec(), Some(record::encode(&checkpoint))));
        self.names.apply(batch);
        self.names.freeze();
        Ok((folded, keep_from))
    }

    /// Puts a file's size and times into its record.
    fn fold(
        &self,
        file: Arc<FileState>,
        batch: &mut Vec<(Vec<u8>, Option<Vec<u8>>)>,
    ) -> Result<Folded, StoreError> {
        let settled = file.with_facts(|facts| (facts.active == 0).then_some(facts.begun));
        if let Some(inode) = self.inode(file.ino()).map_err(as_store_error)? {
            batch.push((keys::inode(file.ino()), Some(record::encode(&inode))));
        }
        Ok(Folded { file, settled })
    }

    /// Frees the slot of a file that was not written since it was folded.
    fn release_slot(&self, folded: &Folded) {
        let slot = folded.file.with_facts(|facts| {
            if folded.settled != Some(facts.begun) {
                return None;
            }
            facts.folded = facts.last_write.take().map(|(osn, _)| osn);
            facts.owes_time = false;
            facts.slot.take()
        });
        if let Some(slot) = slot {
            self.times.clear(slot);
        }
    }

    /// Removes the content of freed inodes from the disk. First makes it durable that they were
    /// freed: or a power loss could bring back a name, by a rename never synced, without the
    /// content.
    ///
    /// One at a time: who comes second relies on what the first has taken on being gone.
    pub fn collect_garbage(&self) -> Result<usize, StoreError> {
        let _alone = self.collecting.lock();
        let garbage: Vec<Ino> = std::mem::take(&mut *self.garbage.lock());
        if garbage.is_empty() {
            return Ok(0);
        }
        if let Err(error) = self.sync_all_logged() {
            self.garbage.lock().extend(garbage);
            return Err(error);
        }
        for (done, ino) in garbage.iter().enumerate() {
            let removed = self.remove_content(*ino);
            if removed.is_err() {
                self.garbage.lock().extend(garbage.iter().skip(done));
            }
            removed?;
        }
        Ok(garbage.len())
    }

    /// Content without an inode is garbage: after a power loss its name may have reached the disk
    /// and the inode not. Numbers are never given out again, so nobody will ask for it.
    pub(super) fn find_lost_content(&self) -> Result<(), StoreError> {
        let list = |path: &str| {
            let listed = self.backing.list(path);
            listed.map_err(StoreError::disk("list", path))
        };
        for directory in list(CONTENT_DIR)? {
            for name in list(&format!("{CONTENT_DIR}/{directory}"))? {
                let path = format!("{CONTENT_DIR}/{directory}/{name}");
                // A name that is none of ours is left alone.
                let Some(ino) = content_owner(&path) else {
                    continue;
                };
                if self.inode(ino).map_err(as_store_error)?.is_none() {
                    self.names.apply([(keys::garbage(ino), Some(Vec::new()))]);
                    self.garbage.lock().push(ino);
                }
            }
        }
        Ok(())
    }

    fn remove_content(&self, ino: Ino) -> Result<(), StoreError> {
        let path = content_path(ino);
        match self.backing.remove(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::disk("remove", path)(error));
            }
            // It never had any content, or an earlier process has removed it.
            Err(_) => {}
            Ok(()) => {
                self.unsynced.name_removed(ino);
                self.emptied.note(ino);
            }
        }
        self.unsynced.forget(ino);
        self.delete_record(keys::garbage(ino));
        Ok(())
    }

    fn delete_record(&self, key: Vec<u8>) {
        self.names.apply([(key, None::<Vec<u8>>)]);
    }

    /// Puts everything on stable storage and notes that the store was closed in order.
    pub fn close(&self) -> Result<(), StoreError> {
        self.check_trust()?;
        self.collect_garbage()?;
        let _alone = self.checkpointing.lock();
        self.sync_all_content()?;
        self.sync_removals()?;
        // The log too: what waits for the peer's word is nowhere else.
        self.sync_all_logged()?;
        // What an earlier process of this run of the machine had not synced is not known: a power
        // loss must still be noticed. And where the other node has not answered for a write, the
        // content may be longer than its record says: as after a kill, the content decides.
        let is_in_doubt = self.inherited_doubt || self.files.are_written();
        let boot = is_in_doubt.then_some(self.boot);
        self.write_checkpoint(self.ino_limit.load(Ordering::Acquire), boot)
    }
}

impl Applying {
    /// The log is needed from its oldest unresolved intent on, or from `position`.
    fn log_needed_from(&self, position: Position) -> Position {
        self.pending
            .iter()
            .map(|intent| intent.position)
            .fold(position, Position::min)
    }
}

/// What reading our own records may run into; a refusal cannot come from there.
fn as_store_error(error: OpError) -> StoreError {
    match error {
        OpError::Store(error) => error,
        OpError::Refused(errno) => StoreError::Damaged {
            what: format!("a record that exists was refused: {errno}"),
        },
    }
}
