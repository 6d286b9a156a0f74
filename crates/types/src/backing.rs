//! The disk below, as traits: everything a store keeps goes through these calls.
//!
//! The node gives real directories and files; tests and the simulator give disks that lose, tear
//! and refuse. A store written on these traits alone can therefore be crashed at every call.
//!
//! What an implementation must keep, and what users of it may assume (the assumptions about the
//! media): a completed call survives a crash of the process; it survives a power loss only once a
//! later [`BackingFile::sync`] of that file (for content and length) or [`Backing::sync_dir`] of
//! its directory (for its name) has returned `Ok`. Until then any subset of its 4 KiB pieces may
//! survive. After a sync has failed, nothing may be assumed of what it should have covered.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits::BLOCK_BYTES;

/// A directory tree that belongs to one store. Paths are relative to it, with `/` between
/// components and no `..`.
pub trait Backing: Send + Sync {
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>>;

    /// Opens a file, making it (empty) and the directories above it when missing.
    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>>;

    /// Opens a small file as memory that outlives the process: made, and grown with zeros to
    /// `length` bytes, when missing or shorter.
    fn open_table(&self, path: &str, length: usize) -> io::Result<Arc<dyn BackingTable>>;

    /// Removes a file; `NotFound` when there is none.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Removes a directory if nothing is in it. False, and nothing changes, when something is, when
    /// there is no such directory, or when the disk keeps none. May run beside
    /// [`Self::open_or_create`] of a file in that directory: that makes the directory anew.
    fn remove_empty_dir(&self, path: &str) -> io::Result<bool>;

    /// Replaces `to` by `from`, atomically.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Whether a file or directory of that name exists.
    fn exists(&self, path: &str) -> io::Result<bool>;

    /// Length and allocated space of a file, without opening it; `NotFound` when there is none.
    fn stat(&self, path: &str) -> io::Result<BackingStat>;

    /// Names in a directory, in no order; empty when the directory is missing.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Makes names made, replaced and removed in a directory survive a power loss. Of a directory that was
    /// removed meanwhile, the removal survives.
    fn sync_dir(&self, path: &str) -> io::Result<()>;

    /// Puts everything changed so far, content and names, on stable storage.
    fn sync_all(&self) -> io::Result<()>;

    /// Room on the disk.
    fn space(&self) -> io::Result<Space>;

    /// A hint, which may come to nothing: directories made in this one are best laid far apart.
    fn scatter(&self, _directory: &str) {}

    /// Whether nothing may be promised on this disk any more, until an operator acts. One that keeps
    /// no record of that never says so.
    fn is_poisoned(&self) -> bool {
        false
    }

    /// Records that from now on nothing may be promised on this disk, and why.
    fn poison(&self, _reason: &str) {}

