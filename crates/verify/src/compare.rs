//! The primary's side of a comparison.
//!
//! The comparison walks the inodes by their numbers, in batches: all of them, or some. Each batch holds the exclusive locks of its inodes, so
//! that no operation on them is under way on either node. An inode that is being created or freed just
//! then may be on one node only; so each difference counts only after a second look.
//!
//! Content that is too long for a digest is compared range by range, each range under a lock that keeps
//! writes away.

use std::collections::BTreeSet;
use std::ops::Range;

use lockstep_fs::StoreView;
use lockstep_repl::checked::SumsWord;
use lockstep_repl::core::LockSet;
use lockstep_repl::lock::{LockKey, LockMode};
use lockstep_repl::message::{ContentSource, Request, Response};
use lockstep_resync::{JobProgress, Locks, Peer, PeerError, ResyncError};
use lockstep_types::{Hash128, Ino, NodeKind};

use crate::deep_copy::DeepCopy;
use crate::deep_work::{DeepWork, Suspects};
use crate::digest::{self, BATCH, CONTENT_BYTES_MAX, ContentPart, Digests, VOID_HERE};
use crate::own_sums::{CheckedView, OwnSums};
use crate::paths;
use crate::report::Report;

/// All numbers of inodes.
const EVERYTHING: Range<u64> = Ino::ROOT.get()..u64::MAX;

/// Compares the whole content of both nodes, as programs read it; finds all differences.
pub fn compare(
    view: &dyn StoreView,
    peer: &dyn Peer,
    locks: &dyn Locks,
    progress: &JobProgress,
) -> Result<Report, ResyncError> {
    let census = view.census(1, u64::MAX)?;
    progress.start(census.inodes, census.bytes);
    Comparer::new(view, peer, locks, progress).report_on([EVERYTHING])
}

/// Compares both nodes by the sums of their files, and reads the content of a file only if the sums differ or say nothing.
pub fn compare_fast(
    copy: DeepCopy<'_>,
    peer: &dyn Peer,
    locks: &dyn Locks,
    progress: &JobProgress,
) -> Result<Report, ResyncError> {
    let tree = copy.store.tree();
    let census = tree.census(1, u64::MAX)?;
    progress.start(census.inodes, 0);
    let mut comparer = Comparer::new(&tree, peer, locks, progress);
    let mut next = EVERYTHING.start;
    while next < EVERYTHING.end {
        next = comparer.compare_batch_by_sums(next, copy.sums)?;
    }
    paths::add_paths(&tree, &mut comparer.report)?;
    Ok(comparer.report)
}

/// Compares the content of the disks of both nodes with the sums of each, and with each other. `repairs`: heals the wrong side
/// where the nodes know the right one.
pub fn compare_deep(
    copy: DeepCopy<'_>,
    peer: &dyn Peer,
    locks: &dyn Locks,
    progress: &JobProgress,
    repairs: bool,
) -> Result<Report, ResyncError> {
    let tree = copy.store.tree();
    let census = tree.census(1, u64::MAX)?;
    progress.start(census.inodes, census.bytes);
    let checked = CheckedView::new(&tree, copy.sums);
    let comparer = Comparer {
        deep: Some(DeepWork {
            copy,
            checked: &checked,
            repairs,
        }),
        ..Comparer::new(&checked, peer, locks, progress)
    };
    comparer.report_on([EVERYTHING])
}

/// The same for the next inodes from number `from` on. Returns the first number of the next inodes; `None` after the last one.
pub fn compare_deep_from(
    copy: DeepCopy<'_>,
    peer: &dyn Peer,
    locks: &dyn Locks,
    repairs: bool,
    from: u64,
) -> Result<(Report, Option<u64>), ResyncError> {
    let tree = copy.store.tree();
    let progress = JobProgress::default();
    let checked = CheckedView::new(&tree, copy.sums);
    let mut comparer = Comparer {
        deep: Some(DeepWork {
            copy,
            checked: &checked,
            repairs,
        }),
        ..Comparer::new(&checked, peer, locks, &progress)
    };
    let next = comparer.compare_batch(from, EVERYTHING.end)?;
    paths::add_paths(&checked, &mut comparer.report)?;
    let next = (next < EVERYTHING.end).then_some(next);
    Ok((comparer.report, next))
}

/// Compares some inodes of both nodes, with everything that belongs to them; finds all differences.
pub fn compare_inodes(
    view: &dyn StoreView,
    peer: &dyn Peer,
    locks: &dyn Locks,
    inodes: &BTreeSet<Ino>,
) -> Result<Report, ResyncError> {
    let progress = JobProgress::default();
    progress.start(inodes.len() as u64, 0);
    Comparer::new(view, peer, locks, &progress).report_on(runs(inodes))
}

