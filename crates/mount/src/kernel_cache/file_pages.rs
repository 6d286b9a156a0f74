//! Pages of files, as numbers: which pages a drop of the kernel's caches is for, and which ones it leaves out.
//!
//! This file makes no call.

use std::collections::BTreeMap;
use std::ops::Range;

use lockstep_types::Ino;
use lockstep_types::limits::BLOCK_BYTES;
use rangemap::RangeSet;

/// The bytes of a file of any size.
const WHOLE_FILE: Range<u64> = 0..u64::MAX;

/// Pages of several files with consecutive numbers: of each file the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePages {
    /// The numbers of the inodes.
    pub inodes: Range<u64>,
    /// The bytes of each file. The end [`u64::MAX`] is the end of the file.
    pub bytes: Range<u64>,
}

/// A read of the kernel that fills pages of its cache. The kernel holds these pages locked until the read is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageRead {
    ino: Ino,
    /// The bytes of whole pages.
    bytes: Range<u64>,
}

impl FilePages {
    /// All pages of files.
    pub const fn all(inodes: Range<u64>) -> Self {
        Self {
            inodes,
            bytes: WHOLE_FILE,
        }
    }

    /// Pages of one file.
    pub const fn of(ino: Ino, bytes: Range<u64>) -> Self {
        let first = ino.get();
        Self {
            inodes: first..first.saturating_add(1),
            bytes,
        }
    }

    /// Whether a read fills some of these pages.
    pub fn meets(&self, read: &PageRead) -> bool {
        self.inodes.contains(&read.ino.get())
            && self.bytes.start < read.bytes.end
            && read.bytes.start < self.bytes.end
    }

    /// The pages that none of the reads fills.
    pub fn around(self, reads: &[PageRead]) -> Vec<Self> {
        let mut files: BTreeMap<Ino, RangeSet<u64>> = BTreeMap::new();
        for read in reads.iter().filter(|read| self.meets(read)) {
            let file = files.entry(read.ino).or_default();
            file.insert(read.bytes.clone());
        }
        let mut parts = Vec::new();
        let mut rest = self.inodes.clone();
        for (ino, read) in files {
            parts.push(self.for_inodes(rest.start..ino.get()));
            let gaps = read.gaps(&self.bytes);
            parts.extend(gaps.map(|bytes| Self::of(ino, bytes)));
            rest.start = ino.get().saturating_add(1);
        }
        parts.push(self.for_inodes(rest));
        parts.retain(|part| !part.inodes.is_empty());
        parts
    }

    fn for_inodes(&self, inodes: Range<u64>) -> Self {
        Self {
            inodes,
            bytes: self.bytes.clone(),
        }
    }
}

impl PageRead {
    /// A read of some bytes. It fills whole pages.
    pub fn new(ino: Ino, bytes: &Range<u64>) -> Self {
        Self {
            ino,
            bytes: pages_of(bytes),
        }
    }
}

/// The bytes of the whole pages that a range touches.
pub(crate) fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    let page = BLOCK_BYTES as u64;
    let end = bytes.end.div_ceil(page).saturating_mul(page);
    bytes.start / page * page..end
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = BLOCK_BYTES as u64;

    fn read(ino: u64, pages: Range<u64>) -> PageRead {
        let bytes = pages.start * PAGE..pages.end * PAGE;
        PageRead::new(Ino::new(ino).unwrap(), &bytes)
    }

    fn part(inodes: Range<u64>, bytes: Range<u64>) -> FilePages {
        FilePages { inodes, bytes }
    }

    #[test]
    fn pages_that_no_read_fills_stay_together() {
        let files = FilePages::all(3..9);
        let elsewhere = [read(2, 0..1), read(9, 0..1)];
        assert_eq!(files.clone().around(&elsewhere), [files]);
        let middle = part(5..6, 4 * PAGE..8 * PAGE);
        let beside = [read(5, 3..4), read(5, 8..9)];
        assert_eq!(middle.clone().around(&beside), [middle]);
    }

    #[test]
    fn a_read_parts_its_file_from_the_others() {
        let parts = FilePages::all(3..9).around(&[read(5, 2..4)]);
        let expected = [
            FilePages::all(3..5),
            part(5..6, 0..2 * PAGE),
            part(5..6, 4 * PAGE..u64::MAX),
            FilePages::all(6..9),
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn reads_of_the_first_and_of_the_last_file_leave_no_empty_part() {
        let parts = FilePages::all(3..5).around(&[read(4, 0..1), read(3, 0..2), read(3, 2..3)]);
        let expected = [part(3..4, 3 * PAGE..u64::MAX), part(4..5, PAGE..u64::MAX)];
        assert_eq!(parts, expected);
        assert_eq!(part(3..4, PAGE..2 * PAGE).around(&[read(3, 0..9)]), []);
    }

    #[test]
    fn a_read_fills_whole_pages() {
        let ino = Ino::new(3).unwrap();
        let inside = PageRead::new(ino, &(PAGE + 1..PAGE + 2));
        assert_eq!(inside, read(3, 1..2));
        assert!(!part(3..4, 0..PAGE).meets(&inside));
        assert!(part(3..4, 2 * PAGE - 1..3 * PAGE).meets(&inside));
    }
}
