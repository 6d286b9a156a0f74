//! The one place where the bytes of files change, and where a change is announced before it is made.
//!
//! A change is a value, [`ByteChange`]: [`Observers::carry_out`] tells each observer of it, in the order of their list,
//! and then makes exactly that change. So no change can be made that was not announced, and none can be announced in
//! other words than it is made. The content of a freed inode is announced when it is about to leave its place
//! ([`Observers::before_removal`]). The first observer that takes the content has it.
//!
//! The order of the list is the order of the calls. Observers that only take notes come first. An observer that needs
//! the old bytes reads them from the content file that it is given. An error of an observer stops the change: the later
//! observers are not told, the bytes stay, and the caller gets the error as that of the change itself. An observer
//! that was told of a change must not conclude that the change was made: a later observer or the disk may have failed.
//!
//! Locks: the lock manager, or the resync that holds its locks, keeps any other change of the same bytes away. A write
//! is announced under no lock of the store. The content part of a metadata operation, and a cut to the size of the other
//! node, are announced under `applying` of the metadata log; a removal under `collecting` of [`removal`](super::removal). An observer takes
//! locks of its own and those of the namespace, and calls back neither the content nor the metadata log.
//!
//! A write costs one call for each observer and no lock: the list is fixed when the store is opened, and an idle
//! observer looks at an atomic flag.
//!
//! Exceptions, which are not announced: the last write under way on a file cuts the bytes that a failed write has left
//! beyond the size ([`open_file`](super::open_file)). This happens under the lock of the file's state, under which no
//! observer may read, and no client has seen the bytes. The sums change with this cut, too. And content whose inode was never durable is only found, not
//! freed, after a power loss ([`removal`](super::removal)): its removal alone is announced. The replay of the log
//! announces its changes like every other caller, before any observer has begun to take notes.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use lockstep_sums::SummedBytes;
use lockstep_types::Ino;
use lockstep_types::backing::BackingFile;
use lockstep_types::mutants::{Mutant, is_active};

use super::reservation::allocate_whole;
use crate::error::StoreError;
use crate::paths::content_path;
use crate::store_disk::StoreDisk;
use crate::sums::{NewBytes, SumKeeper};

/// A change of the bytes of one file.
#[derive(Clone, Copy, Debug)]
pub struct ByteChange<'a> {
    /// The file.
    pub ino: Ino,
    /// The change.
    pub edit: ByteEdit<'a>,
}

/// A change of the bytes of any file.
#[derive(Clone, Copy, Debug)]
pub enum ByteEdit<'a> {
    /// Puts these bytes in place. The file may grow.
    Write {
        /// The place of the first byte.
        offset: u64,
        /// The bytes, with the sums of their blocks if these are known.
        data: SummedBytes<'a>,
    },
    /// Cuts the file, or lets the file grow by zeros.
    Resize {
        /// The new length.
        size: u64,
    },
    /// Cuts bytes beyond the size of the file, which a failed change has left there and no client has seen.
    TakeBack {
        /// The size.
        size: u64,
    },
    /// Makes a range a hole. The length stays.
    Punch {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Makes a range zeros whose space is reserved.
    Zero {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
        /// Whether the file may not grow to the end of the range.
        keep_size: bool,
    },
    /// Reserves space for a range, whose bytes stay.
    Reserve {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
        /// Whether the file may not grow to the end of the range.
        keep_size: bool,
    },
}

