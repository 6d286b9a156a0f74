//! The run of one schedule, from its plan to its verdict.

use std::time::Duration;

use lockstep_types::mutants::Mutant;

use super::clients::Users;
use super::cluster::Cluster;
use super::failure::{Failure, catch_panic};
use super::plan::{Ending, Plan};
use super::recording::coverage::Coverage;
use super::recording::tally::Tally;
use super::settings::{IN_SYNC_WITHIN, WORK_AFTER_FAULTS};
use crate::random::Random;
use crate::workload::{Generator, Source};

/// The result of a schedule that found nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of answered operations.
    pub operations: u64,
    /// Number of faults.
    pub faults: u64,
    /// Numbers of changes of roles.
    pub tally: Tally,
    /// The simulated time.
    pub simulated: Duration,
    /// The transitions and crash points that the schedule covered.
    pub coverage: Coverage,
    /// Number of questions about the history that were too complex to decide.
    pub undecided: u64,
    /// A digest of the whole run. The same plan gives the same digest.
    pub digest: u64,
}

/// Runs the schedule of a plan, with a mutant if `mutant` names one.
pub fn run(plan: &Plan, mutant: Option<Mutant>) -> Result<Summary, Box<Failure>> {
    let mut random = Random::new(plan.run_seed);
    let requests = Generator::new(plan.workload.clone(), random.fork());
    run_with(plan, Box::new(requests), random, mutant)
}

/// Runs the schedule of a plan with the requests of `source` instead of random requests.
pub fn run_with(
    plan: &Plan,
    source: Box<dyn Source>,
    random: Random,
    mutant: Option<Mutant>,
) -> Result<Summary, Box<Failure>> {
    let mut schedule = Schedule::new(plan, source, random);
    let result = catch_panic(mutant, || schedule.run(plan));
    // A failed schedule must also take its coverage, or the next schedule would get it.
    let coverage = schedule.cluster.take_coverage();
    match result {
        Ok(()) => Ok(schedule.summary(coverage)),
        Err(what) => Err(Box::new(Failure {
            what,
            faults: schedule.faults,
            history: schedule.cluster.history(),
        })),
    }
}

struct Schedule {
    cluster: Cluster,
    /// The faults so far, in words.
    faults: Vec<String>,
}

impl Schedule {
    fn new(plan: &Plan, source: Box<dyn Source>, random: Random) -> Self {
        let users = Users {
            clients: plan.workload.clients,
            pause_max: plan.pause_max,
            source,
        };
        Self {
            cluster: Cluster::new(&plan.settings, users, plan.step_percent, random),
            faults: Vec::new(),
        }
    }

    fn run(&mut self, plan: &Plan) -> Result<(), String> {
        if plan.client_room.is_some() {
            self.cluster.limit_disks(plan.client_room);
        }
        if plan.has_standby_programs {
            self.cluster.clients.add_standby_programs();
        }
        if plan.kills_programs {
            self.cluster.clients.add_killed_programs();
        }
        self.cluster.start_both();
        for (wait, fault) in &plan.faults {
            self.cluster.run_and_check(*wait)?;
            let now = self.cluster.now();
            self.faults.push(format!("{now:?}: {fault:?}"));
            self.cluster.apply_fault(*fault)?;
        }
        self.cluster.run_for(WORK_AFTER_FAULTS)?;
        self.cluster.limit_disks(None);
        self.cluster.heal()?;
        self.cluster.until_in_sync(IN_SYNC_WITHIN)?;
        match plan.ending {
            Ending::Quiet => self.cluster.stop_clients(),
            Ending::Killed => self.cluster.kill_clients(),
        }
        self.cluster.until_in_sync(IN_SYNC_WITHIN)?;
        self.cluster.settle()?;
        self.cluster.final_check()
    }

    fn summary(&self, coverage: Coverage) -> Summary {
        Summary {
            operations: self.cluster.answered(),
            faults: self.faults.len() as u64,
            tally: self.cluster.tally(),
            simulated: self.cluster.now(),
            coverage,
            undecided: self.cluster.undecided(),
            digest: self.cluster.digest(),
        }
    }
}
