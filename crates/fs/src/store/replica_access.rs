//! Access to a store for resync, distributed recovery and verify, beyond the operations of clients.
//!
//! Reads here return the disk as it is, not the part that clients may see: bytes beyond the published size, and content
//! that does not fit its record, are compared too. Writes here never shorten a file but for
//! [`ReplicaAccess::set_file_times`], whose purpose that is.
//!
//! The caller holds the locks: no other thread writes the same bytes or changes the same times meanwhile.

use std::ops::{ControlFlow, Range};

use lockstep_types::backing::Reservations;
use lockstep_types::limits::FILE_BYTES_MAX;
use lockstep_types::{Errno, Ino, NodeKind, limits};

use super::facade::Store;
use crate::content::before_change::{ByteChange, ByteEdit, ChangeOrigin};
use crate::error::{OpError, StoreError};
use crate::kv::Each;
use crate::namespace::keys;
use crate::namespace::plan::View;
use crate::namespace::record::{self, Body, Inode, NamedEntry};
use crate::tree::FileTimes;

/// Bytes read at once in the search for a byte that is not zero.
const ZERO_SCAN_BYTES: usize = 256 << 10;

/// Counts of the inodes of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Inodes of any kind.
    pub inodes: u64,
    /// Regular files.
    pub files: u64,
    /// Sizes of the regular files by their records, in bytes.
    pub bytes: u64,
    /// The highest inode number.
    pub last: u64,
}

/// One store, for the other copy of its datastore.
#[derive(Clone, Copy)]
pub struct ReplicaAccess<'a> {
    store: &'a Store,
}

impl Store {
    /// Access for the other copy of the datastore.
    pub const fn replica(&self) -> ReplicaAccess<'_> {
        ReplicaAccess { store: self }
    }
}

