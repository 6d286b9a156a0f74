//! The backing: the disk below a store, as traits. A store keeps all its data through these calls.
//!
//! The node implements the traits with real directories and files. Tests and the simulator implement them with disks
//! that lose, tear and refuse writes. A store that uses only these traits can therefore be crashed at every call.
//!
//! Every implementation keeps these assumptions about the media, and every user may rely on them. A completed call
//! survives a crash of the process. The call survives a power loss only after a later sync has returned `Ok`:
//! [`BackingFile::sync`] of the file for content and length, [`Backing::sync_dir`] of the directory for a name. Before
//! the sync, a power loss may keep any subset of the call's 4 KiB pieces. After a failed sync, the state of the data
//! that the sync should have covered is unknown.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits::BLOCK_BYTES;

/// A directory tree that belongs to one store. Paths are relative to its root, with `/` between components and no
/// `..`.
pub trait Backing: Send + Sync {
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>>;

    /// Opens an existing file for reading only, also on a disk that takes no change.
    fn open_to_read(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        self.open(path)
    }

    /// Opens a file. Creates a missing file, empty, and missing directories above it.
    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>>;

    /// Opens a small file as memory that outlives the process. Creates a missing file, and grows a shorter file with
    /// zeros to `length` bytes.
    fn open_table(&self, path: &str, length: usize) -> io::Result<Arc<dyn BackingTable>>;

    /// Removes a file; `NotFound` when the file is missing.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Removes an empty directory. Returns false and changes nothing when the directory is not empty or missing, or
    /// when the disk keeps no directories. May run concurrently with [`Self::open_or_create`] of a file in the
    /// directory, which then recreates the directory.
    fn remove_empty_dir(&self, path: &str) -> io::Result<bool>;

    /// Atomically replaces `to` by `from`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Whether a file or directory exists at `path`.
    fn exists(&self, path: &str) -> io::Result<bool>;

    /// Length and allocated space of a file, without opening it; `NotFound` when the file is missing.
    fn stat(&self, path: &str) -> io::Result<BackingStat>;

    /// Tells a file from another one of the same name; `None` if the backing cannot tell.
    fn identity(&self, _path: &str) -> io::Result<Option<FileIdentity>> {
        Ok(None)
    }

    /// Whether the path of the store leads to its directory; `None` if the backing cannot tell.
    fn is_in_place(&self) -> io::Result<Option<bool>> {
        Ok(None)
    }

    /// The names in a directory, in no order; none when the directory is missing.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Makes the created, replaced and removed names of a directory survive a power loss. If the directory was removed
    /// meanwhile, its removal survives.
    fn sync_dir(&self, path: &str) -> io::Result<()>;

    /// Puts all changes so far, of content and names, on stable storage.
    fn sync_all(&self) -> io::Result<()>;

    /// Space on the disk.
    fn space(&self) -> io::Result<Space>;

    /// A hint without promise: the disk should place the subdirectories of this directory far apart.
    fn scatter(&self, _directory: &str) {}

    /// Whether this disk is poisoned: it promises nothing until an operator acts. A backing without a record of poison
    /// always returns false.
    fn is_poisoned(&self) -> bool {
        false
    }

    /// Records that this disk is poisoned from now on, and the reason.
    fn poison(&self, _reason: &str) {}

    /// Ensures that later reads return the data on stable storage. Saves the unsynced data that can still be saved;
    /// then drops the rest, which failed syncs have left in memory. No file may be open meanwhile. Fails when the
    /// backing cannot ensure this.
    fn forget_cached(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The path where [`replace`] keeps the new bytes of a file until they are on stable storage.
pub fn draft_of(path: &str) -> String {
    format!("{path}.new")
}

/// Atomically replaces or creates a file with the content `bytes`, and puts it on stable storage. The file's directory
/// must exist.
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
    /// Reads at `offset`. Returns fewer bytes than `into` holds only at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Reads as [`Self::read_at`], but from the disk and not from memory. Changes that are not on the disk yet are written first. A
    /// backing without memory of its own has one way to read.
    fn read_disk(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.read_at(offset, into)
    }

    /// Says that a range is to be read soon: a disk may begin to read it. Nothing but time depends on that.
    fn will_read(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Writes all of `data` at `offset`, growing the file as needed.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Cuts or grows the file; new bytes read as zeros.
    fn set_len(&self, length: u64) -> io::Result<()>;

    /// Length and allocated space.
    fn stat(&self) -> io::Result<BackingStat>;

    /// Reserves space for a range. Grows the file to the end of the range unless `keep_size`.
    fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()>;

    /// Frees a range, which then reads as zeros; the length stays.
    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()>;

    /// Makes a range zeros and reserves its space. Grows the file to the end of the range unless `keep_size`.
    fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()>;

    /// Reserved and unwritten bytes of a range, also beyond the end of the file. Part of them may have been written
    /// since. One call looks at a bounded number of runs, from the start of the range on: [`Reservations`] goes on.
    /// There are none if the backing cannot tell.
    fn reserved(&self, range: Range<u64>) -> io::Result<ReservedRuns> {
        Ok(ReservedRuns::none(&range))
    }

    /// The first offset at or after `offset` that holds data; `None` if no such offset exists.
    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>>;

    /// The first offset at or after `offset` that lies in a hole. The end of the file is treated as a hole. `None` when
    /// `offset` is not before the end.
    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Puts content and length on stable storage, then returns.
    fn sync(&self) -> io::Result<()>;
}

/// Reserved and unwritten bytes in the first part of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedRuns {
    /// The runs, in order, within the range.
    pub runs: Vec<Range<u64>>,
    /// The end of the part: the runs before this offset are all listed. Lies behind the start of the range, unless the
    /// range is empty.
    pub looked_to: u64,
}

impl ReservedRuns {
    /// A range without such bytes.
    pub const fn none(range: &Range<u64>) -> Self {
        Self {
            runs: Vec::new(),
            looked_to: range.end,
        }
    }
}

/// The reserved and unwritten runs of a range of a file, in order. Each run is asked of the backing once.
pub struct Reservations<'a> {
    file: &'a dyn BackingFile,
    /// The runs that the last call has found, but for those that were passed.
    found: VecDeque<Range<u64>>,
    /// The part of the range at which no call has looked yet.
    rest: Range<u64>,
}

