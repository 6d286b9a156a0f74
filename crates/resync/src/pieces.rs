//! The pieces of the content of a file. Each piece is compared under a lock of its own.
//!
//! Pieces start at multiples of [`PIECE_BYTES`]. A piece is data of at most that length, or a hole
//! of any length: so the number of requests for a huge sparse file depends on its data only. Holes shorter than a
//! piece are treated as data. The hashes cover whole blocks, and zeros fill up the last block of the file. The locks
//! cover whole blocks, too, so no other bytes can follow in the last block.

use std::ops::Range;

use lockstep_fs::{OpError, StoreView};
use lockstep_repl::lock::{BlockRange, LockKey, LockMode, LockSet};
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};
use lockstep_types::{Hash128, Ino};

use crate::api::ResyncError;
use crate::limits::HASHED_FILE_BYTES_MAX;

/// Bytes of data compared at once.
pub const PIECE_BYTES: u64 = WRITE_BYTES_MAX as u64;

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte; a multiple of [`PIECE_BYTES`].
    pub offset: u64,
    /// Bytes, at least one.
    pub length: u64,
    /// Whether all of it is a hole.
    pub hole: bool,
}

impl Piece {
    /// First byte beyond the piece.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// The bytes of the piece.
    pub const fn range(&self) -> Range<u64> {
        self.offset..self.end()
    }
}

/// The present piece at `offset`; `None` at or beyond `end`.
pub fn piece_at(
    view: &dyn StoreView,
    ino: Ino,
    offset: u64,
    end: u64,
) -> Result<Option<Piece>, OpError> {
    if offset >= end {
        return Ok(None);
    }
    let data = view.next_data(ino, offset)?.unwrap_or(end);
    let data = data.min(end);
    let hole_end = if data == end {
        end
    } else {
        data / PIECE_BYTES * PIECE_BYTES
    };
    let hole = hole_end > offset;
    let piece_end = if hole {
        hole_end
    } else {
        offset.saturating_add(PIECE_BYTES).min(end)
    };
    Ok(Some(Piece {
        offset,
        length: piece_end - offset,
        hole,
    }))
}

/// The piece at `offset` under the lock of `guess`, which covers the piece even after a change; with the size
/// of the file, and the whole blocks of a data piece. `None` when the file is gone or ends before `offset`.
pub fn read(
    view: &dyn StoreView,
    ino: Ino,
    offset: u64,
    guess: &Piece,
) -> Result<Option<(Piece, u64, Vec<u8>)>, ResyncError> {
    let size = view.file_times(ino)?.map_or(0, |facts| facts.size);
    let Some(piece) = piece_at(view, ino, offset, guess.end().min(size))? else {
        return Ok(None);
    };
    let mut data = Vec::new();
    read_piece(view, ino, &piece, &mut data)?;
    Ok(Some((piece, size, data)))
}

/// The locks under which these parts of a file do not change.
pub fn read_locks(ino: Ino, parts: impl IntoIterator<Item = Range<u64>>) -> LockSet {
    let of_part = |part: Range<u64>| BlockRange::new(part.start, part.end - part.start);
    let ranges = parts.into_iter().map(of_part);
    ranges
        .map(|range| (LockKey::File(ino), LockMode::Read(range)))
        .collect()
}

/// Reads a data piece into `buffer` as whole blocks; empties `buffer` for a hole.
fn read_piece(
    view: &dyn StoreView,
    ino: Ino,
    piece: &Piece,
    buffer: &mut Vec<u8>,
) -> Result<(), ResyncError> {
    buffer.clear();
    if !piece.hole {
        let length = usize::try_from(piece.length).unwrap_or(WRITE_BYTES_MAX);
        buffer.resize(length, 0);
        view.read_raw(ino, piece.offset, buffer)?;
        buffer.resize(length.next_multiple_of(BLOCK_BYTES), 0);
    }
    Ok(())
}

/// The hash of a run of whole blocks.
pub fn run_hash(blocks: &[u8]) -> Hash128 {
    Hash128::of(blocks)
}

/// The hashes of whole blocks.
pub fn hashes(blocks: &[u8]) -> Vec<Hash128> {
    blocks.chunks(BLOCK_BYTES).map(Hash128::of).collect()
}

/// The hash of the first `size` bytes of a file; `size` is at most [`HASHED_FILE_BYTES_MAX`].
pub fn whole_file_hash(view: &dyn StoreView, ino: Ino, size: u64) -> Result<Hash128, OpError> {
    let length = usize::try_from(size.min(HASHED_FILE_BYTES_MAX)).unwrap_or(0);
    let mut content = vec![0; length];
    view.read_raw(ino, 0, &mut content)?;
    Ok(Hash128::of(&content))
}
