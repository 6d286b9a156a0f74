//! Writing into a store what the other node has: for the receiving side of a resync and of distributed recovery.
//!
//! Writes here never shorten a file but for [`ReplicaAccess::set_file_times`], whose purpose that is. Reading is for a
//! [`StoreView`].
//!
//! The caller holds the locks: no other thread writes the same bytes or changes the same times meanwhile.

use std::ops::Range;

use lockstep_types::{Errno, Ino, MetaRequest, limits};

use super::facade::Store;
use crate::content::WriteTicket;
use crate::content::before_change::{ByteChange, ByteEdit};
use crate::error::{OpError, StoreError};
use crate::metadata_log::MetadataLog;
use crate::snapshots::keeper::BlockKeeper;
use crate::tree::Tree;
use crate::view::{FileTimes, StoreView};

/// One store, into which the other copy of its datastore is written.
#[derive(Clone, Copy)]
pub struct ReplicaAccess<'a> {
    tree: Tree<'a>,
    log: &'a MetadataLog,
    keeper: &'a BlockKeeper,
}

impl Store {
    /// This copy of the datastore, to be made equal to the other one.
    pub fn replica(&self) -> ReplicaAccess<'_> {
        ReplicaAccess {
            tree: self.tree(),
            log: &self.metadata_log,
            keeper: &self.keeper,
        }
    }
}

/// Size and times.
impl ReplicaAccess<'_> {
    /// Sets size and times of a file to those of the other node. Returns `false` if there is no such file. Survives a
    /// crash of the process.
    pub fn set_file_times(self, ino: Ino, new: &FileTimes) -> Result<bool, OpError> {
        if new.size > limits::FILE_BYTES_MAX {
            return Err(Errno::TooBig.into());
        }
        let Some(old) = self.tree.file_times(ino)? else {
            return Ok(false);
        };
        if old != *new || self.tree.content_bytes(ino)? != new.size {
            // A write, so that the file owns a slot.
            let ticket = self.begin_write(ino, 0, 0)?;
            self.log.replace_times(self.tree, ticket.file(), new)?;
        }
        Ok(true)
    }
}

/// Content.
impl ReplicaAccess<'_> {
    /// Whether a write of these bytes may have to keep old bytes first, which waits for the disk.
    pub fn may_keep(self, ino: Ino, offset: u64, length: u64) -> bool {
        let bytes = offset..offset.saturating_add(length);
        self.keeper.may_keep(ino, &bytes)
    }

    /// Whether an operation may have to keep old bytes first, which waits for the disk.
    pub fn may_keep_for(self, request: &MetaRequest) -> bool {
        match request {
            MetaRequest::Truncate { ino, .. } | MetaRequest::Allocate { ino, .. } => {
                self.may_keep(*ino, 0, u64::MAX)
            }
            _ => false,
        }
    }

    /// Keeps the old bytes of several writes for the snapshots, with few syncs, before the first of these writes.
    pub fn keep_ahead(self, writes: &[(Ino, Range<u64>)]) -> Result<(), StoreError> {
        let content = self.tree.content;
        let old = |ino| content.open_content_once(ino);
        self.keeper.keep_ahead(writes, old)
    }

    /// Overwrites bytes of a file with those of the other node. The file grows if the bytes end beyond it, and never
    /// becomes shorter; its times stay.
    pub fn put_blocks(self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), OpError> {
        let ticket = self.begin_write(ino, offset, data.len() as u64)?;
        let content = self.tree.content;
        if let Err(error) = content.write(&ticket, offset, data.into()) {
            ticket.abandon();
            return Err(error.into());
        }
        let end = offset.saturating_add(data.len() as u64);
        ticket.file().grow_to(end);
        Ok(())
    }

    /// Puts bytes back that this disk has changed by itself, and syncs them. Size, times and sums stay. The caller has compared
    /// the bytes with their sums.
    pub fn heal_blocks(self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), OpError> {
        let end = offset.saturating_add(data.len() as u64);
        let _under_way = self.log.readers.begin_change();
        // A reader that has copied the wrong bytes copies the right ones.
        self.log.readers.note_bytes(ino, &(offset..end));
        self.tree.content.heal(ino, offset, data)
    }

    /// Gives a file the size, the times and all the bytes of the other node. New content gets its bytes first: its length needs no
    /// change then.
    pub fn put_file(self, ino: Ino, new: &FileTimes, data: &[u8]) -> Result<(), OpError> {
        if self.tree.content_bytes(ino)? > 0 {
            self.set_file_times(ino, new)?;
            return self.put_blocks(ino, 0, data);
        }
        self.put_blocks(ino, 0, data)?;
        self.set_file_times(ino, new).map(drop)
    }

    /// Reserves space for a range of a file, whose size and bytes stay.
    pub fn reserve(self, ino: Ino, offset: u64, length: u64) -> Result<(), OpError> {
        self.tree.disk().check_not_poisoned()?;
        let edit = ByteEdit::Reserve {
            offset,
            length,
            keep_size: true,
        };
        Ok(self.change(ino, edit)?)
    }

    fn begin_write(self, ino: Ino, offset: u64, length: u64) -> Result<WriteTicket, OpError> {
        self.log
            .begin_write(self.tree, ino, (offset, length), false)
    }

    fn change(self, ino: Ino, edit: ByteEdit<'_>) -> Result<(), StoreError> {
        self.tree.content.change(&ByteChange { ino, edit })
    }

    /// Makes a range of a file zeros with space reserved; the size stays.
    pub fn zero(self, ino: Ino, offset: u64, length: u64) -> Result<(), OpError> {
        let _ticket = self.begin_write(ino, offset, length)?;
        let edit = ByteEdit::Zero {
            offset,
            length,
            keep_size: true,
        };
        Ok(self.change(ino, edit)?)
    }

    /// Makes a range of a file a hole. Returns `false` if the range was a hole already.
    pub fn punch(self, ino: Ino, offset: u64, length: u64) -> Result<bool, OpError> {
        let end = offset.saturating_add(length);
        let data = self.tree.next_data(ino, offset)?;
        if data.is_none_or(|data| data >= end) {
            return Ok(false);
        }
        let _ticket = self.begin_write(ino, offset, length)?;
        self.change(ino, ByteEdit::Punch { offset, length })?;
        Ok(true)
    }
}
