//! The delta: the records and the bytes that this store has changed since both copies of the datastore were last equal
//! (rule P21).
//!
//! With a delta, the other copy is brought up to date without a comparison of everything. A delta has a *base*, the
//! generation in which the copies were equal but for the operations in flight. It is kept in two ways:
//!
//! - A secondary in sync *follows*: it remembers the operations of its primary that the primary may not have applied yet.
//!   Its writes are in the SAW table.
//! - A primary without its secondary, and a secondary that has become the primary, is *alone*: everything that changes is
//!   noted, from the moment at which the connection was lost.
//!
//! A delta lives in memory: a process that starts has none. A delta over its limits is dropped.
//!
//! A resync takes from the delta what it has sent and the other copy has ([`resync_part`]), so that a resync that loses its
//! connection goes on where it was. A resync of everything has a delta from the end of its namespace on.
//!
//! Invariants: a change is noted before it is made. A place that a delta lacks is equal in both copies, unless the other copy has
//! changed it; the other copy names its own writes in flight.

mod changes;
mod resync_part;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_types::backing::BackingFile;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Generation, Ino, Osn};
use parking_lot::Mutex;

use crate::content::before_change::{ByteChange, ByteEdit, ByteObserver};
use crate::error::StoreError;
use crate::namespace::plan::Plan;
use changes::Changes;
pub use changes::{ChangedContent, ChangedRegions};
use resync_part::ResyncPart;
pub use resync_part::{DeltaJob, DeltaWalk, RestOfFiles};

/// The operations that the primary may not have applied.
struct Following {
    base: Generation,
    /// The primary has applied every operation up to this one; `None` until the primary has said so of the operations
    /// before the delta.
    applied: Option<Osn>,
    /// The last operation in `older`.
    split: Osn,
    older: Changes,
    newer: Changes,
}

