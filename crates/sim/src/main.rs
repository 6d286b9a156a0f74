//! Runs schedules by hand: for hours, one again, or with a bug put in.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use lockstep_sim::scenario::Less;
use lockstep_sim::shrink::{Case, Found};
use lockstep_sim::small::{self, Campaign, Choice, WorldId};
use lockstep_sim::soak::{Report, Soak};
use lockstep_types::mutants::{self, Mutant};

/// How often a soak says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// How soon it notices that it is over.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The simulator of Lockstep.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs many schedules, and says what they met and which of them fail
    Soak {
        /// How many, at most
        #[arg(long, default_value_t = u64::MAX)]
        schedules: u64,
        /// For how many hours, at most
        #[arg(long)]
        hours: Option<f64>,
        /// The first seed
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// At once
        #[arg(long, default_value_t = 2)]
        threads: usize,
        /// Ends when so many have failed
        #[arg(long, default_value_t = 20)]
        failures: usize,
    },
    /// Runs one schedule, twice, and says what it came to
    Replay(Replay),
    /// Makes a failing schedule smaller
    Shrink {
        /// Its seed
        seed: u64,
    },
    /// Runs small worlds: every place at which one or two operations can be disturbed
    Small(Small),
    /// Puts each deliberate bug in and says how many schedules it takes to find it
    Bugs {
        /// Schedules to try, at most
        #[arg(long, default_value_t = 3000)]
        schedules: u64,
        /// Only this one
        #[arg(long)]
        only: Option<String>,
    },
}

#[derive(Args)]
struct Small {
    /// The workloads of two operations too
    #[arg(long)]
    pairs: bool,
    /// At once
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Of the faults of each workload, one in so many. `N,M`: after each of these, one in `M` of those
    /// that can come while the nodes recover
    #[arg(long, default_value = "1", value_delimiter = ',')]
    one_in: Vec<NonZeroUsize>,
    /// Which of them: numbers below `N`, or the product of both, choose others each
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Another luck
    #[arg(long, default_value_t = 0)]
    luck: u64,
    /// Only this world, such as 12/34 (workload 12, its fault 34); 12 is the workload without fault, in
    /// 12/34/5 another fault follows
    #[arg(long)]
    world: Option<WorldId>,
    /// With a bug put in
    #[arg(long)]
    bug: Option<String>,
    /// What the nodes log, such as `info` or `lockstepfs=debug`
    #[arg(long)]
    log: Option<String>,
}

#[derive(Args)]
struct Replay {
    /// Its seed
    seed: u64,
    /// Faults to leave out, by number
    #[arg(long, value_delimiter = ',')]
    without: Vec<usize>,
    /// Clients, at most
    #[arg(long)]
    clients: Option<u32>,
    /// Operations of each client, at most
    #[arg(long)]
    operations: Option<u64>,
    /// Another luck
    #[arg(long)]
    luck: Option<u64>,
    /// What the nodes log, such as `info` or `lockstepfs=debug`
    #[arg(long)]
    log: Option<String>,
    /// Show what clients asked and were told, if it fails
    #[arg(long)]
    history: bool,
    /// With a bug put in
    #[arg(long)]
    bug: Option<String>,
}

impl Replay {
    fn case(&self) -> Case {
        Case {
            seed: self.seed,
            less: Less {
                without: self.without.iter().copied().collect(),
                clients: self.clients,
                operations: self.operations,
                luck: self.luck,
            },
        }
    }
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Soak {
            schedules,
            hours,
            from,
            threads,
            failures,
        } => {
            let limit = hours.map_or(Duration::MAX, |hours| {
                Duration::try_from_secs_f64(hours * 3600.0).unwrap_or(Duration::MAX)
            });
            let soak = Soak::new(|number| from + number, schedules).until_failed(failures);
            run_soak(&soak, limit, threads)
        }
        Command::Replay(replayed) => replay(&replayed),
        Command::Shrink { seed } => shrink(seed),
        Command::Small(small) => self::small(&small),
        Command::Bugs { schedules, only } => bugs(schedules, only.as_deref()),
    }
}

fn run_soak(soak: &Soak<impl Fn(u64) -> u64 + Sync>, limit: Duration, threads: usize) -> ExitCode {
    let start = Instant::now();
    let say_so_far = || say(&soak.so_far(), &soak.failed(), start);
    let look = || {
        if start.elapsed() > limit {
            soak.stop();
        }
    };
    let failed = telling(say_so_far, look, || soak.run(threads));
    let report = soak.so_far();
    say_so_far();
    say_what_was_met(&report);
    for found in &failed {
        println!("{found}\nmade smaller:\n{}", found.clone().shrunk(None));
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        println!("{} schedules failed", failed.len());
        ExitCode::FAILURE
    }
}

