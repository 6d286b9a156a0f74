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
use crate::scenario::Failure;
use crate::scenario::exact::{self, Came, Exact, Ground, Place};

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
                .map_err(|_| format!("{text:?} is not a number of a small world"))
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
pub struct Found {
    /// The world.
    pub world: WorldId,
    /// The random seed of the world.
    pub luck: u64,
    /// The workload of the world, in words.
    pub workload: String,
    /// The failure.
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

/// The choice of worlds to run.
#[derive(Clone, Debug)]
pub struct Choice {
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
    pub luck: u64,
    /// The deliberate bug in the worlds, if any.
    pub bug: Option<Mutant>,
}

/// The results of many worlds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
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
    pub alike: u64,
    /// Number of worlds with more than one fault, among `run` and `alike` together.
    pub of_several: u64,
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
            of_several,
        } = self;
        write!(
            f,
            "{workloads} workloads, {calls} calls of disks and {frames} frames in them; {} of {faults} \
             worlds, {of_several} of these with more than one fault: {run} run to their end, {alike} like \
             one of these",
            run + alike
        )
    }
}

impl Report {
    /// Counts a world of these faults. `is_at_new_place` says whether its last fault is at another
    /// place than that of the previous world.
    fn count(&mut self, came: Came, faults: &[Exact], is_at_new_place: bool) {
        match came {
            Came::Well => self.run += 1,
            Came::Alike => self.alike += 1,
        }
        self.of_several += u64::from(faults.len() > 1);
        match faults.last().map(|exact| exact.place) {
            Some(Place::Call(..)) => self.calls += u64::from(is_at_new_place),
            Some(Place::Frame(..)) => self.frames += u64::from(is_at_new_place),
            None => {}
        }
    }

    fn add(&mut self, other: &Self) {
        self.workloads += other.workloads;
        self.calls += other.calls;
        self.frames += other.frames;
        self.faults += other.faults;
        self.run += other.run;
        self.alike += other.alike;
        self.of_several += other.of_several;
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
    /// Returns a campaign of the chosen worlds.
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

    /// Runs the worlds on `threads` threads. After a failure in a workload, the rest of this
    /// workload is skipped. Returns the failures, if any. With a deliberate bug, the campaign stops
    /// at the first failure.
    pub fn run(&self, threads: usize) -> Vec<Found> {
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| self.work());
            }
        });
        std::mem::take(&mut self.found.lock())
    }

    /// Returns the results so far.
    pub fn so_far(&self) -> Report {
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
                if self.choice.bug.is_some() || all.len() >= FOUND_MAX {
                    self.stop();
                }
            }
        }
    }

    fn run_workload(&self, number: usize, workload: &Workload) -> Result<(), Found> {
        let mut line = Line {
            campaign: self,
            number,
            setting: Setting {
                workload,
                ground: of(&self.grounds, workload),
                luck: self.choice.luck,
                bug: self.choice.bug,
            },
            numbers: Vec::new(),
            faults: Vec::new(),
            report: Report {
                workloads: 1,
                ..Report::default()
            },
        };
        let ran = line.run_on(&self.choice.one_in, self.choice.from);
        self.report.lock().add(&line.report);
        ran
    }
}

/// The position of a campaign in a workload.
struct Line<'a> {
    campaign: &'a Campaign,
    number: usize,
    setting: Setting<'a>,
    /// The faults of the present world, by their numbers.
    numbers: Vec<usize>,
    /// The same faults, by value.
    faults: Vec<Exact>,
    report: Report,
}

