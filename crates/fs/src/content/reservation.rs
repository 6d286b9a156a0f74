//! Reservations of space that are taken whole or not at all (rule P20).
//!
//! A file system keeps the part of a reservation that it had made when it ran out of space. The functions here give
//! this part back. They work on one content file and know nothing of the store.

use std::io;
use std::ops::Range;

use lockstep_types::backing::{BackingFile, gaps};

/// Reserves all of a range, or nothing.
pub fn allocate_whole(
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

/// The runs of space reserved beyond the end of a file.
fn reserved_beyond(content: &dyn BackingFile, end: u64) -> io::Result<Vec<Range<u64>>> {
    let mut runs = Vec::new();
    let mut at = end;
    while let Some(run) = content.reserved(at)? {
        at = run.end.max(at + 1);
        runs.push(run);
    }
    Ok(runs)
}

/// Frees the space reserved in the gaps of a file that had `length` bytes. The runs `beyond` the file, which were
/// reserved before, stay reserved.
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
        // Only a cut frees space beyond the end.
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
    fn gaps_are_ranges_without_space() {
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
    fn earlier_reservations_stay() {
        let (_disk, file) = file();
        file.write_at(0, b"x").unwrap();
        file.allocate(3 * PAGE, 2 * PAGE, true).unwrap();
        assert!(allocate_whole(&*file, 0, 20 * PAGE, true).is_err());
        assert_eq!(pages(&*file), 3);
        assert_eq!(ranges(&*file, 0..6 * PAGE), [1..3, 5..6]);
    }
}
