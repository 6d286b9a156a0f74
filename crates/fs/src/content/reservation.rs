//! Reservations of space that are taken whole or not at all (rule P20).
//!
//! A file system keeps the part of a reservation that it had made when it ran out of space. The functions here give
//! this part back. They work on one content file and know nothing of the store.

use std::io;
use std::ops::Range;

use lockstep_types::backing::{BackingFile, Reservations, gaps};
use lockstep_types::limits::FILE_BYTES_MAX;

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
    // No file can be longer, so no write goes beyond this offset.
    Reservations::of(content, end..FILE_BYTES_MAX).collect()
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
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use lockstep_lossy::disk::{Disk, DiskOptions};
    use lockstep_types::backing::{BackingStat, ReservedRuns, parts};

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

    /// A file of many extents: data, a hole, reserved space, and a hole, again and again. Counts the extents at which a
    /// call looks, and answers a few of them for each call, as the kernel does.
    struct Fragmented {
        groups: u64,
        looked_at: AtomicU64,
    }

    const GROUP: u64 = 4 * PAGE;
    const EXTENTS_PER_CALL: u64 = 8;

    impl Fragmented {
        const fn new(groups: u64) -> Self {
            Self {
                groups,
                looked_at: AtomicU64::new(0),
            }
        }

        const fn end(&self) -> u64 {
            self.groups * GROUP
        }

        fn look(&self) {
            self.looked_at.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl BackingFile for Fragmented {
        fn read_at(&self, _offset: u64, _into: &mut [u8]) -> io::Result<usize> {
            unreachable!("no bytes are read")
        }

        fn write_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
            unreachable!("no bytes are written")
        }

        fn set_len(&self, _length: u64) -> io::Result<()> {
            unreachable!("the length stays")
        }

        fn stat(&self) -> io::Result<BackingStat> {
            Ok(BackingStat {
                length: self.end(),
                blocks: 16 * self.groups,
            })
        }

        fn allocate(&self, _offset: u64, _length: u64, _keep_size: bool) -> io::Result<()> {
            Ok(())
        }

        fn punch_hole(&self, _offset: u64, _length: u64) -> io::Result<()> {
            unreachable!("no space is given back")
        }

        fn zero_range(&self, _offset: u64, _length: u64, _keep_size: bool) -> io::Result<()> {
            unreachable!("no range is made zeros")
        }

        fn reserved(&self, range: Range<u64>) -> io::Result<ReservedRuns> {
            let mut runs = Vec::new();
            let mut group = range.start / GROUP;
            for _ in 0..EXTENTS_PER_CALL {
                let start = group * GROUP + 2 * PAGE;
                if group >= self.groups || start >= range.end {
                    let looked_to = range.end;
                    return Ok(ReservedRuns { runs, looked_to });
                }
                self.look();
                runs.push(start.max(range.start)..(start + PAGE).min(range.end));
                group += 1;
            }
            runs.retain(|run| !run.is_empty());
            let looked_to = (group * GROUP).min(range.end);
            Ok(ReservedRuns { runs, looked_to })
        }

        fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
            self.look();
            let in_data = offset % GROUP < PAGE;
            let next = offset.next_multiple_of(GROUP);
            let data = if in_data { offset } else { next };
            Ok(Some(data).filter(|data| *data < self.end()))
        }

        fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
            self.look();
            let in_data = offset % GROUP < PAGE;
            let end = offset / GROUP * GROUP + PAGE;
            Ok(Some(if in_data { end } else { offset }))
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reservation_looks_at_each_extent_of_its_range_a_few_times() {
        const GROUPS: usize = 8000;
        let groups = GROUPS as u64;
        let file = Fragmented::new(groups);
        let gaps = gaps(&file, &(0..file.end())).unwrap();
        assert_eq!(gaps.len(), 2 * GROUPS);
        assert_eq!(gaps[..2], [PAGE..2 * PAGE, 3 * PAGE..GROUP]);
        allocate_whole(&file, 0, file.end(), true).unwrap();
        let looked_at = file.looked_at.load(Ordering::Relaxed);
        assert!(looked_at <= 2 * 4 * groups, "{looked_at}");
    }

    #[test]
    fn a_small_reservation_does_not_look_at_the_rest_of_the_file() {
        let file = Fragmented::new(8000);
        allocate_whole(&file, 5 * PAGE, GROUP, true).unwrap();
        let looked_at = file.looked_at.load(Ordering::Relaxed);
        assert!(looked_at <= 10, "{looked_at}");
    }

    #[test]
    fn each_part_of_a_fragmented_range_has_few_extents() {
        let file = Fragmented::new(8000);
        let range = PAGE + 5..file.end() - 5;
        let found = parts(&file, range.clone()).unwrap();
        assert_eq!(found.len() as u64, 8000 / EXTENTS_PER_CALL);
        let mut after = range.start;
        for part in &found {
            assert_eq!(part.start, after);
            assert!(after == range.start || after % PAGE == 0);
            after = part.end;
        }
        assert_eq!(after, range.end);
        for part in found {
            assert!(part.end - part.start <= EXTENTS_PER_CALL * GROUP);
        }
        assert_eq!(parts(&file, 7..7).unwrap(), []);
    }

    #[test]
    fn all_reserved_runs_are_found_in_parts() {
        let file = Fragmented::new(20);
        let runs = Reservations::of(&file, 0..file.end()).collect::<io::Result<Vec<_>>>();
        let runs = runs.unwrap();
        assert_eq!(runs.len(), 20);
        assert_eq!(runs[19], 19 * GROUP + 2 * PAGE..19 * GROUP + 3 * PAGE);
    }
}
