//! The second look of a deep comparison at content that differs, or does not fit a sum: names the wrong side of each block, and
//! repairs it if that is asked for.
//!
//! The blocks are inspected again on both nodes, under a lock that keeps operations away from them, at most 1 MiB of a file
//! at once: a client waits for no more. The first look may have met a file that just changed.
//!
//! Invariants:
//! - Without an order to repair no byte is changed on either node. Void sums of blocks that both disks have equal are made of
//!   these bytes all the same.
//! - A repair changes blocks and sums by [`DeepCopy`] only, which checks each of them again where it is changed.

use std::ops::Range;

use lockstep_fs::OpError;
use lockstep_repl::checked::{BlockWord, SumsWord};
use lockstep_repl::core::LockSet;
use lockstep_repl::lock::{BlockRange, LockKey, LockMode};
use lockstep_repl::message::{Request, Response};
use lockstep_resync::{Peer, PeerError, ResyncError};
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};
use lockstep_types::{Errno, Hash128, Ino};

use crate::attribution::{BlockEvidence, BlockVerdict, SumFit};
use crate::compare::Comparer;
use crate::deep_copy::{DeepCopy, READ_BLOCKS_MAX, RepairError};
use crate::deep_work::DeepWork;
use crate::report::{DifferenceKind, RepairOutcome};
use crate::side::Side;

/// The size of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most bytes of a file that are locked at once.
const RUN_BYTES: u64 = WRITE_BYTES_MAX as u64;

/// Blocks with one verdict, one after the other.
struct BlockRun {
    offset: u64,
    /// Their hashes on this node.
    hashes: Vec<Hash128>,
    verdict: BlockVerdict,
}

