//! Tests of the delta.

use std::collections::BTreeSet;

use super::barrier_file::BarrierFile;
use super::table::MarkTable;
use super::trace_file::TraceFile;
use super::*;
use crate::namespace::last_use::LastUse;

mod column_crashes;
mod columns;
mod crashes;
mod kept;

fn tracker() -> DeltaTracker {
    DeltaTracker::open(tables_of(MarkTable::in_memory(256))).unwrap()
}

/// Tables of a store: this one of the delta, and new columns.
fn tables_of(delta: MarkTable) -> MarkTables {
    let backing = lockstep_lossy::disk::Disk::default().mount();
    MarkTables {
        delta,
        columns: [256, 256].map(MarkTable::in_memory),
        names: BarrierFile::open(Arc::clone(&backing)).unwrap(),
        trace: TraceFile::open(backing, 64, LastUse::of_test()).unwrap(),
        rest: None,
    }
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
fn note(delta: &DeltaTracker, sequence: u64) {
    let mut kept = delta.state();
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
    let delta = tracker();
    delta.follow(Generation::FIRST, osn(10));
    note(&delta, 11);
    delta.note_done_below(osn(11));
    note(&delta, 12);
    delta.note_done_below(osn(12));
    note(&delta, 13);
    // Operation 12 is not done, and 13 neither.
    delta.lead_alone(Generation::FIRST, false);
    let kept = files(&delta).unwrap();
    assert!(kept.contains(&12) && kept.contains(&13), "{kept:?}");
    assert!(
        delta.records(Generation::FIRST, osn(9)).is_none(),
        "it lacks operations"
    );
}

#[test]
fn a_follower_that_does_not_know_its_primary_has_no_delta() {
    let delta = tracker();
    delta.follow(Generation::FIRST, osn(10));
    note(&delta, 11);
    delta.note_done_below(osn(10));
    delta.lead_alone(Generation::FIRST, false);
    assert_eq!(files(&delta), None);
}

const REGION: u64 = changes::PART_BYTES;
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
    let delta = tracker();
    delta.begin_alone(BASE, Osn::ZERO);
    delta.add_bytes(ino(5), &(0..4 * REGION));
    delta.add_bytes(ino(6), &(0..1));
    let first = walk(&delta);
    assert!(!first.goes_on);
    delta.walked(
        first.job,
        WalkProgress::Equal {
            ino: ino(5),
            bytes: &(0..REGION),
        },
    );
    delta.walked(first.job, WalkProgress::Done(ino(6)));
    // A write that is mirrored, and perhaps not on both nodes at the loss.
    delta.add_bytes(ino(5), &(0..1));
    delta.walked(
        first.job,
        WalkProgress::Equal {
            ino: ino(5),
            bytes: &(REGION..2 * REGION),
        },
    );
    let second = walk(&delta);
    assert!(second.goes_on);
    assert_eq!(
        runs(&second.content, 5),
        [(0, REGION), (2 * REGION, 4 * REGION)]
    );
    assert_eq!(second.content.len(), 1);
    assert_eq!(second.touched, BTreeSet::from([ino(5), ino(6)]));
    // Late words of the first walk.
    delta.walked(first.job, WalkProgress::Done(ino(5)));
    assert!(!walk(&delta).content.is_empty());
}

#[test]
fn a_resync_of_everything_goes_on_once_its_namespace_has_arrived() {
    let delta = tracker();
    delta.begin_alone(BASE, Osn::ZERO);
    let image = delta.begin_image(true);
    assert!(
        delta.records(BASE, Osn::ZERO).is_none(),
        "of an earlier delta"
    );
    delta.image_held(image, Some(BASE), Osn::ZERO);
    assert!(
        delta.records(BASE, Osn::ZERO).is_none(),
        "the namespace may not be there"
    );
    delta.image_arrived(image);
    let first = walk(&delta);
    let rest = |next| RestOfFiles {
        next,
        last: Some(9),
    };
    delta.walked(
        first.job,
        WalkProgress::Begun {
            files: &[ino(2), ino(3)],
            rest: rest(4),
        },
    );
    delta.walked(first.job, WalkProgress::Done(ino(2)));
    delta.add_bytes(ino(8), &(0..1));
    delta.add_bytes(ino(12), &(0..1));
    let second = walk(&delta);
    assert_eq!(second.rest, Some(rest(4)));
    assert_eq!(runs(&second.content, 3), [(0, u64::MAX)]);
    let files: Vec<u64> = second.content.keys().map(|ino| ino.get()).collect();
    assert_eq!(files, [3, 12], "the rest has 8");
    delta.end();
    delta.image_arrived(image);
    assert!(delta.records(BASE, Osn::ZERO).is_none());
}