/// Records.
impl ReplicaAccess<'_> {
    /// Counts the inodes with numbers from `first` up to but not including `to`.
    pub fn census(self, first: u64, to: u64) -> Result<Census, OpError> {
        let mut census = Census::default();
        self.each_inode(first, to, &mut |ino, inode| {
            census.inodes += 1;
            census.last = ino.get();
            if let Body::File { size } = inode.body {
                census.files += 1;
                census.bytes = census.bytes.saturating_add(size);
            }
            ControlFlow::Continue(())
        })?;
        Ok(census)
    }

    /// The inodes with numbers from `first` up to but not including `to`, at most `max`, in order.
    pub fn inodes(self, first: u64, to: u64, max: usize) -> Result<Vec<(Ino, NodeKind)>, OpError> {
        let mut found = Vec::new();
        self.each_inode(first, to, &mut |ino, inode| {
            if found.len() == max {
                return ControlFlow::Break(());
            }
            found.push((ino, inode.kind()));
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    fn each_inode(
        self,
        first: u64,
        to: u64,
        each: &mut dyn FnMut(Ino, Inode) -> ControlFlow<()>,
    ) -> Result<(), OpError> {
        let first = Ino::new(first).unwrap_or(Ino::ROOT);
        let range = keys::table_from(keys::INODES, first);
        let mut damaged = None;
        self.store.namespace.scan(&range, &mut |key, value| match (
            keys::ino_of(key),
            record::decode(value),
        ) {
            (Some(ino), Some(inode)) if ino.get() < to => each(ino, inode),
            (Some(_), Some(_)) => ControlFlow::Break(()),
            _ => {
                damaged = Some(StoreError::unreadable(key));
                ControlFlow::Break(())
            }
        })?;
        damaged.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Calls `each` with directory and entry for all entries of all directories.
    pub fn each_entry(
        self,
        each: &mut dyn FnMut(Ino, NamedEntry) -> ControlFlow<()>,
    ) -> Result<(), OpError> {
        let range = keys::table(keys::COOKIES);
        self.store.namespace.scan(&range, &mut |key, value| match (
            keys::ino_of(key),
            record::decode(value),
        ) {
            (Some(directory), Some(entry)) => each(directory, entry),
            _ => ControlFlow::Continue(()),
        })?;
        Ok(())
    }

    /// Calls `each` for the records of one inode in one table after `after`, in order: with the part of the key that
    /// follows the inode number, and the value.
    pub fn each_record(
        self,
        table: u8,
        ino: Ino,
        after: &[u8],
        each: &mut Each<'_>,
    ) -> Result<(), OpError> {
        let mut range = keys::of_ino(table, ino);
        if !after.is_empty() {
            range = range.after(&keys::of_table(table, ino, after));
        }
        self.store
            .namespace
            .scan(&range, &mut |key, value| each(keys::rest_of(key), value))?;
        Ok(())
    }

    /// The record of an inode as it would be if nothing were unflushed.
    pub fn inode_now(self, ino: Ino) -> Result<Option<Inode>, OpError> {
        self.store.tree().inode(ino)
    }

    /// Size and times of a regular file; `None` if there is no such file.
    pub fn file_times(self, ino: Ino) -> Result<Option<FileTimes>, OpError> {
        self.store.tree().file_times(ino)
    }

    /// Sets size and times of a file to those of the other node. Returns `false` if there is no such file. Survives a
    /// crash of the process.
    pub fn set_file_times(self, ino: Ino, new: &FileTimes) -> Result<bool, OpError> {
        if new.size > limits::FILE_BYTES_MAX {
            return Err(Errno::TooBig.into());
        }
        let Some(old) = self.file_times(ino)? else {
            return Ok(false);
        };
        if old != *new || self.store.content.length(ino)? != new.size {
            // A write, so that the file owns a slot.
            let ticket = self.store.begin_write(ino, 0, 0, false)?;
            let (log, tree) = (&self.store.metadata_log, self.store.tree());
            log.replace_times(tree, ticket.file(), new)?;
        }
        Ok(true)
    }
}

/// Content.
impl ReplicaAccess<'_> {
    /// Overwrites bytes of a file with those of the other node. The file grows if the bytes end beyond it, and never
    /// becomes shorter; its times stay.
    pub fn put_blocks(self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), OpError> {
        let ticket = self
            .store
            .begin_write(ino, offset, data.len() as u64, false)?;
        let content = &self.store.content;
        if let Err(error) = content.write(&ticket, offset, data, ChangeOrigin::Resync) {
            ticket.abandon();
            return Err(error.into());
        }
        let end = offset.saturating_add(data.len() as u64);
        ticket.file().grow_to(end);
        Ok(())
    }

    /// Reads the content on disk, past its end as zeros. The record may say anything of it.
    pub fn read_raw(self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        let read = match self.store.content.open_content_once(ino)? {
            Some(content) => content
                .read_at(offset, buffer)
                .map_err(StoreError::content("read", ino))?,
            None => 0,
        };
        buffer.iter_mut().skip(read).for_each(|byte| *byte = 0);
        Ok(())
    }

    /// Length of the content on disk; zero if there is none.
    pub fn content_bytes(self, ino: Ino) -> Result<u64, StoreError> {
        self.store.content.length(ino)
    }

    /// First offset at or after `offset` with data on the disk.
    pub fn next_data(self, ino: Ino, offset: u64) -> Result<Option<u64>, StoreError> {
        match self.store.content.open_content_once(ino)? {
            Some(content) => content
                .seek_data(offset)
                .map_err(StoreError::content("seek", ino)),
            None => Ok(None),
        }
    }

    /// First offset at or after `offset` without data on the disk; the end of the content is one.
    pub fn next_hole(self, ino: Ino, offset: u64) -> Result<u64, StoreError> {
        let hole = match self.store.content.open_content_once(ino)? {
            Some(content) => content
                .seek_hole(offset)
                .map_err(StoreError::content("seek", ino))?,
            None => None,
        };
        Ok(hole.unwrap_or(offset))
    }

    /// The first runs of reserved bytes at or after `offset` that were not written yet, also beyond the end of the
    /// file; at most `count`.
    pub fn reserved(
        self,
        ino: Ino,
        offset: u64,
        count: usize,
    ) -> Result<Vec<Range<u64>>, StoreError> {
        let Some(content) = self.store.content.open_content_once(ino)? else {
            return Ok(Vec::new());
        };
        // No file can be longer, so no write goes beyond this offset.
        let runs = Reservations::of(&*content, offset..FILE_BYTES_MAX).take(count);
        runs.collect::<Result<_, _>>()
            .map_err(StoreError::content("look for reserved space in", ino))
    }

    /// Reserves space for a range of a file, whose size and bytes stay.
    pub fn reserve(self, ino: Ino, offset: u64, length: u64) -> Result<(), OpError> {
        self.store.content.disk().check_not_poisoned()?;
        let edit = ByteEdit::Reserve {
            offset,
            length,
            keep_size: true,
        };
        Ok(self.change(ino, edit)?)
    }

    fn change(self, ino: Ino, edit: ByteEdit<'_>) -> Result<(), StoreError> {
        self.store.content.change(&ByteChange {
            ino,
            origin: ChangeOrigin::Resync,
            edit,
        })
    }

    /// Makes a range of a file zeros with space reserved; the size stays.
    pub fn zero(self, ino: Ino, offset: u64, length: u64) -> Result<(), OpError> {
        let _ticket = self.store.begin_write(ino, offset, length, false)?;
        let edit = ByteEdit::Zero {
            offset,
            length,
            keep_size: true,
        };
        Ok(self.change(ino, edit)?)
    }

    /// Whether all bytes of a range are zeros on the disk. Reads no holes.
    pub fn is_zero(self, ino: Ino, offset: u64, length: u64) -> Result<bool, StoreError> {
        let end = offset.saturating_add(length);
        let mut buffer = vec![0; ZERO_SCAN_BYTES];
        let mut at = offset;
        while let Some(data) = self.next_data(ino, at)?.filter(|data| *data < end) {
            let wanted = usize::try_from(end - data).unwrap_or(usize::MAX);
            let length = wanted.min(ZERO_SCAN_BYTES);
            let bytes = buffer.get_mut(..length).unwrap_or_default();
            self.read_raw(ino, data, bytes)?;
            if bytes.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at = data.saturating_add(length as u64);
        }
        Ok(true)
    }

    /// Makes a range of a file a hole. Returns `false` if the range was a hole already.
    pub fn punch(self, ino: Ino, offset: u64, length: u64) -> Result<bool, OpError> {
        let end = offset.saturating_add(length);
        let data = self.next_data(ino, offset)?;
        if data.is_none_or(|data| data >= end) {
            return Ok(false);
        }
        let _ticket = self.store.begin_write(ino, offset, length, false)?;
        self.change(ino, ByteEdit::Punch { offset, length })?;
        Ok(true)
    }
}
