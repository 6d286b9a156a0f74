//! The content of one file: existing blocks and holes.

use std::collections::BTreeMap;

use lockstep_types::Errno;
use lockstep_types::limits::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes by block. A missing block reads as zeros. All bytes beyond the size are zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Content {
    /// Returns the content of a file that was written at once.
    pub fn of(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.write(0, bytes);
        content
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Allocated space in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64 * (BLOCK / 512)
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.read(0, index(self.size))
    }

    /// Returns `length` bytes at `offset`, or fewer at the end.
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let rest = self.size.saturating_sub(offset);
        let mut bytes = vec![0; index(rest.min(length as u64))];
        for (block, within, at, count) in pieces(offset, bytes.len() as u64) {
            if let Some(data) = self.blocks.get(&block) {
                bytes[at..at + count].copy_from_slice(&data[within..within + count]);
            }
        }
        bytes
    }

    /// Writes bytes at `offset`.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (block, within, at, count) in pieces(offset, bytes.len() as u64) {
            self.block(block)[within..within + count].copy_from_slice(&bytes[at..at + count]);
        }
        self.grow(offset + bytes.len() as u64);
    }

    /// Cuts or grows the file.
    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.punch(size, u64::MAX - size);
        }
        self.size = size;
    }

    /// Grows the file to `end` if it ends before.
    pub fn grow(&mut self, end: u64) {
        self.size = self.size.max(end);
    }

    /// Allocates the blocks of a range.
    pub fn allocate(&mut self, offset: u64, length: u64) {
        for (block, ..) in pieces(offset, length) {
            self.block(block);
        }
    }

    /// Turns a range into zeros, and its whole blocks into holes.
    pub fn punch(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        let whole = offset.div_ceil(BLOCK)..end / BLOCK;
        self.blocks.retain(|block, _| !whole.contains(block));
        for (block, data) in self.blocks.range_mut(offset / BLOCK..=end / BLOCK) {
            let start = offset.max(block * BLOCK) - block * BLOCK;
            let stop = end.min((block + 1) * BLOCK).saturating_sub(block * BLOCK);
            if start < stop {
                data[index(start)..index(stop)].fill(0);
            }
        }
    }

    /// Returns the first offset at or after `offset` that holds data.
    pub fn seek_data(&self, offset: u64) -> Result<u64, Errno> {
        let data = self.blocks.range(offset / BLOCK..).next();
        let start = data.map(|(block, _)| offset.max(block * BLOCK));
        start
            .filter(|start| *start < self.size)
            .ok_or(Errno::NoDevice)
    }

    /// Returns the first offset at or after `offset` in a hole. The end of the file is a hole.
    pub fn seek_hole(&self, offset: u64) -> Result<u64, Errno> {
        if offset >= self.size {
            return Err(Errno::NoDevice);
        }
        let mut blocks = offset / BLOCK..=self.size / BLOCK;
        let hole = blocks.find(|block| !self.blocks.contains_key(block));
        Ok(hole.map_or(self.size, |block| offset.max(block * BLOCK).min(self.size)))
    }

    fn block(&mut self, block: u64) -> &mut Vec<u8> {
        let made = || vec![0; BLOCK_BYTES];
        self.blocks.entry(block).or_insert_with(made)
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// Returns the pieces of a range by block: block, start in the block, start in the range, length.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let end = offset + length;
    (offset / BLOCK..end.div_ceil(BLOCK)).map(move |block| {
        let start = offset.max(block * BLOCK);
        let stop = end.min((block + 1) * BLOCK);
        let within = index(start - block * BLOCK);
        (block, within, index(start - offset), index(stop - start))
    })
}
