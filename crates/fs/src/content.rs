//! The content of files: reading, writing, syncing and removing it.
//!
//! Each inode with content has one sparse file on the disk, with the bytes in place. [`ContentStore`] owns the files
//! in use, the table of files with unflushed writes, and the marks of unsynced and freed content. It reads records of
//! the namespace and changes none but those of freed content. It writes no log. It does not lock one operation on a
//! file against another: the lock manager does (paper, section 4.1).
//!
//! A write has three steps: [`ContentStore::begin_write`] marks the file as having unflushed writes,
//! [`ContentStore::write`] puts the bytes in place, [`ContentStore::complete_write`] makes the new size and time
//! visible. The primary completes a write only when the peer has the write too, so no reader sees a size that a
//! failover could take back.
//!
//! Invariants:
//! - A slot of the [`UnflushedTable`] is stored before the first byte of a write reaches the content.
//! - Content is noted as dirty after it was changed: a sync that ran before has not covered the change.
//! - Bytes change by [`before_change`] only, which announces each change; but [`healing`] puts the bytes back that a disk has
//!   changed.
//!
//! Locks, in the order in which they may be taken: `collecting` of [`removal`]; the lock of a sync in [`dirty`]; a
//! shard of [`file_table`]; the state of a file, then its content ([`open_file`]); the notes of [`dirty`] and
//! [`removal`], the slots of [`unflushed_table`]. A thread that holds a lock of this module takes no lock of the
//! metadata log, but for `collecting`.

pub mod before_change;
mod changes;
mod dirty;
mod file_table;
mod healing;
mod open_file;
mod read;
mod removal;
mod reservation;
mod sync;
mod sync_coalescer;
mod unflushed_table;

use std::io;
use std::sync::Arc;

use lockstep_sums::SummedBytes;
use lockstep_types::backing::{BackingFile, BackingStat};
use lockstep_types::{Errno, Ino, InodeFlags, Osn, StateVersion, Timestamp, limits};

use self::before_change::{ByteChange, ByteEdit, Observers};
use self::dirty::DirtySet;
use self::file_table::FileTable;
use self::removal::ContentRemoval;
use self::sync::ContentSync;
use crate::error::{OpError, StoreError};
use crate::namespace::Namespace;
use crate::namespace::record::Body;
use crate::paths::content_path;
use crate::store_disk::StoreDisk;
use crate::sums::SumKeeper;
use crate::under_way::ChangeUnderWay;

pub use self::open_file::{LastWrite, OpenFile, SyncPoint, open_content};
pub use self::read::SeekFor;
pub use self::unflushed_table::{LeftoverSlots, TABLE_BYTES, UnflushedSlot, UnflushedTable};

/// A write under way. Dropped without completion, it leaves size and times as they were.
pub struct WriteTicket {
    file: Arc<OpenFile>,
    is_durable: bool,
    dirty: Arc<DirtySet>,
    sums: Arc<SumKeeper>,
    /// Until the write is over, for those that ask what has changed.
    under_way: Option<ChangeUnderWay>,
}

impl WriteTicket {
    /// The written file.
    pub(crate) fn file(&self) -> &OpenFile {
        &self.file
    }

    /// The change is under way as long as the ticket.
    pub(crate) fn until_over(self, change: ChangeUnderWay) -> Self {
        let mut ticket = self;
        ticket.under_way = Some(change);
        ticket
    }

    /// The write has failed. When the last write under way on the file ends, the content is cut to the size of the
    /// file: the bytes that this write left beyond the size never show.
    pub fn abandon(&self) {
        self.file.mark_needs_truncate();
    }
}

impl Drop for WriteTicket {
    fn drop(&mut self) {
        if self.file.write_ended(self.is_durable, &self.sums) {
            self.dirty.content_changed(self.file.ino());
        }
    }
}

/// The content of all files of one store.
pub struct ContentStore {
    disk: Arc<StoreDisk>,
    files: FileTable,
    unflushed: UnflushedTable,
    sync: ContentSync,
    removal: ContentRemoval,
    observers: Observers,
}

impl ContentStore {
    /// The content on `disk`, with the observers of its changes. An unclean predecessor is a process that was
    /// killed while it used the store.
    pub fn new(
        disk: Arc<StoreDisk>,
        unflushed: UnflushedTable,
        unclean_predecessor: bool,
        observers: Observers,
    ) -> Self {
        Self {
            disk,
            files: FileTable::default(),
            unflushed,
            sync: ContentSync::new(unclean_predecessor),
            removal: ContentRemoval::default(),
            observers,
        }
    }

    /// The disk.
    pub fn disk(&self) -> &StoreDisk {
        &self.disk
    }

    /// The observers, which are told before bytes change.
    pub const fn observers(&self) -> &Observers {
        &self.observers
    }

    /// The same, to add one.
    #[cfg(test)]
    pub const fn observers_mut(&mut self) -> &mut Observers {
        &mut self.observers
    }
}