impl Line<'_> {
    /// Runs the worlds in which another fault follows the present faults. Each number in `one_in`
    /// chooses one in that many faults.
    fn run_on(&mut self, one_in: &[NonZeroUsize], from: usize) -> Result<(), Found> {
        let Some((step, deeper)) = one_in.split_first() else {
            return Ok(());
        };
        let faults = self.setting.faults(&self.faults);
        let faults = faults.map_err(|failure| self.found(failure))?;
        self.report.faults += faults.len() as u64;
        let (first, others) = (from % step.get(), from / step.get());
        let chosen = faults.iter().enumerate();
        let chosen = chosen.skip(first).step_by(step.get());
        let mut left = BTreeSet::new();
        let mut last = None;
        for (count, (number, exact)) in chosen.enumerate() {
            if self.campaign.over.load(Ordering::Relaxed) {
                break;
            }
            self.numbers.push(number);
            self.faults.push(*exact);
            let came = self.setting.run(&self.faults, &mut left);
            let came = came.map_err(|failure| self.found(failure))?;
            let is_at_new_place = last.replace(exact.place) != Some(exact.place);
            self.report.count(came, &self.faults, is_at_new_place);
            if came == Came::Well {
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

    fn found(&self, failure: Box<Failure>) -> Found {
        Found {
            world: WorldId {
                workload: self.number,
                faults: self.numbers.clone(),
            },
            luck: self.setting.luck,
            workload: self.setting.workload.to_string(),
            failure,
        }
    }
}

fn of<'a>(grounds: &'a [Ground; 2], workload: &Workload) -> &'a Ground {
    let [posix, always] = grounds;
    if workload.is_always() { always } else { posix }
}

/// A workload with everything that is needed to run it.
struct Setting<'a> {
    workload: &'a Workload,
    ground: &'a Ground,
    luck: u64,
    bug: Option<Mutant>,
}

impl Setting<'_> {
    /// Returns all faults that can follow the faults in `before`.
    fn faults(&self, before: &[Exact]) -> Result<Vec<Exact>, Box<Failure>> {
        let script = Box::new(self.workload.script(self.ground));
        let stage = self.workload.stage(self.luck);
        let places = exact::places(self.ground, &stage, script, before, self.bug)?;
        Ok(faults::at(&places, self.workload.has_stops_of_both()))
    }

    fn run(&self, faults: &[Exact], left: &mut BTreeSet<u64>) -> Result<Came, Box<Failure>> {
        let script = Box::new(self.workload.script(self.ground));
        let stage = self.workload.stage(self.luck);
        exact::run_exactly(self.ground, &stage, script, faults, left, self.bug)
    }

    /// Returns the faults with these numbers, one after the other.
    fn named(&self, numbers: &[usize]) -> Result<Vec<Exact>, String> {
        let mut named = Vec::new();
        for number in numbers {
            let faults = self.faults(&named).map_err(|failure| failure.what)?;
            let exact = faults.get(*number);
            let none = || format!("there are {} faults, and no {number}", faults.len());
            named.push(*exact.ok_or_else(none)?);
        }
        Ok(named)
    }
}

/// Runs one world, with a deliberate bug if `bug` names one. Returns a description of the world in
/// words, or the failure as the error.
pub fn replay(world: &WorldId, luck: u64, bug: Option<Mutant>) -> Result<String, String> {
    let all = workload::all();
    let workload = all
        .get(world.workload)
        .ok_or_else(|| format!("there are {} workloads", all.len()))?;
    let grounds = workload::grounds();
    let setting = Setting {
        workload,
        ground: of(&grounds, workload),
        luck,
        bug,
    };
    let faults = setting.named(&world.faults)?;
    let ran = if faults.is_empty() {
        Ok(Came::Well)
    } else {
        setting.run(&faults, &mut BTreeSet::new())
    };
    // Also run the world in the way that finds the faults that can follow.
    let ran = ran.and_then(|_| setting.faults(&faults));
    ran.map_err(|failure| {
        let found = Found {
            world: world.clone(),
            luck,
            workload: workload.to_string(),
            failure,
        };
        found.to_string()
    })?;
    let told = faults.iter().map(|exact| format!("\n  {exact:?}"));
    Ok(format!(
        "{workload}{}: nothing is wrong",
        told.collect::<String>()
    ))
}
