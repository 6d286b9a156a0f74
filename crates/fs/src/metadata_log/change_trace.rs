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
//! A resync takes from the trace what it has sent and the other copy has ([`resync_part`]), so that a resync that loses its
//! connection goes on where it was. A resync of everything has a trace from the end of its namespace on.
//!
//! Invariants: a change is noted before it is made. What a trace lacks is equal in both copies, unless the other copy has
//! changed it; the other copy names its own writes in flight.

mod changes;
mod resync_part;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Generation, Ino, Osn};
use parking_lot::Mutex;

use crate::namespace::plan::Plan;
use changes::Changes;
pub use changes::{ChangedContent, ChangedRegions};
use resync_part::ResyncPart;
pub use resync_part::{RestOfFiles, TraceJob, TracedWalk};

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
            resync: ResyncPart::default(),
        })
    }
}

/// The changes of a node that is alone.
struct Alone {
    base: Generation,
    /// The other copy has every operation up to this one, or it does not belong to this trace.
    applied: Osn,
    changes: Changes,
    resync: ResyncPart,
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
    trace: Mutex<TraceState>,
}

/// The trace, and the job of a resync that may take from it.
#[derive(Default)]
struct TraceState {
    trace: Trace,
    job: u64,
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
            resync: ResyncPart::default(),
        }));
    }

    /// A secondary becomes the primary, without the other node. A trace that does not know yet which operations the old
    /// primary has applied ends.
    pub fn take_over(&self) {
        let mut kept = self.trace.lock();
        let next = match std::mem::take(&mut kept.trace) {
            Trace::Following(following) => following.alone(),
            Trace::Off | Trace::Alone(_) => Trace::Off,
        };
        self.store(&mut kept, next);
    }

    /// The copies are equal again, or the trace says nothing about the other copy any more.
    pub fn end(&self) {
        self.set(Trace::Off);
    }

    fn set(&self, next: Trace) {
        self.store(&mut self.trace.lock(), next);
    }

    /// No job of a resync that began before takes anything from the next trace.
    fn store(&self, kept: &mut TraceState, next: Trace) {
        let is_alone = matches!(next, Trace::Alone(_));
        kept.trace = next;
        kept.job += 1;
        self.notes_writes.store(is_alone, Ordering::Release);
    }
}

/// Notes.
impl ChangeTrace {
    /// An operation is about to change records, and perhaps content.
    pub(super) fn note_operation(&self, osn: Osn, plan: &Plan) {
        let mut kept = self.trace.lock();
        match &mut kept.trace {
            Trace::Off => return,
            Trace::Following(following) => following.newer.note(osn, plan),
            Trace::Alone(alone) => alone.changes.note(osn, plan),
        }
        self.end_if_too_long(&mut kept);
    }

    /// Bytes of a file are about to be written.
    pub fn note_write(&self, ino: Ino, offset: u64, length: u64) {
        if self.notes_writes.load(Ordering::Acquire) && !is_active(Mutant::TraceForgetsWrites) {
            self.add_write(ino, offset, length);
        }
    }

    /// Adds bytes that may differ. A node that is not alone notes none.
    pub fn add_write(&self, ino: Ino, offset: u64, length: u64) {
        let mut kept = self.trace.lock();
        if let Trace::Alone(alone) = &mut kept.trace {
            let end = offset.saturating_add(length);
            alone.changes.note_bytes(ino, &(offset..end));
            self.end_if_too_long(&mut kept);
        }
    }

    fn end_if_too_long(&self, kept: &mut TraceState) {
        let is_too_long = match &kept.trace {
            Trace::Off => false,
            Trace::Following(Following { older, newer, .. }) => {
                older.are_too_many() || newer.are_too_many()
            }
            Trace::Alone(alone) => alone.changes.are_too_many() || alone.resync.is_too_long(),
        };
        if is_too_long {
            tracing::info!("too many changes for a trace: the next resync compares everything");
            self.store(kept, Trace::Off);
        }
    }

