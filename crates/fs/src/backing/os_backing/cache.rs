//! Making sure that reads show the disk: dropping the pages of a store from the page cache, and counting the pages that
//! stay.
//!
//! After a failed sync Linux marks the pages that it could not write as clean: they read as written, no later sync
//! writes them, and they are not on the disk. Clean pages can be dropped, and the next read fetches the bytes of the
//! disk. `posix_fadvise` drops as many pages as it can and does not report the rest. So the remaining pages are counted
//! afterwards (`cachestat`, since Linux 6.5).
//!
//! This holds for content. Names, lengths and the places of blocks belong to the file system: once ext4 with a journal,
//! XFS or btrfs cannot save one of these, they take no further change until they are mounted again. On a file system
//! without a journal, only a new mount or a restart of the machine helps.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use lockstep_types::backing::Backing;
use rustix::fs::{Advice, FileType, OFlags};

use super::OsBacking;
use super::failure::failed;
use super::file::retry;

/// Number of the system call, the same on every processor that Linux 6.6 and Rust know.
const CACHESTAT: libc::c_long = 451;
/// Attempts to drop the pages: a page between two lists of the kernel cannot be dropped at that moment.
const ATTEMPTS: usize = 10;
/// The time between two attempts.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);
/// File systems that keep files in memory alone (`tmpfs`, `ramfs`): dropping the pages would lose them.
const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];

/// A range of a file, as the kernel takes it; a length of zero means up to the end.
#[repr(C)]
struct PageRange {
    offset: u64,
    length: u64,
}

/// Pages of a file, as the kernel counts them.
#[repr(C)]
#[derive(Default)]
struct PageCounts {
    cached: u64,
    dirty: u64,
    written_back: u64,
    evicted: u64,
    recently_evicted: u64,
}

impl OsBacking {
    /// Syncs all files, as far as possible, then drops their pages.
    pub(super) fn drop_cached(&self) -> io::Result<()> {
        // The first sync of a file system reports any write that failed since the previous sync: the failure that led
        // to this call. Only the second sync counts.
        let _told_late = self.sync_all();
        self.sync_all()?;
        if self.is_in_memory()? {
            return Ok(());
        }
        self.drop_below("")
    }

    pub(super) fn is_in_memory(&self) -> io::Result<bool> {
        let found = rustix::fs::fstatfs(&self.dir);
        let found = found.map_err(|errno| self.fail("look at the file system of", "", errno))?;
        Ok(IN_MEMORY.contains(&found.f_type))
    }

    fn drop_below(&self, directory: &str) -> io::Result<()> {
        for name in self.list(directory)? {
            let path = if directory.is_empty() {
                name
            } else {
                format!("{directory}/{name}")
            };
            match self.kind(&path)? {
                FileType::Directory => self.drop_below(&path)?,
                FileType::RegularFile => self.drop_file(&path)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn kind(&self, path: &str) -> io::Result<FileType> {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        let stat = retry(|| rustix::fs::statat(&self.dir, path, flags));
        let stat = stat.map_err(|errno| self.fail("stat", path, errno))?;
        Ok(FileType::from_raw_mode(stat.st_mode))
    }

    #[allow(clippy::disallowed_methods)] // only a command calls it, while no datastore runs
    fn drop_file(&self, path: &str) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = self.open_fd(path, flags);
        let fd = fd.map_err(|errno| self.fail("open", path, errno))?;
        let fail = |error| failed("drop the cache of", self.full_path(path), error);
        clear_reported_failures(&fd);
        for attempt in 1.. {
            rustix::fs::fadvise(&fd, 0, None, Advice::DontNeed).map_err(|e| fail(e.into()))?;
            match cached_pages(&fd).map_err(fail)? {
                0 => break,
                pages if attempt == ATTEMPTS => return Err(fail(still_cached(pages))),
                _ => std::thread::sleep(PAUSE),
            }
        }
        Ok(())
    }
}

/// Makes the kernel report failed writes to a file. It reports them once, to the next caller, even to a much later
/// process. The lost bytes of these writes are known by now, and must not be taken for a new failure.
fn clear_reported_failures(fd: &OwnedFd) {
    // SAFETY: the descriptor is open, and no memory is passed.
    let _told_late =
        unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
}

fn still_cached(pages: u64) -> io::Error {
    let why = format!(
        "{pages} pages of it stay in memory, and the kernel cannot say whether the disk has them; unmount \
         its file system and mount it anew, or restart the machine"
    );
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}

/// How many pages of a file are in memory.
fn cached_pages(fd: &OwnedFd) -> io::Result<u64> {
    let range = PageRange {
        offset: 0,
        length: 0,
    };
    let mut counts = PageCounts::default();
    // SAFETY: the descriptor is open; `range` and `counts` are laid out as the kernel has them (`struct
    // cachestat_range`, `struct cachestat`) and live until the call returns. The call reads the first, writes the
    // second, and keeps neither.
    let answer = unsafe {
        libc::syscall(
            CACHESTAT,
            fd.as_raw_fd(),
            std::ptr::from_ref(&range),
            std::ptr::from_mut(&mut counts),
            0,
        )
    };
    if answer == 0 {
        Ok(counts.cached)
    } else {
        Err(io::Error::last_os_error())
    }
}