/// The files in use, and their content files.
impl ContentStore {
    /// The entry of a regular file, loaded if there is none.
    pub fn file(&self, namespace: &Namespace, ino: Ino) -> Result<Arc<OpenFile>, OpError> {
        if let Some(file) = self.files.get(ino) {
            return Ok(file);
        }
        self.files.get_or_load(ino, || self.load(namespace, ino))
    }

    /// The entry of a file, if the file is in use.
    pub fn file_in_use(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        self.files.get(ino)
    }

    /// The size and the flags by the record. The size must be the length of the content on the disk.
    pub fn load(&self, namespace: &Namespace, ino: Ino) -> Result<(u64, InodeFlags), OpError> {
        let inode = namespace.inode(ino)?.ok_or(Errno::Stale)?;
        let expected = match inode.body {
            Body::File { size } => size,
            Body::Directory { .. } => return Err(Errno::IsDirectory.into()),
            _ => return Err(Errno::Invalid.into()),
        };
        let found = self.length(ino)?;
        if found != expected {
            let error = StoreError::ContentLength {
                ino,
                expected,
                found,
            };
            tracing::error!(%error, "content damaged");
            return Err(error.into());
        }
        Ok((expected, inode.bits.flags))
    }

    /// Refuses an inode that is no regular file, content of another length than its record says, and content whose bytes
    /// are unknown.
    pub fn check(&self, namespace: &Namespace, ino: Ino) -> Result<(), OpError> {
        match self.files.get(ino) {
            Some(file) if file.is_indeterminate() => Err(Errno::Io.into()),
            Some(_) => Ok(()),
            None => self.load(namespace, ino).map(drop),
        }
    }

    /// The content file of an inode, if it exists. The record may say anything of it.
    pub fn open_content(&self, ino: Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        if let Some(file) = self.files.get(ino) {
            return file.content(self.disk.backing().as_ref());
        }
        open_content(self.disk.backing().as_ref(), ino)
    }

    /// The content file of an inode, opened for this one use unless it is open already: a thread that reads every
    /// file must not keep them all open.
    pub fn open_content_once(&self, ino: Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        if let Some(content) = self.files.get(ino).and_then(|file| file.opened()) {
            return Ok(Some(content));
        }
        open_content(self.disk.backing().as_ref(), ino)
    }

    /// Length of the content on disk and the space that it takes; zero for a file without content.
    pub fn stat(&self, ino: Ino) -> Result<BackingStat, StoreError> {
        let path = content_path(ino);
        match self.disk.backing().stat(&path) {
            Ok(stat) => Ok(stat),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BackingStat::default()),
            Err(error) => Err(StoreError::disk("stat", path)(error)),
        }
    }

    /// Length of the content on disk; zero for a file without content.
    pub fn length(&self, ino: Ino) -> Result<u64, StoreError> {
        Ok(self.stat(ino)?.length)
    }

    /// Drops all entries, for a store whose namespace was replaced.
    pub fn forget_files(&self) {
        self.files.clear();
    }

    /// Whether a write is under way.
    pub fn are_written(&self) -> bool {
        self.files.are_written()
    }
}

/// Writes.
impl ContentStore {
    /// The file of a write, unless the write must be refused.
    pub fn file_to_write(
        &self,
        namespace: &Namespace,
        ino: Ino,
        offset: u64,
        length: u64,
    ) -> Result<Arc<OpenFile>, OpError> {
        self.disk.check_not_poisoned()?;
        let end = offset.checked_add(length).ok_or(Errno::TooBig)?;
        if end > limits::FILE_BYTES_MAX {
            return Err(Errno::TooBig.into());
        }
        self.file(namespace, ino)
    }

    /// Marks a file as having unflushed writes. Gives the file back when the table has no free slot: a checkpoint
    /// frees some.
    pub fn begin_write(
        &self,
        file: Arc<OpenFile>,
        is_durable: bool,
    ) -> Result<WriteTicket, Arc<OpenFile>> {
        let number = || self.files.number_write();
        if !file.begin_write(&self.unflushed, number, is_durable) {
            return Err(file);
        }
        Ok(WriteTicket {
            file,
            is_durable,
            dirty: Arc::clone(self.sync.dirty()),
            sums: Arc::clone(self.observers.sums()),
            under_way: None,
        })
    }

    /// Whether a write to a file can begin without a checkpoint that frees a slot.
    pub fn has_room_for_writes(&self, ino: Ino) -> bool {
        let has_slot = |file: Arc<OpenFile>| file.is_unflushed();
        self.unflushed.has_free() || self.files.get(ino).is_some_and(has_slot)
    }

    /// Puts the bytes of a write in place. They are not yet durable. A size beyond the old one does not show yet.
    pub fn write(
        &self,
        ticket: &WriteTicket,
        offset: u64,
        data: SummedBytes<'_>,
    ) -> Result<(), StoreError> {
        let file = &ticket.file;
        let ino = file.ino();
        let content = self.content_file_to_write(file)?;
        let edit = ByteEdit::Write { offset, data };
        let change = ByteChange { ino, edit };
        let written = self.observers.carry_out(&change, &*content);
        self.sync.dirty().content_changed(ino);
        if !ticket.is_durable {
            file.nondurable_bytes_written(|| self.files.number_write());
        }
        written
    }

