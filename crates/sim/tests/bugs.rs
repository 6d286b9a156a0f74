//! The simulator earns belief: bugs put in on purpose are found.

use lockstep_sim::shrink::Case;
use lockstep_types::deliberate::{ALL, Bug};

/// More schedules than any of them takes.
const SCHEDULES_MAX: u64 = 2000;

/// Not found yet, and why.
const NOT_YET: &[(Bug, &str)] = &[
    (
        Bug::WatermarkTooHigh,
        "only a failover looks at SAW before PAW",
    ),
    (
        Bug::IgnoreSawInRecovery,
        "PAW alone holds every write that may be on one side",
    ),
    (
        Bug::ResyncUnmarked,
        "the primary's own mark tells too, until there is a failover",
    ),
    (
        Bug::IgnorePast,
        "a node that lost something counts as out of sync before that",
    ),
    (
        Bug::RepeatMetadata,
        "nothing is sent again that the secondary has said it did",
    ),
    (
        Bug::MetadataOutOfOrder,
        "needs an operation sent again to be overtaken",
    ),
    (
        Bug::HeedEarlyAcks,
        "needs a frame that slips onto a new connection",
    ),
    (
        Bug::CutLogUnsynced,
        "needs a stop between two calls of a checkpoint",
    ),
    (
        Bug::FinishAloneUnmarked,
        "needs a stop of a primary that serves alone, seldom here",
    ),
    (
        Bug::AdmitBeforeRanges,
        "needs a write while ranges are sent: one schedule in some hundred",
    ),
];

/// The seed of the first schedule that finds a bug.
fn finder(bug: Bug) -> Option<u64> {
    (1..=SCHEDULES_MAX).find(|seed| Case::of(*seed).run(Some(bug)).is_err())
}

#[test]
fn deliberate_bugs_are_found() {
    let mut missed = Vec::new();
    for bug in ALL {
        if let Some((_, why)) = NOT_YET.iter().find(|(known, _)| *known == bug) {
            println!("{bug:?}: not found yet: {why}");
            continue;
        }
        match finder(bug) {
            Some(schedule) => println!("{bug:?}: found by schedule {schedule}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
