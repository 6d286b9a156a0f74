//! The command line of the simulator: runs schedules for hours, replays one, shrinks one, runs small
//! worlds, and shows that every mutant is found.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use lockstep_sim::exhaustive::{self, Campaign, WorldId, WorldSelection};
use lockstep_sim::mutant_search;
use lockstep_sim::scenario::{Plan, Reduction};
use lockstep_sim::shrink::{Case, FailedCase};
use lockstep_sim::soak::{Soak, SoakReport};
use lockstep_types::mutants::{self, Mutant};

/// The interval between two progress lines of a long run.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);
/// Distance of the seeds from which schedules of a kind are looked for: about one in seven has a witness.
const SEEDS_BETWEEN: u64 = 100;
/// The interval between two looks at the clock of a long run.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The simulator of Lockstep.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs many schedules, and prints their coverage and their failures
    Soak {
        /// Most schedules
        #[arg(long, default_value_t = u64::MAX)]
        schedules: u64,
        /// Most hours
        #[arg(long)]
        hours: Option<f64>,
        /// The first seed
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// Number of threads
        #[arg(long, default_value_t = 2)]
        threads: usize,
        /// Number of failures after which the soak ends
        #[arg(long, default_value_t = 20)]
        failures: usize,
        /// Only schedules with a witness
        #[arg(long)]
        witness: bool,
        /// Only schedules in which roles change
        #[arg(long)]
        roles: bool,
        /// Only schedules in which an operator accepts a loss; with `--witness`, those with a witness
        #[arg(long)]
        forced: bool,
        /// Only schedules of a datastore that keeps what clients delete
        #[arg(long)]
        trash: bool,
        /// Only schedules in which an operator makes snapshots
        #[arg(long)]
        snapshots: bool,
        /// Ends after so many schedules in which a failover happened
        #[arg(long)]
        failovers: Option<u64>,
        /// Prints failed schedules as they are, and looks for no smaller ones
        #[arg(long)]
        no_shrink: bool,
    },
    /// Runs one schedule twice, and prints its result
    Replay(Replay),
    /// Shrinks a failing schedule
    Shrink {
        /// The seed of the schedule
        seed: u64,
    },
    /// Runs small worlds: one or two operations, with a fault at every point
    Exhaustive(Exhaustive),
    /// Activates each mutant, and prints the number of the first schedule that finds it
    Mutants {
        /// Most schedules for each mutant
        #[arg(long, default_value_t = 3000)]
        schedules: u64,
        /// Only this mutant
        #[arg(long)]
        only: Option<String>,
    },
}

#[derive(Args)]
struct Exhaustive {
    /// Also the workloads of two operations
    #[arg(long)]
    pairs: bool,
    /// Number of threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Runs one in `N` of the faults of each workload. `N,M`: after each of these faults, also runs
    /// one in `M` of the faults that can happen while the nodes recover
    #[arg(long, default_value = "1", value_delimiter = ',')]
    one_in: Vec<NonZeroUsize>,
    /// Selects the subset: each number below `N`, or below the product of `N` and `M`, selects other
    /// faults
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// The seed of the random choices in the worlds
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Only this world: 12/34 is the fault 34 of the workload 12, 12 is the workload without a fault,
    /// and 12/34/5 has another fault after the first
    #[arg(long)]
    world: Option<WorldId>,
    /// The mutant to activate
    #[arg(long)]
    mutant: Option<String>,
    /// The log filter of the nodes, such as `info` or `lockstepfs=debug`
    #[arg(long)]
    log: Option<String>,
}

#[derive(Args)]
struct Replay {
    /// The seed of the schedule
    seed: u64,
    /// The numbers of the faults to leave out
    #[arg(long, value_delimiter = ',')]
    without: Vec<usize>,
    /// Most clients
    #[arg(long)]
    clients: Option<u32>,
    /// Most operations of each client
    #[arg(long)]
    operations: Option<u64>,
    /// Another seed for the random choices during the run
    #[arg(long)]
    run_seed: Option<u64>,
    /// The log filter of the nodes, such as `info` or `lockstepfs=debug`
    #[arg(long)]
    log: Option<String>,
    /// Prints the requests and answers of the clients, if the schedule fails
    #[arg(long)]
    history: bool,
    /// The mutant to activate
    #[arg(long)]
    mutant: Option<String>,
}

