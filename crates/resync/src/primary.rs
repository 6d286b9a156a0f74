//! The primary's side of a resync (rule P10).
//!
//! First the namespace ([`namespace`](crate::namespace)), while clients are served by this node alone. Then
//! the content ([`send_content`]): from its beginning every new operation is mirrored.
//!
//! Why comparing each file once is enough. For each file there is one moment, under its exclusive
//! lock, at which no operation on it is under way and every later one is mirrored; at that moment
//! the secondary takes over size and times, and from then on they stay equal by themselves. So do
//! all bytes beyond the size of that moment, because they start as zeros on both nodes and change by
//! mirrored writes only. What is left are the bytes before it: each range is compared and corrected
//! once, under a lock that keeps writes to it away on both nodes; before that it may differ, after
//! it a mirrored write finds both equal and leaves both equal.
//!
//! A file that is made after the image needs nothing: it is made, and written, on both nodes. Its
//! number may be lower than others', but it cannot be in the way; comparing it is harmless.

use std::ops::Range;

use lockstep_fs::store::Facts;
use lockstep_fs::{OpError, Store};
use lockstep_repl::core::LockSet;
use lockstep_repl::lock::{LockKey, LockMode};
use lockstep_repl::message::{FileFacts, Request};
use lockstep_types::deliberate::{Bug, is_on};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Errno, Hash128, Ino, NodeKind};

use crate::pieces::{self, Piece};
use crate::secondary::{SETTLED_HASH_BYTES_MAX, SETTLED_MAX};
use crate::{Locks, Peer, Progress, ResyncError, ask_differing, bits, order};

/// Bytes of content hashed under the exclusive locks of one batch of files; files beyond it are
/// compared range by range.
const BATCH_HASH_BYTES_MAX: u64 = 4 << 20;

/// A file that differs and is not longer than this is sent without comparing its blocks: a
/// question more would take longer.
const UNASKED_BYTES_MAX: u64 = 64 << 10;

/// Makes the content of all regular files equal. Every operation must be mirrored since before.
pub fn send_content(
    store: &Store,
    peer: &dyn Peer,
    locks: &dyn Locks,
    progress: &Progress,
) -> Result<(), ResyncError> {
    store.checkpoint()?;
    // Counted once: files that are made from now on are mirrored from their birth, and the walk
    // must not chase them.
    let census = store.census()?;
    progress.inodes_total.set(census.files);
    progress.inodes_done.set(0);
    progress.bytes_total.set(census.bytes);
    progress.bytes_done.set(0);
    progress.bytes_sent.set(0);
    let sender = Sender {
        store,
        peer,
        locks,
        progress,
    };
    let mut first = 1;
    while first <= census.last {
        first = sender.send_batch(first, census.last)?;
    }
    Ok(())
}

/// A file whose content may differ, and how long it was when its facts were taken over.
struct Suspect {
    ino: Ino,
    size: u64,
    /// Its content was hashed as a whole and does differ.
    certain: bool,
}

/// What sending needs at every step.
struct Sender<'a> {
    store: &'a Store,
    peer: &'a dyn Peer,
    locks: &'a dyn Locks,
    progress: &'a Progress,
}

