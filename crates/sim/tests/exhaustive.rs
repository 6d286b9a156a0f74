//! The small worlds of every test run: every two-hundredth world of one operation, and a sample of the worlds of two
//! operations and of the worlds with two faults. Each run draws its worlds anew. `LOCKSTEP_EXHAUSTIVE_ALL` makes that all
//! worlds of one operation.

#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lockstep_sim::exhaustive::{self, Campaign, CampaignReport, WorldSelection};
use lockstep_sim::random::Random;
use lockstep_sim::test_output::print_result;
use lockstep_types::mutants::Mutant;

/// Number of threads, each with worlds of its own.
const THREADS: usize = 2;
/// Number of workloads in a sample.
const SAMPLE: usize = 100;
/// Number of world seeds from which a sample draws.
const SEEDS: usize = 1000;
const ALL: NonZeroUsize = NonZeroUsize::MIN;
const TWO_HUNDREDTH: NonZeroUsize = NonZeroUsize::new(200).unwrap();
/// One in this many faults of each sampled workload.
const ONE_IN: NonZeroUsize = NonZeroUsize::new(800).unwrap();
/// One in this many first faults, and one in this many of the faults that follow each of them.
const ONE_IN_OF_TWO: [NonZeroUsize; 2] = [
    NonZeroUsize::new(1024).unwrap(),
    NonZeroUsize::new(512).unwrap(),
];

/// Draws independent numbers from the clock, each below one of the given bounds.
fn fresh<const NUMBERS: usize>(below: [usize; NUMBERS]) -> [usize; NUMBERS] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut random = Random::new(u64::try_from(now.as_nanos() % (1 << 60)).unwrap());
    below.map(|below| usize::try_from(random.below(below as u64)).unwrap())
}

/// Returns the choice of every world of some workloads, with the same seed in every run.
fn all_of(workloads: Vec<usize>) -> WorldSelection {
    WorldSelection {
        workloads,
        one_in: vec![ALL],
        from: 0,
        seed: 0,
        mutant: None,
    }
}

/// Runs the chosen worlds. Fails with all violations.
fn run(choice: WorldSelection) -> CampaignReport {
    let campaign = Campaign::new(choice);
    let found = campaign.run(THREADS);
    let failures: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    campaign.report()
}

#[test]
fn worlds_of_one_operation_end_well() {
    let start = Instant::now();
    let one_in = match std::env::var_os("LOCKSTEP_EXHAUSTIVE_ALL") {
        Some(_) => ALL,
        None => TWO_HUNDREDTH,
    };
    let [from] = fresh([one_in.get()]);
    let report = run(WorldSelection {
        one_in: vec![one_in],
        from,
        ..all_of((0..exhaustive::singles().len()).collect())
    });
    print_result("worlds_of_one_operation_end_well", report, start.elapsed());
    let chosen = (report.run + report.duplicates) * one_in.get() as u64;
    assert!(chosen.abs_diff(report.faults) <= report.workloads * one_in.get() as u64);
}

#[test]
fn sampled_worlds_of_two_operations_end_well() {
    let start = Instant::now();
    let (first, count) = (exhaustive::singles().len(), exhaustive::all().len());
    let every = (count - first) / SAMPLE;
    let [workload, from, seed] = fresh([every, ONE_IN.get(), SEEDS]);
    let report = run(WorldSelection {
        workloads: (first + workload..count).step_by(every).collect(),
        one_in: vec![ONE_IN],
        from,
        seed: seed as u64,
        mutant: None,
    });
    let test = "sampled_worlds_of_two_operations_end_well";
    print_result(test, report, start.elapsed());
}

#[test]
fn sampled_worlds_of_two_faults_end_well() {
    let start = Instant::now();
    let all = ONE_IN_OF_TWO.map(NonZeroUsize::get).iter().product();
    let [from, seed] = fresh([all, SEEDS]);
    let report = run(WorldSelection {
        one_in: ONE_IN_OF_TWO.to_vec(),
        from,
        seed: seed as u64,
        ..all_of((0..exhaustive::singles().len()).collect())
    });
    let test = "sampled_worlds_of_two_faults_end_well";
    print_result(test, report, start.elapsed());
    assert!(report.multi_fault > report.workloads);
}

#[test]
fn the_same_worlds_give_the_same_report() {
    let choice = WorldSelection {
        workloads: (0..exhaustive::all().len()).step_by(400).collect(),
        one_in: ONE_IN_OF_TWO.to_vec(),
        seed: 2,
        ..all_of(Vec::new())
    };
    assert_eq!(run(choice.clone()), run(choice));
}

/// Mutants, each with the workload whose worlds show it. A second write to a region shows an answer before the peer's. The first write
/// waits until the secondary has nearly got it (P26).
const FOUND: [(Mutant, &str); 3] = [
    (Mutant::NoPawEntry, "write to a new file (durability Posix)"),
    (Mutant::NoLocalSync, "durably overwrite (durability Posix)"),
    (
        Mutant::AnswerBeforePeer,
        "overwrite a block, then overwrite across blocks, then sync (durability Posix)",
    ),
];

#[test]
fn mutants_are_found() {
    for (mutant, name) in FOUND {
        let all = exhaustive::all();
        let number = all.iter().position(|workload| workload.to_string() == name);
        let campaign = Campaign::new(WorldSelection {
            mutant: Some(mutant),
            ..all_of(number.into_iter().collect())
        });
        assert!(
            !campaign.run(1).is_empty(),
            "{mutant:?} is not found in {name}"
        );
    }
}
