//! The trace: the records and the bytes that this store has changed since both copies of the datastore were last equal
//! (rule P21).
//!
//! With a trace, the other copy is brought up to date without a comparison of everything. A trace has a *base*, the
//! generation in which the copies were equal but for the operations in flight. It is kept in two ways:
//!
//! - A secondary in sync *follows*: it remembers the operations of its primary that the primary may not have applied yet.
//!   Its writes are in the SAW table.
//! - A primary without its secondary, and a secondary that has become the primary, is *alone*: everything that changes is
//!   noted, from the moment at which the connection was lost.
//!
//! A trace lives in memory: a process that starts has none. A trace over its limits is dropped.
//!
//! Invariants: a change is noted before it is made. What a trace lacks is equal in both copies, unless the other copy has
//! changed it; the other copy names its own writes in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Generation, Ino, Osn};
use parking_lot::Mutex;

use crate::namespace::keys;
use crate::namespace::plan::{ContentEffect, Plan};

/// Bytes are noted in regions of this size, which start at multiples of it.
const REGION_BYTES: u64 = 64 << 10;
/// Most records of a trace.
const RECORDS_MAX: usize = 64 << 10;
/// Most runs of regions of a trace, over all files.
const RUNS_MAX: usize = 256 << 10;

/// Runs of changed regions of one file, apart from each other: start and end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedRegions(BTreeMap<u64, u64>);

impl ChangedRegions {
    /// Adds the regions that the bytes lie in.
    fn insert(&mut self, bytes: &Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        let mut start = bytes.start / REGION_BYTES * REGION_BYTES;
        let end = bytes.end.checked_next_multiple_of(REGION_BYTES);
        let mut end = end.unwrap_or(u64::MAX);
        // Runs that meet become one.
        while let Some((&from, &to)) = self.0.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.0.remove(&from);
            start = start.min(from);
            end = end.max(to);
        }
        self.0.insert(start, end);
    }

    /// The first changed bytes at or after `offset`.
    pub fn next(&self, offset: u64) -> Option<Range<u64>> {
        let before = self.0.range(..=offset).next_back();
        if let Some((_, &end)) = before.filter(|(_, end)| **end > offset) {
            return Some(offset..end);
        }
        let (&start, &end) = self.0.range(offset..).next()?;
        Some(start..end)
    }

    fn runs(&self) -> usize {
        self.0.len()
    }
}

/// The changed bytes of files.
pub type ChangedContent = BTreeMap<Ino, ChangedRegions>;

/// Noted changes.
#[derive(Default)]
struct Changes {
    records: BTreeSet<Vec<u8>>,
    content: ChangedContent,
    runs: usize,
    /// The highest operation among them.
    last: Option<Osn>,
}

impl Changes {
    fn note_bytes(&mut self, ino: Ino, bytes: &Range<u64>) {
        let regions = self.content.entry(ino).or_default();
        let before = regions.runs();
        regions.insert(bytes);
        self.runs = self.runs + regions.runs() - before;
    }

    fn note(&mut self, osn: Osn, plan: &Plan) {
        let replicated = plan.batch.iter().map(|(key, _)| key);
        let replicated = replicated.filter(|key| keys::is_replicated(key));
        self.records.extend(replicated.cloned());
        if let Some(effect) = plan.content {
            self.note_bytes(effect.ino(), &bytes_of(effect));
        }
        self.last = self.last.max(Some(osn));
    }

    fn join(&mut self, mut other: Self) {
        self.records.append(&mut other.records);
        for (ino, regions) in other.content {
            for (start, end) in regions.0 {
                self.note_bytes(ino, &(start..end));
            }
        }
        self.last = self.last.max(other.last);
    }

    fn are_too_many(&self) -> bool {
        self.records.len() > RECORDS_MAX || self.runs + self.content.len() > RUNS_MAX
    }
}

/// The bytes that the content part of an operation changes. What lies beyond a new size is cut off, and may be written
/// again.
fn bytes_of(effect: ContentEffect) -> Range<u64> {
    match effect {
        ContentEffect::Resize(_, size) => size..u64::MAX,
        ContentEffect::Allocate(_, _, offset, length) => offset..offset.saturating_add(length),
    }
}

/// The operations that the primary may not have applied.
struct Following {
    base: Generation,
    /// The primary has applied every operation up to this one; `None` until the primary has said so of the operations
    /// before the trace.
    applied: Option<Osn>,
    /// The last operation in `older`.
    split: Osn,
    older: Changes,
    newer: Changes,
}

impl Following {
    /// The trace of the next primary.
    fn alone(self) -> Trace {
        let Some(applied) = self.applied else {
            return Trace::Off;
        };
        let mut changes = self.older;
        changes.join(self.newer);
        if is_active(Mutant::TraceForgetsUnapplied) {
            changes = Changes::default();
        }
        Trace::Alone(Alone {
            base: self.base,
            applied,
            changes,
        })
    }
}