impl Sender<'_> {
    /// Makes the files among the next inodes equal; returns where to go on.
    fn send_batch(&self, first: u64, last: u64) -> Result<u64, ResyncError> {
        let to = last.saturating_add(1);
        let inodes = self.store.inodes(first, to, SETTLED_MAX)?;
        let Some((highest, _)) = inodes.last() else {
            return Ok(to);
        };
        let files = inodes.iter().filter(|(_, kind)| *kind == NodeKind::File);
        let files: Vec<Ino> = files.map(|(ino, _)| *ino).collect();
        if !files.is_empty() {
            for suspect in self.settle(&files)? {
                self.send_file(&suspect)?;
            }
        }
        self.progress.inodes_done.add(files.len() as u64);
        Ok(highest.get().saturating_add(1))
    }

    /// Has the secondary take over size and times of files; returns those whose content differs,
    /// or may.
    fn settle(&self, files: &[Ino]) -> Result<Vec<Suspect>, ResyncError> {
        let alone = |ino: &Ino| (LockKey::File(*ino), LockMode::Exclusive);
        let locks: LockSet = files.iter().map(alone).collect();
        let mut suspects = Vec::new();
        self.locks.with_locks(locks, &mut || {
            suspects = self.settle_locked(files)?;
            Ok(())
        })?;
        Ok(suspects)
    }

    fn settle_locked(&self, files: &[Ino]) -> Result<Vec<Suspect>, ResyncError> {
        let mut hashed = 0;
        let mut described = Vec::with_capacity(files.len());
        for &ino in files {
            if let Some(facts) = self.checked_facts(ino)? {
                let hash = self.small_hash(ino, facts.size, &mut hashed)?;
                described.push((ino, to_wire(&facts), hash));
            }
        }
        if described.is_empty() {
            return Ok(Vec::new());
        }
        let request = Request::SettleFiles {
            files: described.clone(),
        };
        let differing = ask_differing(self.peer, "take over sizes", request)?;
        self.progress.bytes_done.add(hashed);
        let suspects = described.iter().enumerate();
        Ok(suspects
            .filter(|(number, (_, facts, hash))| {
                facts.size > 0
                    && (hash.is_none() || bits::get(&differing, *number))
                    && !is_on(Bug::ResyncBySize)
            })
            .map(|(_, (ino, facts, hash))| Suspect {
                ino: *ino,
                size: facts.size,
                certain: hash.is_some(),
            })
            .collect())
    }

    /// Facts of a file that still exists. Content that does not fit its record is an error here:
    /// damage must not be carried to the other node.
    fn checked_facts(&self, ino: Ino) -> Result<Option<Facts>, ResyncError> {
        match self.store.read(ino, 0, &mut []) {
            Ok(_) => Ok(self.store.facts(ino)?),
            Err(OpError::Refused(Errno::Stale | Errno::NoEntry)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The hash of a whole file, if it is small and the batch has not hashed enough already.
    fn small_hash(
        &self,
        ino: Ino,
        size: u64,
        hashed: &mut u64,
    ) -> Result<Option<Hash128>, ResyncError> {
        if size > SETTLED_HASH_BYTES_MAX || *hashed + size > BATCH_HASH_BYTES_MAX {
            return Ok(None);
        }
        *hashed += size;
        Ok(Some(whole_hash(self.store, ino, size)?))
    }

    fn send_file(&self, suspect: &Suspect) -> Result<(), ResyncError> {
        let unasked = suspect.certain && suspect.size <= UNASKED_BYTES_MAX;
        let ino = suspect.ino;
        pieces::walk(
            self.store,
            self.locks,
            ino,
            suspect.size,
            &mut |piece, data| {
                if !suspect.certain {
                    self.progress.bytes_done.add(piece.length);
                }
                if piece.hole {
                    return self.send_hole(ino, piece.offset, piece.length);
                }
                let blocks = data.len() / BLOCK_BYTES;
                let differing = if unasked {
                    std::iter::once(0..blocks).collect()
                } else {
                    self.compare(ino, &piece, data)?
                };
                self.send_runs(ino, &piece, data, &differing)
            },
        )
    }

    /// The runs of blocks that differ.
    fn compare(
        &self,
        ino: Ino,
        piece: &Piece,
        data: &[u8],
    ) -> Result<Vec<Range<usize>>, ResyncError> {
        let request = Request::CompareBlocks {
            ino,
            offset: piece.offset,
            hashes: pieces::hashes(data),
        };
        let differing = ask_differing(self.peer, "compare blocks", request)?;
        Ok(bits::runs(&differing, data.len() / BLOCK_BYTES))
    }

    fn send_runs(
        &self,
        ino: Ino,
        piece: &Piece,
        data: &[u8],
        runs: &[Range<usize>],
    ) -> Result<(), ResyncError> {
        // What fills up the last block is no part of the file.
        let length = usize::try_from(piece.length).unwrap_or(usize::MAX);
        for run in runs {
            let end = (run.end * BLOCK_BYTES).min(length);
            let Some(bytes) = data.get(run.start * BLOCK_BYTES..end) else {
                continue;
            };
            let offset = piece.offset + (run.start * BLOCK_BYTES) as u64;
            self.send_run(ino, offset, bytes)?;
        }
        Ok(())
    }

    fn send_run(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), ResyncError> {
        if bytes.iter().all(|&byte| byte == 0) {
            return self.send_hole(ino, offset, bytes.len() as u64);
        }
        self.progress.bytes_sent.add(bytes.len() as u64);
        let request = Request::WriteBlocks { ino, offset };
        order(self.peer, "write blocks", request, bytes)
    }

    fn send_hole(&self, ino: Ino, offset: u64, length: u64) -> Result<(), ResyncError> {
        let request = Request::CompareHole {
            ino,
            offset,
            length,
            punch: true,
        };
        ask_differing(self.peer, "punch a hole", request).map(drop)
    }
}

/// The hash of the first `size` bytes of a file; `size` is at most [`SETTLED_HASH_BYTES_MAX`].
pub fn whole_hash(store: &Store, ino: Ino, size: u64) -> Result<Hash128, OpError> {
    let length = usize::try_from(size.min(SETTLED_HASH_BYTES_MAX)).unwrap_or(0);
    let mut content = vec![0; length];
    store.read_raw(ino, 0, &mut content)?;
    Ok(Hash128::of(&content))
}

pub(crate) const fn to_wire(facts: &Facts) -> FileFacts {
    FileFacts {
        size: facts.size,
        mtime: facts.mtime,
        ctime: facts.ctime,
        last_write: facts.last_write,
    }
}