    /// Makes size and time of a write visible. The time of the write with the highest OSN stays, in any order of
    /// completion.
    pub fn complete_write(&self, ticket: &WriteTicket, end: u64, osn: Osn, time: Timestamp) {
        ticket.file.complete_write(&self.unflushed, end, osn, time);
    }

    /// Gives a file the size and times of the other node.
    pub fn replace_times(&self, file: &OpenFile, size: u64, last_write: Option<LastWrite>) {
        file.replace(&self.unflushed, size, last_write);
    }

    fn content_file_to_write(&self, file: &OpenFile) -> Result<Arc<dyn BackingFile>, StoreError> {
        let ino = file.ino();
        let created = || self.sync.dirty().name_made(ino);
        file.content_to_write(self.disk.backing().as_ref(), created)
            .inspect_err(|_| self.removal.may_be_empty(ino))
    }
}

/// Unflushed sizes and times.
impl ContentStore {
    /// Every file whose record may be behind, by number.
    pub fn unflushed_files(&self) -> Vec<Arc<OpenFile>> {
        self.files.unflushed()
    }

    /// Whether so many slots are in use that a checkpoint should free some.
    pub fn is_table_filling(&self) -> bool {
        self.unflushed.is_filling()
    }

    /// A metadata operation has written the record of a file, with this size, these flags and the unflushed times.
    pub fn record_written(&self, ino: Ino, size: u64, flags: InodeFlags) {
        if let Some(file) = self.files.get(ino) {
            file.record_written(size);
            file.set_flags(flags);
        }
    }

    /// An inode was freed: its content is garbage.
    pub fn forget_file(&self, ino: Ino) {
        if let Some(slot) = self.files.remove(ino).and_then(|file| file.take_slot()) {
            self.unflushed.clear(slot);
        }
        self.removal.note_freed([ino]);
    }

    /// A checkpoint is durable. Closes idle files, and frees the slots of the given files, unless a write has begun
    /// since.
    pub fn checkpointed(&self, files: &[(Arc<OpenFile>, Option<u64>)]) {
        self.files.close_idle();
        for (file, settled) in files {
            if let Some(slot) = file.checkpointed(*settled) {
                self.unflushed.clear(slot);
            }
        }
    }

    /// Clears the slots that an earlier process has left.
    pub fn clear_slots(&self, leftover: &LeftoverSlots) {
        for number in leftover.numbers() {
            self.unflushed.clear(number);
        }
    }
}

/// Syncs.
impl ContentStore {
    /// The sync point of a sync of this file that begins now.
    pub fn sync_point(
        &self,
        namespace: &Namespace,
        ino: Ino,
        applied: Osn,
        state: StateVersion,
    ) -> Option<SyncPoint> {
        let file = self.file(namespace, ino).ok()?;
        Some(file.sync_point(applied, state))
    }

    /// A sync that covers `point` has succeeded on every node that counts.
    pub fn note_synced(&self, ino: Ino, point: SyncPoint) {
        if let Some(file) = self.files.get(ino) {
            file.note_synced(point);
        }
    }

    /// Whether the last sync of a file covers `point`, and the disk has not failed.
    pub fn is_synced(&self, ino: Ino, point: SyncPoint) -> bool {
        let synced = self.files.get(ino).and_then(|file| file.synced());
        synced == Some(point) && !self.disk.is_poisoned()
    }

    /// Makes the content of a file, and its name, durable.
    pub fn sync_file(&self, ino: Ino) -> Result<(), StoreError> {
        self.sync
            .sync_file(&self.disk, ino, &|ino| self.open_content(ino))
    }

    /// Makes all changed content durable.
    pub fn sync_changed(&self) -> Result<(), StoreError> {
        self.sync
            .sync_changed(&self.disk, &|ino| self.open_content(ino))
    }

    /// Makes all content durable that this process or an earlier one has changed.
    pub fn sync_all(&self) -> Result<(), StoreError> {
        self.sync
            .sync_all(&self.disk, &|ino| self.open_content(ino))
    }

    /// The syncs of content as a whole, and of names.
    pub const fn sync(&self) -> &ContentSync {
        &self.sync
    }
}

/// Content of freed inodes.
impl ContentStore {
    /// The bookkeeping of freed content and empty directories.
    pub const fn removal(&self) -> &ContentRemoval {
        &self.removal
    }

    /// Removes the content of freed inodes, and returns of how many. `sync_log` makes their freeing durable first.
    pub fn collect_garbage(
        &self,
        namespace: &Namespace,
        sync_log: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<usize, StoreError> {
        let told = (namespace, &self.observers);
        self.removal
            .collect(&self.disk, self.sync.dirty(), told, sync_log)
    }

    /// Removes empty directories of content, at most 256; returns how many.
    pub fn remove_empty_directories(&self) -> Result<usize, StoreError> {
        self.removal
            .remove_empty_dirs(&self.disk, self.sync.dirty())
    }
}
