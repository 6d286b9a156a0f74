//! Schedules in every run of the tests: always the same ones, and some that nobody has seen before.
//!
//! `LOCKSTEP_SCHEDULES=N` runs N of them instead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use lockstep_sim::scenario::{self, Failure};

/// As many threads, each with worlds of its own.
const THREADS: u64 = 2;
/// Half of them are the same every time.
const SCHEDULES: u64 = 20_000;

fn schedules() -> u64 {
    let asked = std::env::var("LOCKSTEP_SCHEDULES").ok();
    asked
        .and_then(|count| count.parse().ok())
        .unwrap_or(SCHEDULES)
}

/// Runs the schedules of some seeds; the first failure, and how many operations were answered.
fn run_all(seeds: &(impl Fn(u64) -> u64 + Sync), count: u64) -> Result<u64, Failure> {
    let next = AtomicU64::new(0);
    let work = || -> Result<u64, Failure> {
        let mut answered = 0;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(answered);
            }
            let outcome = scenario::run(seeds(number), None);
            if outcome.is_err() {
                next.store(count, Ordering::Relaxed);
            }
            answered += outcome?.operations;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(answered) => answered,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).sum()
    })
}

#[test]
fn no_schedule_finds_anything() {
    let count = schedules();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let fresh = u64::try_from(now.as_nanos() & u128::from(u64::MAX >> 1)).unwrap();
    let seeds = |number: u64| {
        if number.is_multiple_of(2) {
            1 + number / 2
        } else {
            fresh + number / 2
        }
    };
    match run_all(&seeds, count) {
        Ok(answered) => println!(
            "{count} schedules, half of them fresh (from seed {fresh}): {answered} operations answered"
        ),
        Err(failure) => panic!("{failure}"),
    }
}

/// Seeds that once found something. What they find depends on the simulator too, so each repair has a
/// test of its own besides, where a lower rung can see it.
const FOUND_SOMETHING: [u64; 3] = [372, 9_005_113, 1_795_208_613_301_315_445];

#[test]
fn what_was_found_once_is_not_found_again() {
    for seed in FOUND_SOMETHING {
        if let Err(failure) = scenario::run(seed, None) {
            panic!("{failure}");
        }
    }
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 1..40 {
        let run = || scenario::run(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(run(), run(), "seed {seed}");
    }
}
