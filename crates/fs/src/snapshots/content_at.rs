//! The content of a file as a snapshot sees it, to be read.
//!
//! The bytes of a block are the kept ones, or the present ones. The present is read first, and the index after that: a block that
//! changes in between is in the index before it changes.
//!
//! A reader of a snapshot that is deleted meanwhile may read later bytes. So a reader asks at the end whether the snapshot is still
//! alive.

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use lockstep_types::backing::{BackingFile, BackingStat};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Ino, SnapshotId};

use super::bodies::Bodies;
use super::given_up::GivenUpMarks;
use crate::error::StoreError;
use crate::namespace::Namespace;
use crate::namespace::snapshot_list::SnapshotList;
use crate::snapshots::packs::Packs;
use crate::snapshots::packs::touch::{Blocks, CHUNK_BLOCKS, CHUNK_BYTES, FileChunk, KeptBlock};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The places from which a file as of a snapshot is read.
#[derive(Clone)]
pub struct KeptSource {
    /// The snapshots of the store.
    pub snapshots: Arc<SnapshotList>,
    /// The index.
    pub namespace: Arc<Namespace>,
    /// The kept blocks.
    pub packs: Arc<Packs>,
    /// The kept contents of freed files.
    pub bodies: Bodies,
    /// The marks of snapshots that miss something.
    pub given_up: GivenUpMarks,
}

/// See the head of this file.
pub struct ContentAt {
    source: KeptSource,
    ino: Ino,
    /// The snapshot, and the last one whose kept blocks are those of this content.
    ids: RangeInclusive<SnapshotId>,
    /// The size that the snapshot sees.
    size: u64,
    /// The content under the kept blocks; `None` if there is none.
    base: Option<Arc<dyn BackingFile>>,
}

impl ContentAt {
    /// The content of a file as of the first of `ids`.
    pub const fn new(
        source: KeptSource,
        ino: Ino,
        ids: RangeInclusive<SnapshotId>,
        size: u64,
        base: Option<Arc<dyn BackingFile>>,
    ) -> Self {
        Self {
            source,
            ino,
            ids,
            size,
            base,
        }
    }

    fn check_alive(&self) -> io::Result<()> {
        if self.source.snapshots.is_alive(*self.ids.start()) {
            return Ok(());
        }
        Err(io::ErrorKind::StaleNetworkFileHandle.into())
    }

    /// Puts the kept blocks over the present bytes from `offset` on.
    fn overlay(&self, offset: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let end = offset.saturating_add(into.len() as u64);
        let mut from = offset / CHUNK_BYTES;
        while let Some(number) = self.next_chunk(from)?
            && number * CHUNK_BYTES < end
        {
            let first = number * CHUNK_BYTES;
            for (block, kept) in self.find(number, Blocks::ALL)? {
                let at = first + u64::from(block) * BLOCK;
                if at < end && at + BLOCK > offset {
                    self.put(kept, at, offset, into)?;
                }
            }
            from = number + 1;
        }
        Ok(())
    }

    /// The first chunk from `from` on with a kept block.
    fn next_chunk(&self, from: u64) -> Result<Option<u64>, StoreError> {
        let index = self.source.packs.index();
        index.next_chunk(self.ino, from, &self.ids)
    }

    fn find(&self, number: u64, wanted: Blocks) -> Result<Vec<(u32, KeptBlock)>, StoreError> {
        let chunk = FileChunk {
            ino: self.ino,
            number,
        };
        let index = self.source.packs.index();
        index.find(chunk, wanted, self.ids.clone())
    }

    /// Puts the part of the kept block at `at` into a buffer that begins at `offset`.
    fn put(
        &self,
        kept: KeptBlock,
        at: u64,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), StoreError> {
        let mut bytes = [0; BLOCK_BYTES];
        if let KeptBlock::Dense(place, sum) = kept {
            self.source.packs.read(place, sum, &mut bytes)?;
        }
        let distance = |one: u64, other: u64| usize::try_from(one.saturating_sub(other));
        let skip = distance(offset, at).unwrap_or(BLOCK_BYTES);
        let to = distance(at, offset).unwrap_or(usize::MAX);
        let part = bytes.get(skip..).unwrap_or_default();
        let target = into.get_mut(to..).unwrap_or_default();
        let length = part.len().min(target.len());
        let (part, target) = (part.get(..length), target.get_mut(..length));
        if let (Some(part), Some(target)) = (part, target) {
            target.copy_from_slice(part);
        }
        Ok(())
    }