/// The changes of a node that is alone.
struct Alone {
    base: Generation,
    /// The other copy has every operation up to this one, or it does not belong to this trace.
    applied: Osn,
    changes: Changes,
}

/// See the head of this file.
#[derive(Default)]
enum Trace {
    #[default]
    Off,
    Following(Following),
    Alone(Alone),
}

/// The trace of a store.
#[derive(Default)]
pub struct ChangeTrace {
    /// Whether writes are noted, for threads that must not wait for the lock.
    notes_writes: AtomicBool,
    trace: Mutex<Trace>,
}

/// Begin and end.
impl ChangeTrace {
    /// A secondary in sync begins to follow, in generation `base`. `applied`: its last operation.
    pub(super) fn follow(&self, base: Generation, applied: Osn) {
        self.set(Trace::Following(Following {
            base,
            applied: None,
            split: applied,
            older: Changes::default(),
            newer: Changes::default(),
        }));
    }

    /// A primary has lost the connection with its secondary, with which it was in sync. `applied`: its last operation.
    pub fn begin_alone(&self, base: Generation, applied: Osn) {
        self.set(Trace::Alone(Alone {
            base,
            applied,
            changes: Changes::default(),
        }));
    }

    /// A secondary becomes the primary, without the other node. A trace that does not know yet which operations the old
    /// primary has applied ends.
    pub fn take_over(&self) {
        let mut trace = self.trace.lock();
        let next = match std::mem::take(&mut *trace) {
            Trace::Following(following) => following.alone(),
            Trace::Off | Trace::Alone(_) => Trace::Off,
        };
        self.store(&mut trace, next);
    }

    /// The copies are equal again, or the trace says nothing about the other copy any more.
    pub fn end(&self) {
        self.set(Trace::Off);
    }

    fn set(&self, next: Trace) {
        self.store(&mut self.trace.lock(), next);
    }

    fn store(&self, trace: &mut Trace, next: Trace) {
        let is_alone = matches!(next, Trace::Alone(_));
        *trace = next;
        self.notes_writes.store(is_alone, Ordering::Release);
    }
}

/// Notes.
impl ChangeTrace {
    /// An operation is about to change records, and perhaps content.
    pub(super) fn note_operation(&self, osn: Osn, plan: &Plan) {
        let mut trace = self.trace.lock();
        match &mut *trace {
            Trace::Off => return,
            Trace::Following(following) => following.newer.note(osn, plan),
            Trace::Alone(alone) => alone.changes.note(osn, plan),
        }
        self.end_if_too_long(&mut trace);
    }

    /// Bytes of a file are about to be written.
    pub fn note_write(&self, ino: Ino, offset: u64, length: u64) {
        if self.notes_writes.load(Ordering::Acquire) && !is_active(Mutant::TraceForgetsWrites) {
            self.add_write(ino, offset, length);
        }
    }

    /// Adds bytes that may differ. A node that is not alone notes none.
    pub fn add_write(&self, ino: Ino, offset: u64, length: u64) {
        let mut trace = self.trace.lock();
        if let Trace::Alone(alone) = &mut *trace {
            let end = offset.saturating_add(length);
            alone.changes.note_bytes(ino, &(offset..end));
            self.end_if_too_long(&mut trace);
        }
    }

    fn end_if_too_long(&self, trace: &mut Trace) {
        let is_too_long = match trace {
            Trace::Off => false,
            Trace::Following(Following { older, newer, .. }) => {
                older.are_too_many() || newer.are_too_many()
            }
            Trace::Alone(alone) => alone.changes.are_too_many(),
        };
        if is_too_long {
            tracing::info!("too many changes for a trace: the next resync compares everything");
            self.store(trace, Trace::Off);
        }
    }

    /// The primary has done every operation below `below`. Operations that it has applied need no trace.
    pub fn note_done_below(&self, below: Osn) {
        let mut trace = self.trace.lock();
        if let Trace::Following(following) = &mut *trace
            && below > following.split
        {
            following.applied = Some(following.split);
            following.older = std::mem::take(&mut following.newer);
            if let Some(last) = following.older.last {
                following.split = following.split.max(last);
            }
        }
    }
}

/// Questions.
impl ChangeTrace {
    /// Whether the trace says how a copy differs that was equal in generation `base` and has `applied` now.
    pub fn covers(&self, base: Generation, applied: Osn) -> bool {
        self.alone(base, applied, |_| ()).is_some()
    }