impl Comparer<'_> {
    /// Takes the word of this node's sums about the content that was read since the last call.
    pub(crate) fn take_word(&self) -> SumsWord {
        let taken = self.deep.map(|deep| deep.checked.take());
        taken.unwrap_or_default()
    }

    /// Notes the files of a batch that a node's sums call wrong, and the blocks of which they say nothing.
    pub(crate) fn note_word(&mut self, word: &SumsWord, numbers: &Range<u64>) {
        if self.deep.is_none() {
            return;
        }
        self.report.note_void(word.void_blocks);
        let inodes = word.misfits.iter().chain(&word.void);
        let inside = inodes.filter(|number| numbers.contains(number));
        self.suspects
            .inodes
            .extend(inside.filter_map(|number| Ino::new(*number)));
    }

    /// Looks again at the files of a batch.
    pub(crate) fn look_at_suspects(&mut self) -> Result<(), ResyncError> {
        let done = std::mem::take(&mut self.suspects.done);
        let inodes = std::mem::take(&mut self.suspects.inodes);
        for ino in inodes.difference(&done) {
            self.look_at(*ino, &(0..RUN_BYTES), LockMode::Exclusive)?;
        }
        Ok(())
    }

    /// Looks again at the ranges of a long file. The caller holds no locks.
    pub(crate) fn look_at_ranges(&mut self, ino: Ino) -> Result<(), ResyncError> {
        for range in std::mem::take(&mut self.suspects.ranges) {
            let mut at = range.start;
            while at < range.end {
                let end = at.saturating_add(RUN_BYTES).min(range.end);
                let mode = LockMode::Write(BlockRange::new(at, end - at));
                self.look_at(ino, &(at..end), mode)?;
                at = end;
            }
        }
        Ok(())
    }

    fn look_at(&mut self, ino: Ino, range: &Range<u64>, mode: LockMode) -> Result<(), ResyncError> {
        self.locks.wait_for_turn();
        let locks = LockSet::from_slice(&[(LockKey::File(ino), mode)]);
        self.locks
            .with_locks(locks, &mut || self.attribute(ino, range))
    }

    /// Inspects the blocks of a range of at most 1 MiB on both nodes, and settles those that are not sound. The caller holds the
    /// lock.
    pub(crate) fn attribute(&mut self, ino: Ino, range: &Range<u64>) -> Result<(), ResyncError> {
        let Some(deep) = self.deep else {
            return Ok(());
        };
        let size = self.view.file_times(ino)?.map_or(0, |times| times.size);
        let end = range.end.min(size);
        let count = end.saturating_sub(range.start).div_ceil(BLOCK);
        let (Ok(blocks), Ok(own_count)) = (u32::try_from(count), usize::try_from(count)) else {
            return Ok(());
        };
        if count == 0 {
            return Ok(());
        }
        let (offset, secret) = (range.start, deep.copy.secret());
        let request = Request::InspectBlocks {
            ino,
            offset,
            blocks,
            secret,
        };
        let theirs = self.peer.begin(request, &[]);
        let ours = deep.copy.inspect(ino, offset, own_count, secret);
        let ours = ours.map_err(own_failure)?;
        let Response::Blocks(theirs) = theirs()? else {
            return Err(unexpected("inspect blocks"));
        };
        if theirs.len() != ours.len() {
            return Err(unexpected("inspect blocks"));
        }
        for run in runs(offset, &ours, &theirs) {
            self.settle(deep, ino, &run, end)?;
        }
        Ok(())
    }

    /// Repairs a run of blocks, if that is asked for, and reports the run. Void sums of equal blocks are made without an order: no
    /// byte changes. `end`: the end of the file, or of the range.
    fn settle(
        &mut self,
        deep: DeepWork<'_>,
        ino: Ino,
        run: &BlockRun,
        end: u64,
    ) -> Result<(), ResyncError> {
        let repair = if deep.repairs || run.verdict.adopts() {
            self.repair(deep.copy, ino, run)?
        } else {
            RepairOutcome::NotAsked
        };
        if !run.verdict.is_good() {
            let length = run.hashes.len() as u64 * BLOCK;
            let kind = DifferenceKind::Blocks {
                offset: run.offset,
                length: length.min(end.saturating_sub(run.offset)),
                verdict: run.verdict,
                repair,
            };
            self.report.add_blocks(ino, kind);
        }
        Ok(())
    }

    fn repair(
        &self,
        copy: DeepCopy<'_>,
        ino: Ino,
        run: &BlockRun,
    ) -> Result<RepairOutcome, ResyncError> {
        let (offset, count) = (run.offset, run.hashes.len());
        let outcome = match run.verdict {
            BlockVerdict::Sound => return Ok(RepairOutcome::NotAsked),
            BlockVerdict::Unproved => {
                let ours = of_own(copy.remake(ino, offset, &run.hashes).map(|()| true));
                let theirs = self.order_sums(ino, run)?;
                match ours {
                    failed @ RepairOutcome::Failed { .. } => failed,
                    _ => theirs,
                }
            }
            BlockVerdict::WrongBytes(Side::Here) => {
                let right = fetch_blocks(self.peer, ino, offset, count)?;
                of_own(copy.heal(ino, offset, &right))
            }
            BlockVerdict::WrongBytes(Side::There) => {
                let right = copy.read(ino, offset, count).map_err(own_failure)?;
                self.order(Request::HealBlocks { ino, offset }, &right)?
            }
            BlockVerdict::WrongSum(Side::Here) | BlockVerdict::VoidSum(Side::Here) => {
                let remade = copy.remake(ino, offset, &run.hashes);
                of_own(remade.map(|()| true))
            }
            BlockVerdict::WrongSum(Side::There) | BlockVerdict::VoidSum(Side::There) => {
                self.order_sums(ino, run)?
            }
            BlockVerdict::CopiesDiffer
            | BlockVerdict::NoneKnownRight
            | BlockVerdict::UnknownByVoid => {
                return self.keep(copy, ino, run);
            }
        };
        Ok(outcome)
    }

    /// Has the peer make sums of blocks that have the bytes of this node.
    fn order_sums(&self, ino: Ino, run: &BlockRun) -> Result<RepairOutcome, ResyncError> {
        let request = Request::RemakeSums {
            ino,
            offset: run.offset,
            hashes: run.hashes.clone(),
        };
        self.order(request, &[])
    }

    /// Keeps the versions of both nodes aside.
    fn keep(
        &self,
        copy: DeepCopy<'_>,
        ino: Ino,
        run: &BlockRun,
    ) -> Result<RepairOutcome, ResyncError> {
        let (offset, count) = (run.offset, run.hashes.len());
        let blocks = u32::try_from(count).unwrap_or(u32::MAX);
        let request = Request::KeepBlocks {
            ino,
            offset,
            blocks,
        };
        let theirs = self.order(request, &[])?;
        let ours = of_own(copy.keep(ino, offset, count));
        Ok(match (ours, theirs) {
            (RepairOutcome::Done { kept }, RepairOutcome::Done { kept: too }) => {
                RepairOutcome::Undecided { kept: kept && too }
            }
            (failed @ RepairOutcome::Failed { .. }, _) | (_, failed) => failed,
        })
    }

    /// Has the peer change its copy. A peer that could not do it is no reason to end the comparison.
    fn order(&self, request: Request, payload: &[u8]) -> Result<RepairOutcome, ResyncError> {
        match self.peer.ask(request, payload) {
            Ok(Response::SetAside(kept)) => Ok(RepairOutcome::Done { kept }),
            Ok(_) => Err(unexpected("repair blocks")),
            Err(PeerError::Failed { reason, .. }) => Ok(RepairOutcome::Failed { why: reason.0 }),
            Err(lost) => Err(lost.into()),
        }
    }
}

