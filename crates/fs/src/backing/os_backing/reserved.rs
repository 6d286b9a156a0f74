//! The reserved and unwritten space of a file, by the extent map of the kernel.
//!
//! Layout and numbers are those of `linux/fiemap.h`. A file system without a map shows no reserved space.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `FS_IOC_FIEMAP`.
const MAP: u64 = 0xC020_660B;
/// `FIEMAP_EXTENT_LAST`.
const LAST: u32 = 0x1;
/// `FIEMAP_EXTENT_UNWRITTEN`.
const UNWRITTEN: u32 = 0x800;

/// Extents per call.
const EXTENTS: usize = 32;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved_64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

impl Extent {
    const fn end(&self) -> u64 {
        self.logical.saturating_add(self.length)
    }
}

/// `struct fiemap` with room for extents.
#[repr(C)]
#[derive(Default)]
struct ExtentMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// The first extent at or after `offset` that was reserved and not written.
pub(super) fn reserved(fd: BorrowedFd<'_>, offset: u64) -> io::Result<Option<Range<u64>>> {
    let mut at = offset;
    loop {
        let Some(extents) = extents(fd, at)? else {
            return Ok(None);
        };
        let found = extents
            .iter()
            .find(|extent| extent.flags & UNWRITTEN != 0 && extent.end() > offset);
        if let Some(extent) = found {
            return Ok(Some(extent.logical.max(offset)..extent.end()));
        }
        match extents.last() {
            Some(last) if last.flags & LAST == 0 && last.end() > at => at = last.end(),
            _ => return Ok(None),
        }
    }
}

/// Some extents, from the extent at `offset` on; `None` without a map.
fn extents(fd: BorrowedFd<'_>, offset: u64) -> io::Result<Option<Vec<Extent>>> {
    let mut map = ExtentMap {
        start: offset,
        length: u64::MAX - offset,
        count: u32::try_from(EXTENTS).unwrap_or(0),
        ..ExtentMap::default()
    };
    // SAFETY: the kernel writes no more than `count` extents behind the head, for which there is room.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), MAP as _, &raw mut map) };
    if answer == 0 {
        let mapped = usize::try_from(map.mapped).unwrap_or(0);
        return Ok(map.extents.get(..mapped).map(<[Extent]>::to_vec));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS | libc::EINVAL | libc::EBADR) => {
            Ok(None)
        }
        _ => Err(error),
    }
}
