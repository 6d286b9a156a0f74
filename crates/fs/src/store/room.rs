//! The room on the disk that changes take, and reservations of it that are taken whole or not at all (rule P20).

use std::io;
use std::ops::Range;

use lockstep_types::backing::{BackingFile, Room, gaps};
use lockstep_types::{AllocateMode, Ino, MetaRequest, limits};

use super::Store;
use crate::error::{OpError, StoreError};
use crate::files::content_path;

/// What the first bytes of a file may take besides their blocks: its content file, a directory for that, and a block of
/// names in each of the two directories above.
const FILE_MADE: Room = Room {
    bytes: 2 * limits::BLOCK_BYTES as u64,
    files: 2,
};

/// What a record of the namespace takes besides its bytes.
const RECORD_BYTES: u64 = limits::BLOCK_BYTES as u64;

/// Most removed files whose content is looked at: each costs a call of the disk.
const GARBAGE_LOOKED_AT_MAX: usize = 256;

impl Store {
    /// Room that is left for clients on this node's disk, once the names in memory have found theirs.
    pub fn room(&self) -> Result<Room, StoreError> {
        let names = Room {
            bytes: self.names.bytes() as u64,
            files: 0,
        };
        Ok(Room::of(&self.space()?).minus(names))
    }

    /// Bytes that the content of removed files takes until it is removed, of as many files as can be looked at quickly.
    pub fn garbage_bytes(&self) -> u64 {
        let garbage: Vec<Ino> = {
            let garbage = self.garbage.lock();
            garbage
                .iter()
                .take(GARBAGE_LOOKED_AT_MAX)
                .copied()
                .collect()
        };
        // A file that cannot be looked at was never written, or its content is gone by now.
        let stats = garbage
            .iter()
            .flat_map(|ino| self.backing.stat(&content_path(*ino)));
        stats.map(|stat| stat.blocks.saturating_mul(512)).sum()
    }

    /// The room that a write takes, as its file is now.
    pub fn room_for_write(&self, ino: Ino, offset: u64, length: u64) -> Result<Room, StoreError> {
        let range = offset..offset.saturating_add(length);
        let Some(content) = self.content_of(ino)? else {
            let bytes = length.saturating_add(limits::BLOCK_BYTES as u64);
            return Ok(FILE_MADE.plus(Room { bytes, files: 0 }));
        };
        let gaps = gaps(&*content, &range).map_err(StoreError::content("seek", ino))?;
        let bytes = gaps.iter().map(|gap| gap.end - gap.start).sum();
        Ok(Room { bytes, files: 0 })
    }

    /// The room that a metadata operation takes. None, where it may give room back, or replaces what is there.
    pub fn room_for_request(&self, request: &MetaRequest) -> Result<Room, StoreError> {
        let record = |bytes: usize| Room {
            bytes: RECORD_BYTES + bytes as u64,
            files: 0,
        };
        Ok(match request {
            MetaRequest::Create { target, .. } => Room {
                files: FILE_MADE.files,
                ..record(target.len())
            },
            MetaRequest::Link { .. } => record(0),
            MetaRequest::SetXattr { value, .. } => record(value.len()),
            MetaRequest::Allocate {
                ino,
                offset,
                length,
                mode,
                ..
            } if *mode != AllocateMode::PunchHole => self.room_for_write(*ino, *offset, *length)?,
            _ => Room::NONE,
        })
    }

    /// Reserves space for a range of a file. Where the disk has too little, none of it stays reserved.
    pub(super) fn allocate(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        keep_size: bool,
    ) -> Result<(), StoreError> {
        self.change_content_file(ino, "allocate", |content| {
            allocate_whole(content, offset, length, keep_size)
        })
    }

    /// [`Self::allocate`] for an operation that is about to be agreed on: a full disk shows here.
    pub(super) fn reserve_for(&self, ino: Ino, offset: u64, length: u64) -> Result<(), OpError> {
        Ok(self.allocate(ino, offset, length, true)?)
    }
}