impl<'a> Reservations<'a> {
    /// The runs of `file` in `range`.
    pub const fn of(file: &'a dyn BackingFile, range: Range<u64>) -> Self {
        Self {
            file,
            found: VecDeque::new(),
            rest: range,
        }
    }

    /// The first run that ends behind `offset`. Passes all runs before: later offsets are higher.
    fn first_behind(&mut self, offset: u64) -> io::Result<Option<Range<u64>>> {
        loop {
            match self.found.front() {
                Some(run) if run.end > offset => return Ok(Some(run.clone())),
                Some(_) => {
                    self.found.pop_front();
                }
                None => {
                    self.rest.start = self.rest.start.max(offset);
                    if self.rest.is_empty() {
                        return Ok(None);
                    }
                    let reserved = self.file.reserved(self.rest.clone())?;
                    self.rest.start = reserved.looked_to.max(self.rest.start + 1);
                    self.found.extend(reserved.runs);
                }
            }
        }
    }

    /// Adds the parts of a hole that are not reserved to `gaps`. Later holes lie behind.
    fn push_unreserved(&mut self, hole: Range<u64>, gaps: &mut Vec<Range<u64>>) -> io::Result<()> {
        let mut at = hole.start;
        while at < hole.end {
            let run = self.first_behind(at)?;
            let Some(run) = run.filter(|run| run.start < hole.end) else {
                gaps.push(at..hole.end);
                break;
            };
            if run.start > at {
                gaps.push(at..run.start);
            }
            at = run.end;
        }
        Ok(())
    }
}

impl Iterator for Reservations<'_> {
    type Item = io::Result<Range<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        let run = self.first_behind(0).transpose();
        self.found.pop_front();
        run
    }
}

/// Memory of fixed size that survives the process, but not a power loss. A write costs a memory copy. Users add their
/// own checksums. Safe to use from many threads at once as long as no two touch the same bytes.
pub trait BackingTable: Send + Sync {
    /// Bytes in the table.
    fn len(&self) -> usize;

    /// Whether the table has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out of the table; panics when the range lies outside the table.
    fn load(&self, offset: usize, into: &mut [u8]);

    /// Copies bytes into the table; panics when the range lies outside the table.
    fn store(&self, offset: usize, data: &[u8]);
}

/// Tells a file from another one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileIdentity {
    /// The device and the inode number of the file.
    File(u64, u64),
    /// There is no such file.
    Missing,
}

/// Length and allocated space of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingStat {
    /// Length in bytes.
    pub length: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
}

/// Space on a disk, in bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// All bytes.
    pub total_bytes: u64,
    /// Unused bytes.
    pub free_bytes: u64,
    /// Bytes that are neither used nor reserved.
    pub available_bytes: u64,
    /// All inodes; zero when the disk does not count inodes.
    pub total_files: u64,
    /// Unused inodes.
    pub free_files: u64,
}

/// The bytes and inodes that a disk has left for clients, or that a change takes.
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

    /// The room that a disk has for clients. A disk that does not count inodes never lacks inodes.
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

    /// Whether this room is enough for `other`.
    pub const fn covers(&self, other: &Self) -> bool {
        self.bytes >= other.bytes && self.files >= other.files
    }

    /// The sum of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
        }
    }

    /// This room less `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            files: self.files.saturating_sub(other.files),
        }
    }

    /// The lesser of both, separately for bytes and inodes.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.min(other.bytes),
            files: self.files.min(other.files),
        }
    }
}

/// The parts of a range, widened to whole blocks, for which a file has no space on the disk: neither data nor a
/// reservation. If the backing cannot tell reservations, they are treated as gaps. The calls of the backing are no more
/// than a few for each run of data or reserved bytes in the range.
pub fn gaps(file: &dyn BackingFile, range: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let block = BLOCK_BYTES as u64;
    let end = range.end.checked_next_multiple_of(block);
    let range = range.start - range.start % block..end.unwrap_or(range.end);
    let mut reservations = Reservations::of(file, range.clone());
    let mut gaps = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let data = file.seek_data(at)?.unwrap_or(range.end).min(range.end);
        if data > at {
            reservations.push_unreserved(at..data, &mut gaps)?;
        }
        if data == range.end {
            break;
        }
        let hole = file.seek_hole(data)?.unwrap_or(range.end);
        // The hole at the end of the file may begin inside an allocated block.
        at = hole.max(data + 1).next_multiple_of(block);
    }
    Ok(gaps)
}

/// The parts of a range, one after the other, each with as many extents as one call of [`BackingFile::reserved`] looks at. A change of
/// one part takes a bounded time, however fragmented the file is.
///
/// # Errors
/// If the file cannot be looked at.
pub fn parts(file: &dyn BackingFile, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let (block, mut rest) = (BLOCK_BYTES as u64, range);
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let looked_to = file.reserved(rest.clone())?.looked_to;
        // Two parts meet between two blocks, so that no block is changed twice.
        let end = looked_to.checked_next_multiple_of(block);
        let end = end.unwrap_or(rest.end).min(rest.end);
        parts.push(rest.start..end);
        rest.start = end;
    }
    Ok(parts)
}
