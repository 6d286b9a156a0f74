//! The primary's side of a resync of the content (rule P10).
//!
//! First the resync carries the namespace over ([`namespace`](crate::namespace)), while this node serves its clients
//! alone. Then the resync carries the content over ([`send_content`]): from its beginning every new operation is
//! mirrored.
//!
//! Why comparing each file once is enough. For each file there is one moment, under its exclusive
//! lock, at which no operation on the file is under way and every later operation is mirrored. At that moment
//! the secondary takes over size and times, and from then on size and times stay equal by themselves. So do
//! all bytes beyond the size of that moment, because they start as zeros on both nodes and change by
//! mirrored writes only. The bytes before that size remain: each range is compared and corrected
//! once, under a lock that keeps writes to the range away on both nodes. Before the correction the range may differ;
//! after the correction a mirrored write finds both nodes equal and leaves both nodes equal.
//!
//! Several pieces and batches of files are under way at a time, each under locks of its own, so that each of them does
//! not cost the time of a round trip. Their number is small, because clients wait for the locks. The resync waits for
//! no lock while it holds other locks: otherwise a client with the wanted lock could wait for a held lock.
//!
//! If the store has a delta of the changes since the copies were equal, only the files of the delta get size and
//! times, and only their changed regions are compared, by the sums of their blocks. Every other byte is equal already, or is
//! mirrored. A resync of everything, and bytes that a comparison has found to differ, are compared by the bytes.
//!
//! A file or a block that the secondary finds equal has its void sums made, on both nodes, unless a sum of this node says that the
//! bytes are wrong: the secondary is told so, and makes no sum of those (rule P32).
//! This node makes void sums of the bytes that it has sent, too. So the comparison at the end of the resync reads few bytes (rule P33).
//!
//! Bytes that have been made equal leave the delta when the secondary has answered, under their lock. So a resync that
//! loses its connection goes on where it was (rule P24).
//!
//! A file that is created after the image needs no resync: both nodes create and write it. The inode number of such a
//! file may be lower than other numbers, but never belongs to another file; comparing the file is harmless.

mod changes;
mod jobs;
mod many_parts;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use lockstep_fs::OpError;
use lockstep_fs::store::{ChangedContent, FileTimes};
use lockstep_repl::core::LockSet;
use lockstep_repl::lock::{LockKey, LockMode};
use lockstep_repl::message::{ComparePurpose, Request, WireContent};
use lockstep_sums::SumKey;
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, Ino};
use smallvec::smallvec;

use self::changes::{ContentChanges, all_uniform_runs, bytes_of_runs, uniform_runs, wait_for_room};
use self::jobs::{
    ChangedPart, ContentJob, JobCost, JobStep, PIECE_COST, REQUESTS_MAX, TIMES_COST, TimesBatch,
    cost_of,
};
use self::many_parts::{PartsAhead, ToldPiece, uniform_bytes};
use crate::api::{LockClaim, Locks, Peer, PeerBase, ResyncError, differing};
use crate::bits;
use crate::described::{DescribedFile, DescribedFiles, FileAnswers, TellsBytes};
use crate::file_walk::{FileWalk, WalkedFile};
use crate::limits::{BYTES_LOCKED_MAX, RANGES_MAX};
use crate::open_files::OpenFiles;
use crate::pieces::{self, Piece};
use crate::progress::JobProgress;
use crate::source::ResyncSource;
use crate::summed_content::SummedContent;
use crate::suspect::{LaterFiles, Suspect};
use crate::touched::TouchedPlaces;

/// Makes the content of all regular files equal: all of it, or the part that the delta has since `base`. Every operation must
/// already be mirrored. `hears` is told the places before anything of them is sent.
pub fn send_content(
    source: ResyncSource<'_>,
    peer: &dyn Peer,
    locks: &dyn Locks,
    progress: &JobProgress,
    base: Option<PeerBase>,
    hears: &dyn Fn(TouchedPlaces),
) -> Result<(), ResyncError> {
    let (walk, places) = FileWalk::begin(source, base, progress)?;
    hears(places);
    ContentSender::new(source, peer, locks, progress, walk).run()
}