/// Reserves all of a range, or nothing: file systems keep what they had reserved when they ran out of space.
fn allocate_whole(
    content: &dyn BackingFile,
    offset: u64,
    length: u64,
    keep_size: bool,
) -> io::Result<()> {
    let range = offset..offset.saturating_add(length);
    let before = content.stat()?.length;
    let gaps = gaps(content, &range)?;
    let beyond = reserved_beyond(content, before)?;
    let allocated = content.allocate(offset, length, keep_size);
    if allocated.is_err()
        && let Err(error) = give_back(content, &gaps, before, &beyond)
    {
        tracing::warn!(%error, "part of a reservation that failed stays");
    }
    allocated
}

/// The space that is reserved beyond the end of a file.
fn reserved_beyond(content: &dyn BackingFile, end: u64) -> io::Result<Vec<Range<u64>>> {
    let mut runs = Vec::new();
    let mut at = end;
    while let Some(run) = content.reserved(at)? {
        at = run.end.max(at + 1);
        runs.push(run);
    }
    Ok(runs)
}

/// Frees what was reserved in the gaps of a file that had `length` bytes, and keeps what was reserved `beyond` it before.
fn give_back(
    content: &dyn BackingFile,
    gaps: &[Range<u64>],
    length: u64,
    beyond: &[Range<u64>],
) -> io::Result<()> {
    for gap in gaps.iter().filter(|gap| gap.start < length) {
        content.punch_hole(gap.start, gap.end.min(length) - gap.start)?;
    }
    if gaps.iter().any(|gap| gap.end > length) || content.stat()?.length != length {
        // Only a cut frees what lies beyond the end.
        content.set_len(length)?;
        for run in beyond {
            content.allocate(run.start, run.end - run.start, true)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use lockstep_lossy::disk::{Disk, DiskOptions};

    const PAGE: u64 = 4096;

    /// A file on a disk of ten pages.
    fn file() -> (Disk, Arc<dyn BackingFile>) {
        let disk = Disk::new(DiskOptions {
            capacity_bytes: 10 * PAGE,
            capacity_files: 10,
        });
        let file = disk.mount().open_or_create("f").unwrap();
        (disk, file)
    }

    fn pages(file: &dyn BackingFile) -> u64 {
        file.stat().unwrap().blocks / 8
    }

    fn ranges(file: &dyn BackingFile, range: Range<u64>) -> Vec<Range<u64>> {
        let gaps = gaps(file, &range).unwrap();
        gaps.iter()
            .map(|gap| gap.start / PAGE..gap.end / PAGE)
            .collect()
    }

    #[test]
    fn gaps_are_what_has_no_space() {
        let (_disk, file) = file();
        assert_eq!(ranges(&*file, 1..PAGE + 1).first(), Some(&(0..2)));
        file.write_at(PAGE, b"x").unwrap();
        file.allocate(3 * PAGE, PAGE, true).unwrap();
        assert_eq!(ranges(&*file, 0..6 * PAGE), [0..1, 2..3, 4..6]);
        assert_eq!(ranges(&*file, PAGE..PAGE + 10), []);
        assert_eq!(ranges(&*file, 3 * PAGE..3 * PAGE + 10), []);
        assert_eq!(ranges(&*file, PAGE + 5..2 * PAGE), []);
    }

    #[test]
    fn a_reservation_that_does_not_fit_leaves_nothing() {
        let (_disk, file) = file();
        file.write_at(2 * PAGE, &[1; 4096]).unwrap();
        for (offset, length, keep_size) in [
            (0, 20 * PAGE, true),
            (0, 20 * PAGE, false),
            (PAGE, 15 << 40, true),
            (5 * PAGE, 20 * PAGE, true),
        ] {
            assert!(allocate_whole(&*file, offset, length, keep_size).is_err());
            assert_eq!((pages(&*file), file.stat().unwrap().length), (1, 3 * PAGE));
        }
        let mut byte = [0];
        file.read_at(2 * PAGE, &mut byte).unwrap();
        assert_eq!(byte, [1]);
        allocate_whole(&*file, 0, 10 * PAGE, true).unwrap();
        assert_eq!(pages(&*file), 10);
    }

    #[test]
    fn what_was_reserved_before_stays_reserved() {
        let (_disk, file) = file();
        file.write_at(0, b"x").unwrap();
        file.allocate(3 * PAGE, 2 * PAGE, true).unwrap();
        assert!(allocate_whole(&*file, 0, 20 * PAGE, true).is_err());
        assert_eq!(pages(&*file), 3);
        assert_eq!(ranges(&*file, 0..6 * PAGE), [1..3, 5..6]);
    }
}
