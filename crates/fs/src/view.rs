//! A view of a store: its files, names and bytes at one moment, for readers that must not know which moment that is.
//!
//! An export, the sending side of a resync and a comparison read a [`StoreView`]. [`Tree`](crate::tree::Tree) is the view
//! of the present. A view of a moment before needs the few functions without a body here, and gets the others.
//!
//! There are two kinds of reads. *Attributes, names and extended attributes* are those that clients see. *Records and
//! content* are read as they are on this node, for the other copy: bytes beyond the published size, and content that does
//! not fit its record, are compared, too. One read is one call of the view, however many bytes it returns.
//!
//! A view of the present changes while it is read. A reader that needs one moment holds the locks of the inodes.

pub mod directory_paths;
pub mod disk_view;
pub mod named_place;
pub mod paths;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use lockstep_types::backing::{BackingFile, BackingStat, Reservations, parts};
use lockstep_types::limits::FILE_BYTES_MAX;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Attr, Errno, FileName, Ino, NodeKind, Osn, Timestamp};

use crate::error::{OpError, StoreError};
use crate::kv::Each;
use crate::namespace::keys::{self, KeyRange};
use crate::namespace::plan::View;
use crate::namespace::record::{self, Body, EntryRecord, Inode, NamedEntry, TrashMark};

/// Bytes read at once in the search for a byte that is not zero.
const ZERO_SCAN_BYTES: usize = 256 << 10;

/// Size and times of a regular file, unflushed writes included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTimes {
    /// Length in bytes, as clients see it.
    pub size: u64,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// The write that the times belong to, while the record of the inode lacks it: a write with a lower number that
    /// completes later changes no times.
    pub last_write: Option<Osn>,
}

/// The content of a small file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeContent {
    /// All bytes; zeros where the content has none.
    pub bytes: Vec<u8>,
    /// Whether all of them take space.
    pub is_dense: bool,
    /// Whether space is reserved that was not written yet.
    pub has_reserved: bool,
}

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