/// Makes all content of these files equal once more: a comparison has found that they differ. Inodes that are no regular files, or
/// are gone, are left out. Every operation must be mirrored. Returns how many bytes were sent.
pub fn send_again(
    source: ResyncSource<'_>,
    peer: &dyn Peer,
    locks: &dyn Locks,
    files: &BTreeSet<Ino>,
) -> Result<u64, ResyncError> {
    let progress = JobProgress::default();
    let walk = FileWalk::of_some(source, files)?;
    ContentSender::new(source, peer, locks, &progress, walk).run()?;
    Ok(progress.bytes_sent.get())
}

/// The state of a transfer of the content.
struct ContentSender<'a> {
    content: SummedContent<'a>,
    changes: ContentChanges<'a>,
    peer: &'a dyn Peer,
    locks: &'a dyn Locks,
    progress: &'a JobProgress,
    walk: FileWalk<'a>,
    /// The files of the jobs, and of `later`.
    open: OpenFiles,
    later: LaterFiles,
    tells_bytes: TellsBytes,
    /// Whether the next piece is compared by one hash before its blocks are: the last compared piece was equal.
    compares_runs: bool,
    /// In the order of their last requests, in which the secondary answers.
    jobs: VecDeque<ContentJob<'a>>,
    /// Sum of the costs of all jobs.
    under_way: JobCost,
}

impl<'a> ContentSender<'a> {
    fn new(
        source: ResyncSource<'a>,
        peer: &'a dyn Peer,
        locks: &'a dyn Locks,
        progress: &'a JobProgress,
        walk: FileWalk<'a>,
    ) -> Self {
        let content = SummedContent {
            view: source.view,
            sums: source.sums,
        };
        Self {
            content,
            changes: ContentChanges {
                view: source.view,
                peer,
                progress,
            },
            peer,
            locks,
            progress,
            walk,
            open: OpenFiles::default(),
            later: LaterFiles::default(),
            tells_bytes: TellsBytes::default(),
            compares_runs: true,
            jobs: VecDeque::new(),
            under_way: JobCost {
                requests: 0,
                bytes: 0,
            },
        }
    }

    /// Makes all files equal.
    fn run(mut self) -> Result<(), ResyncError> {
        loop {
            if let Some(suspect) = self.later.suspects.pop_front() {
                self.send_piece(suspect)?;
            } else if let Some(ino) = self.later.reserved.pop_front() {
                self.send_reserved(ino)?;
            } else if !self.set_times_of_batch()? && !self.finish_oldest()? {
                return Ok(());
            }
        }
    }

    /// Waits until there is room for another job.
    fn make_room(&mut self, cost: JobCost) -> Result<(), ResyncError> {
        while self.under_way.requests + cost.requests > REQUESTS_MAX
            || self.under_way.bytes + cost.bytes > BYTES_LOCKED_MAX
        {
            if !self.finish_oldest()? {
                break;
            }
        }
        Ok(())
    }

    /// Waits until the next piece of work may begin. Clients wait for no lock of this resync meanwhile.
    fn take_turn(&mut self) -> Result<(), ResyncError> {
        if !self.locks.is_turn() {
            self.finish_all()?;
            self.locks.wait_for_turn();
        }
        Ok(())
    }

