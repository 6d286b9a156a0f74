//! One schedule: two nodes, some clients, and what goes wrong.
//!
//! Clients work while faults come; then the faults stop, and within a bounded time the nodes must be
//! in sync, and when the clients are gone too, identical and at rest. All that clients asked and were
//! told is then judged, and what a node that stops leaves behind is judged at once.

mod bounds;
mod clients;
mod coverage;
mod dump;
mod end;
pub mod exact;
mod faults;
mod half;
mod left;
mod pair;
mod plan;
mod tables;
mod witness;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lockstep_types::mutants::{Mutant, activate};

pub use coverage::{CrashPoint, FileClass, Met};
pub use faults::{Cut, Fault, Order, Then};
pub use half::CallAt;
pub use pair::{Pair, Users};
pub use plan::{ANSWER_LIMIT, Ending, Less, Plan, Settings};

use crate::random::Random;
use crate::workload::{Generator, Source};

/// The nodes must be in sync this long after the last fault.
pub const IN_SYNC_WITHIN: Duration = Duration::from_secs(60);
/// From the last fault until clients are sent away.
const WORK_ON: Duration = Duration::from_millis(500);

/// What a schedule came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Operations that clients had an answer to.
    pub operations: u64,
    /// Faults that came.
    pub faults: u64,
    /// How much time passed in the world.
    pub simulated: Duration,
    /// What it met.
    pub met: Met,
    /// Questions about its history that were too entangled to be decided.
    pub undecided: u64,
    /// Of everything that happened: the same plan has the same.
    pub digest: u64,
}

/// What was wrong in a schedule.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What, in words.
    pub what: String,
    /// The faults that came before, with their moments.
    pub faults: Vec<String>,
    /// What clients asked and were told, and what happened to the nodes.
    pub history: String,
}

impl Failure {
    /// Which kind of failure it is: what is said before the first number or name.
    pub fn kind(&self) -> &str {
        let mut parts = self
            .what
            .split([':', '#', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
        parts.next().unwrap_or_default()
    }
}

/// Runs the schedule of a plan, with a bug put in if one is named.
pub fn run(plan: &Plan, bug: Option<Mutant>) -> Result<Outcome, Box<Failure>> {
    let mut random = Random::new(plan.luck);
    let asked = Generator::new(plan.workload.clone(), random.fork());
    run_with(plan, Box::new(asked), random, bug)
}

/// The same, but clients ask what `source` says.
pub fn run_with(
    plan: &Plan,
    source: Box<dyn Source>,
    chance: Random,
    bug: Option<Mutant>,
) -> Result<Outcome, Box<Failure>> {
    let mut schedule = Schedule::new(plan, source, chance);
    let judged = guarded(bug, || schedule.run(plan));
    // Also of those that fail, so that it does not count for the next.
    let met = schedule.pair.coverage().met();
    match judged {
        Ok(()) => Ok(schedule.outcome(met)),
        Err(what) => Err(Box::new(Failure {
            what,
            faults: schedule.told,
            history: schedule.pair.history(),
        })),
    }
}

/// Runs something with a bug put in if one is named. Its panic is an error.
fn guarded<T>(bug: Option<Mutant>, body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    activate(bug);
    let came = catch_unwind(AssertUnwindSafe(body));
    activate(None);
    came.unwrap_or_else(|panic| Err(format!("panicked: {}", message(&*panic))))
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let owned = || panic.downcast_ref::<String>().cloned();
    text.or_else(owned).unwrap_or_else(|| "?".to_owned())
}

struct Schedule {
    pair: Pair,
    /// The faults so far, for people.
    told: Vec<String>,
}

impl Schedule {
    fn new(plan: &Plan, source: Box<dyn Source>, chance: Random) -> Self {
        let users = Users {
            clients: plan.workload.clients,
            pause_max: plan.pause_max,
            source,
        };
        Self {
            pair: Pair::new(&plan.settings, users, plan.step_percent, chance),
            told: Vec::new(),
        }
    }

    fn run(&mut self, plan: &Plan) -> Result<(), String> {
        if let Some(bytes) = plan.scarce {
            self.pair.with_scarce_disks(bytes);
        }
        self.pair.start_both();
        for (wait, fault) in &plan.faults {
            self.pair.run_and_look(*wait)?;
            let moment = self.pair.now();
            self.told.push(format!("{moment:?}: {fault:?}"));
            self.pair.suffer(*fault)?;
        }
        self.pair.run_for(WORK_ON)?;
        self.pair.make_room();
        self.pair.heal()?;
        self.pair.until_in_sync(IN_SYNC_WITHIN)?;
        match plan.ending {
            Ending::Quiet => self.pair.send_clients_away(),
            Ending::Killed => self.pair.kill_clients(),
        }
        self.pair.until_in_sync(IN_SYNC_WITHIN)?;
        self.pair.rest()?;
        self.pair.judge()
    }

    fn outcome(&self, met: Met) -> Outcome {
        Outcome {
            operations: self.pair.answered(),
            faults: self.told.len() as u64,
            simulated: self.pair.now(),
            met,
            undecided: self.pair.undecided(),
            digest: self.pair.digest(),
        }
    }
}
