//! The parts of a transfer of content that are under way, each under locks of its own.

use std::collections::VecDeque;

use lockstep_fs::store::ChangedContent;
use lockstep_types::Ino;

use super::changes::CHANGES_MAX;
use super::many_parts::ToldPiece;
use crate::api::{LockClaim, PendingAnswer};
use crate::described::DescribedFile;
use crate::pieces::Piece;
use crate::suspect::Suspect;

/// Most requests under way. The secondary takes 64 at once, and other threads of the primary ask, too.
pub(super) const REQUESTS_MAX: usize = 48;

/// The cost of a compared piece.
pub(super) const PIECE_COST: JobCost = JobCost {
    requests: CHANGES_MAX,
    bytes: 0,
};

/// The cost of a batch of files whose size and times the secondary takes over: few files are locked at a time.
pub(super) const TIMES_COST: JobCost = JobCost {
    requests: REQUESTS_MAX / 4,
    bytes: 0,
};

/// A batch of files whose size and times the secondary takes over.
pub(super) struct TimesBatch {
    pub(super) described: Vec<DescribedFile>,
    /// Number of bytes read.
    pub(super) read: u64,
    /// The files with reserved space.
    pub(super) reserved: Vec<Ino>,
    /// The bytes that may differ, of the files of a delta.
    pub(super) changed: ChangedContent,
}

/// A request under way, with the data for its answer.
pub(super) enum JobStep<'a> {
    /// The secondary takes over size and times of files.
    SettingTimes(TimesBatch, PendingAnswer<'a>),
    /// The secondary compares a piece as a whole.
    ComparingRun(ChangedPart, Vec<u8>, PendingAnswer<'a>),
    /// The secondary compares the blocks of a piece.
    Comparing(ChangedPart, Vec<u8>, PendingAnswer<'a>),
    /// The secondary compares the sums of the blocks of some pieces.
    ComparingSums(ChangedPart, Vec<ToldPiece>, PendingAnswer<'a>),
    /// The secondary writes, reserves space or punches holes.
    Changing(ChangedPart, VecDeque<PendingAnswer<'a>>),
}

/// A part of a file that the secondary makes equal.
pub(super) struct ChangedPart {
    pub(super) ino: Ino,
    /// Its bytes, in order; none: reserved space.
    pub(super) pieces: Vec<Piece>,
    /// Bytes that count for the progress.
    pub(super) counted: u64,
    /// Bytes of the pieces, by their offsets, once no comparison needs them. Void sums are made of them.
    pub(super) data: Vec<(u64, Vec<u8>)>,
}

impl ChangedPart {
    /// The part with the bytes of its only piece, which zeros fill up to whole blocks. The zeros are no content: a mirrored
    /// write may have made the file longer since the piece was cut.
    pub(super) fn with_data(self, mut data: Vec<u8>) -> Self {
        let first = self.pieces.first();
        let with_offset = first.map(|piece| {
            data.truncate(usize::try_from(piece.length).unwrap_or(usize::MAX));
            (piece.offset, data)
        });
        Self {
            data: with_offset.into_iter().collect(),
            ..self
        }
    }
}

/// A part of the work that is under way, under locks of its own.
pub(super) struct ContentJob<'a> {
    pub(super) claim: Box<dyn LockClaim + 'a>,
    pub(super) step: JobStep<'a>,
    pub(super) cost: JobCost,
}

/// Requests and locked bytes of a job.
#[derive(Clone, Copy)]
pub(super) struct JobCost {
    pub(super) requests: usize,
    pub(super) bytes: u64,
}

/// The cost of a piece of a file.
pub(super) const fn cost_of(suspect: &Suspect, piece: &Piece) -> JobCost {
    let bytes = if piece.hole { 0 } else { piece.length };
    let requests = if piece.hole || suspect.goes_whole() {
        1
    } else {
        CHANGES_MAX
    };
    JobCost { requests, bytes }
}
