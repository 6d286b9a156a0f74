//! Runs many small worlds on several threads, and replays a single world.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lockstep_types::mutants::Mutant;
use parking_lot::Mutex;

use super::faults;
use super::workload::{self, Workload};
use crate::scenario::injection::{self, InjectedFault, Outcome, Point};
use crate::scenario::{Baseline, Failure};

/// Number of failures after which the campaign looks for no more.
const FOUND_MAX: usize = 20;

/// Names a world by the number of its workload among [`workload::all`], and by the number of each
/// of its faults among all faults that can happen at that point. Without faults, it names the
/// undisturbed workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldId {
    /// The number of the workload.
    pub workload: usize,
    /// The numbers of the faults, one after the other.
    pub faults: Vec<usize>,
}

impl fmt::Display for WorldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.workload)?;
        let mut faults = self.faults.iter();
        faults.try_for_each(|fault| write!(f, "/{fault}"))
    }
}

impl FromStr for WorldId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.parse()
                .map_err(|_| format!("{text:?} is not a number of a world"))
        };
        let mut numbers = text.split('/').map(number);
        Ok(Self {
            workload: numbers.next().unwrap_or_else(|| number(""))?,
            faults: numbers.collect::<Result<_, _>>()?,
        })
    }
}

/// A world that failed.
#[derive(Clone, Debug)]
pub struct FailedWorld {
    /// The world.
    pub world: WorldId,
    /// The random seed of the world.
    pub seed: u64,
    /// The workload of the world, in words.
    pub workload: String,
    /// The failure.
    pub failure: Box<Failure>,
}

impl fmt::Display for FailedWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.workload, self.failure.what)?;
        for fault in &self.failure.faults {
            writeln!(f, "  {fault}")?;
        }
        writeln!(f, "{}", self.failure.history)?;
        write!(
            f,
            "replay: cargo run --profile ci -p lockstep-sim -- exhaustive --world {} --seed {}",
            self.world, self.seed
        )
    }
}

/// The choice of worlds to run.
#[derive(Clone, Debug)]
pub struct WorldSelection {
    /// The numbers of the workloads.
    pub workloads: Vec<usize>,
    /// The first number, n, chooses one in n of the faults of each workload. If there is a second
    /// number, another fault follows each chosen fault while the nodes recover from it. The second
    /// number chooses among these faults in the same way. Each further number adds one more fault.
    pub one_in: Vec<NonZeroUsize>,
    /// Selects the subset. Each number below the product of the numbers in `one_in` chooses other
    /// worlds. Together these numbers choose all worlds.
    pub from: usize,
    /// The random seed of every random choice in the worlds.
    pub seed: u64,
    /// The mutant in the worlds, if any.
    pub mutant: Option<Mutant>,
}

/// The results of many worlds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CampaignReport {
    /// Number of workloads, each run once without fault.
    pub workloads: u64,
    /// Number of disk calls at which faults happened.
    pub calls: u64,
    /// Number of frames before which the connection was lost.
    pub frames: u64,
    /// Number of worlds that exist of these workloads, and after the faults that other faults
    /// follow.
    pub faults: u64,
    /// Number of worlds that were run to their end.
    pub run: u64,
    /// Number of worlds in which the fault left the same state as the fault of another world.
    pub duplicates: u64,
    /// Number of worlds with more than one fault, among `run` and `duplicates` together.
    pub multi_fault: u64,
}

impl fmt::Display for CampaignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            workloads,
            calls,
            frames,
            faults,
            run,
            duplicates,
            multi_fault,
        } = self;
        write!(
            f,
            "{workloads} workloads, {calls} calls of disks and {frames} frames in them; {} of {faults} \
             worlds, {multi_fault} of these with more than one fault: {run} run to their end, {duplicates} \
             duplicates",
            run + duplicates
        )
    }
}