impl Replay {
    fn case(&self) -> Case {
        Case {
            seed: self.seed,
            reduction: Reduction {
                without: self.without.iter().copied().collect(),
                clients: self.clients,
                operations: self.operations,
                run_seed: self.run_seed,
            },
        }
    }
}

fn main() -> ExitCode {
    let is_ok = match Arguments::parse().command {
        Command::Soak {
            schedules,
            hours,
            from,
            threads,
            failures,
            witness,
            roles,
            forced,
            trash,
            snapshots,
            failovers,
            no_shrink,
        } => {
            let limit = hours.map_or(Duration::MAX, |hours| {
                Duration::try_from_secs_f64(hours * 3600.0).unwrap_or(Duration::MAX)
            });
            let seeds = |number| {
                let is_chosen = |plan: &Plan| {
                    let has_witness = plan.settings.failover_after.is_some();
                    (has_witness || !witness)
                        && (plan.changes_roles || !roles)
                        && (plan.accepts_losses() || !forced)
                        && (plan.takes_snapshots() || !snapshots)
                        && (!plan.settings.trash.is_off() || !trash)
                };
                if !(witness || roles || forced || snapshots || trash) {
                    return from + number;
                }
                first_seed(from + number * SEEDS_BETWEEN, is_chosen)
            };
            let soak = Soak::new(seeds, schedules).until_failed(failures);
            let enough = (limit, failovers.unwrap_or(u64::MAX));
            run_soak(&soak, enough, threads, !no_shrink)
        }
        Command::Replay(arguments) => replay(&arguments),
        Command::Shrink { seed } => shrink(seed),
        Command::Exhaustive(arguments) => exhaustive(&arguments),
        Command::Mutants { schedules, only } => find_mutants(schedules, only.as_deref()),
    };
    if is_ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the first seed from `from` on with a chosen plan.
fn first_seed(from: u64, is_chosen: impl Fn(&Plan) -> bool) -> u64 {
    (from..from + SEEDS_BETWEEN)
        .find(|seed| is_chosen(&Plan::of(*seed)))
        .unwrap_or(from)
}

fn run_soak(
    soak: &Soak<impl Fn(u64) -> u64 + Sync>,
    (limit, failovers): (Duration, u64),
    threads: usize,
    shrinks: bool,
) -> bool {
    let start = Instant::now();
    let print = || print_progress(&soak.report(), &soak.failed(), start);
    let poll = || {
        if start.elapsed() > limit || soak.failovers() >= failovers {
            soak.stop();
        }
    };
    let failed = with_progress(print, poll, || soak.run(threads));
    print();
    print_coverage(&soak.report());
    for found in &failed {
        println!("{found}");
        if shrinks {
            println!("shrunk:\n{}", found.clone().shrunk(None));
        }
    }
    println!("{} schedules failed", failed.len());
    failed.is_empty()
}

/// Runs something long. Meanwhile, calls `print` and `poll` at their intervals.
fn with_progress<T>(print: impl Fn() + Sync, poll: impl Fn() + Sync, run: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut printed = Instant::now();
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(POLL_INTERVAL);
                if printed.elapsed() > PROGRESS_INTERVAL {
                    printed = Instant::now();
                    print();
                }
                poll();
            }
        });
        let result = run();
        over.store(true, Ordering::Relaxed);
        result
    })
}

fn print_progress(report: &SoakReport, failed: &[u64], start: Instant) {
    let SoakReport {
        schedules,
        operations,
        faults,
        with_failovers,
        tally,
        simulated,
        coverage,
        undecided,
    } = report;
    println!(
        "{schedules} schedules ({with_failovers} with failovers), {operations} operations answered, {faults} faults, \
         {tally}, {:.1} hours simulated in {:.0?}; covered: {} transitions, \
         {} crash points; {undecided} questions left undecided; failed: {failed:?}",
        simulated.as_secs_f64() / 3600.0,
        start.elapsed(),
        coverage.transitions.len(),
        coverage.crash_points.len()
    );
}