/// The runs of inodes with consecutive numbers.
fn runs(inodes: &BTreeSet<Ino>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for number in inodes.iter().map(|ino| ino.get()) {
        let next = number.saturating_add(1);
        match runs.last_mut().filter(|run| run.end == number) {
            Some(run) => run.end = next,
            None => runs.push(number..next),
        }
    }
    runs
}

/// Most inodes of a batch at which the comparison looks one by one, if their sums differ. A batch with more is compared by its
/// content: after a loss of power all sums say nothing.
pub(crate) const LOOK_ALONE_MAX: usize = 16;

/// The state of a comparison.
pub(crate) struct Comparer<'a> {
    pub(crate) view: &'a dyn StoreView,
    pub(crate) peer: &'a dyn Peer,
    pub(crate) locks: &'a dyn Locks,
    pub(crate) progress: &'a JobProgress,
    /// Both nodes read from their disks, and `view` does. Otherwise both read as programs do.
    pub(crate) deep: Option<DeepWork<'a>>,
    pub(crate) suspects: Suspects,
    pub(crate) report: Report,
}

/// The digests of a batch of inodes.
#[derive(Default)]
pub(crate) struct DigestBatch {
    /// First inode number beyond the batch.
    pub to: u64,
    /// Inodes of this node.
    ours: Vec<(u64, Hash128)>,
    /// Inodes of the peer.
    theirs: Vec<(u64, Hash128)>,
}

impl DigestBatch {
    /// Number of inodes of this node.
    pub const fn inodes(&self) -> u64 {
        self.ours.len() as u64
    }

    /// Whether the peer has an inode.
    pub fn has_theirs(&self, ino: Ino) -> bool {
        self.theirs_of(ino).is_some()
    }

    /// The peer's digest of an inode.
    pub fn theirs_of(&self, ino: Ino) -> Option<Hash128> {
        let of_ino = self.theirs.iter().find(|(number, _)| *number == ino.get());
        of_ino.map(|(_, digest)| *digest)
    }
}

impl<'a> Comparer<'a> {
    pub(crate) fn new(
        view: &'a dyn StoreView,
        peer: &'a dyn Peer,
        locks: &'a dyn Locks,
        progress: &'a JobProgress,
    ) -> Self {
        Self {
            view,
            peer,
            locks,
            progress,
            deep: None,
            suspects: Suspects::default(),
            report: Report::default(),
        }
    }

    /// Compares the inodes with numbers in these ranges.
    fn report_on(
        mut self,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Report, ResyncError> {
        for Range { mut start, end } in ranges {
            while start < end {
                start = self.compare_batch(start, end)?;
            }
        }
        paths::add_paths(self.view, &mut self.report)?;
        Ok(self.report)
    }
}

impl Comparer<'_> {
    /// Compares the next inodes by the sums of their files; returns the first inode number of the next batch.
    fn compare_batch_by_sums(&mut self, from: u64, sums: &dyn OwnSums) -> Result<u64, ResyncError> {
        let content = ContentPart::Sum {
            sums,
            void: VOID_HERE,
        };
        let (_, batch) = self.look_at_batch(from, EVERYTHING.end, ContentSource::Sums, content)?;
        let suspects = differing(&batch);
        if suspects.len() > LOOK_ALONE_MAX {
            return self.compare_batch(from, batch.to);
        }
        self.explain(suspects.clone())?;
        for ino in suspects {
            self.compare_if_long(ino, &batch)?;
        }
        self.count_inodes(batch.inodes());
        Ok(batch.to)
    }

    /// Compares the next inodes before number `end`; returns the first inode number of the next batch.
    fn compare_batch(&mut self, from: u64, end: u64) -> Result<u64, ResyncError> {
        let (inodes, batch) = self.look_at_batch(from, end, self.source(), ContentPart::Bytes)?;
        self.explain(differing(&batch))?;
        self.look_at_suspects()?;
        let kinds = inodes.iter().filter(|(_, kind)| *kind == NodeKind::File);
        for (ino, _) in kinds.filter(|(ino, _)| ino.get() < batch.to) {
            self.compare_if_long(*ino, &batch)?;
        }
        self.count_inodes(batch.inodes());
        Ok(batch.to)
    }