    /// The primary has done every operation below `below`. Operations that it has applied need no trace.
    pub fn note_done_below(&self, below: Osn) {
        let mut kept = self.trace.lock();
        if let Trace::Following(following) = &mut kept.trace
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
        self.alone(base, applied, |alone| {
            alone.resync.with_sent(&alone.changes.records)
        })
    }

    fn alone<T>(
        &self,
        base: Generation,
        applied: Osn,
        get: impl FnOnce(&mut Alone) -> T,
    ) -> Option<T> {
        alone_since(&mut self.trace.lock(), base, applied).map(get)
    }
}

/// The trace, if it says how a copy differs that was equal in generation `base` and has `applied` now.
fn alone_since(kept: &mut TraceState, base: Generation, applied: Osn) -> Option<&mut Alone> {
    let Trace::Alone(alone) = &mut kept.trace else {
        return None;
    };
    let is_since = alone.base == base && alone.applied <= applied;
    (is_since && alone.resync.has_namespace()).then_some(alone)
}

/// The jobs of a resync.
impl ChangeTrace {
    /// A resync begins to send the namespace. `whole`: the copies may differ in anything, and a trace from before says
    /// nothing.
    pub fn begin_image(&self, whole: bool) -> TraceJob {
        let mut kept = self.trace.lock();
        if whole {
            self.store(&mut kept, Trace::Off);
        }
        begin_job(&mut kept)
    }

    /// No metadata operation is under way, and every record that may differ is about to be sent. `whole`: the generation of a
    /// resync of everything. From here on its trace notes what changes; `applied`: the last operation.
    pub fn image_held(&self, job: TraceJob, whole: Option<Generation>, applied: Osn) {
        let mut kept = self.trace.lock();
        if job.0 != kept.job {
            return;
        }
        if let Some(base) = whole {
            let alone = Alone {
                base,
                applied,
                changes: Changes::default(),
                resync: ResyncPart::of_everything(),
            };
            self.store(&mut kept, Trace::Alone(alone));
            // It is the same job still.
            kept.job = job.0;
        } else if let Trace::Alone(alone) = &mut kept.trace {
            let records = std::mem::take(&mut alone.changes.records);
            alone.resync.send(records);
            self.end_if_too_long(&mut kept);
        }
    }

    /// The secondary has every record that was sent before.
    pub fn image_arrived(&self, job: TraceJob) {
        self.with_job(job, |alone| alone.resync.arrived());
    }

    /// A resync begins to make the content equal of a copy that was equal in generation `base` and has `applied` now; `None`
    /// if the trace does not say how it differs.
    pub fn begin_walk(&self, base: Generation, applied: Osn) -> Option<TracedWalk> {
        let mut kept = self.trace.lock();
        let job = begin_job(&mut kept);
        let alone = alone_since(&mut kept, base, applied)?;
        let noted = alone.changes.take_content();
        let records = alone.resync.with_sent(&alone.changes.records);
        alone.resync.open(noted);
        alone.resync.open_files_of(&records);
        let walk = alone.resync.begin_walk(job);
        if walk.is_none() {
            self.store(&mut kept, Trace::Off);
        }
        walk
    }

    /// The walk begins with files of the rest; `rest` is what is left then.
    pub fn files_begun(&self, job: TraceJob, files: &[Ino], rest: RestOfFiles) {
        self.with_job(job, |alone| alone.resync.files_begun(files, rest));
    }

    /// These bytes are equal on both nodes, and no write to them is under way.
    pub fn compared(&self, job: TraceJob, ino: Ino, bytes: &Range<u64>) {
        self.with_job(job, |alone| alone.resync.compared(ino, bytes));
    }

    /// The walk is over with a file.
    pub fn file_done(&self, job: TraceJob, ino: Ino) {
        self.with_job(job, |alone| alone.resync.file_done(ino));
    }

