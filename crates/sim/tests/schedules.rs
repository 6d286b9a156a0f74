//! The schedules of every test run: a third is the same in each run, the others are new.
//!
//! `LOCKSTEP_SCHEDULES=N` runs N schedules instead.

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lockstep_repl::state::{State, Trigger};
use lockstep_sim::shrink::{Case, FailedCase};
use lockstep_sim::soak::Soak;
use lockstep_sim::test_output::print_result;
use strum::VariantArray as _;

/// Number of threads, each with worlds of its own.
const THREADS: usize = 2;
/// Number of schedules. One in [`SAME_IN`] is the same in every run.
const SCHEDULES: u64 = 3_000;
/// One schedule of so many is the same in every run.
const SAME_IN: u64 = 3;

fn schedules() -> u64 {
    let requested = std::env::var("LOCKSTEP_SCHEDULES").ok();
    requested
        .and_then(|count| count.parse().ok())
        .unwrap_or(SCHEDULES)
}

#[test]
fn no_schedule_finds_anything() {
    let start = Instant::now();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let fresh = u64::try_from(now.as_nanos() & u128::from(u64::MAX >> 1)).unwrap();
    let seeds = |number: u64| {
        if number.is_multiple_of(SAME_IN) {
            1 + number / SAME_IN
        } else {
            fresh + number
        }
    };
    let soak = Soak::new(seeds, schedules());
    if let Some(found) = soak.run(THREADS).pop() {
        panic!("{found}\nshrunk:\n{}", found.clone().shrunk(None));
    }
    let report = soak.report();
    let result = format!(
        "{} schedules, two thirds of them fresh (from seed {fresh}): {} operations answered, {}, {} \
         transitions ({} of the table missing), {} crash points, {} questions left \
         undecided",
        report.schedules,
        report.operations,
        report.tally,
        report.coverage.transitions.len(),
        report.coverage.missing().len(),
        report.coverage.crash_points.len(),
        report.undecided
    );
    print_result("no_schedule_finds_anything", result, start.elapsed());
    let has_many = report.schedules >= SCHEDULES;
    assert!(
        !has_many || report.tally.from_failed_disks > 0,
        "no node takes over from a failed disk, from seed {fresh}"
    );
    let impossible = impossible(&report.coverage.transitions);
    assert_eq!(impossible, [""; 0], "from seed {fresh}");
}

/// Returns the transitions that the state table declares impossible.
fn impossible(covered: &BTreeSet<String>) -> Vec<String> {
    let is_impossible = |&(state, trigger): &(State, Trigger)| {
        let refused = state.next(trigger).err();
        refused.is_some_and(|refused| refused.why.is_fault())
    };
    let pairs = State::VARIANTS
        .iter()
        .flat_map(|state| Trigger::VARIANTS.iter().map(|trigger| (*state, *trigger)));
    pairs
        .filter(is_impossible)
        .map(|(state, trigger)| format!("{trigger:?} in {state:?}"))
        .filter(|pair| covered.contains(pair))
        .collect()
}

/// The seeds of schedules that once found a bug. The schedule of a seed changes with the simulator.
/// So each repair also has a test of its own, on a lower rung if one can see the bug.
const FOUND_A_BUG: [u64; 79] = [
    33,
    189,
    877,
    4540,
    5579,
    11_943,
    101_089,
    200_723,
    728_005,
    768_914,
    772_008,
    1_023_806,
    1_667_600,
    5_023_601,
    5_140_106,
    5_151_503,
    5_196_002,
    10_364_008,
    60_220_424,
    100_177_380,
    200_299_445,
    700_445_213,
    920_000_082,
    920_000_126,
    991_111_002,
    991_282_900,
    3_000_618_601,
    3_000_801_502,
    3_001_139_801,
    3_001_223_104,
    3_001_603_503,
    3_001_703_602,
    3_001_706_360,
    3_001_743_208,
    3_002_443_301,
    3_003_023_601,
    3_004_301_314,
    3_005_104_205,
    3_008_092_705,
    3_009_395_305,
    3_012_752_902,
    3_015_090_802,
    3_017_457_203,
    3_018_412_301,
    3_019_477_303,
    3_023_556_101,
    4_002_059_602,
    5_000_815_809,
    5_026_523_405,
    5_027_622_710,
    5_030_588_904,
    5_031_606_201,
    6_006_670_402,
    6_008_682_902,
    6_009_180_410,
    7_000_002_303,
    7_112_603_701,
    7_113_437_701,
    10_000_097_105,
    15_000_108_407,
    200_004_094_003,
    200_004_528_608,
    200_006_411_603,
    300_002_601_704,
    400_001_836_702,
    500_010_907_901,
    700_005_606_602,
    700_013_521_801,
    700_014_024_606,
    700_028_687_001,
    700_028_970_303,
    700_031_157_806,
    720_000_280_714,
    790_000_455_002,
    1_795_421_135_848_643_977,
    1_795_637_625_173_986_313,
    1_795_738_713_260_464_515,
    1_795_748_795_218_562_009,
    1_796_084_963_976_884_751,
];

#[test]
fn schedules_that_once_found_a_bug_find_nothing() {
    for seed in FOUND_A_BUG {
        let case = Case::of(seed);
        if let Err(failure) = case.run(None) {
            panic!("{}", FailedCase { case, failure });
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