/// Runs something long, which says from time to time how far it is, and is looked after more often.
fn telling<T>(say: impl Fn() + Sync, look: impl Fn() + Sync, run: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut said = Instant::now();
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK_EVERY);
                if said.elapsed() > SAY_EVERY {
                    said = Instant::now();
                    say();
                }
                look();
            }
        });
        let came = run();
        over.store(true, Ordering::Relaxed);
        came
    })
}

fn say(report: &Report, failed: &[u64], start: Instant) {
    let Report {
        schedules,
        operations,
        faults,
        simulated,
        met,
        undecided,
    } = report;
    println!(
        "{schedules} schedules, {operations} operations answered, {faults} faults, {:.1} hours \
         simulated in {:.0?}; met: {} pairs of event and state, {} crash points; {undecided} questions \
         left undecided; failed: {failed:?}",
        simulated.as_secs_f64() / 3600.0,
        start.elapsed(),
        met.pairs.len(),
        met.crash_points.len()
    );
}

fn say_what_was_met(report: &Report) {
    for pair in &report.met.pairs {
        println!("  {pair}");
    }
    for point in &report.met.crash_points {
        println!("  {point}");
    }
    let missed = report.met.missed();
    println!("{} rows of the state table were not met", missed.len());
    for pair in missed {
        println!("  not met: {pair}");
    }
}

/// Lets the nodes log.
fn log(filter: Option<&str>) {
    if let Some(filter) = filter {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .without_time()
            .init();
    }
}

/// The bug of a name, if one is named. An error was printed if there is no such bug.
fn bug_named(name: Option<&str>) -> Result<Option<Mutant>, ()> {
    let Some(name) = name else { return Ok(None) };
    let bug = mutants::ALL
        .into_iter()
        .find(|bug| format!("{bug:?}") == name);
    if bug.is_none() {
        println!("there is no such bug");
    }
    bug.map(Some).ok_or(())
}

fn small(asked: &Small) -> ExitCode {
    log(asked.log.as_deref());
    let Ok(bug) = bug_named(asked.bug.as_deref()) else {
        return ExitCode::FAILURE;
    };
    if let Some(world) = &asked.world {
        return match small::replay(world, asked.luck, bug) {
            Ok(what) => {
                println!("{what}");
                ExitCode::SUCCESS
            }
            Err(what) => {
                println!("{what}");
                ExitCode::FAILURE
            }
        };
    }
    let workloads = if asked.pairs {
        small::all()
    } else {
        small::singles()
    };
    run_small(
        &Campaign::new(Choice {
            workloads: (0..workloads.len()).collect(),
            one_in: asked.one_in.clone(),
            from: usize::try_from(asked.from).unwrap_or(0),
            luck: asked.luck,
            bug,
        }),
        asked.threads,
    )
}

fn run_small(campaign: &Campaign, threads: usize) -> ExitCode {
    let start = Instant::now();
    let say = || println!("{} in {:.0?}", campaign.so_far(), start.elapsed());
    let found = telling(say, || {}, || campaign.run(threads));
    say();
    for found in &found {
        println!("\n{found}");
    }
    if found.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn replay(replayed: &Replay) -> ExitCode {
    log(replayed.log.as_deref());
    let case = replayed.case();
    let Ok(bug) = bug_named(replayed.bug.as_deref()) else {
        return ExitCode::FAILURE;
    };
    match [case.run(bug), case.run(bug)] {
        [Ok(first), Ok(second)] if first == second => {
            println!("seed {}: {first:?}", case.seed);
            ExitCode::SUCCESS
        }
        [Ok(first), Ok(second)] => {
            println!("{case} has two outcomes: {first:?}, {second:?}");
            ExitCode::FAILURE
        }
        [Err(failure), _] | [_, Err(failure)] => {
            if replayed.history {
                println!("{}", failure.history);
            }
            println!("{}", Found { case, failure });
            ExitCode::FAILURE
        }
    }
}

fn shrink(seed: u64) -> ExitCode {
    let case = Case::of(seed);
    match case.run(None) {
        Ok(_) => {
            println!("seed {seed} does not fail");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{}", Found { case, failure }.shrunk(None));
            ExitCode::FAILURE
        }
    }
}

fn bugs(schedules: u64, only: Option<&str>) -> ExitCode {
    let mut all_found = true;
    let asked = |bug: &Mutant| only.is_none_or(|only| format!("{bug:?}") == only);
    for bug in mutants::ALL.into_iter().filter(asked) {
        let run = |seed: u64| Case::of(seed).run(Some(bug)).err().map(|what| (seed, what));
        if let Some((seed, failure)) = (1..=schedules).find_map(run) {
            let what = failure.what.lines().next().unwrap_or_default();
            println!("{bug:?}: found by schedule {seed}: {what}");
        } else {
            all_found = false;
            println!("{bug:?}: NOT found by {schedules} schedules");
        }
    }
    if all_found {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