    /// The next inodes before number `end`, and their digests on both nodes, under their locks.
    pub(crate) fn look_at_batch(
        &mut self,
        from: u64,
        end: u64,
        source: ContentSource,
        content: ContentPart<'_>,
    ) -> Result<(Vec<(Ino, NodeKind)>, DigestBatch), ResyncError> {
        let inodes = self.view.inodes(from, end, BATCH.inodes)?;
        // The peer may have inodes beyond the last inode of this node.
        let to = match inodes.last() {
            Some((last, _)) if inodes.len() == BATCH.inodes => last.get().saturating_add(1),
            _ => end,
        };
        let alone = |&(ino, _): &(Ino, NodeKind)| (LockKey::File(ino), LockMode::Exclusive);
        let locks: LockSet = inodes.iter().map(alone).collect();
        let mut batch = DigestBatch::default();
        self.locks.wait_for_turn();
        self.locks.with_locks(locks, &mut || {
            batch = self.digest_batch(from..to, source, content)?;
            Ok(())
        })?;
        Ok((inodes, batch))
    }

    /// The digests of the next inodes. Both nodes read at the same time. If one hash says that the digests are equal, the peer sends
    /// none.
    fn digest_batch(
        &mut self,
        numbers: Range<u64>,
        source: ContentSource,
        content: ContentPart<'_>,
    ) -> Result<DigestBatch, ResyncError> {
        let Range {
            start: from,
            end: to,
        } = numbers;
        let request = Request::DigestOfBatch { from, to, source };
        let theirs = self.peer.begin(request, &[]);
        let mut ours = digest::digests_by(self.view, from, to, BATCH, content)?;
        let own_word = self.take_word();
        let Response::DigestOfBatch {
            to: covered,
            hash,
            sums,
        } = theirs()?
        else {
            let what = "digest a batch of inodes";
            return Err(PeerError::Unexpected { what }.into());
        };
        self.locks.note_read(ours.bytes);
        self.count_bytes(ours.bytes);
        if covered == ours.to && hash == ours.hash() {
            self.note_word(&own_word, &(from..covered));
            self.note_word(&sums, &(from..covered));
            return Ok(DigestBatch {
                to: ours.to,
                theirs: ours.list.clone(),
                ours: ours.list,
            });
        }
        let (theirs, sums) = self.ask_digests(from, ours.to, source)?;
        // The inodes of this node beyond the answer are those of the next batch.
        ours.list.retain(|(number, _)| *number < theirs.to);
        self.note_word(&own_word, &(from..theirs.to));
        self.note_word(&sums, &(from..theirs.to));
        Ok(DigestBatch {
            to: theirs.to,
            ours: ours.list,
            theirs: theirs.list,
        })
    }

    /// The peer's digests. Checks that they are in order and inside the covered range.
    pub(crate) fn ask_digests(
        &self,
        from: u64,
        to: u64,
        source: ContentSource,
    ) -> Result<(Digests, SumsWord), ResyncError> {
        let answer = self.peer.ask(Request::Digests { from, to, source }, &[])?;
        let what = "digest inodes";
        let Response::Digests {
            to: covered,
            digests,
            sums,
        } = answer
        else {
            return Err(PeerError::Unexpected { what }.into());
        };
        let inside = digests.iter().all(|(n, _)| (from..covered).contains(n));
        let sorted = digests.is_sorted_by(|(one, _), (next, _)| one < next);
        if covered <= from || covered > to || !inside || !sorted {
            return Err(PeerError::Unexpected { what }.into());
        }
        let digests = Digests {
            to: covered,
            list: digests,
            bytes: 0,
        };
        Ok((digests, sums))
    }

    /// The place from which both nodes read content.
    pub(crate) const fn source(&self) -> ContentSource {
        match self.deep {
            None => ContentSource::Memory,
            Some(_) => ContentSource::Disk,
        }
    }

    /// Compares content that is too long for the digest, if both nodes have the file.
    fn compare_if_long(&mut self, ino: Ino, batch: &DigestBatch) -> Result<(), ResyncError> {
        let size = self.view.file_times(ino)?.map_or(0, |facts| facts.size);
        if size > CONTENT_BYTES_MAX && batch.has_theirs(ino) {
            self.compare_long(ino, 0..size)?;
        }
        Ok(())
    }

    pub(crate) fn count_bytes(&mut self, bytes: u64) {
        self.report.bytes = self.report.bytes.saturating_add(bytes);
        self.progress.bytes_done.add(bytes);
    }

    pub(crate) fn count_inodes(&mut self, inodes: u64) {
        self.report.inodes += inodes;
        self.progress.inodes_done.add(inodes);
    }
}

/// The inodes that differ between the two lists, in order.
pub(crate) fn differing(batch: &DigestBatch) -> BTreeSet<Ino> {
    let ours: BTreeSet<_> = batch.ours.iter().map(sortable).collect();
    let theirs: BTreeSet<_> = batch.theirs.iter().map(sortable).collect();
    ours.symmetric_difference(&theirs)
        .filter_map(|(number, _)| Ino::new(*number))
        .collect()
}

fn sortable((number, digest): &(u64, Hash128)) -> (u64, [u8; 16]) {
    (*number, digest.0)
}
