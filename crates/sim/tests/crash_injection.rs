//! The crash-injection suite: proptest makes the operations of several clients, the faults and their
//! moments; the simulator runs them, and everything that is demanded of a schedule is demanded. What
//! fails is made smaller by proptest, operation by operation.
//!
//! `PROPTEST_CASES=N` runs N cases instead.

// Clippy knows test functions by their attribute; the helpers here are test code all the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "crash_injection/asks.rs"]
mod asks;
#[path = "crash_injection/makes.rs"]
mod makes;

use std::time::{Duration, Instant};

use lockstep_sim::random::Random;
use lockstep_sim::scenario::{self, Ending, Failure, Fault, Plan, Settings};
use lockstep_sim::told::tell;
use lockstep_sim::workload::Options;
use lockstep_types::mutants::{ALL, Mutant};
use proptest::test_runner::{
    Config, FileFailurePersistence, TestCaseError, TestError, TestRng, TestRunner,
};

use asks::{Script, Step};

/// Cases in every run of the tests.
const CASES: u32 = 2000;
/// Cases after which a deliberate bug counts as not found.
const BUG_CASES: u32 = 3000;

/// Cases that once failed come first.
const NOTED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/proptest-regressions/crash_injection.txt"
);

/// One schedule, as data.
#[derive(Clone, Debug)]
struct Case {
    /// Of everything that is drawn while it runs.
    luck: u64,
    settings: Settings,
    /// How often in a hundred a step of a thread lets others go first.
    step_percent: u64,
    /// Longest pause of a client between two operations.
    pause_max: Duration,
    /// What each client asks.
    clients: Vec<Vec<Step>>,
    /// Each fault, with the time since the one before.
    faults: Vec<(Duration, Fault)>,
    ending: Ending,
}

impl Case {
    fn run(&self, bug: Option<Mutant>) -> Result<(), Box<Failure>> {
        let plan = Plan {
            luck: self.luck,
            settings: self.settings,
            step_percent: self.step_percent,
            workload: Options {
                clients: u32::try_from(self.clients.len()).unwrap(),
                ..Options::default()
            },
            pause_max: self.pause_max,
            faults: self.faults.clone(),
            ending: self.ending,
            scarce: None,
        };
        let script = Box::new(Script::new(self.clients.clone()));
        scenario::run_with(&plan, script, Random::new(self.luck), bug).map(|_| ())
    }

    /// How much there is to read in it.
    fn size(&self) -> usize {
        self.clients.iter().map(Vec::len).sum::<usize>() + self.faults.len()
    }
}

fn failed(failure: &Failure) -> TestCaseError {
    let Failure {
        what,
        faults,
        history,
    } = failure;
    TestCaseError::fail(format!("{what}\n{}\n{history}", faults.join("\n")))
}

#[test]
fn no_case_finds_anything() {
    let start = Instant::now();
    let asked = std::env::var("PROPTEST_CASES").ok();
    let cases = asked.and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let config = Config {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(NOTED))),
        ..Config::with_cases(cases)
    };
    let outcome = TestRunner::new(config).run(&makes::case(), |case| {
        case.run(None).map_err(|failure| failed(&failure))
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let told = format!("{cases} cases that proptest made, and those noted before");
    tell("no_case_finds_anything", told, start.elapsed());
}

/// The smallest case in which a bug shows, if one of so many does.
fn finder(bug: Mutant, cases: u32) -> Option<Case> {
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::with_cases(cases)
    };
    let chance = TestRng::deterministic_rng(config.rng_algorithm);
    let outcome = TestRunner::new_with_rng(config, chance).run(&makes::case(), |case| {
        case.run(Some(bug)).map_err(|failure| failed(&failure))
    });
    match outcome {
        Err(TestError::Fail(_, case)) => Some(case),
        _ => None,
    }
}

#[test]
fn a_deliberate_bug_is_found_and_made_small() {
    let case = finder(Mutant::AnswerBeforePeer, BUG_CASES).expect("the bug is found");
    assert!(case.size() <= 40, "{} left: {case:?}", case.size());
}

/// By hand: which of the deliberate bugs are found, and how small they become.
#[test]
#[ignore = "takes long and demands nothing: it says what is found"]
fn deliberate_bugs() {
    for bug in ALL {
        match finder(bug, BUG_CASES) {
            Some(case) => println!("{bug:?}: found, {} operations and faults left", case.size()),
            None => println!("{bug:?}: not found in {BUG_CASES} cases"),
        }
    }
}
