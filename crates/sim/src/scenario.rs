//! One schedule: two nodes, some clients, and what goes wrong, all from one seed.
//!
//! Clients work while faults come; then the faults stop, and within a bounded time the nodes must be
//! in sync, and when the clients are gone too, identical and at rest. What clients saw on the way is
//! judged as they see it.

mod clients;
mod end;
mod faults;
mod ledger;
mod left;
mod nodes;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lockstep_types::deliberate::{Bug, put_in};

use crate::random::Random;
use faults::Fault;
use nodes::Pair;

/// Faults in a schedule, at most.
const FAULTS_MAX: u64 = 10;
/// Time between two faults, at most.
const FAULT_EVERY_MAX: Duration = Duration::from_millis(1500);
/// The nodes must be in sync this long after the last fault.
const IN_SYNC_WITHIN: Duration = Duration::from_secs(60);

/// What a schedule came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Operations that clients had an answer to.
    pub operations: u64,
    /// Faults that came.
    pub faults: u64,
    /// How much time passed in the world.
    pub simulated: Duration,
    /// Of everything that happened: the same seed has the same.
    pub digest: u64,
}

/// A schedule in which something was wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Of the schedule.
    pub seed: u64,
    /// What was wrong.
    pub what: String,
    /// The faults that came before, with their moments.
    pub faults: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        for fault in &self.faults {
            writeln!(f, "  {fault}")?;
        }
        write!(
            f,
            "replay: cargo run --profile ci -p lockstep-sim -- replay {}",
            self.seed
        )
    }
}

/// Runs the schedule of a seed, with a bug put in if one is named.
pub fn run(seed: u64, bug: Option<Bug>) -> Result<Outcome, Failure> {
    put_in(bug);
    let mut schedule = Schedule::new(seed);
    let judged = catch_unwind(AssertUnwindSafe(|| schedule.run()));
    put_in(None);
    let judged = judged.unwrap_or_else(|panic| Err(format!("panicked: {}", message(&*panic))));
    judged.map_err(|what| Failure {
        seed,
        what,
        faults: schedule.told,
    })
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let owned = || panic.downcast_ref::<String>().cloned();
    text.or_else(owned).unwrap_or_else(|| "?".to_owned())
}

struct Schedule {
    chance: Random,
    pair: Pair,
    /// The faults so far, for people.
    told: Vec<String>,
}

impl Schedule {
    fn new(seed: u64) -> Self {
        let mut chance = Random::new(seed);
        Self {
            pair: Pair::new(&mut chance),
            chance,
            told: Vec::new(),
        }
    }

    fn run(&mut self) -> Result<Outcome, String> {
        self.pair.start_both();
        let faults = self.chance.below(FAULTS_MAX + 1);
        for _ in 0..faults {
            self.wait_for_the_next_fault()?;
            let fault = Fault::random(&mut self.chance, &self.pair);
            let moment = self.pair.now();
            self.told.push(format!("{moment:?}: {fault:?}"));
            self.pair.suffer(fault);
        }
        self.wait_for_the_next_fault()?;
        self.pair.heal();
        self.pair.until_in_sync(IN_SYNC_WITHIN)?;
        self.pair.send_clients_away();
        self.pair.until_in_sync(IN_SYNC_WITHIN)?;
        self.pair.rest()?;
        self.pair.judge()?;
        Ok(Outcome {
            operations: self.pair.answered(),
            faults,
            simulated: self.pair.now(),
            digest: self.pair.digest(),
        })
    }

    fn wait_for_the_next_fault(&mut self) -> Result<(), String> {
        let most = u64::try_from(FAULT_EVERY_MAX.as_micros()).unwrap_or(1);
        // Mostly soon after another, while much is still open.
        let most = if self.chance.percent(60) {
            most / 10
        } else {
            most
        };
        let wait = Duration::from_micros(self.chance.below(most));
        self.pair.run_for(wait)
    }
}