fn print_coverage(report: &SoakReport) {
    for transition in &report.coverage.transitions {
        println!("  {transition}");
    }
    for point in &report.coverage.crash_points {
        println!("  {point}");
    }
    let missing = report.coverage.missing();
    println!("{} rows of the state table were not covered", missing.len());
    for transition in missing {
        println!("  not covered: {transition}");
    }
}

/// Prints the log of the nodes.
fn init_log(filter: Option<&str>) {
    if let Some(filter) = filter {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .without_time()
            .init();
    }
}

/// Returns the mutant with a name, if a name is given. Prints an error if no mutant has the name.
fn mutant_named(name: Option<&str>) -> Result<Option<Mutant>, ()> {
    let Some(name) = name else { return Ok(None) };
    let mutant = mutants::ALL
        .into_iter()
        .find(|mutant| format!("{mutant:?}") == name);
    if mutant.is_none() {
        println!("there is no such mutant");
    }
    mutant.map(Some).ok_or(())
}

fn exhaustive(arguments: &Exhaustive) -> bool {
    init_log(arguments.log.as_deref());
    let Ok(mutant) = mutant_named(arguments.mutant.as_deref()) else {
        return false;
    };
    if let Some(world) = &arguments.world {
        let replayed = exhaustive::replay(world, arguments.seed, mutant);
        let is_ok = replayed.is_ok();
        println!("{}", replayed.unwrap_or_else(|failure| failure));
        return is_ok;
    }
    let workloads = if arguments.pairs {
        exhaustive::all()
    } else {
        exhaustive::singles()
    };
    let campaign = Campaign::new(WorldSelection {
        workloads: (0..workloads.len()).collect(),
        one_in: arguments.one_in.clone(),
        from: usize::try_from(arguments.from).unwrap_or(0),
        seed: arguments.seed,
        mutant,
    });
    run_campaign(&campaign, arguments.threads)
}

fn run_campaign(campaign: &Campaign, threads: usize) -> bool {
    let start = Instant::now();
    let print = || println!("{} in {:.0?}", campaign.report(), start.elapsed());
    let found = with_progress(print, || {}, || campaign.run(threads));
    print();
    for found in &found {
        println!("\n{found}");
    }
    found.is_empty()
}

fn replay(arguments: &Replay) -> bool {
    init_log(arguments.log.as_deref());
    let case = arguments.case();
    let Ok(mutant) = mutant_named(arguments.mutant.as_deref()) else {
        return false;
    };
    match [case.run(mutant), case.run(mutant)] {
        [Ok(first), Ok(second)] if first == second => {
            println!("seed {}: {first:?}", case.seed);
            true
        }
        [Ok(first), Ok(second)] => {
            println!("{case} has two results: {first:?}, {second:?}");
            false
        }
        [Err(failure), _] | [_, Err(failure)] => {
            if arguments.history {
                println!("{}", failure.history);
            }
            println!("{}", FailedCase { case, failure });
            false
        }
    }
}

fn shrink(seed: u64) -> bool {
    let case = Case::of(seed);
    match case.run(None) {
        Ok(_) => {
            println!("seed {seed} does not fail");
            true
        }
        Err(failure) => {
            println!("{}", FailedCase { case, failure }.shrunk(None));
            false
        }
    }
}

fn find_mutants(schedules: u64, only: Option<&str>) -> bool {
    let mut all_found = true;
    let is_chosen = |mutant: &Mutant| only.is_none_or(|only| format!("{mutant:?}") == only);
    for mutant in mutants::ALL.into_iter().filter(is_chosen) {
        let run = |seed: u64| {
            let failure = Case::of(seed).run(Some(mutant)).err();
            failure.map(|failure| (seed, failure))
        };
        let count = usize::try_from(schedules).unwrap_or(usize::MAX);
        let mut seeds = mutant_search::seeds(mutant, 1).take(count);
        if let Some((seed, failure)) = seeds.find_map(run) {
            let what = failure.what.lines().next().unwrap_or_default();
            println!("{mutant:?}: found by schedule {seed}: {what}");
        } else {
            all_found = false;
            println!("{mutant:?}: NOT found by {schedules} schedules");
        }
    }
    all_found
}
