//! Reading the blocks of a content, and their sum.
//!
//! The sum is that of the blocks that are not zeros, each with its number. So it does not depend on where the file system has holes.

use std::io;

use blake3::{Hash, Hasher};
use lockstep_types::backing::BackingFile;
use lockstep_types::limits::BLOCK_BYTES;

/// Bytes read at a time.
pub(super) const PIECE_BYTES: usize = 1 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Gets the offset and the bytes of a piece of data.
pub(super) type EachPiece<'a, E> = dyn FnMut(u64, &[u8]) -> Result<(), E> + 'a;

/// Why the reading has stopped.
#[derive(Debug)]
pub(super) enum BlocksEnd<E> {
    /// The content cannot be read.
    Read(io::Error),
    /// The caller has stopped.
    Caller(E),
}

/// Calls `each` with offset and bytes of each piece of data of a content of `size` bytes: whole blocks, but for the last one. Returns the sum.
pub(super) fn read_blocks<E>(
    content: &dyn BackingFile,
    size: u64,
    buffer: &mut Vec<u8>,
    each: &mut EachPiece<'_, E>,
) -> Result<Hash, BlocksEnd<E>> {
    let mut hasher = Hasher::new();
    let mut at = 0;
    while let Some((from, to)) = next_data(content, at, size).map_err(BlocksEnd::Read)? {
        at = from;
        while at < to {
            let wanted = usize::try_from(to - at).unwrap_or(PIECE_BYTES);
            buffer.resize(wanted.min(PIECE_BYTES), 0);
            let read = content.read_at(at, buffer).map_err(BlocksEnd::Read)?;
            buffer.get_mut(read..).unwrap_or_default().fill(0);
            add(&mut hasher, at, buffer);
            each(at, buffer).map_err(BlocksEnd::Caller)?;
            at += buffer.len() as u64;
        }
    }
    Ok(hasher.finalize())
}

/// The next range of whole blocks with data, cut at the end of the content.
fn next_data(content: &dyn BackingFile, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let Some(data) = content.seek_data(at)?.filter(|data| *data < size) else {
        return Ok(None);
    };
    let hole = content.seek_hole(data)?.unwrap_or(size).max(data + 1);
    let to = hole.min(size).next_multiple_of(BLOCK).min(size);
    Ok(Some((data - data % BLOCK, to)))
}

fn add(hasher: &mut Hasher, at: u64, piece: &[u8]) {
    for (number, block) in (at / BLOCK..).zip(piece.chunks(BLOCK_BYTES)) {
        if !is_zero(block) {
            hasher.update(&number.to_le_bytes());
            hasher.update(block);
        }
    }
}

/// The runs of blocks of a piece at `at` that are not zeros, each with its offset.
pub(super) fn runs(at: u64, piece: &[u8]) -> Vec<(u64, &[u8])> {
    let mut runs: Vec<(u64, usize, usize)> = Vec::new();
    let mut from = 0;
    for block in piece.chunks(BLOCK_BYTES) {
        let to = from + block.len();
        if !is_zero(block) {
            match runs.last_mut() {
                Some((_, _, end)) if *end == from => *end = to,
                _ => runs.push((at + from as u64, from, to)),
            }
        }
        from = to;
    }
    let bytes = |(offset, from, to)| (offset, piece.get(from..to).unwrap_or_default());
    runs.into_iter().map(bytes).collect()
}

fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use lockstep_lossy::disk::Disk;

    use super::*;

    fn sum_of(content: &dyn BackingFile, size: u64) -> Hash {
        let mut copied = vec![0; usize::try_from(size).unwrap()];
        let mut each = |at: u64, piece: &[u8]| {
            assert_eq!(at % BLOCK, 0);
            for (offset, run) in runs(at, piece) {
                let from = usize::try_from(offset).unwrap();
                copied[from..from + run.len()].copy_from_slice(run);
            }
            Ok::<_, ()>(())
        };
        let sum = read_blocks(content, size, &mut Vec::new(), &mut each).unwrap();
        let mut bytes = vec![0; copied.len()];
        content.read_at(0, &mut bytes).unwrap();
        assert!(bytes == copied, "all bytes that are not zeros are told");
        sum
    }

    #[test]
    fn the_sum_depends_on_the_bytes_and_not_on_the_holes() {
        let disk = Disk::default().mount();
        let (sparse, dense) = (
            disk.open_or_create("sparse").unwrap(),
            disk.open_or_create("dense").unwrap(),
        );
        let size = 3 * PIECE_BYTES as u64 + 100;
        for file in [&sparse, &dense] {
            file.set_len(size).unwrap();
        }
        dense
            .write_at(0, &vec![0; PIECE_BYTES + BLOCK_BYTES])
            .unwrap();
        let empty = sum_of(&*sparse, size);
        assert_eq!(empty, sum_of(&*dense, size));
        let mut sums = vec![empty];
        for at in [0, BLOCK - 1, 10 * BLOCK, size - 1] {
            for file in [&sparse, &dense] {
                file.write_at(at, b"x").unwrap();
            }
            let sum = sum_of(&*sparse, size);
            assert_eq!(sum, sum_of(&*dense, size));
            assert!(!sums.contains(&sum), "{at}");
            sums.push(sum);
        }
    }
}
