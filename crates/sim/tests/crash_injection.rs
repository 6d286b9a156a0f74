//! The crash-injection suite: proptest generates the operations of several clients, the faults and
//! their times. The simulator runs them, with all requirements of a schedule. proptest shrinks a
//! failing case, operation by operation.
//!
//! `PROPTEST_CASES=N` runs N cases instead.

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "crash_injection/script.rs"]
mod script;
#[path = "crash_injection/strategies.rs"]
mod strategies;

use std::time::{Duration, Instant};

use lockstep_sim::random::Random;
use lockstep_sim::scenario::{self, Ending, Failure, Fault, Plan, Settings};
use lockstep_sim::test_output::print_result;
use lockstep_sim::workload::Options;
use lockstep_types::mutants::{ALL, Mutant};
use proptest::test_runner::{
    Config, FileFailurePersistence, TestCaseError, TestError, TestRng, TestRunner,
};

use script::{Script, Step};

/// Number of cases in every run of the tests.
const CASES: u32 = 750;
/// Number of cases after which a mutant is treated as not found.
const MUTANT_CASES: u32 = 3000;

/// The cases that failed earlier. They run first.
const REGRESSIONS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/proptest-regressions/crash_injection.txt"
);

/// One schedule, as data.
#[derive(Clone, Debug)]
struct Case {
    /// The seed of every random choice during the run.
    run_seed: u64,
    settings: Settings,
    /// Share of a thread's steps that let other threads run first, in percent.
    step_percent: u64,
    /// The longest pause of a client between two operations.
    pause_max: Duration,
    /// The requests of each client.
    clients: Vec<Vec<Step>>,
    /// Each fault, with the time since the previous fault.
    faults: Vec<(Duration, Fault)>,
    ending: Ending,
}

impl Case {
    fn run(&self, mutant: Option<Mutant>) -> Result<(), Box<Failure>> {
        let plan = Plan {
            run_seed: self.run_seed,
            settings: self.settings,
            step_percent: self.step_percent,
            workload: Options {
                clients: u32::try_from(self.clients.len()).unwrap(),
                ..Options::default()
            },
            pause_max: self.pause_max,
            faults: self.faults.clone(),
            ending: self.ending,
            client_room: None,
            changes_roles: false,
            has_standby_programs: false,
            kills_programs: false,
        };
        let script = Box::new(Script::new(self.clients.clone()));
        scenario::run_with(&plan, script, Random::new(self.run_seed), mutant).map(|_| ())
    }

    /// Returns the number of operations and faults.
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
    let requested = std::env::var("PROPTEST_CASES").ok();
    let cases = requested
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(CASES);
    let config = Config {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..Config::with_cases(cases)
    };
    let outcome = TestRunner::new(config).run(&strategies::case(), |case| {
        case.run(None).map_err(|failure| failed(&failure))
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let result = format!("{cases} new cases, and the recorded cases");
    print_result("no_case_finds_anything", result, start.elapsed());
}

/// Returns the smallest case that finds a mutant, if any of `cases` cases finds it.
fn finder(mutant: Mutant, cases: u32) -> Option<Case> {
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::with_cases(cases)
    };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let outcome = TestRunner::new_with_rng(config, rng).run(&strategies::case(), |case| {
        case.run(Some(mutant)).map_err(|failure| failed(&failure))
    });
    match outcome {
        Err(TestError::Fail(_, case)) => Some(case),
        _ => None,
    }
}

#[test]
fn a_mutant_is_found_and_shrunk() {
    let case = finder(Mutant::NumbersAgain, MUTANT_CASES).expect("the mutant is found");
    assert!(case.size() <= 60, "{} left: {case:?}", case.size());
}

/// Prints which mutants are found, and the sizes of the smallest cases. Run by hand.
#[test]
#[ignore = "takes long and asserts nothing: it prints the found mutants"]
fn print_mutants() {
    for mutant in ALL {
        match finder(mutant, MUTANT_CASES) {
            Some(case) => println!(
                "{mutant:?}: found, {} operations and faults left",
                case.size()
            ),
            None => println!("{mutant:?}: not found in {MUTANT_CASES} cases"),
        }
    }
}