/// See the head of this file.
pub trait StoreView: View + Sync {
    /// Calls `each` with the records of a range, in the order of their keys, until `each` breaks.
    fn scan(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError>;

    /// The same from the last key to the first.
    fn scan_down(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError>;

    /// Size and times of a regular file; `None` if there is no such file.
    fn file_times(&self, ino: Ino) -> Result<Option<FileTimes>, OpError>;

    /// The content of an inode, to be read; `None` if there is none. The record may say anything of it.
    fn content(&self, ino: Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError>;

    /// Length of the content and the space that it takes, without opening it; zero for a file without content.
    fn content_stat(&self, ino: Ino) -> Result<BackingStat, StoreError>;

    /// Refuses an inode that is no regular file, and content of another length than the record says.
    fn check_content(&self, ino: Ino) -> Result<(), OpError>;

    // Attributes, names and extended attributes.

    /// Attributes of the inode that `name` in `parent` leads to.
    fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, OpError> {
        let key = keys::entry(parent, name.as_bytes());
        let bytes = self.get(&key)?.ok_or(Errno::NoEntry)?;
        let entry: EntryRecord =
            record::decode(&bytes).ok_or_else(|| StoreError::unreadable(&key))?;
        // If the inode is gone, the entry was removed between the two readings.
        self.getattr(entry.ino).map_err(|error| match error {
            OpError::Refused(Errno::Stale) => OpError::Refused(Errno::NoEntry),
            other => other,
        })
    }

    /// An inode that exists.
    fn existing(&self, ino: Ino) -> Result<Inode, OpError> {
        Ok(self.inode(ino)?.ok_or(Errno::Stale)?)
    }

    /// The inode above a directory.
    fn parent(&self, directory: Ino) -> Result<Ino, OpError> {
        match self.existing(directory)?.body {
            Body::Directory { parent, .. } => Ok(parent),
            _ => Err(Errno::NotDirectory.into()),
        }
    }

    /// Attributes of an inode.
    fn getattr(&self, ino: Ino) -> Result<Attr, OpError> {
        let inode = self.existing(ino)?;
        let mut attr = inode.attr(ino);
        if attr.kind == NodeKind::File {
            attr.blocks = self.content_stat(ino)?.blocks;
        }
        Ok(attr)
    }

    /// Target of a symbolic link.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, OpError> {
        match self.existing(ino)?.body {
            Body::Symlink { target } => Ok(target),
            _ => Err(Errno::Invalid.into()),
        }
    }

    /// Value of an extended attribute.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, OpError> {
        let value = self.get(&keys::xattr(ino, name))?;
        Ok(value.ok_or(Errno::NoData)?)
    }

    /// Names of all extended attributes, in order.
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, OpError> {
        let keys = self.keys(&keys::of_ino(keys::XATTRS, ino))?;
        Ok(keys.iter().map(|key| keys::rest_of(key).to_vec()).collect())
    }

    /// Calls `each` with cookie and entry, the newest entry first: for all entries, or for those older than cookie
    /// `after` if that is not zero. An entry made during the call has a higher cookie and is not visited.
    fn readdir(
        &self,
        directory: Ino,
        after: u64,
        each: &mut dyn FnMut(u64, NamedEntry) -> ControlFlow<()>,
    ) -> Result<(), OpError> {
        if !self.existing(directory)?.is_directory() {
            return Err(Errno::NotDirectory.into());
        }
        let mut range = keys::of_ino(keys::COOKIES, directory);
        if after > 0 {
            range = range.before(&keys::cookie(directory, after));
        }
        let mut damaged = None;
        self.scan_down(&range, &mut |key, value| {
            let cookie = keys::rest_of(key).try_into().map(u64::from_be_bytes);
            if let (Ok(cookie), Some(entry)) = (cookie, record::decode(value)) {
                each(cookie, entry)
            } else {
                damaged = Some(StoreError::unreadable(key));
                ControlFlow::Break(())
            }
        })?;
        damaged.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Inodes that have no name and are not in the trash, to be freed when no client has them open.
    fn orphans(&self) -> Result<Vec<Ino>, OpError> {
        let mut orphans = Vec::new();
        self.scan(&keys::table(keys::ORPHANS), &mut |key, mark| {
            let is_to_free = mark.is_empty() || is_active(Mutant::ReapFromTrash);
            orphans.extend(keys::ino_of(key).filter(|_| is_to_free));
            ControlFlow::Continue(())
        })?;
        Ok(orphans)
    }

    /// Calls `each` with the inodes in the trash from `first` on and their marks, in the order of their numbers, until `each` breaks.
    fn each_in_trash(
        &self,
        first: Ino,
        each: &mut dyn FnMut(Ino, TrashMark) -> ControlFlow<()>,
    ) -> Result<(), OpError> {
        let mut damaged = None;
        self.scan(&keys::table_from(keys::ORPHANS, first), &mut |key, mark| {
            if mark.is_empty() {
                return ControlFlow::Continue(());
            }
            if let (Some(ino), Some(mark)) = (keys::ino_of(key), record::decode(mark)) {
                each(ino, mark)
            } else {
                damaged = Some(StoreError::unreadable(key));
                ControlFlow::Break(())
            }
        })?;
        damaged.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The mark of an inode in the trash; `None` if the inode is not in the trash.
    fn trash_mark(&self, ino: Ino) -> Result<Option<TrashMark>, OpError> {
        let key = keys::orphan(ino);
        match self.get(&key)? {
            Some(mark) if !mark.is_empty() => {
                let mark = record::decode(&mark);
                Ok(Some(mark.ok_or_else(|| StoreError::unreadable(&key))?))
            }
            _ => Ok(None),
        }
    }

    // Records.

    /// Counts the inodes with numbers from `first` up to but not including `to`.
    fn census(&self, first: u64, to: u64) -> Result<Census, OpError> {
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
    fn inodes(&self, first: u64, to: u64, max: usize) -> Result<Vec<(Ino, NodeKind)>, OpError> {
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

    /// Calls `each` with the inodes with numbers from `first` up to but not including `to`, by their records.
    fn each_inode(
        &self,
        first: u64,
        to: u64,
        each: &mut dyn FnMut(Ino, Inode) -> ControlFlow<()>,
    ) -> Result<(), OpError> {
        let first = Ino::new(first).unwrap_or(Ino::ROOT);
        let range = keys::table_from(keys::INODES, first);
        let mut damaged = None;
        self.scan(
            &range,
            &mut |key, value| match (keys::ino_of(key), record::decode(value)) {
                (Some(ino), Some(inode)) if ino.get() < to => each(ino, inode),
                (Some(_), Some(_)) => ControlFlow::Break(()),
                _ => {
                    damaged = Some(StoreError::unreadable(key));
                    ControlFlow::Break(())
                }
            },
        )?;
        damaged.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Calls `each` with directory and entry for all entries of all directories.
    fn each_entry(
        &self,
        each: &mut dyn FnMut(Ino, NamedEntry) -> ControlFlow<()>,
    ) -> Result<(), OpError> {
        let range = keys::table(keys::COOKIES);
        self.scan(
            &range,
            &mut |key, value| match (keys::ino_of(key), record::decode(value)) {
                (Some(directory), Some(entry)) => each(directory, entry),
                _ => ControlFlow::Continue(()),
            },
        )
    }

    /// Calls `each` for the records of one inode in one table after `after`, in order: with the part of the key that
    /// follows the inode number, and the value.
    fn each_record(
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
        self.scan(&range, &mut |key, value| each(keys::rest_of(key), value))
    }

    // Content.

    /// Reads the content, past its end as zeros.
    fn read_raw(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        let read = match self.content(ino)? {
            Some(content) => content
                .read_at(offset, buffer)
                .map_err(StoreError::content("read", ino))?,
            None => 0,
        };
        buffer.iter_mut().skip(read).for_each(|byte| *byte = 0);
        Ok(())
    }

    /// Length of the content; zero if there is none.
    fn content_bytes(&self, ino: Ino) -> Result<u64, StoreError> {
        Ok(self.content_stat(ino)?.length)
    }

    /// First offset at or after `offset` with data.
    fn next_data(&self, ino: Ino, offset: u64) -> Result<Option<u64>, StoreError> {
        match self.content(ino)? {
            Some(content) => content
                .seek_data(offset)
                .map_err(StoreError::content("seek", ino)),
            None => Ok(None),
        }
    }

    /// First offset at or after `offset` without data; the end of the content is one.
    fn next_hole(&self, ino: Ino, offset: u64) -> Result<u64, StoreError> {
        let hole = match self.content(ino)? {
            Some(content) => content
                .seek_hole(offset)
                .map_err(StoreError::content("seek", ino))?,
            None => None,
        };
        Ok(hole.unwrap_or(offset))
    }

    /// The first runs of reserved bytes at or after `offset` that were not written yet, also beyond the end of the
    /// file; at most `count`.
    fn reserved(&self, ino: Ino, offset: u64, count: usize) -> Result<Vec<Range<u64>>, StoreError> {
        let Some(content) = self.content(ino)? else {
            return Ok(Vec::new());
        };
        // No file can be longer, so no write goes beyond this offset.
        let runs = Reservations::of(&*content, offset..FILE_BYTES_MAX).take(count);
        runs.collect::<Result<_, _>>()
            .map_err(StoreError::content("look for reserved space in", ino))
    }

    /// The content of a small file of `size` bytes, by one opening.
    fn whole_content(&self, ino: Ino, size: u64) -> Result<WholeContent, StoreError> {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        let Some(content) = self.content(ino)? else {
            return Ok(WholeContent {
                bytes,
                is_dense: size == 0,
                has_reserved: false,
            });
        };
        let hole = content.seek_hole(0);
        let hole = hole.map_err(StoreError::content("seek", ino))?;
        let read = content.read_at(0, &mut bytes);
        read.map_err(StoreError::content("read", ino))?;
        let reserved = Reservations::of(&*content, 0..FILE_BYTES_MAX).next();
        let reserved = reserved.transpose();
        Ok(WholeContent {
            bytes,
            is_dense: hole.unwrap_or(0) >= size,
            has_reserved: reserved
                .map_err(StoreError::content("look for reserved space in", ino))?
                .is_some(),
        })
    }

    /// Whether all bytes of a range are zeros. Reads no holes.
    fn is_zero(&self, ino: Ino, offset: u64, length: u64) -> Result<bool, StoreError> {
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

    /// The parts of a range of a file, each with a bounded number of extents.
    fn parts(&self, ino: Ino, range: Range<u64>) -> Result<Vec<Range<u64>>, OpError> {
        let looked = match self.content(ino)? {
            Some(content) => parts(&*content, range),
            None => Ok(vec![range]),
        };
        let looked = looked.map_err(StoreError::content("look for extents of", ino));
        Ok(looked?)
    }
}
