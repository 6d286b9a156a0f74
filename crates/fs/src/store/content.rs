//! Reading, writing and syncing the content of files.
//!
//! A write has three steps: [`Store::begin_write`] marks the file as having unflushed writes,
//! [`Store::write_begun`] puts the bytes in place, [`Store::complete_write`] makes the new size and
//! time visible. The primary completes a write only when the peer has it too, so that no reader
//! sees a size that a failover could take back.

use std::io;
use std::sync::Arc;

use lockstep_intentlog::Record;
use lockstep_types::backing::BackingFile;
use lockstep_types::{Errno, Ino, Osn, StateVersion, Timestamp, limits};

use super::Store;
use super::unsynced::Unsynced;
use crate::error::{OpError, StoreError};
use crate::files::{FileState, SyncPoint, content_path, open_content};
use crate::plan::View;
use crate::record::Body;
use crate::times::Slot;

/// A write that was begun. Dropping it without completing leaves size and times as they were.
pub struct WriteTicket {
    file: Arc<FileState>,
    durable: bool,
    unsynced: Arc<Unsynced>,
}

impl WriteTicket {
    /// The file that is written.
    pub(super) fn file(&self) -> &FileState {
        &self.file
    }
}

impl Drop for WriteTicket {
    fn drop(&mut self) {
        if self.file.write_ended(self.durable) {
            self.unsynced.content_changed(self.file.ino());
        }
    }
}

impl Store {
    /// The entry of a regular file.
    pub(super) fn file_for(&self, ino: Ino) -> Result<Arc<FileState>, OpError> {
        if let Some(file) = self.files.get(ino) {
            return Ok(file);
        }
        self.files.get_or_load(ino, || self.load_size(ino))
    }

    /// The content file of an inode, whatever its record says of it.
    pub(super) fn content_of(&self, ino: Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        if let Some(file) = self.files.get(ino) {
            return file.content(self.backing().as_ref());
        }
        open_content(self.backing.as_ref(), ino)
    }

    /// Changes the content file of an inode, which is made if there is none. What it became is noted
    /// as unsynced after the change: a sync that ran before has not covered it.
    pub(super) fn change_content_file(
        &self,
        ino: Ino,
        operation: &'static str,
        change: impl FnOnce(&dyn BackingFile) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let made = self.content_to_change(ino);
        let content = made.inspect_err(|_| self.emptied.note(ino))?;
        let changed = change(&*content);
        self.unsynced.content_changed(ino);
        changed.map_err(StoreError::content(operation, ino))
    }

    /// The content file of an inode, made if there is none.
    fn content_to_change(&self, ino: Ino) -> Result<Arc<dyn BackingFile>, StoreError> {
        if let Some(file) = self.files.get(ino) {
            return file.content_to_write(self.backing().as_ref(), || self.name_made(ino));
        }
        if let Some(content) = self.content_of(ino)? {
            return Ok(content);
        }
        let path = content_path(ino);
        let content = self
            .backing
            .open_or_create(&path)
            .map_err(StoreError::disk("create", path))?;
        self.name_made(ino);
        Ok(content)
    }

    /// Size by the record, after a look whether the content on disk agrees.
    fn load_size(&self, ino: Ino) -> Result<u64, OpError> {
        let inode = self.stored_inode(ino)?.ok_or(Errno::Stale)?;
        let expected = match inode.body {
            Body::File { size } => size,
            Body::Directory { .. } => return Err(Errno::IsDirectory.into()),
            _ => return Err(Errno::Invalid.into()),
        };
        let found = self.content_length(ino)?;
        if found != expected {
            let error = StoreError::ContentLength {
                ino,
                expected,
                found,
            };
            tracing::error!(%error, "content damaged");
            return Err(error.into());
        }
        Ok(expected)
    }

    /// The content of a regular file after a look whether its length is right, past the file
    /// table: for one who reads every file once.
    pub(crate) fn whole_content(&self, ino: Ino) -> Result<Option<Arc<dyn BackingFile>>, OpError> {
        self.load_size(ino)?;
        Ok(self.content_of(ino)?)
    }

