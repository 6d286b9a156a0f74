//! Runs schedules by hand: for hours, one again, or with a bug put in.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use lockstep_sim::scenario::{self, Failure};
use lockstep_types::deliberate;

/// The simulator of Lockstep.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs many schedules, until one fails
    Soak {
        /// How many
        #[arg(long, default_value_t = 100_000)]
        schedules: u64,
        /// The first seed
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// At once
        #[arg(long, default_value_t = 2)]
        threads: u64,
    },
    /// Runs one schedule, twice, and says what it came to
    Replay {
        /// Its seed
        seed: u64,
        /// What the nodes log, such as `info` or `lockstepfs=debug`
        #[arg(long)]
        log: Option<String>,
    },
    /// Puts each deliberate bug in and says how many schedules it takes to find it
    Bugs {
        /// Schedules to try, at most
        #[arg(long, default_value_t = 3000)]
        schedules: u64,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Soak {
            schedules,
            from,
            threads,
        } => soak(schedules, from, threads),
        Command::Replay { seed, log } => replay(seed, log.as_deref()),
        Command::Bugs { schedules } => bugs(schedules),
    }
}

/// What all threads of a soak add to.
#[derive(Default)]
struct Tally {
    next: AtomicU64,
    schedules: AtomicU64,
    operations: AtomicU64,
    faults: AtomicU64,
    simulated_ms: AtomicU64,
    failed: AtomicBool,
}

fn soak(schedules: u64, from: u64, threads: u64) -> ExitCode {
    let tally = Tally::default();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| soak_on(&tally, schedules, from));
        }
    });
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} schedules, {} operations answered, {} faults, {:?} simulated, in {:.0?}",
        read(&tally.schedules),
        read(&tally.operations),
        read(&tally.faults),
        Duration::from_millis(read(&tally.simulated_ms)),
        start.elapsed()
    );
    exit(!tally.failed.load(Ordering::Relaxed))
}

fn soak_on(tally: &Tally, schedules: u64, from: u64) {
    while !tally.failed.load(Ordering::Relaxed) {
        let number = tally.next.fetch_add(1, Ordering::Relaxed);
        if number >= schedules {
            return;
        }
        match scenario::run(from + number, None) {
            Ok(outcome) => {
                let simulated = u64::try_from(outcome.simulated.as_millis()).unwrap_or(0);
                tally.schedules.fetch_add(1, Ordering::Relaxed);
                tally
                    .operations
                    .fetch_add(outcome.operations, Ordering::Relaxed);
                tally.faults.fetch_add(outcome.faults, Ordering::Relaxed);
                tally.simulated_ms.fetch_add(simulated, Ordering::Relaxed);
            }
            Err(failure) => fail(tally, &failure),
        }
    }
}

fn fail(tally: &Tally, failure: &Failure) {
    tally.failed.store(true, Ordering::Relaxed);
    println!("{failure}");
}

fn replay(seed: u64, log: Option<&str>) -> ExitCode {
    if let Some(filter) = log {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .without_time()
            .init();
    }
    let [first, second] = [scenario::run(seed, None), scenario::run(seed, None)];
    match (first, second) {
        (Ok(first), Ok(second)) if first == second => {
            println!("seed {seed}: {first:?}");
            ExitCode::SUCCESS
        }
        (Ok(first), Ok(second)) => {
            println!("seed {seed} has two outcomes: {first:?}, {second:?}");
            ExitCode::FAILURE
        }
        (Err(failure), _) | (_, Err(failure)) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn bugs(schedules: u64) -> ExitCode {
    let mut all_found = true;
    for bug in deliberate::ALL {
        let found = (1..=schedules).find_map(|seed| scenario::run(seed, Some(bug)).err());
        if let Some(failure) = found {
            println!(
                "{bug:?}: found by schedule {}: {}",
                failure.seed, failure.what
            );
        } else {
            all_found = false;
            println!("{bug:?}: NOT found by {schedules} schedules");
        }
    }
    exit(all_found)
}

fn exit(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