    /// Takes locks. A holder of the wanted locks may wait for locks of this resync, so the resync first gives its own
    /// locks back.
    fn claim(&mut self, locks: LockSet) -> Result<Box<dyn LockClaim + 'a>, ResyncError> {
        let mut claim = self.locks.claim(locks)?;
        if !claim.is_held() {
            if let Err(error) = self.finish_all() {
                // The jobs end first: a claim can be given back only once it is granted.
                self.jobs.clear();
                return Err(error);
            }
            claim.wait()?;
        }
        Ok(claim)
    }

    /// Takes the locks of a job, when it may begin.
    fn claim_for(
        &mut self,
        locks: LockSet,
        cost: JobCost,
    ) -> Result<Box<dyn LockClaim + 'a>, ResyncError> {
        self.take_turn()?;
        self.make_room(cost)?;
        self.claim(locks)
    }

    fn finish_all(&mut self) -> Result<(), ResyncError> {
        while self.finish_oldest()? {}
        Ok(())
    }

    fn push(&mut self, claim: Box<dyn LockClaim + 'a>, cost: JobCost, step: JobStep<'a>) {
        self.under_way.requests += cost.requests;
        self.under_way.bytes += cost.bytes;
        self.jobs.push_back(ContentJob { claim, step, cost });
    }

    /// Waits for the answer of the oldest job, and takes the job's next step; `false` when there is no job.
    fn finish_oldest(&mut self) -> Result<bool, ResyncError> {
        let Some(job) = self.jobs.pop_front() else {
            return Ok(false);
        };
        self.under_way.requests -= job.cost.requests;
        self.under_way.bytes -= job.cost.bytes;
        // Held until the delta knows the answer.
        let claim = job.claim;
        match job.step {
            JobStep::SettingTimes(batch, answer) => {
                let answers = FileAnswers(differing("take over sizes", answer()?)?);
                self.tells_bytes.learn(&batch.described, &answers);
                self.times_set(batch, &answers);
            }
            JobStep::ComparingRun(part, data, answer) => {
                let differing = differing("compare a run of blocks", answer()?)?;
                self.compares_runs = !bits::get(&differing, 0);
                if self.compares_runs {
                    self.part_done(&part.with_data(data));
                } else {
                    let step = self.compare_blocks(part, data, ComparePurpose::Resync);
                    self.push(claim, job.cost, step);
                }
            }
            JobStep::Comparing(part, data, answer) => {
                let differing = differing("compare blocks", answer()?)?;
                self.compares_runs = differing.iter().all(|bits| *bits == 0);
                let runs = uniform_runs(&differing, &data);
                let step = self.write_runs(part, data, &runs)?;
                self.push(claim, job.cost, step);
            }
            JobStep::ComparingSums(part, pieces, answer) => {
                let answer = differing("compare sums", answer()?)?;
                let data = ToldPiece::differing_bytes(self.content, part.ino, &pieces, &answer)?;
                let read = data.iter().map(|(_, bytes)| bytes.len() as u64);
                self.locks.note_read(read.sum());
                let changes = self.changes.write_runs(part.ino, uniform_bytes(&data))?;
                let part = ChangedPart { data, ..part };
                self.push(claim, job.cost, JobStep::Changing(part, changes));
            }
            JobStep::Changing(part, answers) => {
                for answer in answers {
                    answer()?;
                }
                self.part_done(&part);
            }
        }
        Ok(true)
    }

    /// The secondary has taken over size and times of files.
    fn times_set(&mut self, batch: TimesBatch, answers: &FileAnswers) {
        self.progress.bytes_done.add(batch.read);
        for (number, (ino, times, content)) in batch.described.iter().enumerate() {
            let is_put = *content == WireContent::Bytes;
            if is_put || *content != WireContent::Untold && !answers.differs(number) {
                self.content.adopt_file(*ino, times.size);
            }
        }
        let files: Vec<Ino> = batch.described.iter().map(|(ino, ..)| *ino).collect();
        for ino in files.iter().chain(&batch.reserved) {
            self.open.begin(*ino);
        }
        self.suspect(batch.described, batch.changed, answers);
        self.later.reserved.extend(batch.reserved);
        for ino in files {
            self.end_part(ino);
        }
    }

    /// The secondary has made a part of a file equal.
    fn part_done(&mut self, part: &ChangedPart) {
        self.progress.bytes_done.add(part.counted);
        for piece in &part.pieces {
            self.walk.compared(part.ino, piece);
        }
        for (offset, bytes) in &part.data {
            self.content.adopt(part.ino, *offset, bytes);
        }
        self.end_part(part.ino);
    }

    fn end_part(&mut self, ino: Ino) {
        if self.open.end(ino) {
            self.progress.inodes_done.add(1);
            self.walk.done(ino);
        }
    }

    /// Lets the secondary take over size and times of the next files; `false` when there are no more files.
    fn set_times_of_batch(&mut self) -> Result<bool, ResyncError> {
        let Some(files) = self.walk.next_files()? else {
            return Ok(false);
        };
        if !files.is_empty() {
            self.set_times(files)?;
        }
        Ok(true)
    }

    fn set_times(&mut self, files: Vec<WalkedFile>) -> Result<(), ResyncError> {
        self.take_turn()?;
        self.make_room(TIMES_COST)?;
        let alone = |(ino, _): &WalkedFile| (LockKey::File(*ino), LockMode::Exclusive);
        let claim = self.claim(files.iter().map(alone).collect())?;
        let inos: Vec<Ino> = files.iter().map(|(ino, _)| *ino).collect();
        let DescribedFiles {
            files: described,
            payload,
            read,
            reserved,
        } = self.describe(&inos)?;
        self.locks.note_read(read);
        // Files that are gone meanwhile are done.
        let is_there = |ino: &Ino| described.iter().any(|(there, ..)| there == ino);
        for gone in inos.iter().filter(|ino| !is_there(ino)) {
            self.progress.inodes_done.add(1);
            self.walk.done(*gone);
        }
        if described.is_empty() {
            return Ok(());
        }
        self.progress.bytes_sent.add(payload.len() as u64);
        let request = Request::SetFiles {
            files: described.clone(),
        };
        let changed = files
            .into_iter()
            .filter_map(|(ino, changed)| changed.map(|changed| (ino, changed)));
        let batch = TimesBatch {
            described,
            read,
            reserved,
            changed: changed.collect(),
        };
        let answer = self.peer.begin(request, &payload);
        self.push(claim, TIMES_COST, JobStep::SettingTimes(batch, answer));
        Ok(())
    }

    /// The description of the files that still exist.
    fn describe(&self, files: &[Ino]) -> Result<DescribedFiles, ResyncError> {
        let mut described = DescribedFiles::default();
        for &ino in files {
            if let Some(facts) = self.checked_facts(ino)? {
                described.add(self.content, ino, &facts, self.tells_bytes.0)?;
            }
        }
        Ok(described)
    }

    /// Notes the files whose content differs or may differ.
    fn suspect(
        &mut self,
        described: Vec<DescribedFile>,
        mut changed: ChangedContent,
        answers: &FileAnswers,
    ) {
        if is_active(Mutant::ResyncBySize) {
            return;
        }
        for (number, (ino, times, content)) in described.into_iter().enumerate() {
            let is_untold = content == WireContent::Untold;
            let suspect = Suspect {
                ino,
                size: times.size,
                certain: !is_untold,
                was_empty: answers.is_empty(number),
                next: 0,
                changed: changed.remove(&ino).filter(|_| is_untold),
            };
            // The secondary has put the bytes in place.
            let is_equal = content == WireContent::Bytes;
            let differs = is_untold || !is_equal && answers.differs(number);
            if differs && suspect.next_changed().is_some() {
                self.open.begin(ino);
                self.later.suspects.push_back(suspect);
            }
        }
    }

    /// Size and times of a file that still exists. Content that does not fit its record is an error:
    /// damage must not be carried to the other node.
    fn checked_facts(&self, ino: Ino) -> Result<Option<FileTimes>, ResyncError> {
        match self.content.view.check_content(ino) {
            Ok(()) => Ok(self.content.view.file_times(ino)?),
            Err(OpError::Refused(Errno::Stale | Errno::NoEntry)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the next piece of a file equal, if there is one.
    fn send_piece(&mut self, mut suspect: Suspect) -> Result<(), ResyncError> {
        let ino = suspect.ino;
        match self.begin_next(&suspect)? {
            Some(next) => {
                suspect.next = next;
                self.later.suspects.push_front(suspect);
            }
            None => self.end_part(ino),
        }
        Ok(())
    }

    /// Begins the next piece or parts. Returns where the bytes after them begin, unless the file ends there.
    fn begin_next(&mut self, suspect: &Suspect) -> Result<Option<u64>, ResyncError> {
        let is_of_delta = suspect.changed.is_some() && self.walk.is_of_delta();
        let key = self.content.sums.key();
        match key.filter(|_| is_of_delta && !suspect.is_uncompared()) {
            Some(key) => self.begin_next_parts(suspect, &key),
            None => self.begin_next_piece(suspect),
        }
    }

    fn begin_next_parts(
        &mut self,
        suspect: &Suspect,
        key: &SumKey,
    ) -> Result<Option<u64>, ResyncError> {
        let ino = suspect.ino;
        let Some(ahead) = PartsAhead::of(suspect) else {
            return Ok(None);
        };
        let cost = JobCost {
            bytes: ahead.bytes(),
            ..PIECE_COST
        };
        let claim = self.claim_for(ahead.locks(ino), cost)?;
        let (pieces, size) = ahead.pieces(self.content.view, ino)?;
        let Some(last) = pieces.last().copied() else {
            return Ok(None);
        };
        let part = ChangedPart {
            ino,
            counted: pieces.iter().map(|piece| piece.length).sum(),
            pieces,
            data: Vec::new(),
        };
        let step = if last.hole {
            self.punch(part, last)
        } else {
            self.compare_sums(part, key)?
        };
        self.open.begin(ino);
        self.push(claim, cost, step);
        Ok(Some(last.end()).filter(|next| *next < size))
    }

    fn punch(&self, part: ChangedPart, hole: Piece) -> JobStep<'a> {
        let hole = self.changes.punch(part.ino, hole.offset, hole.length);
        JobStep::Changing(part, VecDeque::from([hole]))
    }

    fn compare_sums(&self, part: ChangedPart, key: &SumKey) -> Result<JobStep<'a>, ResyncError> {
        let told = ToldPiece::all(self.content, key, part.ino, &part.pieces)?;
        self.locks.note_read(ToldPiece::bytes_read(&told));
        let question = ToldPiece::question(part.ino, key.probe(), &told);
        let answer = self.peer.begin(question, &[]);
        Ok(JobStep::ComparingSums(part, told, answer))
    }

    /// Sends blocks that differ.
    fn write_runs(
        &self,
        part: ChangedPart,
        data: Vec<u8>,
        runs: &[Range<usize>],
    ) -> Result<JobStep<'a>, ResyncError> {
        let (offset, length) = part
            .pieces
            .first()
            .map_or((0, 0), |piece| (piece.offset, piece.length));
        let bytes = bytes_of_runs((offset, &data), length, runs);
        let changes = self.changes.write_runs(part.ino, bytes)?;
        Ok(JobStep::Changing(part.with_data(data), changes))
    }

    /// Begins the next piece. Returns where the one after it begins, unless the file ends there.
    fn begin_next_piece(&mut self, suspect: &Suspect) -> Result<Option<u64>, ResyncError> {
        let ino = suspect.ino;
        let Some(run) = suspect.next_changed() else {
            return Ok(None);
        };
        let Some(guess) = pieces::piece_at(self.content.view, ino, run.start, run.end)? else {
            return Ok(None);
        };
        let cost = cost_of(suspect, &guess);
        let claim = self.claim_for(pieces::read_locks(ino, [guess.range()]), cost)?;
        let Some((piece, size, data)) = pieces::read(self.content.view, ino, run.start, &guess)?
        else {
            return Ok(None);
        };
        self.locks.note_read(data.len() as u64);
        let step = self.begin_piece(suspect, piece, data)?;
        self.open.begin(ino);
        self.push(claim, cost, step);
        Ok(Some(piece.end()).filter(|next| *next < size))
    }

    fn begin_piece(
        &self,
        suspect: &Suspect,
        piece: Piece,
        data: Vec<u8>,
    ) -> Result<JobStep<'a>, ResyncError> {
        let (ino, offset) = (suspect.ino, piece.offset);
        let part = ChangedPart {
            ino,
            pieces: vec![piece],
            // The bytes of a hashed file count already.
            counted: if suspect.certain { 0 } else { piece.length },
            data: Vec::new(),
        };
        if piece.hole {
            return Ok(self.punch(part, piece));
        }
        if suspect.is_uncompared() {
            let blocks = data.len() / BLOCK_BYTES;
            let runs = if suspect.goes_whole() {
                std::iter::once(0..blocks).collect()
            } else {
                all_uniform_runs(&data)
            };
            return self.write_runs(part, data, &runs);
        }
        // The secondary makes void sums of the blocks that are equal. Bytes that a sum of this node calls wrong get none there.
        if !self.content.accept(ino, offset, &data) {
            return Ok(self.compare_blocks(part, data, ComparePurpose::DoubtedResync));
        }
        if !self.compares_runs {
            return Ok(self.compare_blocks(part, data, ComparePurpose::Resync));
        }
        let request = Request::CompareRun {
            ino,
            offset,
            blocks: u32::try_from(data.len() / BLOCK_BYTES).unwrap_or(u32::MAX),
            hash: pieces::run_hash(&data),
        };
        let answer = self.peer.begin(request, &[]);
        Ok(JobStep::ComparingRun(part, data, answer))
    }

    fn compare_blocks(
        &self,
        part: ChangedPart,
        data: Vec<u8>,
        purpose: ComparePurpose,
    ) -> JobStep<'a> {
        let request = Request::CompareBlocks {
            ino: part.ino,
            offset: part.pieces.first().map_or(0, |piece| piece.offset),
            hashes: pieces::hashes(&data),
            purpose,
        };
        let answer = self.peer.begin(request, &[]);
        JobStep::Comparing(part, data, answer)
    }

    /// Lets the secondary reserve the space that is reserved on this node, for a file with equal content.
    fn send_reserved(&mut self, ino: Ino) -> Result<(), ResyncError> {
        self.make_room(PIECE_COST)?;
        // All requests for this file are over once the claim is held.
        let claim = self.claim(smallvec![(LockKey::File(ino), LockMode::Exclusive)])?;
        let (mut changes, mut at) = (VecDeque::new(), 0);
        while self.content.view.file_times(ino)?.is_some() {
            let (ranges, next) = self.reserved_from(ino, at)?;
            if ranges.is_empty() {
                break;
            }
            wait_for_room(&mut changes)?;
            changes.push_back(self.changes.reserve(ino, ranges, false));
            at = next;
        }
        let part = ChangedPart {
            ino,
            pieces: Vec::new(),
            counted: 0,
            data: Vec::new(),
        };
        self.push(claim, PIECE_COST, JobStep::Changing(part, changes));
        Ok(())
    }

    /// Some ranges with reserved space from an offset on, and the end of the last range.
    fn reserved_from(&self, ino: Ino, offset: u64) -> Result<(Vec<(u64, u64)>, u64), ResyncError> {
        let runs = self.content.view.reserved(ino, offset, RANGES_MAX)?;
        let next = runs.last().map_or(offset, |run| run.end);
        let ranges = runs.iter().map(|run| (run.start, run.end - run.start));
        Ok((ranges.collect(), next))
    }
}
