//! The comparison of content that is too long for a digest, in pieces.
//!
//! Several pieces are under way, so that both nodes read at the same time. Each piece is under a lock of its own that keeps writes away.
//! The comparison waits for no lock while it holds others: otherwise a client with the wanted lock could wait for a held one.

use std::collections::VecDeque;
use std::ops::Range;

use lockstep_repl::message::{ComparePurpose, Request, Response};
use lockstep_resync::pieces::{self, Piece};
use lockstep_resync::{LockClaim, PeerError, PendingAnswer, ResyncError, bits};
use lockstep_types::Ino;
use lockstep_types::limits::BLOCK_BYTES;

use crate::compare::Comparer;
use crate::deep_work::DeepWork;

/// Most pieces of a file under way, and so locked against writes.
const UNDER_WAY_MAX: usize = 4;

/// A piece that the peer compares.
struct ComparedPiece<'a> {
    /// Held until the answer is there.
    _claim: Box<dyn LockClaim + 'a>,
    piece: Piece,
    /// Whether a sum of this node asks for a second look.
    is_suspicious: bool,
    answer: PendingAnswer<'a>,
}

impl<'a> Comparer<'a> {
    /// Compares bytes of a file. Ends early when the file is gone or has become shorter. The bytes begin with a block.
    pub(crate) fn compare_long(&mut self, ino: Ino, bytes: Range<u64>) -> Result<(), ResyncError> {
        let locks = self.locks;
        let (mut under_way, mut at) = (VecDeque::new(), bytes.start);
        while let Some(guess) = pieces::piece_at(self.view, ino, at, bytes.end)? {
            let is_full = under_way.len() >= UNDER_WAY_MAX;
            self.finish(ino, &mut under_way, usize::from(is_full))?;
            if !self.suspects.ranges.is_empty() {
                self.finish(ino, &mut under_way, UNDER_WAY_MAX)?;
                self.look_at_ranges(ino)?;
            }
            if !locks.is_turn() {
                self.finish(ino, &mut under_way, UNDER_WAY_MAX)?;
                locks.wait_for_turn();
            }
            let mut claim = locks.claim(pieces::read_locks(ino, [guess.range()]))?;
            if !claim.is_held() {
                let finished = self.finish(ino, &mut under_way, UNDER_WAY_MAX);
                // The pieces end first: a claim can be given back only once it is granted.
                under_way.clear();
                finished?;
                claim.wait()?;
            }
            let Some((piece, size_now, data)) = pieces::read(self.view, ino, at, &guess)? else {
                break;
            };
            locks.note_read(data.len() as u64);
            let is_suspicious = self.check_piece(ino, &piece);
            let answer = self.begin_piece(ino, &piece, &data);
            at = piece.end();
            under_way.push_back(ComparedPiece {
                _claim: claim,
                piece,
                is_suspicious,
                answer,
            });
            if at >= size_now {
                break;
            }
        }
        self.finish(ino, &mut under_way, UNDER_WAY_MAX)?;
        self.look_at_ranges(ino)
    }

    /// Whether a sum of this node says that a piece that was just read needs a second look.
    fn check_piece(&mut self, ino: Ino, piece: &Piece) -> bool {
        let Some(deep) = self.deep else {
            return false;
        };
        if piece.hole {
            deep.checked.check_hole(ino, &piece.range());
        }
        let word = deep.checked.take();
        self.report.note_void(word.void_blocks);
        DeepWork::is_suspicious(&word)
    }

    /// Waits for the answers about the oldest pieces.
    fn finish(
        &mut self,
        ino: Ino,
        under_way: &mut VecDeque<ComparedPiece<'a>>,
        count: usize,
    ) -> Result<(), ResyncError> {
        for _ in 0..count.min(under_way.len()) {
            if let Some(ComparedPiece {
                piece,
                answer,
                is_suspicious,
                ..
            }) = under_way.pop_front()
            {
                self.note_answer(ino, &piece, answer()?)?;
                self.count_bytes(piece.length);
                if is_suspicious {
                    self.suspect(&piece);
                }
            }
        }
        Ok(())
    }

    /// Compares a piece of a file. The caller holds the locks.
    pub(crate) fn compare_piece(
        &mut self,
        ino: Ino,
        piece: &Piece,
        data: &[u8],
    ) -> Result<(), ResyncError> {
        let answer = self.begin_piece(ino, piece, data);
        self.note_answer(ino, piece, answer()?)
    }

    /// Asks the peer about a piece. A hole has no data.
    fn begin_piece(&self, ino: Ino, piece: &Piece, data: &[u8]) -> PendingAnswer<'a> {
        let purpose = ComparePurpose::Verify(self.source());
        let offset = piece.offset;
        let request = if piece.hole {
            Request::CompareHole {
                ino,
                offset,
                length: piece.length,
                purpose,
            }
        } else {
            Request::CompareBlocks {
                ino,
                offset,
                hashes: pieces::hashes(data),
                purpose,
            }
        };
        self.peer.begin(request, &[])
    }

    /// Both nodes look again at a piece, once it is no longer locked.
    fn suspect(&mut self, piece: &Piece) {
        let range = piece.range();
        if self.suspects.ranges.last() != Some(&range) {
            self.suspects.ranges.push(range);
        }
    }

    fn note_answer(
        &mut self,
        ino: Ino,
        piece: &Piece,
        answer: Response,
    ) -> Result<(), ResyncError> {
        let differing = match (self.deep, answer) {
            (None, Response::Differing(differing)) => differing,
            (Some(_), Response::Checked { differing, sums }) => {
                self.report.note_void(sums.void_blocks);
                if differing.iter().any(|bits| *bits != 0) || DeepWork::is_suspicious(&sums) {
                    self.suspect(piece);
                }
                return Ok(());
            }
            _ => {
                let what = "compare a piece of a file";
                return Err(PeerError::Unexpected { what }.into());
            }
        };
        if piece.hole {
            if bits::get(&differing, 0) {
                self.report.add_content(ino, piece.offset, piece.length);
            }
            return Ok(());
        }
        let blocks = usize::try_from(piece.length).unwrap_or(usize::MAX);
        for run in bits::runs(&differing, blocks.div_ceil(BLOCK_BYTES)) {
            let start = piece.offset + (run.start * BLOCK_BYTES) as u64;
            let end = piece.offset + (run.end * BLOCK_BYTES) as u64;
            let length = end.min(piece.end()).saturating_sub(start);
            self.report.add_content(ino, start, length);
        }
        Ok(())
    }
}
