//! The simulator earns belief: bugs put in on purpose are found.

use lockstep_sim::shrink::Case;
use lockstep_types::deliberate::{ALL, Bug};

/// More schedules than any of them takes.
const SCHEDULES_MAX: u64 = 3000;

/// The seed of the first schedule that finds a bug.
fn finder(bug: Bug) -> Option<u64> {
    (1..=SCHEDULES_MAX).find(|seed| Case::of(*seed).run(Some(bug)).is_err())
}

#[test]
fn deliberate_bugs_are_found() {
    let mut missed = Vec::new();
    for bug in ALL {
        match finder(bug) {
            Some(schedule) => println!("{bug:?}: found by schedule {schedule}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
