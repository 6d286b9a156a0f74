//! Many schedules, on several threads, until enough of them have failed.

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
    /// Questions about their histories that were too entangled to be decided.
    pub undecided: u64,
}

impl Report {
    fn add(&mut self, outcome: Outcome) {
        self.schedules += 1;
        self.operations += outcome.operations;
        self.faults += outcome.faults;
        self.simulated += outcome.simulated;
        self.met.add(outcome.met);
        self.undecided += outcome.undecided;
    }
}

/// Many schedules under way.
pub struct Soak<S> {
    /// The seed of each schedule, by its number.
    seeds: S,
    count: u64,
    /// It ends when so many have failed.
    failures_max: usize,
    next: AtomicU64,
    over: AtomicBool,
    report: Mutex<Report>,
    found: Mutex<Vec<Found>>,
}

impl<S: Fn(u64) -> u64 + Sync> Soak<S> {
    /// `count` schedules, or until the first fails; `seeds` tells the seed of each by its number.
    pub fn new(seeds: S, count: u64) -> Self {
        Self {
            seeds,
            count,
            failures_max: 1,
            next: AtomicU64::new(0),
            over: AtomicBool::new(false),
            report: Mutex::default(),
            found: Mutex::default(),
        }
    }

    /// Goes on until so many have failed, at least one.
    #[must_use]
    pub fn until_failed(mut self, failures_max: usize) -> Self {
        self.failures_max = failures_max.max(1);
        self
    }

    /// Runs them on so many threads, each with worlds of its own, and returns those that failed.
    pub fn run(&self, threads: usize) -> Vec<Found> {
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| self.work());
            }
        });
        self.found.lock().clone()
    }

    /// The seeds of those that have failed so far.
    pub fn failed(&self) -> Vec<u64> {
        let found = self.found.lock();
        found.iter().map(|found| found.case.seed).collect()
    }

    /// What those that did not fail have come to so far.
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
                Err(failure) => self.note(Found { case, failure }),
            }
        }
    }

    fn note(&self, found: Found) {
        let mut all = self.found.lock();
        if all.len() < self.failures_max {
            all.push(found);
        }
        if all.len() == self.failures_max {
            self.stop();
        }
    }
}
