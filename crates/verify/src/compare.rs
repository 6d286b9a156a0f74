//! The primary's side of a comparison.
//!
//! Inodes are walked by their numbers, in batches, each under the exclusive locks of its inodes, so
//! that no operation on them is under way on either node. An inode that is being made or freed just
//! then may be on one node only; so whatever differs is looked at again before it counts.
//!
//! Content too long to be part of a digest is compared range by range, each under a lock that keeps
//! writes to it away.

use std::collections::BTreeSet;
use std::ops::Range;

use lockstep_fs::Store;
use lockstep_repl::core::LockSet;
use lockstep_repl::lock::{LockKey, LockMode};
use lockstep_repl::message::{Request, Response};
use lockstep_resync::pieces::{self, Piece};
use lockstep_resync::{Locks, Peer, PeerError, Progress, ResyncError, ask_differing, bits};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Hash128, Ino, NodeKind};

use crate::digest::{self, CONTENT_BYTES_MAX, Digests, Limits};
use crate::paths;
use crate::report::Report;

/// What is compared under one set of locks.
const BATCH: Limits = Limits {
    inodes: 64,
    bytes: 4 << 20,
};

/// Compares everything the two nodes hold; finds all differences there are.
pub fn compare(
    store: &Store,
    peer: &dyn Peer,
    locks: &dyn Locks,
    progress: &Progress,
) -> Result<Report, ResyncError> {
    let census = store.replica().census()?;
    progress.inodes_total.set(census.inodes);
    progress.inodes_done.set(0);
    progress.bytes_total.set(census.bytes);
    progress.bytes_done.set(0);
    let mut comparer = Comparer {
        store,
        peer,
        locks,
        progress,
        report: Report::default(),
    };
    let mut from = Ino::ROOT.get();
    while from < u64::MAX {
        from = comparer.compare_batch(from)?;
    }
    let mut report = comparer.report;
    paths::name(store, &mut report)?;
    Ok(report)
}

/// What comparing needs at every step.
pub(crate) struct Comparer<'a> {
    pub(crate) store: &'a Store,
    pub(crate) peer: &'a dyn Peer,
    pub(crate) locks: &'a dyn Locks,
    pub(crate) progress: &'a Progress,
    pub(crate) report: Report,
}

/// What a batch found.
#[derive(Default)]
struct Batch {
    /// First number beyond it.
    to: u64,
    /// Inodes here.
    ours: Vec<(u64, Hash128)>,
    /// Inodes there.
    theirs: Vec<(u64, Hash128)>,
}

