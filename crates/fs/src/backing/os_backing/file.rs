//! One open file of the operating system.
//!
//! Only positioned calls are used for content, so that any number of threads may share one
//! descriptor: the descriptor's own position moves only under `lseek` for data and holes, and
//! nothing depends on it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_types::backing::{BackingFile, BackingStat, ReservedRuns};
use rustix::fs::{FallocateFlags, SeekFrom, Stat};
use rustix::io::Errno as OsErrno;

use super::failure::{failed, is_lacking};

/// Zeros to write if the file system cannot make them itself.
static ZEROS: [u8; 128 << 10] = [0; 128 << 10];

/// An open file; closed when dropped.
pub(super) struct OsFile {
    fd: OwnedFd,
    /// The store's directory and the path in it, joined only for messages.
    root: Arc<Path>,
    path: Box<str>,
}

impl OsFile {
    pub(super) fn new(fd: OwnedFd, root: Arc<Path>, path: &str) -> Self {
        let path = path.into();
        Self { fd, root, path }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn full_path(&self) -> PathBuf {
        self.root.join(&*self.path)
    }

    fn fail(&self, operation: &'static str, source: impl Into<io::Error>) -> io::Error {
        let path = self.full_path().display().to_string();
        failed(operation, path, source.into())
    }

    fn length(&self) -> Result<u64, OsErrno> {
        Ok(to_backing(&rustix::fs::fstat(&self.fd)?).length)
    }

    fn fallocate(&self, flags: FallocateFlags, offset: u64, length: u64) -> Result<(), OsErrno> {
        retry(|| rustix::fs::fallocate(&self.fd, flags, offset, length))
    }

    fn write_all(&self, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let count = retry(|| rustix::io::pwrite(&self.fd, data, offset))?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            data = data.get(count..).unwrap_or_default();
            offset += count as u64;
        }
        Ok(())
    }

    fn write_zeros(&self, mut offset: u64, end: u64) -> io::Result<()> {
        while offset < end {
            let count = (end - offset).min(ZEROS.len() as u64);
            let zeros = usize::try_from(count).ok().and_then(|n| ZEROS.get(..n));
            self.write_all(offset, zeros.unwrap_or(&ZEROS))?;
            offset += count;
        }
        Ok(())
    }

    /// Zeros with space reserved, without the file system's help. `length` is the file's own.
    pub(super) fn zero_by_hand(&self, offset: u64, end: u64, keep_size: bool) -> io::Result<()> {
        let length = self.length()?;
        self.write_zeros(offset, end.min(length))?;
        if end <= length {
            return Ok(());
        }
        let tail = offset.max(length);
        let flags = size_flags(keep_size);
        match self.fallocate(flags, tail, end - tail) {
            Err(errno) if is_lacking(errno) && !keep_size => self.write_zeros(tail, end),
            done => Ok(done?),
        }
    }

    fn seek(&self, from: SeekFrom, lacking: impl Fn(u64) -> u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.fd, from) {
            Ok(found) => Ok(Some(found)),
            Err(OsErrno::NXIO) => Ok(None),
            Err(errno) if is_lacking(errno) || errno == OsErrno::INVAL => {
                self.seek_by_length(from, lacking)
            }
            Err(errno) => Err(self.fail("look for data and holes in", errno)),
        }
    }

    /// If the file system knows no holes, the whole file is data.
    fn seek_by_length(
        &self,
        from: SeekFrom,
        lacking: impl Fn(u64) -> u64,
    ) -> io::Result<Option<u64>> {
        let (SeekFrom::Data(offset) | SeekFrom::Hole(offset)) = from else {
            return Ok(None);
        };
        let length = self.length().map_err(|errno| self.fail("stat", errno))?;
        Ok((offset < length).then(|| lacking(length)))
    }
}

impl BackingFile for OsFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        super::reads::read(&self.fd, offset, into).map_err(|errno| self.fail("read", errno))
    }

    fn read_disk(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        super::reads::read_disk(&self.fd, offset, into)
            .map_err(|error| self.fail("read from the disk", error))
    }

    fn will_read(&self, range: Range<u64>) {
        super::reads::begin(&self.fd, &range);
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all(offset, data)
            .map_err(|error| self.fail("write", error))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        retry(|| rustix::fs::ftruncate(&self.fd, length))
            .map_err(|errno| self.fail("set the length of", errno))
    }

    fn stat(&self) -> io::Result<BackingStat> {
        let stat = rustix::fs::fstat(&self.fd).map_err(|errno| self.fail("stat", errno))?;
        Ok(to_backing(&stat))
    }

    fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        self.fallocate(size_flags(keep_size), offset, length)
            .map_err(|errno| self.fail("reserve space for", errno))
    }

    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match self.fallocate(flags, offset, length) {
            Err(errno) if is_lacking(errno) => self
                .length()
                .map_err(Into::into)
                .and_then(|end| self.write_zeros(offset, offset.saturating_add(length).min(end))),
            done => done.map_err(Into::into),
        }
        .map_err(|error: io::Error| self.fail("punch a hole into", error))
    }

    fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::ZERO_RANGE | size_flags(keep_size);
        match self.fallocate(flags, offset, length) {
            Err(errno) if is_lacking(errno) => {
                self.zero_by_hand(offset, offset.saturating_add(length), keep_size)
            }
            done => done.map_err(Into::into),
        }
        .map_err(|error| self.fail("zero a range of", error))
    }

    fn reserved(&self, range: Range<u64>) -> io::Result<ReservedRuns> {
        super::reserved::reserved(self.fd.as_fd(), &range)
            .map_err(|error| self.fail("look for reserved space in", error))
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.seek(SeekFrom::Data(offset), |_| offset)
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.seek(SeekFrom::Hole(offset), |length| length)
    }

    /// Not repeated when interrupted or failed: after a failed sync the kernel may have dropped
    /// the pages it could not write, and a second call would answer `Ok` without them.
    fn sync(&self) -> io::Result<()> {
        rustix::fs::fdatasync(&self.fd).map_err(|errno| self.fail("sync", errno))
    }
}

fn size_flags(keep_size: bool) -> FallocateFlags {
    if keep_size {
        FallocateFlags::KEEP_SIZE
    } else {
        FallocateFlags::empty()
    }
}

/// The part of `stat` that a store needs. The kernel never answers a negative length.
pub(super) fn to_backing(stat: &Stat) -> BackingStat {
    BackingStat {
        length: u64::try_from(stat.st_size).unwrap_or(0),
        blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
    }
}

/// Repeats a call that a signal interrupted.
pub(super) fn retry<T>(call: impl FnMut() -> Result<T, OsErrno>) -> Result<T, OsErrno> {
    rustix::io::retry_on_intr(call)
}