    /// The keys of the changed records, if the trace says how a copy differs that was equal in generation `base` and has
    /// `applied` now.
    pub fn records(&self, base: Generation, applied: Osn) -> Option<BTreeSet<Vec<u8>>> {
        self.alone(base, applied, |changes| changes.records.clone())
    }

    /// The changed bytes, under the same condition. Files whose records have changed are there, too: their times differ.
    pub fn content(&self, base: Generation, applied: Osn) -> Option<ChangedContent> {
        self.alone(base, applied, |changes| {
            let mut content = changes.content.clone();
            let inodes = changes
                .records
                .range(vec![keys::INODES]..vec![keys::INODES + 1]);
            for ino in inodes.filter_map(|key| keys::ino_of(key)) {
                content.entry(ino).or_default();
            }
            content
        })
    }

    /// The inodes of the changed records and bytes, under the same condition.
    pub fn inodes(&self, base: Generation, applied: Osn) -> Option<BTreeSet<Ino>> {
        self.alone(base, applied, |changes| {
            let of_records = changes.records.iter().filter_map(|key| keys::ino_of(key));
            of_records.chain(changes.content.keys().copied()).collect()
        })
    }

    fn alone<T>(
        &self,
        base: Generation,
        applied: Osn,
        get: impl FnOnce(&Changes) -> T,
    ) -> Option<T> {
        match &*self.trace.lock() {
            Trace::Alone(alone) if alone.base == base && alone.applied <= applied => {
                Some(get(&alone.changes))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: u64 = REGION_BYTES;

    fn runs(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut regions = ChangedRegions::default();
        for &(start, end) in ranges {
            regions.insert(&(start..end));
        }
        regions.0.into_iter().collect()
    }

    #[test]
    fn regions_that_meet_become_one_run() {
        let (first, third) = ((0, 1), (2 * REGION, 2 * REGION + 1));
        assert_eq!(runs(&[(1, 2), (5, 6)]), [(0, REGION)]);
        assert_eq!(runs(&[(0, 0)]), []);
        let apart = [(0, REGION), (2 * REGION, 3 * REGION)];
        assert_eq!(runs(&[first, third]), apart);
        let second = (REGION, REGION + 1);
        assert_eq!(runs(&[first, third, second]), [(0, 3 * REGION)]);
        assert_eq!(runs(&[third, first, (5, u64::MAX)]), [(0, u64::MAX)]);
        let over_a_border = (7 * REGION - 1, 7 * REGION + 1);
        assert_eq!(runs(&[over_a_border]), [(6 * REGION, 8 * REGION)]);
    }

    #[test]
    fn the_next_changed_bytes_begin_at_the_offset_or_later() {
        let mut regions = ChangedRegions::default();
        regions.insert(&(REGION..2 * REGION));
        assert_eq!(regions.next(0), Some(REGION..2 * REGION));
        assert_eq!(regions.next(REGION + 5), Some(REGION + 5..2 * REGION));
        assert_eq!(regions.next(2 * REGION), None);
    }

    fn osn(sequence: u64) -> Osn {
        Osn {
            generation: Generation::FIRST,
            sequence,
        }
    }

    fn ino(number: u64) -> Ino {
        Ino::new(number).unwrap()
    }

    /// Notes an operation that resizes a file, whose number is that of the operation.
    fn note(trace: &ChangeTrace, sequence: u64) {
        let mut trace = trace.trace.lock();
        if let Trace::Following(following) = &mut *trace {
            following.newer.note_bytes(ino(sequence), &(0..1));
            following.newer.last = Some(osn(sequence));
        }
    }

    fn files(trace: &ChangeTrace) -> Option<Vec<u64>> {
        let content = trace.content(Generation::FIRST, osn(1000))?;
        Some(content.keys().map(|ino| ino.get()).collect())
    }

    #[test]
    fn a_follower_forgets_what_its_primary_has_applied_and_nothing_else() {
        let trace = ChangeTrace::default();
        trace.follow(Generation::FIRST, osn(10));
        note(&trace, 11);
        trace.note_done_below(osn(11));
        note(&trace, 12);
        trace.note_done_below(osn(12));
        note(&trace, 13);
        // Operation 12 is not done, and 13 neither.
        trace.take_over();
        let kept = files(&trace).unwrap();
        assert!(kept.contains(&12) && kept.contains(&13), "{kept:?}");
        assert_eq!(
            trace.content(Generation::FIRST, osn(9)),
            None,
            "it lacks operations"
        );
    }

    #[test]
    fn a_follower_that_does_not_know_its_primary_has_no_trace() {
        let trace = ChangeTrace::default();
        trace.follow(Generation::FIRST, osn(10));
        note(&trace, 11);
        trace.note_done_below(osn(10));
        trace.take_over();
        assert_eq!(files(&trace), None);
    }
}