    /// The first kept block with bytes at or behind an offset.
    fn next_dense(&self, offset: u64) -> Result<Option<u64>, StoreError> {
        let mut from = offset / CHUNK_BYTES;
        while let Some(number) = self.next_chunk(from)? {
            let first = number * CHUNK_BYTES;
            let found = self.find(number, Blocks::ALL)?;
            let dense = found
                .iter()
                .filter(|(_, kept)| matches!(kept, KeptBlock::Dense(..)));
            let offsets = dense.map(|(block, _)| first + u64::from(*block) * BLOCK);
            if let Some(next) = offsets.filter(|at| at + BLOCK > offset).min() {
                return Ok(Some(next.max(offset)));
            }
            from = number + 1;
        }
        Ok(None)
    }

    fn is_dense(&self, offset: u64) -> Result<bool, StoreError> {
        let block = u32::try_from(offset / BLOCK % u64::from(CHUNK_BLOCKS)).unwrap_or(0);
        let found = self.find(offset / CHUNK_BYTES, Blocks::range(block, block + 1))?;
        Ok(matches!(found.as_slice(), [(_, KeptBlock::Dense(..))]))
    }
}

/// An error of the store, as one of the disk.
fn as_io(error: StoreError) -> io::Error {
    match error {
        StoreError::Disk { source, .. } => source,
        other => io::Error::other(other),
    }
}

fn read_only<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl BackingFile for ContentAt {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let left = self.size.saturating_sub(offset);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        let into = into.get_mut(..length).unwrap_or_default();
        let read = match &self.base {
            Some(base) => base.read_at(offset, into)?,
            None => 0,
        };
        into.iter_mut().skip(read).for_each(|byte| *byte = 0);
        self.overlay(offset, into).map_err(as_io)?;
        self.check_alive()?;
        Ok(length)
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        read_only()
    }

    fn set_len(&self, _length: u64) -> io::Result<()> {
        read_only()
    }

    /// The space is that of the present content, at most that of the size: the space of kept blocks belongs to the snapshots.
    fn stat(&self) -> io::Result<BackingStat> {
        let present = self.base.as_ref().map(|base| base.stat()).transpose()?;
        let blocks = present.map_or(0, |stat| stat.blocks);
        Ok(BackingStat {
            length: self.size,
            blocks: blocks.min(self.size.div_ceil(512)),
        })
    }

    fn allocate(&self, _offset: u64, _length: u64, _keep_size: bool) -> io::Result<()> {
        read_only()
    }

    fn punch_hole(&self, _offset: u64, _length: u64) -> io::Result<()> {
        read_only()
    }

    fn zero_range(&self, _offset: u64, _length: u64, _keep_size: bool) -> io::Result<()> {
        read_only()
    }

    /// Kept zeros over present data count as data.
    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let present = match &self.base {
            Some(base) => base.seek_data(offset)?,
            None => None,
        };
        let kept = self.next_dense(offset).map_err(as_io)?;
        self.check_alive()?;
        let first = present.into_iter().chain(kept).min();
        Ok(first.filter(|at| *at < self.size))
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        if offset >= self.size {
            return Ok(None);
        }
        let mut at = offset;
        while at < self.size {
            let hole = match &self.base {
                Some(base) => base.seek_hole(at)?.unwrap_or(at),
                None => at,
            };
            if hole > at {
                at = hole;
            } else if self.is_dense(at).map_err(as_io)? {
                at = (at / BLOCK + 1) * BLOCK;
            } else {
                break;
            }
        }
        self.check_alive()?;
        Ok(Some(at.min(self.size)))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
