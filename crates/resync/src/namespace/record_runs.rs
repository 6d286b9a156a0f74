//! Runs of records that are compared by one hash each before they are sent.
//!
//! A run that differs costs a round trip more than a run that is sent at once. So after a run that differs some are sent without a
//! comparison, twice as many after each further one.

use std::collections::VecDeque;

use lockstep_fs::store::ImageChunk;
use lockstep_repl::message::Request;
use lockstep_types::Hash128;

use crate::api::{Peer, PendingAnswer, ResyncError, differing};
use crate::bits;

/// Most comparisons under way.
const UNDER_WAY_MAX: usize = 8;
/// Most runs that are sent without a comparison after one that differs.
const UNCOMPARED_MAX: u32 = 1 << 10;

/// A run of records of one table.
pub(super) struct RecordRun {
    pub table: u8,
    /// The key before the run; empty at the start of the table.
    pub after: Vec<u8>,
    /// The last key of the run; empty at the end of the table.
    last: Vec<u8>,
}

impl RecordRun {
    fn of(chunk: &ImageChunk) -> Self {
        let last = chunk.records.last().filter(|_| !chunk.last);
        Self {
            table: chunk.table,
            after: chunk.after.clone(),
            last: last.map_or_else(Vec::new, |record| record.key.clone()),
        }
    }

    /// Whether the run ends at or before this key.
    pub fn is_over(&self, key: &[u8]) -> bool {
        !self.last.is_empty() && *self.last <= *key
    }
}

/// See the head of this file.
pub(super) struct RecordRuns<'p> {
    peer: &'p dyn Peer,
    under_way: VecDeque<(RecordRun, PendingAnswer<'p>)>,
    /// Runs that are sent next without a comparison.
    uncompared: u32,
    /// How many runs are sent without a comparison after the next one that differs.
    uncompared_next: u32,
}

impl<'p> RecordRuns<'p> {
    pub fn new(peer: &'p dyn Peer) -> Self {
        Self {
            peer,
            under_way: VecDeque::new(),
            uncompared: 0,
            uncompared_next: 1,
        }
    }

    /// Takes the next run out of those that are sent without a comparison. Returns false if the next run is compared.
    pub fn take_uncompared(&mut self) -> bool {
        let left = self.uncompared.checked_sub(1);
        self.uncompared = left.unwrap_or(0);
        left.is_some()
    }

    /// Begins a comparison. Returns a run that differs, if the oldest comparison has found one.
    pub fn begin(&mut self, chunk: &ImageChunk) -> Result<Option<RecordRun>, ResyncError> {
        let run = RecordRun::of(chunk);
        let request = Request::CompareRecords {
            table: run.table,
            after: run.after.clone(),
            last: run.last.clone(),
            hash: hash(chunk)?,
        };
        let answer = self.peer.begin(request, &[]);
        self.under_way.push_back((run, answer));
        if self.under_way.len() < UNDER_WAY_MAX {
            return Ok(None);
        }
        self.finish_oldest()
    }

    /// The next run that differs, of the comparisons under way; `None` when none is under way any more.
    pub fn next_differing(&mut self) -> Result<Option<RecordRun>, ResyncError> {
        while !self.under_way.is_empty() {
            if let Some(run) = self.finish_oldest()? {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    fn finish_oldest(&mut self) -> Result<Option<RecordRun>, ResyncError> {
        let Some((run, answer)) = self.under_way.pop_front() else {
            return Ok(None);
        };
        let differs = bits::get(&differing("compare records", answer()?)?, 0);
        if differs {
            self.uncompared = self.uncompared_next;
            self.uncompared_next = (self.uncompared_next * 2).min(UNCOMPARED_MAX);
        } else {
            self.uncompared_next = 1;
        }
        Ok(differs.then_some(run))
    }
}

/// The hash of a run.
pub(crate) fn hash(chunk: &ImageChunk) -> postcard::Result<Hash128> {
    Ok(Hash128::of(&postcard::to_allocvec(chunk)?))
}