    /// Length of the content on disk; zero if there is none.
    pub(super) fn content_length(&self, ino: Ino) -> Result<u64, StoreError> {
        Ok(self.content_stat(ino)?.length)
    }

    /// Whether there is a regular file of this number, to read and write: else the reason.
    pub fn check_file(&self, ino: Ino) -> Result<(), OpError> {
        self.file_for(ino).map(drop)
    }

    /// Reads into `buffer` from `offset`; fewer bytes only at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize, OpError> {
        let file = self.file_for(ino)?;
        if file.has_lost_track() {
            return Err(Errno::Io.into());
        }
        let left = file.size().saturating_sub(offset);
        let wanted = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let Some(part) = buffer.get_mut(..wanted).filter(|part| !part.is_empty()) else {
            return Ok(0);
        };
        let read = match file.content(self.backing().as_ref())? {
            Some(content) => content
                .read_at(offset, part)
                .map_err(StoreError::content("read", ino))?,
            None => 0,
        };
        // What lies between the end of the content and the size has never been written.
        part.iter_mut().skip(read).for_each(|byte| *byte = 0);
        Ok(wanted)
    }

    /// Marks a file as having unflushed writes, before its first byte is touched.
    /// A write that the caller makes durable itself says so.
    pub fn begin_write(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        durable: bool,
    ) -> Result<WriteTicket, OpError> {
        self.check_trust()?;
        let end = offset.checked_add(length).ok_or(Errno::TooBig)?;
        if end > limits::FILE_BYTES_MAX {
            return Err(Errno::TooBig.into());
        }
        let file = self.file_for(ino)?;
        self.mark_unflushed(&file, durable)?;
        Ok(WriteTicket {
            file,
            durable,
            unsynced: Arc::clone(&self.unsynced),
        })
    }

    /// Whether a write to a file can begin without a checkpoint that frees a slot.
    pub fn has_room_for_writes(&self, ino: Ino) -> bool {
        let has_slot = |file: Arc<FileState>| file.with_facts(|facts| facts.slot.is_some());
        self.times.has_free() || self.files.get(ino).is_some_and(has_slot)
    }

    fn mark_unflushed(&self, file: &Arc<FileState>, durable: bool) -> Result<(), StoreError> {
        loop {
            let marked = file.with_facts(|facts| {
                if facts.slot.is_none() {
                    facts.slot = self.times.take(&Slot {
                        ino: file.ino(),
                        last_write: facts.last_write,
                    });
                }
                if facts.slot.is_some() {
                    facts.active += 1;
                    facts.begun = self.files.number_write();
                    if !durable {
                        facts.undurable = facts.begun;
                    }
                }
                facts.slot.is_some()
            });
            if marked {
                return Ok(());
            }
            self.checkpoint()?;
        }
    }

    /// Writes at once and completely, as the secondary does.
    pub fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        osn: Osn,
        time: Timestamp,
    ) -> Result<(), OpError> {
        let ticket = self.begin_write(ino, offset, data.len() as u64, false)?;
        if let Err(error) = self.write_begun(&ticket, offset, data) {
            Self::abandon_write(&ticket);
            return Err(error.into());
        }
        self.complete_write(&ticket, offset + data.len() as u64, osn, time);
        Ok(())
    }

    /// Makes the bytes of a file durable (rule P11); with `times` the time of its last write too.
    ///
    /// Everything logged so far becomes durable as well: the file's name, owner and mode.
    pub fn sync_file(&self, ino: Ino, times: bool) -> Result<(), OpError> {
        self.check_trust()?;
        if let Some(file) = self.files.get(ino).filter(|_| times) {
            self.wait_for_log(true)?;
            self.log_times(&file)?;
        }
        // Whether or not the file is in the table: a checkpoint drops it from there, unsynced.
        self.sync_content(ino)?;
        self.sync_all_logged()?;
        Ok(())
    }

    /// Makes every metadata operation applied so far durable.
    pub fn sync_all_logged(&self) -> Result<(), StoreError> {
        self.sync_log(self.log()?.tail())
    }

    /// Logs the time of the last write, unless that is logged already; with what operations have
    /// made of the times since.
    /// Not while an operation is applied: behind one that sets other times, they would win when
    /// the log is replayed. One at a time, so that none goes on before the other has logged.
    fn log_times(&self, file: &FileState) -> Result<(), StoreError> {
        let _applying = self.applying.lock();
        let (last_write, owes) = file.with_facts(|facts| {
            let unlogged = facts
                .last_write
                .filter(|(osn, _)| facts.logged != Some(*osn));
            (facts.last_write, facts.owes_time || unlogged.is_some())
        });
        if !owes {
            return Ok(());
        }
        let Some(inode) = self.inode(file.ino()).map_err(OpError::into_store)? else {
            return Ok(());
        };
        self.log_record(&Record::FileTimes {
            ino: file.ino(),
            mtime: inode.mtime,
            ctime: inode.ctime,
        })?;
        // One that completed since is logged once more.
        file.with_facts(|facts| {
            facts.logged = last_write.map(|(osn, _)| osn).or(facts.logged);
            facts.owes_time = false;
        });
        Ok(())
    }

    /// Puts bytes in place. They are not yet durable, and a size beyond the old one not yet seen.
    pub fn write_begun(
        &self,
        ticket: &WriteTicket,
        offset: u64,
        data: &[u8],
    ) -> Result<(), StoreError> {
        let file = &ticket.file;
        let ino = file.ino();
        let made = file.content_to_write(self.backing().as_ref(), || self.name_made(ino));
        let content = made.inspect_err(|_| self.emptied.note(ino))?;
        let written = content
            .write_at(offset, data)
            .map_err(StoreError::content("write", ino));
        self.unsynced.content_changed(ino);
        if !ticket.durable {
            // Now, not only when it began: a sync that ran in between has not covered it.
            let number = self.files.number_write();
            file.with_facts(|facts| facts.undurable = number);
        }
        written
    }

    /// Makes size and time of a write visible. The time of the write with the highest OSN stays,
    /// in whatever order they complete, so that both nodes agree.
    pub fn complete_write(&self, ticket: &WriteTicket, end: u64, osn: Osn, time: Timestamp) {
        ticket.file.with_facts(|facts| {
            facts.size = facts.size.max(end);
            let last = facts.last_write.map(|(last, _)| last).max(facts.folded);
            if last.is_none_or(|last| last < osn) {
                facts.last_write = Some((osn, time));
            }
            if let Some(number) = facts.slot {
                let slot = Slot {
                    ino: ticket.file.ino(),
                    last_write: facts.last_write,
                };
                self.times.store(number, &slot);
            }
        });
    }

    /// A write has failed: what it left beyond the end of its file is taken back, so that it never
    /// shows, when the last write under way on the file has ended.
    pub fn abandon_write(ticket: &WriteTicket) {
        ticket.file.with_facts(|facts| facts.leftover = true);
    }

    /// What a sync of this file will cover that starts after this, on every node that counts.
    pub fn sync_point(&self, ino: Ino, state: StateVersion) -> Option<SyncPoint> {
        let applied = self.applied();
        let file = self.file_for(ino).ok()?;
        Some(file.with_facts(|facts| SyncPoint {
            undurable: facts.undurable,
            undurable_ended: facts.undurable_ended,
            applied,
            state,
        }))
    }

    /// A sync that covers `point` has succeeded on every node that counts.
    pub fn note_synced(&self, ino: Ino, point: SyncPoint) {
        if let Some(file) = self.files.get(ino) {
            file.with_facts(|facts| facts.synced = Some(point));
        }
    }

    /// Whether a sync of this file would have nothing to do.
    pub fn is_synced(&self, ino: Ino, state: StateVersion) -> bool {
        let Some(point) = self.sync_point(ino, state) else {
            return false;
        };
        let synced = self
            .files
            .get(ino)
            .and_then(|file| file.with_facts(|facts| facts.synced));
        synced == Some(point) && !self.is_poisoned()
    }
}
