//! What resync, distributed recovery and verify need of a store beyond what clients do.
//!
//! Reading here looks at the disk as it is, not at what clients may see of it: bytes beyond the
//! published size, or content that does not fit its record, are part of what is compared. Writing
//! here never shortens a file but for [`Store::set_facts`], whose purpose that is.
//!
//! The caller holds the locks: nobody writes the same bytes or changes the same facts meanwhile.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use lockstep_intentlog::Record;
use lockstep_types::backing::BackingFile;
use lockstep_types::{Errno, Ino, NodeKind, Osn, Timestamp, limits};

use super::Store;
use crate::error::{OpError, StoreError};
use crate::files::open_content;
use crate::keys;
use crate::kv::Each;
use crate::plan::View;
use crate::record::{self, Body, Inode, NamedEntry};
use crate::times::Slot;

/// Bytes read at once when looking for something that is not zero.
const ZERO_SCAN_BYTES: usize = 256 << 10;

/// Size and times of a regular file, unflushed writes included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Length in bytes, as clients see it.
    pub size: u64,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// The write whose time they are, while its inode's record does not know of it: a write with
    /// a lower number that completes later changes no times.
    pub last_write: Option<Osn>,
}

/// What there is in a store.
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

impl Store {
    /// Counts all inodes.
    pub fn census(&self) -> Result<Census, OpError> {
        let mut census = Census::default();
        self.each_inode(1, u64::MAX, &mut |ino, inode| {
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
    pub fn inodes(&self, first: u64, to: u64, max: usize) -> Result<Vec<(Ino, NodeKind)>, OpError> {
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
        &self,
        first: u64,
        to: u64,
        each: &mut dyn FnMut(Ino, Inode) -> ControlFlow<()>,
    ) -> Result<(), OpError> {
        let first = Ino::new(first).unwrap_or(Ino::ROOT);
        let range = keys::table_from(keys::INODES, first);
        let mut damaged = None;
        self.names
            .scan(range.from(), range.to(), &mut |key, value| match (
                keys::ino_of(key),
                record::decode(value),
            ) {
                (Some(ino), Some(inode)) if ino.get() < to => each(ino, inode),
                (Some(_), Some(_)) => ControlFlow::Break(()),
                _ => {
                    damaged = Some(unreadable(key));
                    ControlFlow::Break(())
                }
            })?;
        damaged.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Calls `each` with directory and entry for all entries of all directories.
    pub fn each_entry(
        &self,
        each: &mut dyn FnMut(Ino, NamedEntry) -> ControlFlow<()>,
    ) -> Result<(), OpError> {
        let range = keys::table(keys::COOKIES);
        self.names
            .scan(range.from(), range.to(), &mut |key, value| match (
                keys::ino_of(key),
                record::decode(value),
            ) {
                (Some(directory), Some(entry)) => each(directory, entry),
                _ => ControlFlow::Continue(()),
            })?;
        Ok(())
    }

    /// Calls `each` with what follows the inode number in the key, and the value, for the records
    /// of one inode in one table after `after`, in order.
    pub fn each_record(
        &self,
        table: u8,
        ino: Ino,
        after: &[u8],
        each: &mut Each<'_>,
    ) -> Result<(), OpError> {
        let mut range = keys::of_ino(table, ino);
        if !after.is_empty() {
            range = range.after(&keys::of_table(table, ino, after));
        }
        self.names
            .scan(range.from(), range.to(), &mut |key, value| {
                each(keys::rest_of(key), value)
            })?;
        Ok(())
    }

    /// The record of an inode as it would be if nothing were unflushed.
    pub fn inode_now(&self, ino: Ino) -> Result<Option<Inode>, OpError> {
        self.inode(ino)
    }

    /// Size and times of a regular file; `None` when there is no such file.
    pub fn facts(&self, ino: Ino) -> Result<Option<Facts>, OpError> {
        let unflushed = self.files.get(ino);
        let last_write = unflushed.and_then(|file| file.with_facts(|facts| facts.last_write));
        Ok(self.inode(ino)?.and_then(|inode| match inode.body {
            Body::File { size } => Some(Facts {
                size,
                mtime: inode.mtime,
                ctime: inode.ctime,
                last_write: last_write.map(|(osn, _)| osn),
            }),
            _ => None,
        }))
    }

    /// Sets size and times of a file to what the other node says they are. Returns `false` when
    /// there is no such file. Survives a crash of the process.
    pub fn set_facts(&self, ino: Ino, new: &Facts) -> Result<bool, OpError> {
        if new.size > limits::FILE_BYTES_MAX {
            return Err(Errno::TooBig.into());
        }
        let Some(old) = self.facts(ino)? else {
            return Ok(false);
        };
        if old != *new || self.content_length(ino)? != new.size {
            self.change_facts(ino, new)?;
        }
        Ok(true)
    }

    fn change_facts(&self, ino: Ino, new: &Facts) -> Result<(), OpError> {
        // A slot first: should we stop half way, the content says how long the file is.
        let ticket = self.begin_write(ino, 0, 0, false)?;
        let _applying = self.applying.lock();
        let Some(mut inode) = self.inode(ino)? else {
            return Ok(());
        };
        // The last write as well: the table of times, which knows of it, is told of the new one below. It
        // may be all that knows of one whose time an operation has put in the record.
        let (last_write, owes) = ticket
            .file()
            .with_facts(|facts| (facts.last_write, facts.owes_time));
        let old = (inode.mtime, inode.ctime, last_write.map(|(osn, _)| osn));
        if owes || old != (new.mtime, new.ctime, new.last_write) {
            self.log_record(&Record::FileTimes {
                ino,
                mtime: new.mtime,
                ctime: new.ctime,
            })?;
        }
        inode.body = Body::File { size: new.size };
        inode.mtime = new.mtime;
        inode.ctime = new.ctime;
        self.fit_length(ino, new.size)?;
        self.names
            .apply([(keys::inode(ino), Some(record::encode(&inode)))]);
        let last_write = new.last_write.map(|osn| (osn, new.mtime));
        ticket.file().with_facts(|facts| {
            facts.size = new.size;
            facts.last_write = last_write;
            // What a checkpoint has put in the record is replaced as well: the write that did it may
            // be sent again.
            facts.folded = None;
            // Nor does the log end with the time of the write it was last told of.
            facts.logged = None;
            facts.owes_time = false;
            if let Some(number) = facts.slot {
                self.times.store(number, &Slot { ino, last_write });
            }
        });
        Ok(())
    }

    /// Overwrites bytes of a file with those of the other node. The file grows when they end
    /// beyond it, and never becomes shorter; its times stay.
    pub fn put_blocks(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), OpError> {
        let ticket = self.begin_write(ino, offset, data.len() as u64, false)?;
        if let Err(error) = self.write_begun(&ticket, offset, data) {
            Self::abandon_write(&ticket);
            return Err(error.into());
        }
        let end = offset.saturating_add(data.len() as u64);
        ticket
            .file()
            .with_facts(|facts| facts.size = facts.size.max(end));
        Ok(())
    }

    /// The content of a file, opened for this one use unless it is open anyway: whoever goes
    /// through all files must not keep them all open.
    fn content_in_passing(&self, ino: Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        if let Some(content) = self.files.get(ino).and_then(|file| file.opened()) {
            return Ok(Some(content));
        }
        open_content(self.backing.as_ref(), ino)
    }

    /// Reads the content on disk, whatever the record says of it; what is not there is zeros.
    pub fn read_raw(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        let read = match self.content_in_passing(ino)? {
            Some(content) => content
                .read_at(offset, buffer)
                .map_err(StoreError::content("read", ino))?,
            None => 0,
        };
        buffer.iter_mut().skip(read).for_each(|byte| *byte = 0);
        Ok(())
    }

    /// Length of the content on disk; zero if there is none.
    pub fn content_bytes(&self, ino: Ino) -> Result<u64, StoreError> {
        self.content_length(ino)
    }

    /// First offset at or after `offset` where there is data on the disk.
    pub fn next_data(&self, ino: Ino, offset: u64) -> Result<Option<u64>, StoreError> {
        match self.content_in_passing(ino)? {
            Some(content) => content
                .seek_data(offset)
                .map_err(StoreError::content("seek", ino)),
            None => Ok(None),
        }
    }

    /// First offset at or after `offset` where there is no data on the disk; the end of the content is one.
    pub fn next_hole(&self, ino: Ino, offset: u64) -> Result<u64, StoreError> {
        let hole = match self.content_in_passing(ino)? {
            Some(content) => content
                .seek_hole(offset)
                .map_err(StoreError::content("seek", ino))?,
            None => None,
        };
        Ok(hole.unwrap_or(offset))
    }

    /// First run of bytes at or after `offset`, also beyond the end of the file, for which space is
    /// reserved that was not written yet.
    pub fn next_reserved(&self, ino: Ino, offset: u64) -> Result<Option<Range<u64>>, StoreError> {
        match self.content_in_passing(ino)? {
            Some(content) => content
                .reserved(offset)
                .map_err(StoreError::content("look for reserved space in", ino)),
            None => Ok(None),
        }
    }

    /// Reserves space for a range of a file, whose size and bytes stay.
    pub fn reserve(&self, ino: Ino, offset: u64, length: u64) -> Result<(), OpError> {
        self.check_trust()?;
        Ok(self.allocate(ino, offset, length, true)?)
    }

    /// Makes a range of a file zeros with space reserved; the size stays.
    pub fn zero(&self, ino: Ino, offset: u64, length: u64) -> Result<(), OpError> {
        let _ticket = self.begin_write(ino, offset, length, false)?;
        self.change_content_file(ino, "zero", |content| {
            content.zero_range(offset, length, true)
        })?;
        Ok(())
    }

    /// Whether all bytes of a range are zeros on the disk. Reads only what is no hole.
    pub fn is_zero(&self, ino: Ino, offset: u64, length: u64) -> Result<bool, StoreError> {
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

    /// Makes a range of a file a hole. Returns whether there was anything else in it.
    pub fn punch(&self, ino: Ino, offset: u64, length: u64) -> Result<bool, OpError> {
        let end = offset.saturating_add(length);
        let data = self.next_data(ino, offset)?;
        if data.is_none_or(|data| data >= end) {
            return Ok(false);
        }
        let _ticket = self.begin_write(ino, offset, length, false)?;
        self.change_content_file(ino, "punch", |content| content.punch_hole(offset, length))?;
        Ok(true)
    }
}

fn unreadable(key: &[u8]) -> StoreError {
    StoreError::Damaged {
        what: format!("the record under {} cannot be read", key.escape_ascii()),
    }
}