impl Comparer<'_> {
    /// Compares the next inodes; returns where to go on.
    fn compare_batch(&mut self, from: u64) -> Result<u64, ResyncError> {
        let inodes = self.store.replica().inodes(from, u64::MAX, BATCH.inodes)?;
        // Beyond our last inode the peer may have others.
        let to = match inodes.last() {
            Some((last, _)) if inodes.len() == BATCH.inodes => last.get().saturating_add(1),
            _ => u64::MAX,
        };
        let alone = |&(ino, _): &(Ino, NodeKind)| (LockKey::File(ino), LockMode::Exclusive);
        let locks: LockSet = inodes.iter().map(alone).collect();
        let mut batch = Batch::default();
        self.locks.with_locks(locks, &mut || {
            batch = self.digest_batch(from, to)?;
            Ok(())
        })?;
        self.explain(differing(&batch))?;
        let kinds = inodes.iter().filter(|(_, kind)| *kind == NodeKind::File);
        for (ino, _) in kinds.filter(|(ino, _)| ino.get() < batch.to) {
            self.compare_long(*ino, &batch)?;
        }
        self.count_inodes(batch.ours.len() as u64);
        Ok(batch.to)
    }

    fn digest_batch(&mut self, from: u64, to: u64) -> Result<Batch, ResyncError> {
        let mut ours = digest::digests(self.store, from, to, BATCH)?;
        let theirs = self.ask_digests(from, ours.to)?;
        ours.list.retain(|(number, _)| *number < theirs.to);
        self.count_bytes(ours.bytes);
        Ok(Batch {
            to: theirs.to,
            ours: ours.list,
            theirs: theirs.list,
        })
    }

    /// The peer's digests, in order and inside the range it says.
    pub(crate) fn ask_digests(&self, from: u64, to: u64) -> Result<Digests, ResyncError> {
        let answer = self.peer.ask(Request::Digests { from, to }, &[])?;
        let what = "digest inodes";
        let Response::Digests {
            to: covered,
            digests,
        } = answer
        else {
            return Err(PeerError::Unexpected { what }.into());
        };
        let inside = digests.iter().all(|(n, _)| (from..covered).contains(n));
        let sorted = digests.is_sorted_by(|(one, _), (next, _)| one < next);
        if covered <= from || covered > to || !inside || !sorted {
            return Err(PeerError::Unexpected { what }.into());
        }
        Ok(Digests {
            to: covered,
            list: digests,
            bytes: 0,
        })
    }

    /// Compares content that is too long to be part of the digest.
    fn compare_long(&mut self, ino: Ino, batch: &Batch) -> Result<(), ResyncError> {
        let size = self
            .store
            .replica()
            .file_times(ino)?
            .map_or(0, |facts| facts.size);
        let there = batch.theirs.iter().any(|(number, _)| *number == ino.get());
        if size <= CONTENT_BYTES_MAX || !there {
            return Ok(());
        }
        let (store, locks) = (self.store, self.locks);
        pieces::walk(store, locks, ino, size, &mut |piece, data| {
            self.compare_piece(ino, &piece, data)?;
            self.count_bytes(piece.length);
            Ok(())
        })
    }

    /// Compares a part of a file whose locks are held.
    pub(crate) fn compare_piece(
        &mut self,
        ino: Ino,
        piece: &Piece,
        data: &[u8],
    ) -> Result<(), ResyncError> {
        if piece.hole {
            if self.hole_differs(ino, piece)? {
                self.report.add_content(ino, piece.offset, piece.length);
            }
            return Ok(());
        }
        for run in self.differing_blocks(ino, piece.offset, data)? {
            let start = piece.offset + (run.start * BLOCK_BYTES) as u64;
            let end = piece.offset + (run.end * BLOCK_BYTES) as u64;
            let length = end.min(piece.end()).saturating_sub(start);
            self.report.add_content(ino, start, length);
        }
        Ok(())
    }

    fn hole_differs(&self, ino: Ino, piece: &Piece) -> Result<bool, ResyncError> {
        let request = Request::CompareHole {
            ino,
            offset: piece.offset,
            length: piece.length,
            punch: false,
        };
        let differing = ask_differing(self.peer, "look for zeros", request)?;
        Ok(bits::get(&differing, 0))
    }

    fn differing_blocks(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> Result<Vec<Range<usize>>, ResyncError> {
        let request = Request::CompareBlocks {
            ino,
            offset,
            hashes: pieces::hashes(data),
            space: false,
        };
        let differing = ask_differing(self.peer, "compare blocks", request)?;
        Ok(bits::runs(&differing, data.len() / BLOCK_BYTES))
    }

    fn count_bytes(&mut self, bytes: u64) {
        self.report.bytes = self.report.bytes.saturating_add(bytes);
        self.progress.bytes_done.add(bytes);
    }

    fn count_inodes(&mut self, inodes: u64) {
        self.report.inodes += inodes;
        self.progress.inodes_done.add(inodes);
    }
}

/// The inodes that are not the same in both lists, in order.
fn differing(batch: &Batch) -> BTreeSet<Ino> {
    let ours: BTreeSet<_> = batch.ours.iter().map(flat).collect();
    let theirs: BTreeSet<_> = batch.theirs.iter().map(flat).collect();
    ours.symmetric_difference(&theirs)
        .filter_map(|(number, _)| Ino::new(*number))
        .collect()
}

fn flat((number, digest): &(u64, Hash128)) -> (u64, [u8; 16]) {
    (*number, digest.0)
}
