//! The reserve: space of the disk that only Lockstep's own bookkeeping, deletion and truncation may use (rule P20).
//!
//! The file `reserve` holds the space. A call that finds the disk full frees this space and is repeated. The file gets
//! the space back when the disk has room again. Bytes of content never open the reserve: a client whose write finds no
//! room is refused, and so is a resync; a sum of such bytes that finds no room is void, and a block that finds none in a pack does not change. The creation of an empty content file may, as a start may need one.
//!
//! Invariant: clients may take all space that [`Backing::space`] calls available. It leaves out the bytes that the
//! reserve lacks, and a spare that the file system below needs to keep content.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_types::backing::{
    Backing, BackingFile, BackingStat, BackingTable, FileIdentity, ReservedRuns, Space,
};
use lockstep_types::{Errno, limits};
use parking_lot::Mutex;

use crate::backing::os_backing::os_code;
use crate::paths::{CONTENT_DIR, is_pack, is_sums};

/// The file that holds the space.
pub const RESERVE_FILE: &str = "reserve";
/// Prefix of the names of files with bytes of waiting writes: these writes stay in memory when the disk is full.
const WAITING_PREFIX: &str = "waiting.";

/// The space that clients may not use on the disk of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// Bytes of the reserve.
    pub reserve_bytes: u64,
    /// Bytes that stay available besides.
    pub spare_bytes: u64,
    /// Inodes that stay free.
    pub spare_files: u64,
}

impl Default for Withheld {
    fn default() -> Self {
        Self {
            reserve_bytes: limits::RESERVE_BYTES,
            spare_bytes: limits::SPARE_BYTES,
            spare_files: limits::SPARE_FILES,
        }
    }
}

/// Whether a call failed because the disk has no room.
fn is_full(error: &io::Error) -> bool {
    let full = [Errno::NoSpace.code(), Errno::QuotaExceeded.code()];
    os_code(error).is_some_and(|code| full.contains(&code))
}

/// The withheld space.
pub struct Reserve {
    below: Arc<dyn Backing>,
    withheld: Withheld,
    /// Bytes that the file lacks.
    lacking: AtomicU64,
    /// Counts the calls that freed space.
    freed: AtomicU64,
    /// Held while the file changes.
    changing: Mutex<()>,
}

impl Reserve {
    fn of(below: Arc<dyn Backing>, withheld: Withheld) -> Self {
        let reserve = Self {
            below,
            withheld,
            lacking: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            changing: Mutex::default(),
        };
        reserve.measure();
        reserve
    }

    /// Bytes that the reserve lacks: not zero after the disk was full.
    pub fn lacking(&self) -> u64 {
        self.lacking.load(Ordering::Acquire)
    }

    /// Notes how much space the file has.
    fn measure(&self) {
        let bytes = match self.below.stat(RESERVE_FILE) {
            Ok(stat) => stat.blocks.saturating_mul(512).min(stat.length),
            Err(_) => 0,
        };
        let lacking = self.withheld.reserve_bytes.saturating_sub(bytes);
        self.lacking.store(lacking, Ordering::Release);
    }

    /// Gives the file its missing space, if the disk has that space and the spare. Returns whether the reserve is whole
    /// now.
    ///
    /// # Errors Errors of the disk, but for a full disk.
    pub fn fill(&self) -> io::Result<bool> {
        let lacking = self.lacking();
        if lacking == 0 {
            return Ok(true);
        }
        let space = self.below.space()?;
        let needed = lacking.saturating_add(self.withheld.spare_bytes);
        let has_file = space.total_files == 0 || space.free_files > self.withheld.spare_files;
        if space.available_bytes < needed || !has_file {
            return Ok(false);
        }
        let _alone = self.changing.lock();
        let filled = self
            .below
            .open_or_create(RESERVE_FILE)
            .and_then(|file| file.allocate(0, self.withheld.reserve_bytes, false));
        self.measure();
        match filled {
            Err(error) if is_full(&error) => Ok(false),
            filled => filled.map(|()| self.lacking() == 0),
        }
    }

    /// Makes a call. If the disk is full, frees the space and repeats the call. If that does not help, removes the file
    /// too, for its inode, and repeats the call.
    fn with_reserve<T>(&self, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let mut seen = self.freed.load(Ordering::Acquire);
        for free in [Self::free_space, Self::free_file] {
            match call() {
                Err(error) if is_full(&error) => seen = self.free(seen, free),
                done => return done,
            }
        }
        call()
    }

