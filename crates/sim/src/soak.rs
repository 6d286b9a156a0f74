//! Many schedules, on several threads, until one fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::scenario::{Met, Outcome};
use crate::shrink::{Case, Found};

/// What many schedules came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many there were.
    pub schedules: u64,
    /// Operations that clients had an answer to.
    pub operations: u64,
    /// Faults that came.
    pub faults: u64,
    /// How much time passed in their worlds.
    pub simulated: Duration,
    /// What they met.
    pub met: Met,
}

impl Report {
    fn add(&mut self, outcome: Outcome) {
        self.schedules += 1;
        self.operations += outcome.operations;
        self.faults += outcome.faults;
        self.simulated += outcome.simulated;
        self.met.add(outcome.met);
    }
}

/// Many schedules under way.
pub struct Soak<S> {
    /// The seed of each schedule, by its number.
    seeds: S,
    count: u64,
    next: AtomicU64,
    over: AtomicBool,
    report: Mutex<Report>,
    found: Mutex<Option<Found>>,
}

impl<S: Fn(u64) -> u64 + Sync> Soak<S> {
    /// `count` schedules; `seeds` tells the seed of each by its number.
    pub fn new(seeds: S, count: u64) -> Self {
        Self {
            seeds,
            count,
            next: AtomicU64::new(0),
            over: AtomicBool::new(false),
            report: Mutex::default(),
            found: Mutex::default(),
        }
    }

    /// Runs them on so many threads, each with worlds of its own, until all are done or one fails.
    pub fn run(&self, threads: usize) -> Result<Report, Found> {
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| self.work());
            }
        });
        match self.found.lock().take() {
            Some(found) => Err(found),
            None => Ok(self.so_far()),
        }
    }

    /// What they have come to so far.
    pub fn so_far(&self) -> Report {
        self.report.lock().clone()
    }

    /// Begins no more of them.
    pub fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn work(&self) {
        while !self.over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count {
                return;
            }
            let case = Case::of((self.seeds)(number));
            match case.run(None) {
                Ok(outcome) => self.report.lock().add(outcome),
                Err(failure) => {
                    self.stop();
                    self.found.lock().get_or_insert(Found { case, failure });
                }
            }
        }
    }
}
