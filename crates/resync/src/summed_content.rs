//! The sums of a node's own content in a resync (rule P32): their word about bytes that go over, and void sums that are made of
//! bytes which both nodes have.
//!
//! The caller holds the locks of the bytes, or answers a primary that does.
//!
//! Invariants:
//! - A sum is made of bytes only after both nodes were found to have them, and never while a sum of the primary says that they
//!   are wrong: a flipped bit would get a sum on the secondary.
//! - A sum that is not void stays as it is.

use lockstep_fs::StoreView;
use lockstep_fs::store::{KeptSum, SumsAccess};
use lockstep_types::Ino;
use lockstep_types::limits::BLOCK_BYTES;

use crate::limits::HASHED_FILE_BYTES_MAX;

/// The content that a view shows, with its sums.
#[derive(Clone, Copy)]
pub(crate) struct SummedContent<'a> {
    pub view: &'a dyn StoreView,
    pub sums: SumsAccess<'a>,
}

impl SummedContent<'_> {
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