impl CampaignReport {
    /// Counts a world of these faults. `is_at_new_point` says whether its last fault is at another
    /// point than that of the previous world.
    fn count(&mut self, outcome: Outcome, faults: &[InjectedFault], is_at_new_point: bool) {
        match outcome {
            Outcome::Passed => self.run += 1,
            Outcome::Duplicate => self.duplicates += 1,
        }
        self.multi_fault += u64::from(faults.len() > 1);
        match faults.last().map(|fault| fault.point) {
            Some(Point::Call(..)) => self.calls += u64::from(is_at_new_point),
            Some(Point::Frame(..)) => self.frames += u64::from(is_at_new_point),
            None => {}
        }
    }

    fn add(&mut self, other: &Self) {
        self.workloads += other.workloads;
        self.calls += other.calls;
        self.frames += other.frames;
        self.faults += other.faults;
        self.run += other.run;
        self.duplicates += other.duplicates;
        self.multi_fault += other.multi_fault;
    }
}

/// Many worlds under way.
pub struct Campaign {
    choice: WorldSelection,
    all: Vec<Workload>,
    baselines: [Baseline; 2],
    next: AtomicUsize,
    over: AtomicBool,
    report: Mutex<CampaignReport>,
    found: Mutex<Vec<FailedWorld>>,
}

impl Campaign {
    /// Returns a campaign of the chosen worlds.
    pub fn new(choice: WorldSelection) -> Self {
        Self {
            choice,
            all: workload::all(),
            baselines: workload::baselines(),
            next: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            report: Mutex::default(),
            found: Mutex::default(),
        }
    }

    /// Runs the worlds on `threads` threads. After a failure in a workload, the rest of this
    /// workload is skipped. Returns the failures, if any. With a mutant, the campaign stops
    /// at the first failure.
    pub fn run(&self, threads: usize) -> Vec<FailedWorld> {
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| self.work());
            }
        });
        std::mem::take(&mut self.found.lock())
    }

    /// Returns the results so far.
    pub fn report(&self) -> CampaignReport {
        *self.report.lock()
    }

    /// Begins no more worlds.
    pub fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn work(&self) {
        while !self.over.load(Ordering::Relaxed) {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&number) = self.choice.workloads.get(next) else {
                return;
            };
            if let Some(workload) = self.all.get(number)
                && let Err(found) = self.run_workload(number, workload)
            {
                let mut all = self.found.lock();
                all.push(found);
                if self.choice.mutant.is_some() || all.len() >= FOUND_MAX {
                    self.stop();
                }
            }
        }
    }

    fn run_workload(&self, number: usize, workload: &Workload) -> Result<(), FailedWorld> {
        let mut run = WorkloadRun {
            campaign: self,
            number,
            runnable: RunnableWorkload {
                workload,
                baseline: of(&self.baselines, workload),
                seed: self.choice.seed,
                mutant: self.choice.mutant,
            },
            numbers: Vec::new(),
            faults: Vec::new(),
            report: CampaignReport {
                workloads: 1,
                ..CampaignReport::default()
            },
        };
        let ran = run.run_on(&self.choice.one_in, self.choice.from);
        self.report.lock().add(&run.report);
        ran
    }
}

/// The position of a campaign in a workload.
struct WorkloadRun<'a> {
    campaign: &'a Campaign,
    number: usize,
    runnable: RunnableWorkload<'a>,
    /// The faults of the present world, by their numbers.
    numbers: Vec<usize>,
    /// The same faults, by value.
    faults: Vec<InjectedFault>,
    report: CampaignReport,
}

