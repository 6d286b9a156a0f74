//! The one place where the bytes of files change, and where a change is announced before it is made.
//!
//! A change is a value, [`ByteChange`]: [`Observers::carry_out`] tells each observer of it, in the order of their list,
//! and then makes exactly that change. So no change can be made that was not announced, and none can be announced in
//! other words than it is made. The content of a freed inode is announced twice: when the inode is freed
//! ([`Observers::freed`]) and when its content is about to leave its place ([`Observers::before_removal`]).
//!
//! The order of the list is the order of the calls. Observers that only take notes come first. An observer that needs
//! the old bytes reads them from the content file that it is given. An error of an observer stops the change: the later
//! observers are not told, the bytes stay, and the caller gets the error as that of the change itself. An observer
//! that was told of a change must not conclude that the change was made: a later observer or the disk may have failed.
//!
//! Locks: the lock manager, or the resync that holds its locks, keeps any other change of the same bytes away. A write
//! is announced under no lock of the store. The content part of a metadata operation, and a cut to the size of the other
//! node, are announced under `applying` of the metadata log; a freed inode under `applying` or at the receiver of an
//! image, where no operation runs; a removal under `collecting` of [`removal`](super::removal). An observer takes
//! locks of its own and those of the namespace, and calls back neither the content nor the metadata log.
//!
//! A write costs one call for each observer and no lock: the list is fixed when the store is opened, and an idle
//! observer looks at an atomic flag.
//!
//! Exceptions, which are not announced: the last write under way on a file cuts the bytes that a failed write has left
//! beyond the size ([`open_file`](super::open_file)). This happens under the lock of the file's state, under which no
//! observer may read, and no client has seen the bytes. And content whose inode was never durable is only found, not
//! freed, after a power loss ([`removal`](super::removal)): its removal alone is announced. The replay of the log
//! announces its changes like every other caller, before any observer has begun to take notes.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use lockstep_types::Ino;
use lockstep_types::backing::BackingFile;

use super::reservation::allocate_whole;
use crate::error::StoreError;
use crate::store_disk::StoreDisk;

/// The cause of a change of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeOrigin {
    /// An operation of a client, on the node of the client or mirrored.
    Operation,
    /// A resync or a recovery, which makes this copy equal to that of the other node.
    Resync,
}

/// A change of the bytes of one file.
#[derive(Clone, Copy, Debug)]
pub struct ByteChange<'a> {
    /// The file.
    pub ino: Ino,
    /// The cause of the change.
    pub origin: ChangeOrigin,
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
        /// The bytes.
        data: &'a [u8],
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
            Self::Write { offset, data } => content.write_at(offset, data),
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
    /// The mark that an observer has given the inode when it was freed; empty without one.
    pub mark: &'a [u8],
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

    /// An inode was freed. Returns a mark if this observer needs the content: the store keeps the mark with the inode,
    /// over restarts too, until [`Self::before_removal`] gets it.
    fn freed(&self, _ino: Ino, _origin: ChangeOrigin) -> Option<Vec<u8>> {
        None
    }

    /// The content of a freed inode is about to be removed. An observer that needs the content moves the file away, and
    /// returns the directory that has it now: the names of that directory are then synced.
    ///
    /// # Errors
    /// An error leaves the content in its place, for a later removal.
    fn before_removal(&self, _removal: &Removal<'_>) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

/// The observers of one store, in the order in which they are told.
pub struct Observers {
    list: Vec<Arc<dyn ByteObserver>>,
}

impl Observers {
    /// These observers, in this order.
    pub fn new(list: Vec<Arc<dyn ByteObserver>>) -> Self {
        Self { list }
    }

    /// Announces a change of `content`, and makes the change.
    pub(super) fn carry_out(
        &self,
        change: &ByteChange<'_>,
        content: &dyn BackingFile,
    ) -> Result<(), StoreError> {
        for observer in &self.list {
            observer.before_change(change, content)?;
        }
        let made = change.edit.make(content);
        made.map_err(StoreError::content(change.edit.operation(), change.ino))
    }

    /// Announces that an inode was freed. Returns the mark of the first observer that needs its content.
    pub fn freed(&self, ino: Ino, origin: ChangeOrigin) -> Option<Vec<u8>> {
        let mut marks = self.list.iter().map(|it| it.freed(ino, origin));
        marks.find_map(|mark| mark)
    }

    /// Announces the removal of content. Returns the directory to which the first observer that needs the content has
    /// moved it; no observer after that one is told.
    pub(super) fn before_removal(
        &self,
        removal: &Removal<'_>,
    ) -> Result<Option<String>, StoreError> {
        for observer in &self.list {
            let moved = observer.before_removal(removal)?;
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
