//! Many small worlds, on several threads; and one again.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lockstep_types::deliberate::Bug;
use parking_lot::Mutex;

use super::faults;
use super::workload::{self, Workload};
use crate::scenario::Failure;
use crate::scenario::exact::{self, Came, Exact, Ground, Place};

/// Failures after which no more are looked for.
const FOUND_MAX: usize = 20;

/// Names a world: by its workload's number among [`workload::all`], and by the number of its fault
/// among all of that workload. Without fault: the workload undisturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldId {
    /// The workload.
    pub workload: usize,
    /// The fault.
    pub fault: Option<usize>,
}

impl fmt::Display for WorldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.workload)?;
        self.fault.map_or(Ok(()), |fault| write!(f, "/{fault}"))
    }
}

impl FromStr for WorldId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.parse()
                .map_err(|_| format!("{text:?} is not a number of a small world"))
        };
        let (workload, fault) = match text.split_once('/') {
            Some((workload, fault)) => (workload, Some(number(fault)?)),
            None => (text, None),
        };
        Ok(Self {
            workload: number(workload)?,
            fault,
        })
    }
}

/// A world in which something was wrong.
#[derive(Clone, Debug)]
pub struct Found {
    /// Which.
    pub world: WorldId,
    /// Its luck.
    pub luck: u64,
    /// Its workload, in words.
    pub workload: String,
    /// What was wrong.
    pub failure: Box<Failure>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.workload, self.failure.what)?;
        for fault in &self.failure.faults {
            writeln!(f, "  {fault}")?;
        }
        writeln!(f, "{}", self.failure.history)?;
        write!(
            f,
            "replay: cargo run --profile ci -p lockstep-sim -- small --world {} --luck {}",
            self.world, self.luck
        )
    }
}

/// Which worlds are run.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The workloads, by their numbers.
    pub workloads: Vec<usize>,
    /// Of the faults of each, one in so many, beginning with `from` modulo that. At least one.
    pub one_in: usize,
    /// See `one_in`.
    pub from: usize,
    /// Of everything that is drawn in them.
    pub luck: u64,
    /// A bug that is put in.
    pub bug: Option<Bug>,
}

/// What many worlds came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Workloads, each run once without fault.
    pub workloads: u64,
    /// Calls of disks and frames at which faults came.
    pub calls: u64,
    /// Frames before which the connection was lost.
    pub frames: u64,
    /// Worlds there are of these workloads.
    pub faults: u64,
    /// Worlds that were run to their end.
    pub run: u64,
    /// Worlds in which the fault left what that of another has left.
    pub alike: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            workloads,
            calls,
            frames,
            faults,
            run,
            alike,
        } = self;
        write!(
            f,
            "{workloads} workloads, {calls} calls of disks and {frames} frames in them; {} of {faults} \
             worlds: {run} run to their end, {alike} like one of these",
            run + alike
        )
    }
}

impl Report {
    fn add(&mut self, other: &Self) {
        self.workloads += other.workloads;
        self.calls += other.calls;
        self.frames += other.frames;
        self.faults += other.faults;
        self.run += other.run;
        self.alike += other.alike;
    }
}

/// Many worlds under way.
pub struct Campaign {
    choice: Choice,
    all: Vec<Workload>,
    grounds: [Ground; 2],
    next: AtomicUsize,
    over: AtomicBool,
    report: Mutex<Report>,
    found: Mutex<Vec<Found>>,
}

impl Campaign {
    /// The worlds that were chosen.
    pub fn new(choice: Choice) -> Self {
        Self {
            choice,
            all: workload::all(),
            grounds: workload::grounds(),
            next: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            report: Mutex::default(),
            found: Mutex::default(),
        }
    }