impl WorkloadRun<'_> {
    /// Runs the worlds in which another fault follows the present faults. Each number in `one_in`
    /// chooses one in that many faults.
    fn run_on(&mut self, one_in: &[NonZeroUsize], from: usize) -> Result<(), FailedWorld> {
        let Some((step, deeper)) = one_in.split_first() else {
            return Ok(());
        };
        let faults = self.runnable.faults(&self.faults);
        let faults = faults.map_err(|failure| self.found(failure))?;
        self.report.faults += faults.len() as u64;
        let (first, others) = (from % step.get(), from / step.get());
        let chosen = faults.iter().enumerate();
        let chosen = chosen.skip(first).step_by(step.get());
        let mut digests = BTreeSet::new();
        let mut last = None;
        for (count, (number, fault)) in chosen.enumerate() {
            if self.campaign.over.load(Ordering::Relaxed) {
                break;
            }
            self.numbers.push(number);
            self.faults.push(*fault);
            let outcome = self.runnable.run(&self.faults, &mut digests);
            let outcome = outcome.map_err(|failure| self.found(failure))?;
            let is_at_new_point = last.replace(fault.point) != Some(fault.point);
            self.report.count(outcome, &self.faults, is_at_new_point);
            if outcome == Outcome::Passed {
                // Choose other faults after each fault and in each workload, so that every kind of
                // fault follows some fault.
                let from = others.wrapping_add(count + self.number);
                self.run_on(deeper, from)?;
            }
            self.numbers.pop();
            self.faults.pop();
        }
        Ok(())
    }

    fn found(&self, failure: Box<Failure>) -> FailedWorld {
        FailedWorld {
            world: WorldId {
                workload: self.number,
                faults: self.numbers.clone(),
            },
            seed: self.runnable.seed,
            workload: self.runnable.workload.to_string(),
            failure,
        }
    }
}

fn of<'a>(baselines: &'a [Baseline; 2], workload: &Workload) -> &'a Baseline {
    let [posix, always] = baselines;
    if workload.is_always() { always } else { posix }
}

/// A workload with everything that is needed to run it.
struct RunnableWorkload<'a> {
    workload: &'a Workload,
    baseline: &'a Baseline,
    seed: u64,
    mutant: Option<Mutant>,
}

impl RunnableWorkload<'_> {
    /// Returns all faults that can follow the faults in `before`.
    fn faults(&self, before: &[InjectedFault]) -> Result<Vec<InjectedFault>, Box<Failure>> {
        let script = Box::new(self.workload.script(self.baseline));
        let setup = self.workload.setup(self.seed);
        let points = injection::points(self.baseline, &setup, script, before, self.mutant)?;
        Ok(faults::at(&points, self.workload.stops_both()))
    }

    fn run(
        &self,
        faults: &[InjectedFault],
        digests: &mut BTreeSet<u64>,
    ) -> Result<Outcome, Box<Failure>> {
        let script = Box::new(self.workload.script(self.baseline));
        let setup = self.workload.setup(self.seed);
        injection::run(self.baseline, &setup, script, faults, digests, self.mutant)
    }

    /// Returns the faults with these numbers, one after the other.
    fn named(&self, numbers: &[usize]) -> Result<Vec<InjectedFault>, String> {
        let mut named = Vec::new();
        for number in numbers {
            let faults = self.faults(&named).map_err(|failure| failure.what)?;
            let fault = faults.get(*number);
            let none = || format!("there are {} faults, and no {number}", faults.len());
            named.push(*fault.ok_or_else(none)?);
        }
        Ok(named)
    }
}

/// Runs one world, with a mutant if `mutant` names one. Returns a description of the world in
/// words, or the failure as the error.
pub fn replay(world: &WorldId, seed: u64, mutant: Option<Mutant>) -> Result<String, String> {
    let all = workload::all();
    let workload = all
        .get(world.workload)
        .ok_or_else(|| format!("there are {} workloads", all.len()))?;
    let baselines = workload::baselines();
    let runnable = RunnableWorkload {
        workload,
        baseline: of(&baselines, workload),
        seed,
        mutant,
    };
    let faults = runnable.named(&world.faults)?;
    let ran = if faults.is_empty() {
        Ok(Outcome::Passed)
    } else {
        runnable.run(&faults, &mut BTreeSet::new())
    };
    // Also run the world in the way that finds the faults that can follow.
    let ran = ran.and_then(|_| runnable.faults(&faults));
    ran.map_err(|failure| {
        let found = FailedWorld {
            world: world.clone(),
            seed,
            workload: workload.to_string(),
            failure,
        };
        found.to_string()
    })?;
    let faults_text = faults.iter().map(|fault| format!("\n  {fault:?}"));
    Ok(format!(
        "{workload}{}: nothing is wrong",
        faults_text.collect::<String>()
    ))
}