    /// Makes sure that from now on reads show what is on stable storage: whatever can still be saved
    /// is, and then memory forgets the rest, which failed syncs have left there. Nobody may have
    /// anything open meanwhile. Fails where that cannot be made sure.
    fn forget_cached(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Where [`replace`] puts the new bytes of a file until they are on stable storage.
pub fn draft_of(path: &str) -> String {
    format!("{path}.new")
}

/// Puts `bytes` in the place of a file, or makes it: it has all of them or stays as it was, and they
/// are on stable storage when this returns. Its directory must exist.
pub fn replace(backing: &dyn Backing, path: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = draft_of(path);
    let file = backing.open_or_create(&draft)?;
    file.set_len(0)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    backing.rename(&draft, path)?;
    backing.sync_dir(path.rsplit_once('/').map_or(".", |(parent, _)| parent))
}

/// One open file. Safe to use from many threads at once.
pub trait BackingFile: Send + Sync {
    /// Reads at `offset`; fewer bytes than asked only at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `data` at `offset`, growing the file as needed.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Cuts or grows the file; what is new reads as zeros.
    fn set_len(&self, length: u64) -> io::Result<()>;

    /// Length and allocated space.
    fn stat(&self) -> io::Result<BackingStat>;

    /// Reserves space for a range, growing the file to its end unless `keep_size`.
    fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()>;

    /// Frees a range, which then reads as zeros; the length stays.
    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()>;

    /// Makes a range zeros with space reserved, growing the file to its end unless `keep_size`.
    fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()>;

    /// The first run of bytes at or after `offset`, also beyond the end of the file, that has space reserved
    /// and was not written yet; part of it may have been written since. `None` if there is none, or where
    /// that cannot be known.
    fn reserved(&self, _offset: u64) -> io::Result<Option<Range<u64>>> {
        Ok(None)
    }

    /// First offset at or after `offset` that holds data; `None` if there is none.
    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>>;

    /// First offset at or after `offset` that lies in a hole; the end of the file counts as one.
    /// `None` when `offset` is not before the end.
    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Returns once content and length are on stable storage.
    fn sync(&self) -> io::Result<()>;
}

/// A fixed piece of memory that survives the process (not a power loss): writes cost a memory copy.
/// Users checksum what they put there. Safe to use from many threads at once as long as no two
/// touch the same bytes.
pub trait BackingTable: Send + Sync {
    /// Bytes in the table.
    fn len(&self) -> usize;

    /// Whether the table has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies out of the table; panics when the range lies outside it.
    fn load(&self, offset: usize, into: &mut [u8]);

    /// Copies into the table; panics when the range lies outside it.
    fn store(&self, offset: usize, data: &[u8]);
}

/// What is known of a file without reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingStat {
    /// Length in bytes.
    pub length: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
}

/// Room on a disk, in bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub total_bytes: u64,
    /// Not used.
    pub free_bytes: u64,
    /// Not used and not reserved.
    pub available_bytes: u64,
    /// All inodes; zero when the disk does not count them.
    pub total_files: u64,
    /// Inodes not used.
    pub free_files: u64,
}

/// Room on a disk that is left, or that a change takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub files: u64,
}

impl Room {
    /// No room.
    pub const NONE: Self = Self { bytes: 0, files: 0 };
    /// More room than any change takes.
    pub const ALL: Self = Self {
        bytes: u64::MAX,
        files: u64::MAX,
    };

    /// The room that a disk has for clients. A disk that does not count inodes never lacks one.
    pub const fn of(space: &Space) -> Self {
        Self {
            bytes: space.available_bytes,
            files: if space.total_files == 0 {
                u64::MAX
            } else {
                space.free_files
            },
        }
    }

    /// Whether this is enough for `other`.
    pub const fn covers(&self, other: &Self) -> bool {
        self.bytes >= other.bytes && self.files >= other.files
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
        }
    }

    /// What is left without `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            files: self.files.saturating_sub(other.files),
        }
    }

    /// The lesser of both, of bytes and of inodes.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.min(other.bytes),
            files: self.files.min(other.files),
        }
    }
}

/// The parts of a range, widened to whole blocks, for which a file has no space on the disk: neither data nor a
/// reservation. Where the disk tells of no reservations, they count as gaps.
pub fn gaps(file: &dyn BackingFile, range: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let block = BLOCK_BYTES as u64;
    let end = range.end.checked_next_multiple_of(block);
    let range = range.start - range.start % block..end.unwrap_or(range.end);
    let mut gaps = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let data = file.seek_data(at)?.unwrap_or(range.end).min(range.end);
        if data > at {
            push_unreserved(file, at..data, &mut gaps)?;
        }
        if data == range.end {
            break;
        }
        let hole = file.seek_hole(data)?.unwrap_or(range.end);
        // The hole at the end of the file may begin inside a block that has its space.
        at = hole.max(data + 1).next_multiple_of(block);
    }
    Ok(gaps)
}

/// Adds the parts of a hole for which no space is reserved.
fn push_unreserved(
    file: &dyn BackingFile,
    hole: Range<u64>,
    gaps: &mut Vec<Range<u64>>,
) -> io::Result<()> {
    let mut at = hole.start;
    while at < hole.end {
        let run = file.reserved(at)?.filter(|run| run.start < hole.end);
        let Some(run) = run else {
            gaps.push(at..hole.end);
            break;
        };
        if run.start > at {
            gaps.push(at..run.start);
        }
        at = run.end.max(at + 1);
    }
    Ok(())
}
