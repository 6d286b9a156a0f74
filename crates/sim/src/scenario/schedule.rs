//! The run of one schedule, from its plan to its verdict.

use std::time::Duration;

use lockstep_types::mutants::Mutant;

use super::clients::Users;
use super::cluster::Cluster;
use super::failure::{Failure, catch_panic};
use super::fault_injector::FaultInjector;
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
    let coverage = schedule.cluster().take_coverage();
    match result {
        Ok(()) => Ok(schedule.summary(coverage)),
        Err(what) => Err(Box::new(Failure {
            what,
            history: schedule.cluster().history(),
            faults: schedule.faults,
        })),
    }
}

struct Schedule {
    injector: FaultInjector,
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
        let cluster = Cluster::new(&plan.settings, users, plan.step_percent, random);
        Self {
            injector: FaultInjector::of(cluster),
            faults: Vec::new(),
        }
    }

    const fn cluster(&self) -> &Cluster {
        &self.injector.operator.cluster
    }

    const fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.injector.operator.cluster
    }

    fn run(&mut self, plan: &Plan) -> Result<(), String> {
        if plan.client_room.is_some() {
            self.cluster_mut().limit_disks(plan.client_room);
        }
        if plan.has_standby_programs {
            self.cluster_mut().clients.add_standby_programs();
        }
        if plan.kills_programs {
            self.cluster_mut().clients.add_killed_programs();
        }
        self.cluster_mut().start_both();
        for (wait, fault) in &plan.faults {
            self.cluster_mut().run_and_check(*wait)?;
            let now = self.cluster_mut().now();
            self.faults.push(format!("{now:?}: {fault:?}"));
            self.injector.apply(*fault)?;
        }
        self.cluster_mut().run_for(WORK_AFTER_FAULTS)?;
        self.cluster_mut().limit_disks(None);
        self.injector.heal()?;
        self.injector.operator.until_in_sync(IN_SYNC_WITHIN)?;
        match plan.ending {
            Ending::Quiet => self.cluster_mut().stop_clients(),
            Ending::Killed => self.cluster_mut().kill_clients(),
        }
        self.injector.operator.until_in_sync(IN_SYNC_WITHIN)?;
        self.cluster_mut().settle()?;
        self.cluster_mut().final_check()?;
        if plan.settings.trash.is_off() {
            return Ok(());
        }
        self.cluster_mut().check_trash(plan.keeps_everything())
    }

    fn summary(&self, coverage: Coverage) -> Summary {
        Summary {
            operations: self.cluster().answered(),
            faults: self.faults.len() as u64,
            tally: self.cluster().tally(),
            simulated: self.cluster().now(),
            coverage,
            undecided: self.cluster().undecided(),
            digest: self.cluster().digest(),
        }
    }
}