    /// Runs them on so many threads. Of a workload in which something was wrong, the rest is left
    /// out. What was wrong, if anything; with a bug put in, the first of it.
    pub fn run(&self, threads: usize) -> Vec<Found> {
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| self.work());
            }
        });
        std::mem::take(&mut self.found.lock())
    }

    /// What they have come to so far.
    pub fn so_far(&self) -> Report {
        *self.report.lock()
    }

    /// Begins no more of them.
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
                if self.choice.bug.is_some() || all.len() >= FOUND_MAX {
                    self.stop();
                }
            }
        }
    }

    fn run_workload(&self, number: usize, workload: &Workload) -> Result<(), Found> {
        let Choice {
            one_in,
            from,
            luck,
            bug,
            ..
        } = self.choice;
        let found = |fault, failure| Found {
            world: WorldId {
                workload: number,
                fault,
            },
            luck,
            workload: workload.to_string(),
            failure,
        };
        let setting = Setting {
            workload,
            ground: of(&self.grounds, workload),
            luck,
            bug,
        };
        let faults = setting.faults().map_err(|failure| found(None, failure))?;
        let mut report = Report {
            faults: faults.len() as u64,
            workloads: 1,
            ..Report::default()
        };
        let mut left = BTreeSet::new();
        let mut last = None;
        let chosen = faults
            .iter()
            .enumerate()
            .skip(from % one_in)
            .step_by(one_in);
        for (fault, exact) in chosen {
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            let came = setting.run(exact, &mut left);
            match came.map_err(|failure| found(Some(fault), failure))? {
                Came::Well => report.run += 1,
                Came::Alike => report.alike += 1,
            }
            if last.replace(exact.place) != Some(exact.place) {
                match exact.place {
                    Place::Call(..) => report.calls += 1,
                    Place::Frame(..) => report.frames += 1,
                }
            }
        }
        self.report.lock().add(&report);
        Ok(())
    }
}

fn of<'a>(grounds: &'a [Ground; 2], workload: &Workload) -> &'a Ground {
    let [posix, always] = grounds;
    if workload.is_always() { always } else { posix }
}

/// A workload with all that is needed to run it.
struct Setting<'a> {
    workload: &'a Workload,
    ground: &'a Ground,
    luck: u64,
    bug: Option<Bug>,
}

impl Setting<'_> {
    /// All faults of the workload.
    fn faults(&self) -> Result<Vec<Exact>, Box<Failure>> {
        let script = Box::new(self.workload.script(self.ground));
        let stage = self.workload.stage(self.luck);
        let places = exact::places(self.ground, &stage, script, self.bug)?;
        Ok(faults::at(&places, self.workload.has_stops_of_both()))
    }

    fn run(&self, exact: &Exact, left: &mut BTreeSet<u64>) -> Result<Came, Box<Failure>> {
        let script = Box::new(self.workload.script(self.ground));
        let stage = self.workload.stage(self.luck);
        exact::run_exactly(self.ground, &stage, script, exact, left, self.bug)
    }
}

/// Runs one world, with a bug put in if one is named. What it is, in words; what was wrong, if
/// anything.
pub fn replay(world: WorldId, luck: u64, bug: Option<Bug>) -> Result<String, String> {
    let all = workload::all();
    let workload = all
        .get(world.workload)
        .ok_or_else(|| format!("there are {} workloads", all.len()))?;
    let found = |failure| {
        let workload = workload.to_string();
        Found {
            world,
            luck,
            workload,
            failure,
        }
        .to_string()
    };
    let grounds = workload::grounds();
    let setting = Setting {
        workload,
        ground: of(&grounds, workload),
        luck,
        bug,
    };
    let faults = setting.faults().map_err(found)?;
    let Some(number) = world.fault else {
        return Ok(format!("{workload}: nothing is wrong"));
    };
    let exact = faults.get(number);
    let exact = exact.ok_or_else(|| format!("it has {} faults", faults.len()))?;
    setting.run(exact, &mut BTreeSet::new()).map_err(found)?;
    Ok(format!("{workload}\n  {exact:?}: nothing is wrong"))
}
