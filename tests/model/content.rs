//! The content of one file: blocks that exist and blocks that are holes.

use std::collections::BTreeMap;

use lockstep_driver::client::Seek;
use lockstep_types::Errno;
use lockstep_types::limits::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes by block; what is missing reads as zeros. The size of the file is kept elsewhere, and
/// nothing but zeros lies beyond it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Content {
    /// Allocated space in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64 * (BLOCK / 512)
    }

    /// `length` bytes at `offset`.
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (block, within, at, count) in pieces(offset, length as u64) {
            if let Some(data) = self.blocks.get(&block) {
                bytes[at..at + count].copy_from_slice(&data[within..within + count]);
            }
        }
        bytes
    }

    /// Puts bytes at `offset`.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (block, within, at, count) in pieces(offset, bytes.len() as u64) {
            self.block(block)[within..within + count].copy_from_slice(&bytes[at..at + count]);
        }
    }

    /// Makes the blocks of a range exist.
    pub fn allocate(&mut self, offset: u64, length: u64) {
        for (block, ..) in pieces(offset, length) {
            self.block(block);
        }
    }

    /// Makes a range zeros; whole blocks become holes.
    pub fn punch(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        let whole = offset.div_ceil(BLOCK)..end / BLOCK;
        self.blocks.retain(|block, _| !whole.contains(block));
        let touched = self.blocks.range(offset / BLOCK..=end / BLOCK);
        let touched: Vec<u64> = touched.map(|(block, _)| *block).collect();
        for block in touched {
            let start = offset.max(block * BLOCK) - block * BLOCK;
            let stop = end.min((block + 1) * BLOCK).saturating_sub(block * BLOCK);
            if start < stop {
                self.block(block)[within_block(start)..within_block(stop)].fill(0);
            }
        }
    }

    /// Cuts off everything from `size` on.
    pub fn truncate(&mut self, size: u64) {
        self.punch(size, u64::MAX - size);
    }

    /// `lseek` for data or a hole, in a file of `size` bytes.
    pub fn seek(&self, size: u64, offset: u64, what: Seek) -> Result<u64, Errno> {
        if offset >= size {
            return Err(Errno::NoDevice);
        }
        let first = offset / BLOCK;
        match what {
            Seek::Data => {
                let data = self.blocks.range(first..).next();
                let start = data.map(|(block, _)| offset.max(block * BLOCK));
                start.filter(|start| *start < size).ok_or(Errno::NoDevice)
            }
            Seek::Hole => {
                let mut blocks = first..=size / BLOCK;
                let hole = blocks.find(|block| !self.blocks.contains_key(block));
                Ok(hole.map_or(size, |block| offset.max(block * BLOCK).min(size)))
            }
        }
    }

    fn block(&mut self, block: u64) -> &mut Vec<u8> {
        self.blocks
            .entry(block)
            .or_insert_with(|| vec![0; BLOCK_BYTES])
    }
}

fn within_block(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// The pieces of a range by block: block, start within it, start within the range, length.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let end = offset + length;
    (offset / BLOCK..end.div_ceil(BLOCK)).map(move |block| {
        let start = offset.max(block * BLOCK);
        let stop = end.min((block + 1) * BLOCK);
        let within = within_block(start - block * BLOCK);
        let at = usize::try_from(start - offset).unwrap();
        (block, within, at, within_block(stop - start))
    })
}