impl Following {
    /// The delta of the next primary.
    fn alone(self) -> Delta {
        let Some(applied) = self.applied else {
            return Delta::Off;
        };
        let mut changes = self.older;
        changes.join(self.newer);
        if is_active(Mutant::DeltaForgetsUnapplied) {
            changes = Changes::default();
        }
        Delta::Alone(Alone {
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
    /// The other copy has every operation up to this one, or it does not belong to this delta.
    applied: Osn,
    changes: Changes,
    resync: ResyncPart,
}

/// See the head of this file.
#[derive(Default)]
enum Delta {
    #[default]
    Off,
    Following(Following),
    Alone(Alone),
}

/// The delta of a store.
#[derive(Default)]
pub struct DeltaTracker {
    /// Whether changes of bytes are noted, for threads that must not wait for the lock.
    notes_bytes: AtomicBool,
    delta: Mutex<DeltaState>,
}

/// The delta, and the job of a resync that may take from it.
#[derive(Default)]
struct DeltaState {
    delta: Delta,
    job: u64,
}

/// Begin and end.
impl DeltaTracker {
    /// A secondary in sync begins to follow, in generation `base`. `applied`: its last operation.
    pub fn follow(&self, base: Generation, applied: Osn) {
        self.set(Delta::Following(Following {
            base,
            applied: None,
            split: applied,
            older: Changes::default(),
            newer: Changes::default(),
        }));
    }

    /// A primary has lost the connection with its secondary, with which it was in sync. `applied`: its last operation.
    pub fn begin_alone(&self, base: Generation, applied: Osn) {
        self.set(Delta::Alone(Alone {
            base,
            applied,
            changes: Changes::default(),
            resync: ResyncPart::default(),
        }));
    }

    /// A secondary becomes the primary, without the other node. A delta that does not know yet which operations the old
    /// primary has applied ends.
    pub fn take_over(&self) {
        let mut kept = self.delta.lock();
        let next = match std::mem::take(&mut kept.delta) {
            Delta::Following(following) => following.alone(),
            Delta::Off | Delta::Alone(_) => Delta::Off,
        };
        self.store(&mut kept, next);
    }

    /// The copies are equal again, or the delta says nothing about the other copy any more.
    pub fn end(&self) {
        self.set(Delta::Off);
    }

    fn set(&self, next: Delta) {
        self.store(&mut self.delta.lock(), next);
    }

    /// No job of a resync that began before takes anything from the next delta.
    fn store(&self, kept: &mut DeltaState, next: Delta) {
        let is_alone = matches!(next, Delta::Alone(_));
        kept.delta = next;
        kept.job += 1;
        self.notes_bytes.store(is_alone, Ordering::Release);
    }
}

/// Notes.
impl DeltaTracker {
    /// An operation is about to change records, and perhaps content.
    pub fn note_operation(&self, osn: Osn, plan: &Plan) {
        let mut kept = self.delta.lock();
        match &mut kept.delta {
            Delta::Off => return,
            Delta::Following(following) => following.newer.note(osn, plan),
            Delta::Alone(alone) => alone.changes.note(osn, plan),
        }
        self.end_if_too_long(&mut kept);
    }

    /// Adds bytes that may differ. A node that is not alone notes none.
    pub fn add_bytes(&self, ino: Ino, bytes: &Range<u64>) {
        let mut kept = self.delta.lock();
        if let Delta::Alone(alone) = &mut kept.delta {
            alone.changes.note_bytes(ino, bytes);
            self.end_if_too_long(&mut kept);
        }
    }

    fn end_if_too_long(&self, kept: &mut DeltaState) {
        let is_too_long = match &kept.delta {
            Delta::Off => false,
            Delta::Following(Following { older, newer, .. }) => {
                older.are_too_many() || newer.are_too_many()
            }
            Delta::Alone(alone) => alone.changes.are_too_many() || alone.resync.is_too_long(),
        };
        if is_too_long {
            tracing::info!("too many changes for a delta: the next resync compares everything");
            self.store(kept, Delta::Off);
        }
    }

    /// The primary has done every operation below `below`. Operations that it has applied need no delta.
    pub fn note_done_below(&self, below: Osn) {
        let mut kept = self.delta.lock();
        if let Delta::Following(following) = &mut kept.delta
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

/// Of a node that is alone, every change of bytes. The bytes of a metadata operation are noted with its records as well: a
/// follower has to tell the operations apart.
impl ByteObserver for DeltaTracker {
    fn before_change(
        &self,
        change: &ByteChange<'_>,
        _: &dyn BackingFile,
    ) -> Result<(), StoreError> {
        let is_forgotten = || {
            matches!(change.edit, ByteEdit::Write { .. }) && is_active(Mutant::DeltaForgetsWrites)
        };
        if self.notes_bytes.load(Ordering::Acquire) && !is_forgotten() {
            self.add_bytes(change.ino, &change.edit.range());
        }
        Ok(())
    }
}

/// Questions.
impl DeltaTracker {
    /// Whether the delta says how a copy differs that was equal in generation `base` and has `applied` now.
    pub fn covers(&self, base: Generation, applied: Osn) -> bool {
        self.alone(base, applied, |_| ()).is_some()
    }

    /// The keys of the changed records, if the delta says how a copy differs that was equal in generation `base` and has
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
        alone_since(&mut self.delta.lock(), base, applied).map(get)
    }
}

/// The delta, if it says how a copy differs that was equal in generation `base` and has `applied` now.
fn alone_since(kept: &mut DeltaState, base: Generation, applied: Osn) -> Option<&mut Alone> {
    let Delta::Alone(alone) = &mut kept.delta else {
        return None;
    };
    let is_since = alone.base == base && alone.applied <= applied;
    (is_since && alone.resync.has_namespace()).then_some(alone)
}

/// The jobs of a resync.
impl DeltaTracker {
    /// A resync begins to send the namespace. `whole`: the copies may differ in anything, and a delta from before says
    /// nothing.
    pub fn begin_image(&self, whole: bool) -> DeltaJob {
        let mut kept = self.delta.lock();
        if whole {
            self.store(&mut kept, Delta::Off);
        }
        begin_job(&mut kept)
    }

    /// No metadata operation is under way, and every record that may differ is about to be sent. `whole`: the generation of a
    /// resync of everything. From here on its delta notes what changes; `applied`: the last operation.
    pub fn image_held(&self, job: DeltaJob, whole: Option<Generation>, applied: Osn) {
        let mut kept = self.delta.lock();
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
            self.store(&mut kept, Delta::Alone(alone));
            // It is the same job still.
            kept.job = job.0;
        } else if let Delta::Alone(alone) = &mut kept.delta {
            let records = std::mem::take(&mut alone.changes.records);
            alone.resync.send(records);
            self.end_if_too_long(&mut kept);
        }
    }

    /// The secondary has every record that was sent before.
    pub fn image_arrived(&self, job: DeltaJob) {
        self.with_job(job, |alone| alone.resync.arrived());
    }

    /// A resync begins to make the content equal of a copy that was equal in generation `base` and has `applied` now; `None`
    /// if the delta does not say how it differs.
    pub fn begin_walk(&self, base: Generation, applied: Osn) -> Option<DeltaWalk> {
        let mut kept = self.delta.lock();
        let job = begin_job(&mut kept);
        let alone = alone_since(&mut kept, base, applied)?;
        let noted = alone.changes.take_content();
        let records = alone.resync.with_sent(&alone.changes.records);
        alone.resync.open(noted);
        alone.resync.open_files_of(&records);
        let walk = alone.resync.begin_walk(job);
        if walk.is_none() {
            self.store(&mut kept, Delta::Off);
        }
        walk
    }

    /// The walk begins with files of the rest; `rest` is what is left then.
    pub fn files_begun(&self, job: DeltaJob, files: &[Ino], rest: RestOfFiles) {
        self.with_job(job, |alone| alone.resync.files_begun(files, rest));
    }

    /// These bytes are equal on both nodes, and no write to them is under way.
    pub fn compared(&self, job: DeltaJob, ino: Ino, bytes: &Range<u64>) {
        self.with_job(job, |alone| alone.resync.compared(ino, bytes));
    }

    /// The walk is over with a file.
    pub fn file_done(&self, job: DeltaJob, ino: Ino) {
        self.with_job(job, |alone| alone.resync.file_done(ino));
    }

    fn with_job(&self, job: DeltaJob, change: impl FnOnce(&mut Alone)) {
        let mut kept = self.delta.lock();
        if job.0 == kept.job
            && let Delta::Alone(alone) = &mut kept.delta
        {
            change(alone);
        }
    }
}

fn begin_job(kept: &mut DeltaState) -> DeltaJob {
    kept.job += 1;
    DeltaJob(kept.job)
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
    fn note(delta: &DeltaTracker, sequence: u64) {
        let mut kept = delta.delta.lock();
        if let Delta::Following(following) = &mut kept.delta {
            following.newer.note_bytes(ino(sequence), &(0..1));
            following.newer.last = Some(osn(sequence));
        }
    }

    fn files(delta: &DeltaTracker) -> Option<Vec<u64>> {
        let walk = delta.begin_walk(Generation::FIRST, osn(1000))?;
        Some(walk.content.keys().map(|ino| ino.get()).collect())
    }

    #[test]
    fn a_follower_forgets_what_its_primary_has_applied_and_nothing_else() {
        let delta = DeltaTracker::default();
        delta.follow(Generation::FIRST, osn(10));
        note(&delta, 11);
        delta.note_done_below(osn(11));
        note(&delta, 12);
        delta.note_done_below(osn(12));
        note(&delta, 13);
        // Operation 12 is not done, and 13 neither.
        delta.take_over();
        let kept = files(&delta).unwrap();
        assert!(kept.contains(&12) && kept.contains(&13), "{kept:?}");
        assert!(
            !delta.covers(Generation::FIRST, osn(9)),
            "it lacks operations"
        );
    }

    #[test]
    fn a_follower_that_does_not_know_its_primary_has_no_delta() {
        let delta = DeltaTracker::default();
        delta.follow(Generation::FIRST, osn(10));
        note(&delta, 11);
        delta.note_done_below(osn(10));
        delta.take_over();
        assert_eq!(files(&delta), None);
    }

    const REGION: u64 = changes::REGION_BYTES;
    const BASE: Generation = Generation::FIRST;

    fn runs(content: &ChangedContent, number: u64) -> Vec<(u64, u64)> {
        let regions = content.get(&ino(number)).cloned().unwrap_or_default();
        regions.iter().map(|run| (run.start, run.end)).collect()
    }

    fn walk(delta: &DeltaTracker) -> DeltaWalk {
        delta.begin_walk(BASE, Osn::ZERO).unwrap()
    }

    #[test]
    fn a_walk_goes_on_with_what_was_not_compared_and_with_what_has_changed_since() {
        let delta = DeltaTracker::default();
        delta.begin_alone(BASE, Osn::ZERO);
        delta.add_bytes(ino(5), &(0..4 * REGION));
        delta.add_bytes(ino(6), &(0..1));
        let first = walk(&delta);
        assert!(!first.goes_on);
        delta.compared(first.job, ino(5), &(0..REGION));
        delta.file_done(first.job, ino(6));
        // A write that is mirrored, and perhaps not on both nodes at the loss.
        delta.add_bytes(ino(5), &(0..1));
        delta.compared(first.job, ino(5), &(REGION..2 * REGION));
        let second = walk(&delta);
        assert!(second.goes_on);
        assert_eq!(
            runs(&second.content, 5),
            [(0, REGION), (2 * REGION, 4 * REGION)]
        );
        assert_eq!(second.content.len(), 1);
        assert_eq!(second.touched, BTreeSet::from([ino(5), ino(6)]));
        // Late words of the first walk.
        delta.file_done(first.job, ino(5));
        assert!(!walk(&delta).content.is_empty());
    }

    #[test]
    fn a_resync_of_everything_goes_on_once_its_namespace_has_arrived() {
        let delta = DeltaTracker::default();
        delta.begin_alone(BASE, Osn::ZERO);
        let image = delta.begin_image(true);
        assert!(!delta.covers(BASE, Osn::ZERO), "of an earlier delta");
        delta.image_held(image, Some(BASE), Osn::ZERO);
        assert!(
            !delta.covers(BASE, Osn::ZERO),
            "the namespace may not be there"
        );
        delta.image_arrived(image);
        let first = walk(&delta);
        let rest = |next| RestOfFiles {
            next,
            last: Some(9),
        };
        delta.files_begun(first.job, &[ino(2), ino(3)], rest(4));
        delta.file_done(first.job, ino(2));
        delta.add_bytes(ino(8), &(0..1));
        delta.add_bytes(ino(12), &(0..1));
        let second = walk(&delta);
        assert_eq!(second.rest, Some(rest(4)));
        assert_eq!(runs(&second.content, 3), [(0, u64::MAX)]);
        let files: Vec<u64> = second.content.keys().map(|ino| ino.get()).collect();
        assert_eq!(files, [3, 12], "the rest has 8");
        delta.end();
        delta.image_arrived(image);
        assert!(!delta.covers(BASE, Osn::ZERO));
    }
}