/// The bytes of blocks on the disk of the peer.
///
/// # Errors
/// If the peer does not tell them.
pub fn fetch_blocks(
    peer: &dyn Peer,
    ino: Ino,
    offset: u64,
    count: usize,
) -> Result<Vec<u8>, PeerError> {
    let mut bytes = Vec::with_capacity(count * BLOCK_BYTES);
    while bytes.len() < count * BLOCK_BYTES {
        let done = bytes.len() / BLOCK_BYTES;
        let next = READ_BLOCKS_MAX.min(count - done);
        let request = Request::ReadBlocks {
            ino,
            offset: offset + bytes.len() as u64,
            blocks: u32::try_from(next).unwrap_or(1),
        };
        match peer.ask(request, &[])? {
            Response::Bytes(more) if more.len() == next * BLOCK_BYTES => bytes.extend(more),
            _ => {
                return Err(PeerError::Unexpected {
                    what: "read blocks",
                });
            }
        }
    }
    Ok(bytes)
}

fn unexpected(what: &'static str) -> ResyncError {
    PeerError::Unexpected { what }.into()
}

/// A failure of this node's disk ends the comparison.
fn own_failure(error: RepairError) -> ResyncError {
    match error {
        RepairError::Store(error) => error.into(),
        _ => OpError::Refused(Errno::Io).into(),
    }
}

fn of_own(repaired: Result<bool, RepairError>) -> RepairOutcome {
    match repaired {
        Ok(kept) => RepairOutcome::Done { kept },
        Err(error) => RepairOutcome::Failed {
            why: error.to_string(),
        },
    }
}

/// The runs of blocks with one verdict, but for sound ones.
fn runs(offset: u64, ours: &[BlockWord], theirs: &[BlockWord]) -> Vec<BlockRun> {
    let mut runs: Vec<BlockRun> = Vec::new();
    for (number, (ours, theirs)) in (0u64..).zip(ours.iter().zip(theirs)) {
        let (at, verdict) = (offset + number * BLOCK, evidence(ours, theirs).verdict());
        if verdict == BlockVerdict::Sound {
            continue;
        }
        match runs.last_mut() {
            Some(run)
                if run.verdict == verdict && run.offset + run.hashes.len() as u64 * BLOCK == at =>
            {
                run.hashes.push(ours.bytes);
            }
            _ => runs.push(BlockRun {
                offset: at,
                hashes: vec![ours.bytes],
                verdict,
            }),
        }
    }
    runs
}

fn evidence(ours: &BlockWord, theirs: &BlockWord) -> BlockEvidence {
    let fit = |word: &BlockWord| match (word.sum, word.fits) {
        (None, _) => SumFit::Void,
        (Some(_), true) => SumFit::Fits,
        (Some(_), false) => SumFit::Misfits,
    };
    BlockEvidence {
        here: fit(ours),
        there: fit(theirs),
        equal_bytes: ours.bytes == theirs.bytes,
        equal_sums: ours.sum == theirs.sum,
    }
}
