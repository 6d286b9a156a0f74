//! The requests by which the secondary changes its copy of a file in a resync: bytes, holes and reserved space.
//!
//! The caller holds the locks of the bytes until the secondary has answered.

use std::collections::VecDeque;
use std::ops::Range;

use lockstep_fs::StoreView;
use lockstep_repl::message::{ComparePurpose, Request};
use lockstep_types::Ino;
use lockstep_types::limits::BLOCK_BYTES;

use super::jobs::CHANGES_MAX;
use crate::api::{Peer, PendingAnswer, ResyncError};
use crate::bits;
use crate::pieces::Piece;
use crate::progress::JobProgress;

/// Most bytes of one request.
const PART_BYTES: usize = 256 << 10;

/// See the head of this file.
#[derive(Clone, Copy)]
pub(super) struct ContentChanges<'a> {
    /// The content that the secondary gets.
    pub(super) view: &'a dyn StoreView,
    pub(super) peer: &'a dyn Peer,
    pub(super) progress: &'a JobProgress,
}

impl<'a> ContentChanges<'a> {
    /// Sends runs of blocks, in parts: names of clients go over the same way. At most [`CHANGES_MAX`] parts are under way.
    pub(super) fn write_runs(
        self,
        ino: Ino,
        piece: &Piece,
        data: &[u8],
        runs: &[Range<usize>],
    ) -> Result<VecDeque<PendingAnswer<'a>>, ResyncError> {
        // The zeros that fill up the last block are no part of the file.
        let length = usize::try_from(piece.length).unwrap_or(usize::MAX);
        let mut changes: VecDeque<PendingAnswer<'a>> = VecDeque::new();
        for run in runs {
            let end = (run.end * BLOCK_BYTES).min(length);
            let bytes = data.get(run.start * BLOCK_BYTES..end);
            let mut offset = piece.offset + (run.start * BLOCK_BYTES) as u64;
            for part in bytes.into_iter().flat_map(parts) {
                wait_for_room(&mut changes)?;
                changes.push_back(self.write_part(ino, offset, part)?);
                offset += part.len() as u64;
            }
        }
        Ok(changes)
    }

    fn write_part(
        self,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
    ) -> Result<PendingAnswer<'a>, ResyncError> {
        let length = bytes.len() as u64;
        if is_zero(bytes) {
            let data = self.view.next_data(ino, offset)?;
            // A later write over these blocks needs no new room on this node. The peer therefore reserves room, too.
            let is_written = data.is_some_and(|data| data < offset + length);
            return Ok(if is_written {
                self.reserve(ino, vec![(offset, length)], true)
            } else {
                self.punch(ino, offset, length)
            });
        }
        self.progress.bytes_sent.add(length);
        let request = Request::WriteBlocks { ino, offset };
        Ok(self.peer.begin(request, bytes))
    }

    /// Has space reserved. `zero`: the ranges have zeros, and other bytes there are overwritten.
    pub(super) fn reserve(
        self,
        ino: Ino,
        ranges: Vec<(u64, u64)>,
        zero: bool,
    ) -> PendingAnswer<'a> {
        self.peer.begin(Request::Reserve { ino, ranges, zero }, &[])
    }

    /// Has a hole made.
    pub(super) fn punch(self, ino: Ino, offset: u64, length: u64) -> PendingAnswer<'a> {
        let request = Request::CompareHole {
            ino,
            offset,
            length,
            purpose: ComparePurpose::Resync,
        };
        self.peer.begin(request, &[])
    }
}

/// The runs of different blocks; each run has zero blocks only or no zero block.
pub(super) fn uniform_runs(differing: &[u8], data: &[u8]) -> Vec<Range<usize>> {
    let zeros: Vec<bool> = data
        .chunks(BLOCK_BYTES)
        .map(|block| block.iter().all(|&byte| byte == 0))
        .collect();
    let runs_of = |zero: bool| {
        let wanted = zeros.iter().enumerate();
        let wanted = wanted.map(|(number, is)| *is == zero && bits::get(differing, number));
        bits::runs(&bits::pack(wanted), zeros.len())
    };
    let mut runs = [runs_of(false), runs_of(true)].concat();
    runs.sort_unstable_by_key(|run| run.start);
    runs
}

/// The parts of the bytes of a run, each of which is one request. Zeros go as their length: they are one part.
fn parts(run: &[u8]) -> impl Iterator<Item = &[u8]> {
    let part = if is_zero(run) { run.len() } else { PART_BYTES };
    run.chunks(part.max(1))
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Waits until fewer than [`CHANGES_MAX`] changes are under way.
pub(super) fn wait_for_room(changes: &mut VecDeque<PendingAnswer<'_>>) -> Result<(), ResyncError> {
    if changes.len() >= CHANGES_MAX
        && let Some(oldest) = changes.pop_front()
    {
        oldest()?;
    }
    Ok(())
}