impl ByteEdit<'_> {
    /// The bytes that may be others afterwards, or may take other space. Those beyond a new size are cut off, and may be
    /// written again.
    pub fn range(&self) -> Range<u64> {
        let (offset, length) = match *self {
            Self::Write { offset, data } => (offset, data.len() as u64),
            Self::Resize { size } | Self::TakeBack { size } => (size, u64::MAX),
            Self::Punch { offset, length }
            | Self::Zero { offset, length, .. }
            | Self::Reserve { offset, length, .. } => (offset, length),
        };
        offset..offset.saturating_add(length)
    }

    /// The bytes that come in place.
    fn new_bytes(&self) -> NewBytes<'_> {
        let Range { start, end } = self.range();
        match *self {
            Self::Write { offset, data } => NewBytes::Data { offset, data },
            Self::Reserve { .. } => NewBytes::Same,
            Self::Resize { .. }
            | Self::TakeBack { .. }
            | Self::Punch { .. }
            | Self::Zero { .. } => NewBytes::Zeros {
                from: start,
                to: end,
            },
        }
    }

    /// The operation, as the text of an error names it.
    const fn operation(&self) -> &'static str {
        match self {
            Self::Write { .. } => "write",
            Self::Resize { .. } | Self::TakeBack { .. } => "resize",
            Self::Punch { .. } => "punch a hole in",
            Self::Zero { .. } => "zero a range of",
            Self::Reserve { .. } => "allocate",
        }
    }

    /// Makes the change.
    fn make(&self, content: &dyn BackingFile) -> io::Result<()> {
        match *self {
            Self::Write { offset, data } => content.write_at(offset, &data),
            Self::Resize { size } | Self::TakeBack { size } => content.set_len(size),
            Self::Punch { offset, length } => content.punch_hole(offset, length),
            Self::Zero {
                offset,
                length,
                keep_size,
            } => content.zero_range(offset, length, keep_size),
            Self::Reserve {
                offset,
                length,
                keep_size,
            } => allocate_whole(content, offset, length, keep_size),
        }
    }
}

/// The content of a freed inode, which is about to leave its place.
#[derive(Clone, Copy)]
pub struct Removal<'a> {
    /// The disk with the content.
    pub disk: &'a StoreDisk,
    /// The inode.
    pub ino: Ino,
}

impl Removal<'_> {
    /// Gives the observer the content at `path`, where an empty file is. The caller of the observer makes the name durable.
    ///
    /// # Errors
    /// The content is still in its place.
    pub fn take(&self, path: &str) -> io::Result<()> {
        self.disk.backing().rename(&content_path(self.ino), path)
    }
}

/// One that is told before bytes change. See the head of this file for order and locks.
pub trait ByteObserver: Send + Sync {
    /// Bytes of a file are about to change. `old` is the content with the old bytes: the file is new and empty if it had
    /// none.
    ///
    /// # Errors
    /// An error stops the change.
    fn before_change(
        &self,
        change: &ByteChange<'_>,
        old: &dyn BackingFile,
    ) -> Result<(), StoreError>;

    /// The content of a freed inode is about to be removed. An observer that needs the content takes it
    /// ([`Removal::take`]), and returns the directory that has it now: the names of that directory are then synced.
    ///
    /// # Errors
    /// An error leaves the content in its place, for a later removal.
    fn before_removal(&self, _removal: &Removal<'_>) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

/// The observers of one store, in the order in which they are told, and the keeper of its sums, which changes the sums with the
/// bytes.
pub struct Observers {
    list: Vec<Arc<dyn ByteObserver>>,
    sums: Arc<SumKeeper>,
}

impl Observers {
    /// These observers, in this order.
    pub fn new(list: Vec<Arc<dyn ByteObserver>>, sums: Arc<SumKeeper>) -> Self {
        Self { list, sums }
    }

    /// The keeper of the sums.
    pub const fn sums(&self) -> &Arc<SumKeeper> {
        &self.sums
    }

    /// Announces a change of `content`, and makes the change and the sums of its blocks (P32).
    pub(super) fn carry_out(
        &self,
        change: &ByteChange<'_>,
        content: &dyn BackingFile,
    ) -> Result<(), StoreError> {
        if is_active(Mutant::KeepAfterWrite) {
            let made = change.edit.make(content);
            made.map_err(StoreError::content(change.edit.operation(), change.ino))?;
        }
        for observer in &self.list {
            observer.before_change(change, content)?;
        }
        let new = change.edit.new_bytes();
        let made = self
            .sums
            .carry_out(change.ino, &new, content, || change.edit.make(content));
        made.map_err(StoreError::content(change.edit.operation(), change.ino))
    }

    /// Announces the removal of content. Returns the directory to which an observer has moved the content; `None` if it is still in its
    /// place.
    pub(super) fn before_removal(
        &self,
        disk: &StoreDisk,
        ino: Ino,
    ) -> Result<Option<String>, StoreError> {
        for observer in &self.list {
            let moved = observer.before_removal(&Removal { disk, ino })?;
            if moved.is_some() {
                return Ok(moved);
            }
        }
        Ok(None)
    }

    /// Adds an observer before the others.
    #[cfg(test)]
    pub fn add_first(&mut self, observer: Arc<dyn ByteObserver>) {
        self.list.insert(0, observer);
    }
}
