//! Making sure that reads show the disk: dropping what the page cache holds of a store, and looking
//! whether it has gone.
//!
//! After a sync has failed Linux counts the pages that it could not write as clean: they read as they
//! were written, no later sync knows of them, and they are not on the disk. Being clean they can be
//! dropped, and the next read fetches what the disk has. `posix_fadvise` drops what it can and says
//! nothing of the rest, so that is counted afterwards (`cachestat`, since Linux 6.5).
//!
//! This is content. Names, lengths and where blocks lie are the file system's own: ext4 with a journal,
//! XFS and btrfs take no further change once they could not save one of these, until they are mounted
//! anew. On a file system without a journal only that, or a restart of the machine, is enough.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use lockstep_types::backing::Backing;
use rustix::fs::{Advice, FileType, OFlags};

use super::OsBacking;
use super::failure::failed;
use super::file::retry;

/// Number of the system call, the same on every processor that Linux 6.6 and Rust know.
const CACHESTAT: libc::c_long = 451;
/// Pages on their way between the kernel's lists cannot be dropped at that moment.
const ATTEMPTS: usize = 10;
/// Between two attempts.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);
/// File systems that have nothing but memory (`tmpfs`, `ramfs`): there it is what is kept.
const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];

/// A range of a file, as the kernel takes it; a length of zero means up to the end.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// Pages of a file, as the kernel counts them.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    written_back: u64,
    evicted: u64,
    recently_evicted: u64,
}

impl OsBacking {
    /// Saves what can be saved, then drops what memory holds of every file.
    pub(super) fn drop_cached(&self) -> io::Result<()> {
        // Linux tells the next who syncs a file system of a write that failed at any time since the
        // last one did: that is the failure which brought us here. The second counts.
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
        hear_of_failures(&fd);
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

/// Has the kernel tell of writes to a file that have failed. It does so once, to the next who asks, be it
/// a process of much later: what they have lost is forgotten now, and must not count as a new failure.
fn hear_of_failures(fd: &OwnedFd) {
    // SAFETY: the descriptor is open, and no memory is passed.
    let _told_late =
        unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
}

fn still_cached(pages: u64) -> io::Error {
    let why = format!(
        "{pages} pages of it stay in memory, and nobody can say whether the disk has them; unmount \
         its file system and mount it anew, or restart the machine"
    );
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}

/// How many pages of a file are in memory.
fn cached_pages(fd: &OwnedFd) -> io::Result<u64> {
    let range = Range {
        offset: 0,
        length: 0,
    };
    let mut counts = Counts::default();
    // SAFETY: the descriptor is open; `range` and `counts` are laid out as the kernel has them
    // (`struct cachestat_range`, `struct cachestat`) and live until the call returns, which reads the
    // one and writes the other and keeps neither.
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
