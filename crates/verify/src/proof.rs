//! The comparison at the end of a resync, of the places that the resync has touched: the nodes are in sync only after it (rule P33).
//!
//! The sums of the files stand for their content, so most content is not read again. A resync makes the sums of the bytes that it has
//! sent or found equal. Where a sum says nothing all the same, the content of a short file is read, and of a longer one the bytes
//! that the resync has touched. If the sums of a longer file differ although these bytes are equal, all of it is read.
//!
//! Invariant: nothing here changes either node.

use std::collections::BTreeSet;

use lockstep_repl::message::ContentSource;
use lockstep_resync::{FirstTouched, JobProgress, Locks, Peer, ResyncError};
use lockstep_types::Ino;

use crate::compare::{Comparer, LOOK_ALONE_MAX, differing};
use crate::deep_copy::DeepCopy;
use crate::digest::{self, CONTENT_BYTES_MAX, ContentPart, VOID_HERE, VOID_THERE};
use crate::own_sums::OwnSums;
use crate::paths;
use crate::report::Report;

/// Compares the first of the touched inodes. Returns the differences, and the first number of the inodes that are not compared
/// yet.
pub fn compare_touched(
    copy: DeepCopy<'_>,
    peer: &dyn Peer,
    locks: &dyn Locks,
    progress: &JobProgress,
    touched: &FirstTouched,
) -> Result<(Report, u64), ResyncError> {
    let tree = copy.store.tree();
    let mut comparer = Comparer::new(&tree, peer, locks, progress);
    let next = comparer.compare_touched_batch(touched, copy.sums)?;
    paths::add_paths(&tree, &mut comparer.report)?;
    Ok((comparer.report, next))
}

impl Comparer<'_> {
    fn compare_touched_batch(
        &mut self,
        touched: &FirstTouched,
        sums: &dyn OwnSums,
    ) -> Result<u64, ResyncError> {
        let (from, end) = (touched.numbers.start, touched.numbers.end);
        let content = ContentPart::Sum {
            sums,
            void: VOID_HERE,
        };
        let (_, batch) = self.look_at_batch(from, end, ContentSource::Sums, content)?;
        let mut suspects = differing(&batch);
        suspects.retain(|ino| touched.has(*ino));
        let mut differing = suspects.clone();
        if suspects.len() > LOOK_ALONE_MAX {
            differing = self.differing_by_bytes(from, batch.to)?;
            differing.retain(|ino| suspects.contains(ino));
        }
        self.explain(differing)?;
        for ino in suspects {
            let size = self.view.file_times(ino)?.map_or(0, |facts| facts.size);
            let Some(theirs) = batch.theirs_of(ino).filter(|_| size > CONTENT_BYTES_MAX) else {
                continue;
            };
            let before = self.report.total;
            self.compare_touched_bytes(ino, size, touched)?;
            let void_there = digest::digest_with_void(self.view, ino, VOID_THERE)?;
            let is_void = sums.file(ino)?.is_none() || void_there == Some(theirs);
            if !is_void && self.report.total == before {
                self.compare_long(ino, 0..size)?;
            }
        }
        if self.report.is_identical() {
            self.count_inodes(touched.count_below(batch.to, batch.inodes()));
        }
        Ok(batch.to)
    }

    /// The inodes whose digests differ if short content stands for itself.
    fn differing_by_bytes(&mut self, from: u64, to: u64) -> Result<BTreeSet<Ino>, ResyncError> {
        let (mut found, mut next) = (BTreeSet::new(), from);
        while next < to {
            let (_, batch) =
                self.look_at_batch(next, to, ContentSource::Memory, ContentPart::Bytes)?;
            found.extend(differing(&batch));
            next = batch.to;
        }
        Ok(found)
    }

    fn compare_touched_bytes(
        &mut self,
        ino: Ino,
        size: u64,
        touched: &FirstTouched,
    ) -> Result<(), ResyncError> {
        let mut at = 0;
        while let Some(run) = touched.next_bytes(ino, at, size) {
            at = run.end;
            self.compare_long(ino, run)?;
        }
        Ok(())
    }
}
