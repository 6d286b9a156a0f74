//! The bytes of one file that differ between two moments.
//!
//! A block that was kept since the older moment is compared at both moments. Other blocks are equal up to the size of the older moment. Behind
//! that size the older content counts as zeros, and all bytes that take space now are different: these are not read.

use std::ops::Range;
use std::sync::Arc;

use lockstep_types::backing::BackingFile;
use lockstep_types::limits::BLOCK_BYTES;

use super::entry::{DiffRange, push_range};
use crate::error::StoreError;
use crate::snapshots::packs::touch::CHUNK_BYTES;
use lockstep_types::Ino;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// One end of the comparison.
pub struct FileAt {
    /// The size.
    pub size: u64,
    /// The content; `None` if there is none.
    pub content: Option<Arc<dyn BackingFile>>,
}

impl FileAt {
    /// Reads from an offset; zeros behind the size.
    fn read(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        let left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = left.min(into.len());
        let (within, behind) = into.split_at_mut(length);
        let read = match &self.content {
            Some(content) if length > 0 => content.read_at(offset, within)?,
            _ => 0,
        };
        within.iter_mut().skip(read).for_each(|byte| *byte = 0);
        behind.fill(0);
        Ok(())
    }
}

/// A file at both moments.
pub struct FilePair {
    /// The file.
    pub ino: Ino,
    /// The older moment; `None` if the file was not there.
    pub old: Option<FileAt>,
    /// The newer moment.
    pub new: FileAt,
}

impl FilePair {
    /// The first byte whose difference is told by [`Self::beyond`].
    fn beyond_from(&self) -> u64 {
        let old = self.old.as_ref().map_or(0, |old| old.size);
        old.next_multiple_of(BLOCK)
    }

    /// Compares a chunk, up to the block at which [`Self::beyond`] begins.
    pub fn compare_chunk(
        &self,
        number: u64,
        ranges: &mut Vec<DiffRange>,
    ) -> Result<(), StoreError> {
        let Some(old) = &self.old else {
            return Ok(());
        };
        let first = number.saturating_mul(CHUNK_BYTES);
        let end = first.saturating_add(CHUNK_BYTES);
        let end = end.min(self.new.size).min(self.beyond_from());
        let Some(length) = end.checked_sub(first).filter(|length| *length > 0) else {
            return Ok(());
        };
        let length = usize::try_from(length).unwrap_or(0);
        let [mut before, mut now] = [(); 2].map(|()| vec![0; length]);
        old.read(first, &mut before)
            .and_then(|()| self.new.read(first, &mut now))
            .map_err(StoreError::content("read", self.ino))?;
        let blocks = before.chunks(BLOCK_BYTES).zip(now.chunks(BLOCK_BYTES));
        for ((before, now), start) in blocks.zip((first..).step_by(BLOCK_BYTES)) {
            if before != now {
                let is_zero = now.iter().all(|byte| *byte == 0);
                push_range(ranges, start..start + now.len() as u64, is_zero);
            }
        }
        Ok(())
    }

    /// The next bytes that take space from an offset on, behind the older size; `None` if there are no further ones.
    pub fn beyond(&self, from: u64) -> Result<Option<Range<u64>>, StoreError> {
        let from = from.max(self.beyond_from());
        let Some(content) = self.new.content.as_ref().filter(|_| from < self.new.size) else {
            return Ok(None);
        };
        let seek = || {
            let Some(data) = content.seek_data(from)? else {
                return Ok(None);
            };
            let hole = content.seek_hole(data)?.unwrap_or(self.new.size);
            Ok(Some(data..hole))
        };
        let found = seek().map_err(StoreError::content("seek", self.ino))?;
        let whole = found.map(|data| {
            let start = (data.start / BLOCK * BLOCK).max(from);
            start..data.end.next_multiple_of(BLOCK).min(self.new.size)
        });
        Ok(whole.filter(|data| !data.is_empty()))
    }
}
