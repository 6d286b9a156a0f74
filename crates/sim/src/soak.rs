//! Runs many schedules on several threads, until enough of them have failed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::scenario::{Coverage, Summary, Tally};
use crate::shrink::{Case, FailedCase};

/// The results of many schedules.
#[derive(Clone, Debug, Default)]
pub struct SoakReport {
    /// Number of schedules.
    pub schedules: u64,
    /// Number of answered operations.
    pub operations: u64,
    /// Number of faults.
    pub faults: u64,
    /// Number of schedules in which the other node began to serve.
    pub with_failovers: u64,
    /// Numbers of changes of roles.
    pub tally: Tally,
    /// The simulated time.
    pub simulated: Duration,
    /// The transitions and crash points that the schedules covered.
    pub coverage: Coverage,
    /// Number of questions about the histories that were too complex to decide.
    pub undecided: u64,
}

impl SoakReport {
    fn add(&mut self, summary: Summary) {
        self.schedules += 1;
        self.operations += summary.operations;
        self.faults += summary.faults;
        self.with_failovers += u64::from(summary.tally.role_changes > 0);
        self.tally += summary.tally;
        self.simulated += summary.simulated;
        self.coverage.add(summary.coverage);
        self.undecided += summary.undecided;
    }
}

/// Many schedules in progress.
pub struct Soak<S> {
    /// Returns the seed of a schedule by its number.
    seeds: S,
    count: u64,
    /// Number of failures after which the soak ends.
    failures_max: usize,
    next: AtomicU64,
    over: AtomicBool,
    report: Mutex<SoakReport>,
    found: Mutex<Vec<FailedCase>>,
}

impl<S: Fn(u64) -> u64 + Sync> Soak<S> {
    /// Returns a soak of `count` schedules that ends at the first failure. `seeds` returns the seed
    /// of each schedule by its number.
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

    /// Returns the same soak that ends after `failures_max` failures, at least one.
    #[must_use]
    pub fn until_failed(mut self, failures_max: usize) -> Self {
        self.failures_max = failures_max.max(1);
        self
    }

    /// Runs the schedules on `threads` threads, each with worlds of its own. Returns the failed
    /// schedules.
    pub fn run(&self, threads: usize) -> Vec<FailedCase> {
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| self.work());
            }
        });
        self.found.lock().clone()
    }

    /// Returns the seeds of the schedules that have failed so far.
    pub fn failed(&self) -> Vec<u64> {
        let found = self.found.lock();
        found.iter().map(|found| found.case.seed).collect()
    }

    /// Returns the results so far of the schedules that did not fail.
    pub fn report(&self) -> SoakReport {
        self.report.lock().clone()
    }

    /// Returns the number of schedules so far in which the other node began to serve.
    pub fn failovers(&self) -> u64 {
        self.report.lock().with_failovers
    }

    /// Begins no more schedules.
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
                Ok(summary) => self.report.lock().add(summary),
                Err(failure) => self.note(FailedCase { case, failure }),
            }
        }
    }

    fn note(&self, found: FailedCase) {
        let mut all = self.found.lock();
        if all.len() < self.failures_max {
            all.push(found);
        }
        if all.len() == self.failures_max {
            self.stop();
        }
    }
}
