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
//! Several pieces and batches of files are under way at a time, each under locks of its own, so that the time
//! of a round trip is not paid for each. They are few, as clients wait for what is locked. None is waited
//! for while locks are held here: or a client that has them could wait for these.
//!
//! A file that is made after the image needs nothing: it is made, and written, on both nodes. Its
//! number may be lower than others', but it cannot be in the way; comparing it is harmless.

use std::collections::VecDeque;
use std::ops::Range;

use lockstep_fs::store::Facts;
use lockstep_fs::{OpError, Store};
use lockstep_repl::core::LockSet;
use lockstep_repl::lock::{LockKey, LockMode};
use lockstep_repl::message::{FileFacts, Request, Response};
use lockstep_types::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, Hash128, Ino, NodeKind};
use smallvec::smallvec;

use crate::pieces::{self, Piece};
use crate::secondary::{RESERVED_MAX, SETTLED_HASH_BYTES_MAX, SETTLED_MAX};
use crate::{Asked, Claim, Locks, Peer, PeerError, Progress, ResyncError, bits};

/// Bytes of content hashed under the exclusive locks of one batch of files; files beyond it are
/// compared range by range.
const BATCH_HASH_BYTES_MAX: u64 = 4 << 20;

/// A file that differs and is not longer than this is sent without comparing its blocks: a
/// question more would take longer.
const UNASKED_BYTES_MAX: u64 = 64 << 10;

/// Most questions under way. The secondary takes 64 at once, and others ask, too.
const QUESTIONS_MAX: usize = 48;

/// Most bytes of content under way, and so locked against writes.
const BYTES_MAX: u64 = 4 << 20;

/// Most changes of one piece under way.
const CHANGES_MAX: usize = 8;

/// A piece that is asked about.
const PIECE_LOAD: Load = Load {
    questions: CHANGES_MAX,
    bytes: 0,
};

/// A batch of files whose size and times are taken over: so that few of them are locked at a time.
const SETTLE_LOAD: Load = Load {
    questions: QUESTIONS_MAX / 4,
    bytes: 0,
};

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
        next: 1,
        last: census.last,
        suspects: VecDeque::new(),
        reserved: VecDeque::new(),
        jobs: VecDeque::new(),
        load: Load {
            questions: 0,
            bytes: 0,
        },
    };
    sender.run()
}

/// A file whose content may differ, and how long it was when its facts were taken over.
struct Suspect {
    ino: Ino,
    size: u64,
    /// Its content was hashed as a whole and does differ.
    certain: bool,
    /// Before this it is equal, or made so.
    next: u64,
}

impl Suspect {
    /// Whether it is sent without asking what differs.
    const fn is_unasked(&self) -> bool {
        self.certain && self.size <= UNASKED_BYTES_MAX
    }
}

/// Files described to the secondary: inode, facts and, for small ones, the hash of their content.
type Described = Vec<(Ino, FileFacts, Option<Hash128>)>;

/// What is under way, and what comes of its answer.
enum Step<'a> {
    /// The secondary takes over size and times of files; so many bytes were hashed, and these files have
    /// reserved space.
    Settling(Described, u64, Vec<Ino>, Asked<'a>),
    /// It says which blocks of a piece differ.
    Comparing(Ino, Piece, Vec<u8>, Asked<'a>),
    /// It writes, or punches.
    Changing(VecDeque<Asked<'a>>),
}

/// A part of the work that is under way, under locks of its own.
struct Job<'a> {
    claim: Box<dyn Claim + 'a>,
    step: Step<'a>,
    load: Load,
}

/// What a part of the work takes of what may be under way.
#[derive(Clone, Copy)]
struct Load {
    questions: usize,
    bytes: u64,
}

/// What sending needs at every step.
struct Sender<'a> {
    store: &'a Store,
    peer: &'a dyn Peer,
    locks: &'a dyn Locks,
    progress: &'a Progress,
    /// The inode to go on with, and the last one.
    next: u64,
    last: u64,
    suspects: VecDeque<Suspect>,
    /// Files with reserved space, for when their content is equal.
    reserved: VecDeque<Ino>,
    /// In the order of their last questions, in which the secondary answers.
    jobs: VecDeque<Job<'a>>,
    load: Load,
}

