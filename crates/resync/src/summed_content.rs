//! The sums of a node's own content in a resync (rule P32): their word about bytes that go over, and void sums that are made of
//! bytes which both nodes have.
//!
//! The caller holds the locks of the bytes, or answers a primary that does.
//!
//! Invariants:
//! - A sum is made of bytes only after both nodes were found to have them, and never while a sum of the primary says that they
//!   are wrong: a flipped bit would get a sum on the secondary.
//! - A sum that is not void stays as it is.

use std::ops::Range;

use lockstep_fs::store::{KeptSum, SumsAccess};
use lockstep_fs::{OpError, StoreView};
use lockstep_sums::{BlockSum, SumKey};
use lockstep_types::Ino;
use lockstep_types::limits::BLOCK_BYTES;

use crate::bits;
use crate::limits::HASHED_FILE_BYTES_MAX;

/// The content that a view shows, with its sums.
#[derive(Clone, Copy)]
pub(crate) struct SummedContent<'a> {
    pub view: &'a dyn StoreView,
    pub sums: SumsAccess<'a>,
}

/// The sums that a node keeps of blocks of a file that follow each other. A void one is `None`.
pub(crate) struct KeptSums {
    offset: u64,
    /// Bytes of the blocks. The last one may be shorter than a block.
    length: usize,
    kept: Vec<Option<BlockSum>>,
}

impl KeptSums {
    /// The bytes of each run of blocks with void sums.
    fn void_bytes(&self) -> impl Iterator<Item = Range<u64>> {
        let void = bits::pack(self.kept.iter().map(Option::is_none));
        let (offset, length) = (self.offset, self.length);
        let runs = bits::runs(&void, self.kept.len());
        runs.into_iter().map(move |run| {
            let end = (run.end * BLOCK_BYTES).min(length);
            offset + (run.start * BLOCK_BYTES) as u64..offset + end as u64
        })
    }
}

/// The sums of blocks of a file that follow each other, as the node tells them to the other one.
pub(crate) struct ToldSums {
    offset: u64,
    /// The sums that the node keeps, and for a void one the sum of the bytes.
    pub sums: Vec<BlockSum>,
    /// The bytes of each run of void blocks, with the offset of its first block.
    read: Vec<(u64, Vec<u8>)>,
}

impl ToldSums {
    /// Number of bytes read.
    pub fn bytes_read(&self) -> u64 {
        self.read.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Makes void sums of the blocks that are equal on both nodes.
    pub fn adopt_equal(&self, ours: SummedContent<'_>, ino: Ino, differing: &[bool]) {
        for (offset, bytes) in &self.read {
            let first = (offset - self.offset) / BLOCK_BYTES as u64;
            let first = usize::try_from(first).unwrap_or(usize::MAX);
            let differing = differing.get(first..).unwrap_or_default();
            ours.adopt_equal(ino, *offset, (bytes, differing));
        }
    }
}

impl SummedContent<'_> {
    /// The kept sums of the blocks of `length` bytes from the begin of a block on. The disk may begin to read the blocks whose sums are
    /// void.
    pub fn keeps(self, ino: Ino, offset: u64, length: usize) -> KeptSums {
        let count = length.div_ceil(BLOCK_BYTES);
        let first = offset / BLOCK_BYTES as u64;
        let kept = self.sums.blocks(ino, first, count as u64);
        // Sums that cannot be read say nothing.
        let kept = kept.unwrap_or_else(|_| vec![None; count]);
        let kept = KeptSums {
            offset,
            length,
            kept,
        };
        self.will_read(ino, kept.void_bytes());
        kept
    }

    /// The disk may begin to read these bytes of a file.
    pub fn will_read(self, ino: Ino, ranges: impl Iterator<Item = Range<u64>>) {
        let mut ranges = ranges.peekable();
        if ranges.peek().is_none() {
            return;
        }
        if let Ok(Some(content)) = self.view.content(ino) {
            ranges.for_each(|range| content.will_read(range));
        }
    }