    fn with_job(&self, job: TraceJob, change: impl FnOnce(&mut Alone)) {
        let mut kept = self.trace.lock();
        if job.0 == kept.job
            && let Trace::Alone(alone) = &mut kept.trace
        {
            change(alone);
        }
    }
}

fn begin_job(kept: &mut TraceState) -> TraceJob {
    kept.job += 1;
    TraceJob(kept.job)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut kept = trace.trace.lock();
        if let Trace::Following(following) = &mut kept.trace {
            following.newer.note_bytes(ino(sequence), &(0..1));
            following.newer.last = Some(osn(sequence));
        }
    }

    fn files(trace: &ChangeTrace) -> Option<Vec<u64>> {
        let walk = trace.begin_walk(Generation::FIRST, osn(1000))?;
        Some(walk.content.keys().map(|ino| ino.get()).collect())
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
        assert!(
            !trace.covers(Generation::FIRST, osn(9)),
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

    const REGION: u64 = changes::REGION_BYTES;
    const BASE: Generation = Generation::FIRST;

    fn runs(content: &ChangedContent, number: u64) -> Vec<(u64, u64)> {
        let regions = content.get(&ino(number)).cloned().unwrap_or_default();
        regions.iter().map(|run| (run.start, run.end)).collect()
    }

    fn walk(trace: &ChangeTrace) -> TracedWalk {
        trace.begin_walk(BASE, Osn::ZERO).unwrap()
    }

    #[test]
    fn a_walk_goes_on_with_what_was_not_compared_and_with_what_has_changed_since() {
        let trace = ChangeTrace::default();
        trace.begin_alone(BASE, Osn::ZERO);
        trace.note_write(ino(5), 0, 4 * REGION);
        trace.note_write(ino(6), 0, 1);
        let first = walk(&trace);
        assert!(!first.goes_on);
        trace.compared(first.job, ino(5), &(0..REGION));
        trace.file_done(first.job, ino(6));
        // A write that is mirrored, and perhaps not on both nodes at the loss.
        trace.note_write(ino(5), 0, 1);
        trace.compared(first.job, ino(5), &(REGION..2 * REGION));
        let second = walk(&trace);
        assert!(second.goes_on);
        assert_eq!(
            runs(&second.content, 5),
            [(0, REGION), (2 * REGION, 4 * REGION)]
        );
        assert_eq!(second.content.len(), 1);
        assert_eq!(second.touched, BTreeSet::from([ino(5), ino(6)]));
        // Late words of the first walk.
        trace.file_done(first.job, ino(5));
        assert!(!walk(&trace).content.is_empty());
    }

    #[test]
    fn a_resync_of_everything_goes_on_once_its_namespace_has_arrived() {
        let trace = ChangeTrace::default();
        trace.begin_alone(BASE, Osn::ZERO);
        let image = trace.begin_image(true);
        assert!(!trace.covers(BASE, Osn::ZERO), "of an earlier trace");
        trace.image_held(image, Some(BASE), Osn::ZERO);
        assert!(
            !trace.covers(BASE, Osn::ZERO),
            "the namespace may not be there"
        );
        trace.image_arrived(image);
        let first = walk(&trace);
        let rest = |next| RestOfFiles {
            next,
            last: Some(9),
        };
        trace.files_begun(first.job, &[ino(2), ino(3)], rest(4));
        trace.file_done(first.job, ino(2));
        trace.note_write(ino(8), 0, 1);
        trace.note_write(ino(12), 0, 1);
        let second = walk(&trace);
        assert_eq!(second.rest, Some(rest(4)));
        assert_eq!(runs(&second.content, 3), [(0, u64::MAX)]);
        let files: Vec<u64> = second.content.keys().map(|ino| ino.get()).collect();
        assert_eq!(files, [3, 12], "the rest has 8");
        trace.end();
        trace.image_arrived(image);
        assert!(!trace.covers(BASE, Osn::ZERO));
    }
}
