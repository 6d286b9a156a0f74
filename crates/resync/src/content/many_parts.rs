//! The changed parts of a file of a delta. One request compares many of them, by the sums of their blocks: changes often lie in many
//! short parts, and most of a changed part is equal. Blocks with kept sums are not read on either node. Bytes are read where
//! a sum is void, and where the copies differ.
//!
//! The caller holds a lock of each part until the secondary has answered. Writes of clients between the parts wait for nothing.

use std::ops::Range;

use lockstep_fs::{OpError, StoreView};
use lockstep_repl::core::LockSet;
use lockstep_repl::message::Request;
use lockstep_sums::SumKey;
use lockstep_types::Ino;
use lockstep_types::limits::BLOCK_BYTES;

use super::changes::{FileBytes, all_uniform_runs, bytes_of_runs};
use crate::api::ResyncError;
use crate::bits;
use crate::limits::RANGES_MAX;
use crate::pieces::{self, PIECE_BYTES, Piece};
use crate::summed_content::{SummedContent, ToldSums};
use crate::suspect::Suspect;

/// Most bytes of the parts of one request.
const BYTES_MAX: u64 = PIECE_BYTES;

/// The bytes of a file that may differ, and that one request may compare. Never empty.
pub(super) struct PartsAhead {
    runs: Vec<Range<u64>>,
}

impl PartsAhead {
    /// Those that come next; `None` when the rest of the file is equal.
    pub(super) fn of(suspect: &Suspect) -> Option<Self> {
        let runs = suspect.next_runs(BYTES_MAX, RANGES_MAX);
        (!runs.is_empty()).then_some(Self { runs })
    }

    /// Number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.end - run.start).sum()
    }

    /// The locks under which the parts do not change.
    pub(super) fn locks(&self, ino: Ino) -> LockSet {
        pieces::read_locks(ino, self.runs.iter().cloned())
    }

    /// The present pieces, and the size of the file. A hole is the only piece, or none. No piece: the file is gone, or ends before.
    pub(super) fn pieces(
        &self,
        view: &dyn StoreView,
        ino: Ino,
    ) -> Result<(Vec<Piece>, u64), OpError> {
        let size = view.file_times(ino)?.map_or(0, |facts| facts.size);
        let mut found: Vec<Piece> = Vec::new();
        for run in &self.runs {
            let mut at = run.start;
            while let Some(piece) = pieces::piece_at(view, ino, at, run.end.min(size))? {
                if piece.hole && !found.is_empty() {
                    return Ok((found, size));
                }
                found.push(piece);
                if piece.hole {
                    return Ok((found, size));
                }
                at = piece.end();
            }
        }
        Ok((found, size))
    }
}

/// A piece of a file, with the sums that the secondary is told.
pub(super) struct ToldPiece {
    pub(super) piece: Piece,
    told: ToldSums,
}

impl ToldPiece {
    /// Pieces of a file, which its locks keep as they are.
    pub(super) fn all(
        ours: SummedContent<'_>,
        key: &SumKey,
        ino: Ino,
        pieces: &[Piece],
    ) -> Result<Vec<Self>, OpError> {
        let kept = pieces.iter().map(|piece| {
            let length = usize::try_from(piece.length).unwrap_or(usize::MAX);
            (*piece, ours.keeps(ino, piece.offset, length))
        });
        // The disk hears of all pieces before the first one is read.
        let kept: Vec<_> = kept.collect();
        let told = kept.into_iter().map(|(piece, kept)| {
            let told = ours.tell(key, ino, kept)?;
            Ok(Self { piece, told })
        });
        told.collect()
    }

    /// Number of bytes read.
    pub(super) fn bytes_read(pieces: &[Self]) -> u64 {
        pieces.iter().map(|piece| piece.told.bytes_read()).sum()
    }

    /// The question about pieces.
    pub(super) fn question(ino: Ino, secret: u64, pieces: &[Self]) -> Request {
        let blocks = |told: &ToldSums| u32::try_from(told.sums.len()).unwrap_or(u32::MAX);
        let runs = pieces.iter().map(|it| (it.piece.offset, blocks(&it.told)));
        let sums = pieces.iter().flat_map(|it| &it.told.sums);
        Request::CompareSums {
            ino,
            secret,
            runs: runs.collect(),
            sums: sums.map(|sum| sum.get()).collect(),
        }
    }

    /// The bytes of all blocks that differ, by runs of blocks. Makes void sums of the other blocks.
    pub(super) fn differing_bytes(
        ours: SummedContent<'_>,
        ino: Ino,
        pieces: &[Self],
        answer: &[u8],
    ) -> Result<Vec<(u64, Vec<u8>)>, ResyncError> {
        let (mut ranges, mut first) = (Vec::new(), 0);
        for ToldPiece { piece, told } in pieces {
            let blocks = told.sums.len();
            let differing = (first..first + blocks).map(|number| bits::get(answer, number));
            let differing: Vec<bool> = differing.collect();
            first += blocks;
            told.adopt_equal(ours, ino, &differing);
            for run in bits::runs(&bits::pack(differing), blocks) {
                let start = piece.offset + (run.start * BLOCK_BYTES) as u64;
                let end = piece.offset + (run.end * BLOCK_BYTES) as u64;
                ranges.push(start..end.min(piece.end()));
            }
        }
        ours.will_read(ino, ranges.iter().cloned());
        let bytes = ranges.into_iter().map(|range| {
            let length = usize::try_from(range.end - range.start).unwrap_or(0);
            let mut read = vec![0; length];
            ours.view.read_raw(ino, range.start, &mut read)?;
            Ok((range.start, read))
        });
        bytes.collect()
    }
}

/// Runs of bytes, each of which is cut into runs with zeros only and runs without a block of zeros.
pub(super) fn uniform_bytes(all: &[(u64, Vec<u8>)]) -> impl Iterator<Item = FileBytes<'_>> {
    all.iter().flat_map(|(offset, bytes)| {
        let runs = all_uniform_runs(bytes);
        let cut: Vec<FileBytes<'_>> =
            bytes_of_runs((*offset, bytes), bytes.len() as u64, &runs).collect();
        cut
    })
}
