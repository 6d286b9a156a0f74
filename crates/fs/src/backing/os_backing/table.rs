//! A file mapped into memory: it outlives the process, not a power loss.
//!
//! Writing to a mapped page must never need space or an error path, for the only way the kernel
//! could report a failure there is to kill the process. So every block is allocated before the
//! file is mapped, and the whole file is read once, so that an unreadable sector is an error here.

use std::io;

use lockstep_types::backing::{BackingFile, BackingTable};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::FallocateFlags;

use super::failure::{failed, is_lacking};
use super::file::{OsFile, retry};

const READ_BYTES: usize = 64 << 10;

/// A mapped file; unmapped when dropped, the content stays in the file.
pub(super) struct OsTable {
    map: MmapRaw,
}

impl OsTable {
    /// Maps the first `length` bytes of `file`, growing it with zeros to that length.
    pub(super) fn map(file: &OsFile, length: usize) -> io::Result<Self> {
        reserve(file, length as u64)?;
        read_through(file, length as u64)?;
        let map = MmapOptions::new()
            .len(length)
            .map_raw(file.fd())
            .map_err(|error| failed("map", file.full_path().display().to_string(), error))?;
        // Not needed for safety: without the right to lock memory, the kernel may page the table out like any other
        // mapping.
        let _ = map.lock();
        Ok(Self { map })
    }

    /// The place of `count` bytes at `offset`; panics if they do not lie in the table.
    fn at(&self, offset: usize, count: usize) -> *mut u8 {
        let end = offset.checked_add(count);
        assert!(
            end.is_some_and(|end| end <= self.map.len()),
            "{count} bytes at {offset} are outside a table of {} bytes",
            self.map.len()
        );
        self.map.as_mut_ptr().wrapping_add(offset)
    }
}

impl BackingTable for OsTable {
    fn len(&self) -> usize {
        self.map.len()
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: `at` checked that the range lies in the mapping, which lives as long as `self`;
        // `into` is a Rust slice and cannot overlap it, as no reference into the mapping is ever
        // made. That no other thread writes these bytes meanwhile is the contract of the trait.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    fn store(&self, offset: usize, data: &[u8]) {
        let to = self.at(offset, data.len());
        // SAFETY: as in `load`; the mapping is shared and writable.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) }
    }
}

/// Allocates every block of the file up to `length`, holes included, and grows it to there.
fn reserve(file: &OsFile, length: u64) -> io::Result<()> {
    if length == 0 {
        return Err(map_refused(file, "a table has at least one byte"));
    }
    match retry(|| rustix::fs::fallocate(file.fd(), FallocateFlags::empty(), 0, length)) {
        Err(errno) if is_lacking(errno) => reserve_by_hand(file, length),
        done => done.map_err(|errno| {
            let path = file.full_path().display().to_string();
            failed("reserve space for", path, errno.into())
        }),
    }
}

/// Rewrites the file with its own bytes, and zeros after them, so that every block is allocated.
fn reserve_by_hand(file: &OsFile, length: u64) -> io::Result<()> {
    let mut piece = vec![0; READ_BYTES];
    let mut offset = 0;
    while offset < length {
        let want = usize::try_from(length - offset).map_or(READ_BYTES, |rest| rest.min(READ_BYTES));
        let part = piece.get_mut(..want).unwrap_or_default();
        let have = file.read_at(offset, part)?;
        part.get_mut(have..).unwrap_or_default().fill(0);
        file.write_at(offset, part)?;
        offset += want as u64;
    }
    Ok(())
}

fn read_through(file: &OsFile, length: u64) -> io::Result<()> {
    let mut piece = vec![0; READ_BYTES];
    let mut offset = 0;
    while offset < length {
        let count = file.read_at(offset, &mut piece)?;
        if count == 0 {
            return Err(map_refused(file, "the file is shorter than it was made"));
        }
        offset += count as u64;
    }
    Ok(())
}

fn map_refused(file: &OsFile, why: &'static str) -> io::Error {
    super::failure::refused("map", file.full_path().display().to_string(), why)
}