    /// The sums that this node tells the other one. Reads the blocks whose sums are void, and no other ones.
    pub fn tell(self, key: &SumKey, ino: Ino, kept: KeptSums) -> Result<ToldSums, OpError> {
        let mut read = Vec::new();
        for bytes in kept.void_bytes() {
            let length = usize::try_from(bytes.end - bytes.start).unwrap_or(0);
            let mut void = vec![0; length];
            self.view.read_raw(ino, bytes.start, &mut void)?;
            read.push((bytes.start, void));
        }
        let KeptSums { offset, kept, .. } = kept;
        let mut sums: Vec<BlockSum> = kept.into_iter().map(Option::unwrap_or_default).collect();
        for (start, void) in &read {
            let made = void.chunks(BLOCK_BYTES).map(|block| key.block(block));
            let first =
                usize::try_from((start - offset) / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
            for (sum, made) in sums.iter_mut().skip(first).zip(made) {
                *sum = made;
            }
        }
        Ok(ToldSums { offset, sums, read })
    }

    /// Whether no sum says that bytes are wrong. They begin with a block, and end with one or with the file. Void sums say nothing;
    /// sums that cannot be read are no witness.
    pub fn accept(self, ino: Ino, offset: u64, bytes: &[u8]) -> bool {
        let Some(key) = self.sums.key() else {
            return true;
        };
        let blocks = bytes.chunks(BLOCK_BYTES);
        let first = offset / BLOCK_BYTES as u64;
        let Ok(sums) = self.sums.blocks(ino, first, blocks.len() as u64) else {
            return false;
        };
        let fits = |(sum, block)| sum == key.block(block);
        let known = sums.into_iter().zip(blocks);
        known
            .filter_map(|(sum, block)| Some((sum?, block)))
            .all(fits)
    }

    /// Both nodes have these bytes: void sums are made of them. Bytes behind the end of the file do not count. A store that cannot
    /// take a sum leaves it void.
    pub fn adopt(self, ino: Ino, offset: u64, bytes: &[u8]) {
        let blocks = bytes.len().div_ceil(BLOCK_BYTES) as u64;
        let sums = self.sums.blocks(ino, offset / BLOCK_BYTES as u64, blocks);
        if sums.is_ok_and(|sums| sums.iter().all(Option::is_some)) {
            return;
        }
        let size = self.view.file_times(ino).ok().flatten();
        let left = size.map_or(0, |times| times.size.saturating_sub(offset));
        let inside = usize::try_from(left).unwrap_or(usize::MAX);
        let inside = bytes.get(..inside).unwrap_or(bytes);
        let _void_if_failed = self.sums.adopt(ino, offset, inside);
    }

    /// The same for the blocks of some bytes that are equal on both nodes.
    pub fn adopt_equal(self, ino: Ino, offset: u64, (bytes, differing): (&[u8], &[bool])) {
        let blocks = bytes.len().div_ceil(BLOCK_BYTES);
        let equal = bits::pack(differing.iter().take(blocks).map(|differs| !differs));
        for run in bits::runs(&equal, blocks) {
            let start = run.start * BLOCK_BYTES;
            let equal = bytes.get(start..(run.end * BLOCK_BYTES).min(bytes.len()));
            self.adopt(ino, offset + start as u64, equal.unwrap_or_default());
        }
    }

    /// The same for all of a short file.
    pub fn adopt_file(self, ino: Ino, size: u64) {
        let is_whole = |kept: KeptSum| kept.void_blocks == 0;
        if size > HASHED_FILE_BYTES_MAX || self.sums.file(ino).is_ok_and(is_whole) {
            return;
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        if self.view.read_raw(ino, 0, &mut bytes).is_ok() {
            self.adopt(ino, 0, &bytes);
        }
    }
}
