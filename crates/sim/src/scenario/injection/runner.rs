//! Runs of schedules with faults at exact points.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use lockstep_types::mutants::Mutant;

use super::fault::{FaultKind, InjectedFault, PointInfo, Setup, StoppedNodes};
use super::probe::{Counted, Probe};
use crate::history::Stop;
use crate::random::Random;
use crate::scenario::baseline::Baseline;
use crate::scenario::clients::Users;
use crate::scenario::cluster::Cluster;
use crate::scenario::failure::{Failure, catch_panic};
use crate::scenario::settings::{IN_SYNC_WITHIN, WORK_AFTER_FAULTS};
use crate::workload::Source;
use crate::world::Side;

/// The interval between two looks at a state that the runner waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time from sync until the clients start. All frames in flight have arrived by then.
const SETTLE_TIME: Duration = Duration::from_millis(300);

/// The result of a run that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The schedule was run to its end.
    Passed,
    /// The last fault left the same state as the last fault of an earlier run. So the schedule was
    /// not run to its end.
    Duplicate,
}

/// Makes a baseline from `operations` requests of one client to two new nodes.
pub fn make_baseline(
    setup: &Setup,
    source: Box<dyn Source>,
    operations: u64,
) -> Result<Baseline, Box<Failure>> {
    let random = Random::new(setup.seed);
    let users = users(1, source);
    let cluster = Cluster::new(&setup.settings, users, setup.step_percent, random);
    let mut runner = Runner { cluster, setup };
    let made = catch_panic(None, || runner.make_baseline(operations));
    made.map_err(|what| Box::new(runner.failure(what, &[])))
}

/// Runs a schedule with `faults`, and judges it. Returns the points at which another fault may
/// follow.
pub fn points(
    baseline: &Baseline,
    setup: &Setup,
    source: Box<dyn Source>,
    faults: &[InjectedFault],
    mutant: Option<Mutant>,
) -> Result<Vec<PointInfo>, Box<Failure>> {
    Runner::new(baseline, setup, source).run(faults, mutant, |runner| {
        for (earlier, fault) in faults.iter().enumerate() {
            runner.run_to(earlier, Some(*fault))?;
        }
        let probe = runner.run_to(faults.len(), None)?;
        runner.finish()?;
        Ok(probe.take_points())
    })
}

/// Runs a schedule with `faults`, at least one. `digests` holds the digests of the states that the
/// last fault has left in other runs with the same baseline, setup, source and earlier faults. The
/// digest of this run is added.
pub fn run(
    baseline: &Baseline,
    setup: &Setup,
    source: Box<dyn Source>,
    faults: &[InjectedFault],
    digests: &mut BTreeSet<u64>,
    mutant: Option<Mutant>,
) -> Result<Outcome, Box<Failure>> {
    Runner::new(baseline, setup, source).run(faults, mutant, |runner| {
        for (earlier, fault) in faults.iter().enumerate() {
            let probe = runner.run_to(earlier, Some(*fault))?;
            let is_last = earlier + 1 == faults.len();
            if is_last && !digests.insert(runner.digest(&probe, fault.kind)) {
                return runner.verdict().map(|()| Outcome::Duplicate);
            }
        }
        runner.finish()?;
        Ok(Outcome::Passed)
    })
}

fn users(clients: u32, source: Box<dyn Source>) -> Users {
    Users {
        clients,
        pause_max: Duration::ZERO,
        source,
    }
}

/// A cluster whose calls and frames are counted.
struct Runner<'a> {
    cluster: Cluster,
    setup: &'a Setup,
}

impl<'a> Runner<'a> {
    /// Returns a cluster that has not started.
    fn new(baseline: &Baseline, setup: &'a Setup, source: Box<dyn Source>) -> Self {
        let users = users(0, source);
        let random = Random::new(setup.seed);
        let mut cluster = Cluster::new(&setup.settings, users, setup.step_percent, random);
        cluster.begin_with(baseline);
        Self { cluster, setup }
    }

