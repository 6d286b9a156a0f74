//! Small worlds in every run of the tests: all of one operation, and of the others, and of those with two
//! faults, some that differ each time.

#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lockstep_sim::random::Random;
use lockstep_sim::small::{self, Campaign, Choice, Report};
use lockstep_sim::told::tell;
use lockstep_types::mutants::Mutant;

/// As many threads, each with worlds of its own.
const THREADS: usize = 2;
/// Workloads of the sample.
const SAMPLE: usize = 250;
/// Lucks to draw from.
const LUCKS: usize = 1000;
const ALL: NonZeroUsize = NonZeroUsize::MIN;
/// Of the faults of each of them, one in so many.
const ONE_IN: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Where there are two, of the first ones and of those that follow each, one in so many.
const ONE_IN_OF_TWO: [NonZeroUsize; 2] = [
    NonZeroUsize::new(96).unwrap(),
    NonZeroUsize::new(96).unwrap(),
];

/// Numbers that nobody has chosen, each below one of these, and independent of one another.
fn fresh<const NUMBERS: usize>(below: [usize; NUMBERS]) -> [usize; NUMBERS] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut chance = Random::new(u64::try_from(now.as_nanos() % (1 << 60)).unwrap());
    below.map(|below| usize::try_from(chance.below(below as u64)).unwrap())
}

/// Every world of these workloads, with the luck of every run.
fn all_of(workloads: Vec<usize>) -> Choice {
    Choice {
        workloads,
        one_in: vec![ALL],
        from: 0,
        luck: 0,
        bug: None,
    }
}

/// Runs them, and fails with all that is wrong.
fn run(choice: Choice) -> Report {
    let campaign = Campaign::new(choice);
    let found = campaign.run(THREADS);
    let told: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert!(told.is_empty(), "{}", told.join("\n\n"));
    campaign.so_far()
}

#[test]
fn every_world_of_one_operation_ends_well() {
    let start = Instant::now();
    let report = run(all_of((0..small::singles().len()).collect()));
    let test = "every_world_of_one_operation_ends_well";
    tell(test, report, start.elapsed());
    assert_eq!(report.run + report.alike, report.faults);
}

#[test]
fn worlds_of_two_operations_that_nobody_has_seen_end_well() {
    let start = Instant::now();
    let (first, count) = (small::singles().len(), small::all().len());
    let every = (count - first) / SAMPLE;
    let [workload, from, luck] = fresh([every, ONE_IN.get(), LUCKS]);
    let report = run(Choice {
        workloads: (first + workload..count).step_by(every).collect(),
        one_in: vec![ONE_IN],
        from,
        luck: luck as u64,
        bug: None,
    });
    let test = "worlds_of_two_operations_that_nobody_has_seen_end_well";
    tell(test, report, start.elapsed());
}

#[test]
fn worlds_of_two_faults_that_nobody_has_seen_end_well() {
    let start = Instant::now();
    let all = ONE_IN_OF_TWO.map(NonZeroUsize::get).iter().product();
    let [from, luck] = fresh([all, LUCKS]);
    let report = run(Choice {
        one_in: ONE_IN_OF_TWO.to_vec(),
        from,
        luck: luck as u64,
        ..all_of((0..small::singles().len()).collect())
    });
    let test = "worlds_of_two_faults_that_nobody_has_seen_end_well";
    tell(test, report, start.elapsed());
    assert!(report.of_several > report.workloads);
}

#[test]
fn the_same_worlds_come_to_the_same() {
    let choice = Choice {
        workloads: (0..small::all().len()).step_by(400).collect(),
        one_in: ONE_IN_OF_TWO.to_vec(),
        luck: 2,
        ..all_of(Vec::new())
    };
    assert_eq!(run(choice.clone()), run(choice));
}

/// Bugs, each with the workload in whose worlds it shows.
const FOUND: [(Mutant, &str); 3] = [
    (Mutant::NoPawEntry, "write to a new file (durability Posix)"),
    (
        Mutant::AnswerBeforePeer,
        "write to a new file (durability Posix)",
    ),
    (Mutant::NoLocalSync, "durably overwrite (durability Posix)"),
];

#[test]
fn deliberate_bugs_are_found() {
    for (bug, name) in FOUND {
        let all = small::singles();
        let number = all.iter().position(|workload| workload.to_string() == name);
        let campaign = Campaign::new(Choice {
            bug: Some(bug),
            ..all_of(number.into_iter().collect())
        });
        assert!(
            !campaign.run(1).is_empty(),
            "{bug:?} is not found in {name}"
        );
    }
}