    /// Frees space, unless another thread has done so since `seen`. Returns the new count.
    fn free(&self, seen: u64, free: fn(&Self) -> io::Result<()>) -> u64 {
        let _alone = self.changing.lock();
        if self.freed.load(Ordering::Acquire) != seen {
            return self.freed.load(Ordering::Acquire);
        }
        match free(self) {
            Ok(()) => self.measure(),
            Err(error) => tracing::debug!(%error, "the reserve has nothing to give"),
        }
        self.freed.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn free_space(&self) -> io::Result<()> {
        if self.lacking() >= self.withheld.reserve_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        tracing::warn!("the disk of the store is full: the reserve is used, clients find no room");
        let file = self.below.open(RESERVE_FILE)?;
        file.set_len(0)?;
        // The journal of the file system keeps freed blocks until it is written.
        file.sync()
    }

    fn free_file(&self) -> io::Result<()> {
        self.below.remove(RESERVE_FILE)
    }
}

/// A disk with a reserve.
pub struct Reserved {
    below: Arc<dyn Backing>,
    reserve: Arc<Reserve>,
}

impl Reserved {
    /// Withholds space on `below`: the existing file is part of it, and [`Reserve::fill`] takes the rest.
    pub fn over(below: Arc<dyn Backing>, withheld: Withheld) -> (Self, Arc<Reserve>) {
        let reserve = Arc::new(Reserve::of(Arc::clone(&below), withheld));
        let reserved = Self {
            below,
            reserve: Arc::clone(&reserve),
        };
        (reserved, reserve)
    }

    fn file(&self, path: &str, file: Arc<dyn BackingFile>) -> Arc<dyn BackingFile> {
        Arc::new(ReservedFile {
            below: file,
            grows_freely: !is_of_clients(path),
            reserve: Arc::clone(&self.reserve),
        })
    }
}

/// Whether a file takes space for bytes of clients.
fn is_of_clients(path: &str) -> bool {
    let is_content = path
        .strip_prefix(CONTENT_DIR)
        .is_some_and(|rest| rest.starts_with('/'));
    is_content || path.starts_with(WAITING_PREFIX) || is_sums(path) || is_pack(path)
}

impl Backing for Reserved {
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        Ok(self.file(path, self.below.open(path)?))
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        let opened = self
            .reserve
            .with_reserve(|| self.below.open_or_create(path));
        Ok(self.file(path, opened?))
    }

    fn open_table(&self, path: &str, length: usize) -> io::Result<Arc<dyn BackingTable>> {
        self.reserve
            .with_reserve(|| self.below.open_table(path, length))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.reserve.with_reserve(|| self.below.remove(path))
    }

    fn remove_empty_dir(&self, path: &str) -> io::Result<bool> {
        self.reserve
            .with_reserve(|| self.below.remove_empty_dir(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.reserve.with_reserve(|| self.below.rename(from, to))
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        self.below.exists(path)
    }

    fn stat(&self, path: &str) -> io::Result<BackingStat> {
        self.below.stat(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.below.list(path)
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.below.sync_dir(path)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.below.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        let space = self.below.space()?;
        let withheld = self.reserve.withheld;
        let bytes = self.reserve.lacking().saturating_add(withheld.spare_bytes);
        Ok(Space {
            available_bytes: space.available_bytes.saturating_sub(bytes),
            free_files: space.free_files.saturating_sub(withheld.spare_files),
            ..space
        })
    }

    fn scatter(&self, directory: &str) {
        self.below.scatter(directory);
    }

    fn identity(&self, path: &str) -> io::Result<Option<FileIdentity>> {
        self.below.identity(path)
    }

    fn is_in_place(&self) -> io::Result<Option<bool>> {
        self.below.is_in_place()
    }

    fn is_poisoned(&self) -> bool {
        self.below.is_poisoned()
    }

    fn poison(&self, reason: &str) {
        self.below.poison(reason);
    }

    fn forget_cached(&self) -> io::Result<()> {
        self.below.forget_cached()
    }
}

/// A file of a disk with a reserve.
struct ReservedFile {
    below: Arc<dyn BackingFile>,
    /// The file may take the space of the reserve.
    grows_freely: bool,
    reserve: Arc<Reserve>,
}

impl ReservedFile {
    /// Makes a call that may take more space.
    fn grow(&self, call: impl Fn() -> io::Result<()>) -> io::Result<()> {
        if self.grows_freely {
            self.reserve.with_reserve(call)
        } else {
            call()
        }
    }
}

impl BackingFile for ReservedFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.below.read_at(offset, into)
    }

    fn read_disk(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.below.read_disk(offset, into)
    }

    fn will_read(&self, range: Range<u64>) {
        self.below.will_read(range);
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.grow(|| self.below.write_at(offset, data))
    }

    /// A cut makes room, so it may use the reserve.
    fn set_len(&self, length: u64) -> io::Result<()> {
        self.reserve.with_reserve(|| self.below.set_len(length))
    }

    fn stat(&self) -> io::Result<BackingStat> {
        self.below.stat()
    }

    fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        self.grow(|| self.below.allocate(offset, length, keep_size))
    }

    /// A hole makes room, so it may use the reserve.
    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        self.reserve
            .with_reserve(|| self.below.punch_hole(offset, length))
    }

    fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        self.grow(|| self.below.zero_range(offset, length, keep_size))
    }

    fn reserved(&self, range: Range<u64>) -> io::Result<ReservedRuns> {
        self.below.reserved(range)
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.below.seek_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.below.seek_hole(offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.below.sync()
    }
}

#[cfg(test)]
mod tests;
