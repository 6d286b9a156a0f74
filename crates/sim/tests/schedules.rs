//! Schedules in every run of the tests: always the same ones, and some that nobody has seen before.
//!
//! `LOCKSTEP_SCHEDULES=N` runs N of them instead.

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lockstep_repl::state::{State, Trigger};
use lockstep_sim::shrink::{Case, Found};
use lockstep_sim::soak::Soak;
use lockstep_sim::told::tell;
use strum::VariantArray as _;

/// As many threads, each with worlds of its own.
const THREADS: usize = 2;
/// Half of them are the same every time.
const SCHEDULES: u64 = 10_000;

fn schedules() -> u64 {
    let asked = std::env::var("LOCKSTEP_SCHEDULES").ok();
    asked
        .and_then(|count| count.parse().ok())
        .unwrap_or(SCHEDULES)
}

#[test]
fn no_schedule_finds_anything() {
    let start = Instant::now();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let fresh = u64::try_from(now.as_nanos() & u128::from(u64::MAX >> 1)).unwrap();
    let seeds = |number: u64| {
        if number.is_multiple_of(2) {
            1 + number / 2
        } else {
            fresh + number / 2
        }
    };
    let soak = Soak::new(seeds, schedules());
    if let Some(found) = soak.run(THREADS).pop() {
        panic!("{found}\nmade smaller:\n{}", found.clone().shrunk(None));
    }
    let report = soak.so_far();
    let told = format!(
        "{} schedules, half of them fresh (from seed {fresh}): {} operations answered, {} pairs of \
         event and state ({} of the table missed), {} crash points, {} questions left undecided",
        report.schedules,
        report.operations,
        report.met.pairs.len(),
        report.met.missed().len(),
        report.met.crash_points.len(),
        report.undecided
    );
    tell("no_schedule_finds_anything", told, start.elapsed());
    assert_eq!(faults(&report.met.pairs), [""; 0], "from seed {fresh}");
}

/// The pairs among these of which the state table says that they cannot come.
fn faults(met: &BTreeSet<String>) -> Vec<String> {
    let is_fault = |&(state, trigger): &(State, Trigger)| {
        let refused = state.next(trigger).err();
        refused.is_some_and(|refused| refused.why.is_fault())
    };
    let pairs = State::VARIANTS
        .iter()
        .flat_map(|state| Trigger::VARIANTS.iter().map(|trigger| (*state, *trigger)));
    pairs
        .filter(is_fault)
        .map(|(state, trigger)| format!("{trigger:?} in {state:?}"))
        .filter(|pair| met.contains(pair))
        .collect()
}

/// Schedules that once found something. What they find depends on the simulator too, so each repair
/// has a test of its own besides, where a lower rung can see it.
const FOUND_SOMETHING: [u64; 11] = [
    33,
    189,
    877,
    5579,
    60_220_424,
    100_177_380,
    200_299_445,
    700_445_213,
    920_000_082,
    920_000_126,
    1_795_421_135_848_643_977,
];

#[test]
fn what_was_found_once_is_not_found_again() {
    for seed in FOUND_SOMETHING {
        let case = Case::of(seed);
        if let Err(failure) = case.run(None) {
            panic!("{}", Found { case, failure });
        }
    }
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 1..200 {
        let case = Case::of(seed);
        let run = || {
            case.run(None)
                .unwrap_or_else(|failure| panic!("{failure:?}"))
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}