    /// Prepares the nodes, and runs `body`.
    fn run<T>(
        mut self,
        faults: &[InjectedFault],
        mutant: Option<Mutant>,
        body: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, Box<Failure>> {
        let result = catch_panic(mutant, || {
            self.prepare()?;
            body(&mut self)
        });
        // Not used, but the next schedule must not get it.
        let _coverage = self.cluster.take_coverage();
        result.map_err(|what| Box::new(self.failure(what, faults)))
    }

    /// Runs both nodes until the client has had so many answers, and stops the nodes when everything
    /// is on stable storage.
    fn make_baseline(&mut self, operations: u64) -> Result<Baseline, String> {
        self.cluster.start_both();
        self.run_until("the baseline is not made in time", |cluster| {
            cluster.answered() >= operations
        })?;
        self.cluster.until_in_sync(IN_SYNC_WITHIN)?;
        self.cluster.settle()?;
        self.cluster.final_check()?;
        for side in Side::BOTH {
            self.cluster.stop(side, Stop::Process);
        }
        self.write_back()?;
        self.verdict()?;
        Ok(self.cluster.baseline())
    }

    /// Starts both nodes, waits until they are in sync and idle, and gives the mount its clients.
    fn prepare(&mut self) -> Result<(), String> {
        self.cluster.start_both();
        self.run_until("the nodes are not in sync in time", Cluster::is_in_sync)?;
        self.cluster.run_for(SETTLE_TIME)?;
        self.write_back()?;
        self.cluster.clients.set_count(self.setup.clients);
        Ok(())
    }

    fn run_until(&mut self, error: &str, holds: impl Fn(&Cluster) -> bool) -> Result<(), String> {
        let until = self.cluster.now() + IN_SYNC_WITHIN;
        while !holds(&self.cluster) {
            if self.cluster.now() > until {
                return Err(error.to_owned());
            }
            self.cluster.run_for(POLL_INTERVAL)?;
        }
        Ok(())
    }

    /// Syncs both disks, as an operating system does in time.
    fn write_back(&self) -> Result<(), String> {
        for side in Side::BOTH {
            let synced = self.cluster.disk(side).mount().sync_all();
            synced.map_err(|error| format!("a disk cannot be synced: {error}"))?;
        }
        Ok(())
    }

    /// Runs the world until `fault` has happened and the stopped nodes have started. Without a
    /// fault, runs the world as long as points count. `earlier` is the number of earlier faults.
    fn run_to(
        &mut self,
        earlier: usize,
        fault: Option<InjectedFault>,
    ) -> Result<Arc<Probe>, String> {
        let is_first = earlier == 0;
        let frames_counted = if is_first {
            self.setup.frames_counted
        } else {
            IN_SYNC_WITHIN
        };
        let counted = Counted {
            answers_before: self.setup.answers_before,
            frames_until: self.cluster.now() + frames_counted,
        };
        let probe = Probe::attach(&self.cluster, fault, counted);
        self.plan_stops(fault);
        let ran = if is_first {
            self.run_probed(&probe, self.setup.calls_counted)
        } else {
            self.run_probed_until_in_sync(&probe)
        };
        Probe::detach(&self.cluster);
        ran?;
        if fault.is_some() && !probe.is_injected() {
            return Err("the same seed did not lead to the same point".to_owned());
        }
        Ok(probe)
    }

    /// Plans the way in which the nodes stop at a fault.
    fn plan_stops(&mut self, fault: Option<InjectedFault>) {
        let Some(FaultKind::Stop {
            nodes,
            stop,
            survivors,
            ..
        }) = fault.map(|fault| fault.kind)
        else {
            return;
        };
        for side in Side::BOTH.into_iter().filter(|side| nodes.includes(*side)) {
            let planned = &mut self.cluster.nodes.of_mut(side).planned;
            planned.crash_stop = Some(stop);
            planned.loss = Some(*side.of(&survivors));
        }
    }

    /// Runs the world for some time, or until the fault has happened and the stopped nodes have
    /// started.
    fn run_probed(&mut self, probe: &Probe, time: Duration) -> Result<(), String> {
        let until = self.cluster.now() + time;
        self.cluster.supervise()?;
        while self.cluster.world.step(until) {
            self.cluster.world.check_steps()?;
            self.cluster.supervise()?;
            if probe.is_injected() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Runs the world until the next fault has happened, or until both nodes are in sync and idle
    /// again.
    fn run_probed_until_in_sync(&mut self, probe: &Probe) -> Result<(), String> {
        let until = self.cluster.now() + IN_SYNC_WITHIN;
        loop {
            self.run_probed(probe, POLL_INTERVAL)?;
            if probe.is_injected() {
                return Ok(());
            }
            if self.cluster.is_in_sync() || self.cluster.now() > until {
                return self.run_probed(probe, SETTLE_TIME);
            }
        }
    }

    /// Runs the schedule to its end, and judges it.
    fn finish(&mut self) -> Result<(), String> {
        self.cluster.run_for(WORK_AFTER_FAULTS)?;
        self.cluster.until_in_sync(IN_SYNC_WITHIN)?;
        self.cluster.stop_clients();
        self.cluster.until_in_sync(IN_SYNC_WITHIN)?;
        self.cluster.settle()?;
        self.cluster.final_check()
    }

    /// Returns the first violation so far.
    fn verdict(&self) -> Result<(), String> {
        self.cluster.recorder.lock().verdict()
    }

    /// Returns a digest of everything that decides the run after a fault: both disks, the requests
    /// and answers, and the stopped nodes. Unless both nodes stopped, the digest also covers the
    /// frames so far and the states of the nodes.
    fn digest(&self, probe: &Probe, fault: FaultKind) -> u64 {
        let mut digest = DefaultHasher::new();
        for side in Side::BOTH {
            self.cluster.disk(side).digest().hash(&mut digest);
        }
        let recorder = self.cluster.recorder.lock();
        for (_, call) in recorder.history().calls().iter() {
            call.to_string().hash(&mut digest);
        }
        let stopped = match fault {
            FaultKind::Stop { nodes, stop, .. } => Some((nodes, stop)),
            FaultKind::Disconnect { .. } => None,
        };
        format!("{stopped:?}").hash(&mut digest);
        if !matches!(stopped, Some((StoppedNodes::Both, _))) {
            probe.frames_sent().hash(&mut digest);
            let network = &self.cluster.world.network;
            let in_flight = Side::BOTH.map(|side| network.frames_in_flight(side));
            in_flight.hash(&mut digest);
            format!("{:?}", self.cluster.nodes.states()).hash(&mut digest);
        }
        digest.finish()
    }

    fn failure(&self, what: String, faults: &[InjectedFault]) -> Failure {
        Failure {
            what,
            faults: faults.iter().map(|fault| format!("{fault:?}")).collect(),
            history: self.cluster.history(),
        }
    }
}
