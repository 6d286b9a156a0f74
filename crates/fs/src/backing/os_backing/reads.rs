//! Reads of a file, with the help of the memory of the kernel and past it.
//!
//! Before a read past its memory the kernel writes changes of the range to the disk, so the bytes are those that the disk has of the
//! present content.

use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno as OsErrno;

use rustix::io::retry_on_intr as retry;

/// Offset, length and memory of a direct read are multiples of this: no disk has larger blocks.
const ALIGNMENT: usize = 4096;

/// Reads at `offset`. Returns fewer bytes than `into` holds only at the end of the file.
pub(super) fn read(fd: &OwnedFd, offset: u64, into: &mut [u8]) -> Result<usize, OsErrno> {
    read_whole(fd, offset, into, 1)
}

/// Reads at `offset` past the memory of the kernel. Returns fewer bytes than `into` holds only at the end of the file.
///
/// A file system without direct reads is asked to forget its memory of the range first. It keeps changes that are not on the disk yet.
pub(super) fn read_disk(fd: &OwnedFd, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    match retry(|| rustix::fs::open(&*path, flags, Mode::empty())) {
        Ok(direct) => read_aligned(&direct, offset, into),
        Err(OsErrno::INVAL | OsErrno::OPNOTSUPP) => read_forgotten(fd, offset, into),
        Err(errno) => Err(errno.into()),
    }
}

/// Has the kernel begin to read a range into memory. A kernel that does not want to reads it later.
pub(super) fn begin(fd: &OwnedFd, range: &Range<u64>) {
    if let Some(length) = NonZero::new(range.end.saturating_sub(range.start)) {
        let _ = rustix::fs::fadvise(fd, range.start, Some(length), Advice::WillNeed);
    }
}

fn read_aligned(direct: &OwnedFd, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let before = usize::try_from(offset % ALIGNMENT as u64).unwrap_or(0);
    let length = (before + into.len()).next_multiple_of(ALIGNMENT);
    let mut memory = vec![0; length + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let aligned = memory.get_mut(start..start + length).unwrap_or_default();
    // A direct read that ends within a block has come to the end of the file.
    let read = read_whole(direct, offset - before as u64, aligned, ALIGNMENT)?;
    let found = aligned.get(before..read).unwrap_or_default();
    let found = found.get(..into.len()).unwrap_or(found);
    if let Some(place) = into.get_mut(..found.len()) {
        place.copy_from_slice(found);
    }
    Ok(found.len())
}

fn read_forgotten(fd: &OwnedFd, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let length = NonZero::new(into.len() as u64);
    // Bytes that the kernel keeps in memory are read from there.
    let _ = rustix::fs::fadvise(fd, offset, length, Advice::DontNeed);
    Ok(read(fd, offset, into)?)
}

/// Reads until the end of `into` or of the file, where a read ends that is no multiple of `unit`.
fn read_whole(fd: &OwnedFd, offset: u64, into: &mut [u8], unit: usize) -> Result<usize, OsErrno> {
    let mut done = 0;
    while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let count = retry(|| rustix::io::pread(fd, &mut *rest, offset + done as u64))?;
        done += count;
        if count == 0 || done % unit != 0 {
            break;
        }
    }
    Ok(done)
}
