//! The reserved and unwritten space of a file, by the extent map of the kernel.
//!
//! Layout and numbers are those of `linux/fiemap.h`. A file system without a map shows no reserved space.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use lockstep_types::backing::ReservedRuns;

/// `FS_IOC_FIEMAP`.
const MAP: u64 = 0xC020_660B;
/// `FIEMAP_EXTENT_LAST`.
const LAST: u32 = 0x1;
/// `FIEMAP_EXTENT_UNWRITTEN`.
const UNWRITTEN: u32 = 0x800;

/// Extents per call.
const EXTENTS: u32 = 128;

/// Errors of the kernel where there is no reserved space: a file system without a map, and a range beyond the end of
/// the longest file.
const HAS_NONE: [i32; 6] = [
    libc::EOPNOTSUPP,
    libc::ENOTTY,
    libc::ENOSYS,
    libc::EINVAL,
    libc::EBADR,
    libc::EFBIG,
];

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
struct ExtentMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS as usize],
}

/// The extents of a range that were reserved and not written, as far as one call of the kernel tells.
pub(super) fn reserved(fd: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<ReservedRuns> {
    let mut map = ExtentMap {
        start: range.start,
        length: range.end.saturating_sub(range.start),
        flags: 0,
        mapped: 0,
        count: EXTENTS,
        reserved: 0,
        extents: [Extent::default(); EXTENTS as usize],
    };
    // SAFETY: the kernel writes no more than `count` extents behind the head, for which there is room.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), MAP as _, &raw mut map) };
    if answer != 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(code) if HAS_NONE.contains(&code) => Ok(ReservedRuns::none(range)),
            _ => Err(error),
        };
    }
    let mapped = usize::try_from(map.mapped).unwrap_or(0);
    let extents = map.extents.get(..mapped).unwrap_or(&map.extents);
    Ok(runs_of(extents, range))
}

/// The reserved runs of a range among its first extents.
fn runs_of(extents: &[Extent], range: &Range<u64>) -> ReservedRuns {
    let within = |extent: &Extent| extent.logical.max(range.start)..extent.end().min(range.end);
    let unwritten = extents
        .iter()
        .filter(|extent| extent.flags & UNWRITTEN != 0);
    let runs = unwritten.map(within).filter(|run| !run.is_empty());
    let more = extents
        .get(EXTENTS as usize - 1)
        .filter(|last| last.flags & LAST == 0);
    ReservedRuns {
        runs: runs.collect(),
        looked_to: more.map_or(range.end, |last| last.end().min(range.end)),
    }
}