impl<'a> Sender<'a> {
    /// Makes all files equal.
    fn run(mut self) -> Result<(), ResyncError> {
        loop {
            if let Some(suspect) = self.suspects.pop_front() {
                self.send_piece(suspect)?;
            } else if let Some(ino) = self.reserved.pop_front() {
                self.send_reserved(ino)?;
            } else if !self.settle_batch()? && !self.finish_oldest()? {
                return Ok(());
            }
        }
    }

    /// Waits until there is room for more under way.
    fn make_room(&mut self, load: Load) -> Result<(), ResyncError> {
        while self.load.questions + load.questions > QUESTIONS_MAX
            || self.load.bytes + load.bytes > BYTES_MAX
        {
            if !self.finish_oldest()? {
                break;
            }
        }
        Ok(())
    }

    /// Takes locks. Whoever has them may wait for those that are held here, so these are given back first.
    fn claim(&mut self, locks: LockSet) -> Result<Box<dyn Claim + 'a>, ResyncError> {
        let mut claim = self.locks.claim(locks)?;
        if !claim.is_held() {
            if let Err(error) = self.finish_all() {
                // Before the claim is given back, for which it has to be granted.
                self.jobs.clear();
                return Err(error);
            }
            claim.wait()?;
        }
        Ok(claim)
    }

    fn finish_all(&mut self) -> Result<(), ResyncError> {
        while self.finish_oldest()? {}
        Ok(())
    }

    fn push(&mut self, claim: Box<dyn Claim + 'a>, load: Load, step: Step<'a>) {
        self.load.questions += load.questions;
        self.load.bytes += load.bytes;
        self.jobs.push_back(Job { claim, step, load });
    }

    /// Waits for the oldest answer, and does what comes of it; `false` when there is none to come.
    fn finish_oldest(&mut self) -> Result<bool, ResyncError> {
        let Some(job) = self.jobs.pop_front() else {
            return Ok(false);
        };
        self.load.questions -= job.load.questions;
        self.load.bytes -= job.load.bytes;
        match job.step {
            Step::Settling(described, hashed, reserved, answer) => {
                let differing = differing("take over sizes", answer()?)?;
                self.progress.bytes_done.add(hashed);
                self.progress.inodes_done.add(described.len() as u64);
                self.suspect(&described, &differing);
                self.reserved.extend(reserved);
            }
            Step::Comparing(ino, piece, data, answer) => {
                let differing = differing("compare blocks", answer()?)?;
                let runs = runs_alike(&differing, &data);
                let changes = self.send_runs(ino, &piece, &data, &runs)?;
                self.push(job.claim, job.load, Step::Changing(changes));
            }
            Step::Changing(answers) => {
                for answer in answers {
                    answer()?;
                }
            }
        }
        Ok(true)
    }

    /// Has the secondary take over size and times of the next files; `false` when there are no more.
    fn settle_batch(&mut self) -> Result<bool, ResyncError> {
        if self.next > self.last {
            return Ok(false);
        }
        let to = self.last.saturating_add(1);
        let inodes = self.store.inodes(self.next, to, SETTLED_MAX)?;
        let highest = inodes.last().map(|(ino, _)| ino.get());
        self.next = highest.map_or(to, |highest| highest.saturating_add(1));
        let files = inodes.iter().filter(|(_, kind)| *kind == NodeKind::File);
        let files: Vec<Ino> = files.map(|(ino, _)| *ino).collect();
        if !files.is_empty() {
            self.settle(&files)?;
        }
        Ok(true)
    }

    fn settle(&mut self, files: &[Ino]) -> Result<(), ResyncError> {
        self.make_room(SETTLE_LOAD)?;
        let alone = |ino: &Ino| (LockKey::File(*ino), LockMode::Exclusive);
        let claim = self.claim(files.iter().map(alone).collect())?;
        let (described, hashed) = self.describe(files)?;
        let mut reserved = Vec::new();
        for (ino, ..) in &described {
            if self.store.next_reserved(*ino, 0)?.is_some() {
                reserved.push(*ino);
            }
        }
        // Those that are gone meanwhile are done.
        let gone = files.len() - described.len();
        self.progress.inodes_done.add(gone as u64);
        if described.is_empty() {
            return Ok(());
        }
        let request = Request::SettleFiles {
            files: described.clone(),
        };
        let answer = self.peer.begin(request, &[]);
        let step = Step::Settling(described, hashed, reserved, answer);
        self.push(claim, SETTLE_LOAD, step);
        Ok(())
    }

    /// What the secondary is to know of files that still exist, and how many bytes were hashed for it.
    fn describe(&self, files: &[Ino]) -> Result<(Described, u64), ResyncError> {
        let mut hashed = 0;
        let mut described = Vec::with_capacity(files.len());
        for &ino in files {
            if let Some(facts) = self.checked_facts(ino)? {
                let hash = self.small_hash(ino, facts.size, &mut hashed)?;
                described.push((ino, to_wire(&facts), hash));
            }
        }
        Ok((described, hashed))
    }

    /// Notes the files whose content differs, or may.
    fn suspect(&mut self, described: &Described, differing: &[u8]) {
        if is_active(Mutant::ResyncBySize) {
            return;
        }
        for (number, (ino, facts, hash)) in described.iter().enumerate() {
            if facts.size > 0 && (hash.is_none() || bits::get(differing, number)) {
                self.suspects.push_back(Suspect {
                    ino: *ino,
                    size: facts.size,
                    certain: hash.is_some(),
                    next: 0,
                });
            }
        }
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

    /// Makes the next piece of a file equal, if it still has one.
    fn send_piece(&mut self, mut suspect: Suspect) -> Result<(), ResyncError> {
        let ino = suspect.ino;
        let Some(guess) = pieces::piece_at(self.store, ino, suspect.next, suspect.size)? else {
            return Ok(());
        };
        let load = load_of(&suspect, &guess);
        self.make_room(load)?;
        let claim = self.claim(pieces::read_lock(ino, &guess))?;
        let Some((piece, size, data)) = pieces::read(self.store, ino, suspect.next, &guess)? else {
            return Ok(());
        };
        if !suspect.certain {
            self.progress.bytes_done.add(piece.length);
        }
        let step = self.begin_piece(&suspect, piece, data)?;
        self.push(claim, load, step);
        suspect.next = piece.end();
        if suspect.next < size {
            self.suspects.push_front(suspect);
        }
        Ok(())
    }

    fn begin_piece(
        &self,
        suspect: &Suspect,
        piece: Piece,
        data: Vec<u8>,
    ) -> Result<Step<'a>, ResyncError> {
        let (ino, offset) = (suspect.ino, piece.offset);
        if piece.hole {
            let hole = self.send_hole(ino, offset, piece.length);
            return Ok(Step::Changing(VecDeque::from([hole])));
        }
        if suspect.is_unasked() {
            let whole = 0..data.len() / BLOCK_BYTES;
            let changes = self.send_runs(ino, &piece, &data, std::slice::from_ref(&whole))?;
            return Ok(Step::Changing(changes));
        }
        let hashes = pieces::hashes(&data);
        let request = Request::CompareBlocks {
            ino,
            offset,
            hashes,
            space: true,
        };
        let answer = self.peer.begin(request, &[]);
        Ok(Step::Comparing(ino, piece, data, answer))
    }

    /// Sends runs of blocks. Of these, [`CHANGES_MAX`] are under way at most.
    fn send_runs(
        &self,
        ino: Ino,
        piece: &Piece,
        data: &[u8],
        runs: &[Range<usize>],
    ) -> Result<VecDeque<Asked<'a>>, ResyncError> {
        // What fills up the last block is no part of the file.
        let length = usize::try_from(piece.length).unwrap_or(usize::MAX);
        let mut changes: VecDeque<Asked<'a>> = VecDeque::new();
        for run in runs {
            let end = (run.end * BLOCK_BYTES).min(length);
            let Some(bytes) = data.get(run.start * BLOCK_BYTES..end) else {
                continue;
            };
            wait_for_room(&mut changes)?;
            let offset = piece.offset + (run.start * BLOCK_BYTES) as u64;
            changes.push_back(self.send_run(ino, offset, bytes)?);
        }
        Ok(changes)
    }

    fn send_run(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<Asked<'a>, ResyncError> {
        let length = bytes.len() as u64;
        if bytes.iter().all(|&byte| byte == 0) {
            let data = self.store.next_data(ino, offset)?;
            // What was written here, or part of it, needs no room when it is written over.
            let is_written = data.is_some_and(|data| data < offset + length);
            return Ok(if is_written {
                self.reserve(ino, vec![(offset, length)], true)
            } else {
                self.send_hole(ino, offset, length)
            });
        }
        self.progress.bytes_sent.add(bytes.len() as u64);
        let request = Request::WriteBlocks { ino, offset };
        Ok(self.peer.begin(request, bytes))
    }

    fn reserve(&self, ino: Ino, ranges: Vec<(u64, u64)>, zero: bool) -> Asked<'a> {
        self.peer.begin(Request::Reserve { ino, ranges, zero }, &[])
    }

    /// Has the secondary reserve the space that is reserved here, of a file whose content is equal.
    fn send_reserved(&mut self, ino: Ino) -> Result<(), ResyncError> {
        self.make_room(PIECE_LOAD)?;
        // Whatever is under way for this file is over when this is held.
        let claim = self.claim(smallvec![(LockKey::File(ino), LockMode::Exclusive)])?;
        let (mut changes, mut at) = (VecDeque::new(), 0);
        while self.store.facts(ino)?.is_some() {
            let (ranges, next) = self.reserved_from(ino, at)?;
            if ranges.is_empty() {
                break;
            }
            wait_for_room(&mut changes)?;
            changes.push_back(self.reserve(ino, ranges, false));
            at = next;
        }
        self.push(claim, PIECE_LOAD, Step::Changing(changes));
        Ok(())
    }

    /// Ranges with reserved space from an offset on, some of them, and where they end.
    fn reserved_from(&self, ino: Ino, offset: u64) -> Result<(Vec<(u64, u64)>, u64), ResyncError> {
        let (mut ranges, mut at) = (Vec::new(), offset);
        while ranges.len() < RESERVED_MAX
            && let Some(range) = self.store.next_reserved(ino, at)?
        {
            // No file can be longer, so nothing is written there.
            let end = range.end.min(FILE_BYTES_MAX);
            if range.start >= end {
                break;
            }
            ranges.push((range.start, end - range.start));
            at = end;
        }
        Ok((ranges, at))
    }

    fn send_hole(&self, ino: Ino, offset: u64, length: u64) -> Asked<'a> {
        let request = Request::CompareHole {
            ino,
            offset,
            length,
            punch: true,
        };
        self.peer.begin(request, &[])
    }
}

/// The runs of blocks that differ, each of zeros alone or of none.
fn runs_alike(differing: &[u8], data: &[u8]) -> Vec<Range<usize>> {
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

/// Waits until fewer than [`CHANGES_MAX`] are under way.
fn wait_for_room(changes: &mut VecDeque<Asked<'_>>) -> Result<(), ResyncError> {
    if changes.len() >= CHANGES_MAX
        && let Some(oldest) = changes.pop_front()
    {
        oldest()?;
    }
    Ok(())
}

/// What a piece of a file takes of what may be under way.
const fn load_of(suspect: &Suspect, piece: &Piece) -> Load {
    let bytes = if piece.hole { 0 } else { piece.length };
    let questions = if piece.hole || suspect.is_unasked() {
        1
    } else {
        CHANGES_MAX
    };
    Load { questions, bytes }
}

/// The bits of an answer that says what differs.
fn differing(what: &'static str, answer: Response) -> Result<Vec<u8>, ResyncError> {
    match answer {
        Response::Differing(bits) => Ok(bits),
        _ => Err(PeerError::Unexpected { what }.into()),
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
