//! The clients of a test: threads that change the datastore without end and keep account of the acknowledged
//! operations, and the moments at which all of them hold still.
//!
//! Invariants: a client that sees an error fails the test, unless the primary has been away since the client opened
//! its files. Then the client opens them again as soon as possible (a directory can still be opened on a dead mount).
//! While a client is locked, it has no operation in flight.

#![allow(dead_code)] // not every test uses all of it

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_testbed::await_that;
use lockstep_testbed::chance::Chance;
use parking_lot::{Mutex, MutexGuard};

use crate::cells::CellWriter;
use crate::names::NameChanger;
use crate::replacer::Replacer;

/// Clients that write cells.
const CELL_WRITERS: usize = 6;
/// Pause before a client tries an absent mount again.
const REOPEN_PAUSE: Duration = Duration::from_millis(5);
/// Pause between two operations of a client, so that nodes and other tests get the processor, too. Eight clients and
/// the programs still have some operation in flight at every moment.
const STEP_PAUSE: Duration = Duration::from_millis(4);

/// A client that changes the datastore and keeps account.
pub trait Client: Send {
    /// The name of the client in failures.
    fn name(&self) -> String;

    /// Opens its files below `root`, which exist in the datastore and nowhere else.
    fn open(&mut self, root: &Path) -> io::Result<()>;

    /// Makes one change.
    fn step(&mut self) -> io::Result<()>;

    /// Closes its open files.
    fn close(&mut self);

    /// Notes that everything acknowledged so far is on stable storage.
    fn saved(&mut self);

    /// Notes that the primary has lost power: only operations on stable storage are sure to survive.
    fn power_lost(&mut self);

    /// Compares the tree below `root` with the account; the error tells which names are lost or unexpected.
    fn check(&mut self, root: &Path) -> Result<(), String>;

    /// A copy of the account. A check of the copy leaves this account unchanged.
    fn copy(&self) -> Box<dyn Client>;
}

/// A client and its state between two steps.
pub struct Seat {
    pub client: Box<dyn Client>,
    /// `absences` before the client opened its files, if they are open.
    opened_at: Option<u64>,
    /// Power was lost, and the client has not checked its files since.
    power_lost: bool,
}

impl Seat {
    /// Closes the client's files; its next step opens them again.
    pub fn leave(&mut self) {
        self.client.close();
        self.opened_at = None;
    }

    /// After a power loss, checks the client's files before its next step. The primary's disk holds exactly the found
    /// content, so it is on stable storage.
    fn check_after_power_loss(&mut self, root: &Path) -> io::Result<()> {
        if self.power_lost {
            self.client.check(root).map_err(io::Error::other)?;
            self.client.saved();
            self.power_lost = false;
        }
        Ok(())
    }
}

/// All clients of a test; dropping them ends them.
pub struct Writers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    root: PathBuf,
    /// Every acknowledged operation is on stable storage, requested or not.
    always: bool,
    seats: Vec<Mutex<Seat>>,
    /// Operations acknowledged to each client.
    acknowledged: Vec<AtomicU64>,
    /// Incremented when the primary goes and when it is back: odd in between.
    absences: AtomicU64,
    stopped: AtomicBool,
    failures: Mutex<Vec<String>>,
}

impl Writers {
    /// Starts the clients below `root`; `always` if every acknowledged operation is on stable storage.
    pub fn start(root: &Path, always: bool, chance: &mut Chance) -> Self {
        let mut clients: Vec<Box<dyn Client>> = Vec::new();
        for number in 0..CELL_WRITERS {
            let writer = CellWriter::new(root, number, CELL_WRITERS, chance.fork());
            clients.push(Box::new(writer));
        }
        clients.push(Box::new(NameChanger::new(root, chance.fork())));
        clients.push(Box::new(Replacer::new(root, chance.fork())));
        // The files of the clients exist from now on, even after a power loss.
        File::open(root).unwrap().sync_all().unwrap();
        let seat = |client| {
            Mutex::new(Seat {
                client,
                opened_at: None,
                power_lost: false,
            })
        };
        let shared = Arc::new(Shared {
            root: root.to_owned(),
            always,
            acknowledged: clients.iter().map(|_| AtomicU64::new(0)).collect(),
            seats: clients.into_iter().map(seat).collect(),
            absences: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            failures: Mutex::new(Vec::new()),
        });
        let threads = (0..shared.seats.len()).map(|index| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.run(index))
        });
        let threads = threads.collect();
        Self { shared, threads }
    }

    /// The primary is about to go: from now on errors are no failures.
    pub fn primary_goes(&self) {
        self.shared.absences.fetch_or(1, Ordering::SeqCst);
    }

    /// The primary is gone, and has lost power.
    pub fn primary_lost_power(&self) {
        for seat in &self.shared.seats {
            let mut seat = seat.lock();
            seat.leave();
            seat.client.power_lost();
            seat.power_lost = true;
        }
    }

    /// The primary is back and has mounted the datastore: operations on files opened from now on must succeed.
    pub fn primary_is_back(&self) {
        let absences = &self.shared.absences;
        let _ = absences.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
            (count % 2 == 1).then_some(count + 1)
        });
    }

    /// Waits until every client has had three operations acknowledged from now on.
    pub fn await_progress(&self) {
        let counts = || {
            self.shared
                .acknowledged
                .iter()
                .map(|count| count.load(Ordering::SeqCst))
        };
        let before: Vec<u64> = counts().collect();
        await_that("every client to go on", || {
            self.assert_no_failure();
            counts().zip(&before).all(|(now, before)| now >= before + 3)
        });
    }

    /// All clients. They hold still while the result lives.
    pub fn still(&self) -> Vec<MutexGuard<'_, Seat>> {
        let seats = self.shared.seats.iter().map(Mutex::lock).collect();
        self.assert_no_failure();
        seats
    }

    /// The number of clients.
    pub fn count(&self) -> usize {
        self.shared.seats.len()
    }

    /// Operations acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        let counts = self.shared.acknowledged.iter();
        counts.map(|count| count.load(Ordering::SeqCst)).sum()
    }

    fn assert_no_failure(&self) {
        let failures = self.shared.failures.lock();
        assert!(failures.is_empty(), "{failures:#?}");
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, index: usize) {
        while !self.stopped.load(Ordering::SeqCst) {
            let mut seat = self.seats[index].lock();
            let pause = match self.step(&mut seat) {
                Ok(()) => {
                    self.acknowledged[index].fetch_add(1, Ordering::SeqCst);
                    STEP_PAUSE
                }
                Err(Some(error)) => {
                    let failure = format!("{}: {error}", seat.client.name());
                    self.failures.lock().push(failure);
                    return;
                }
                Err(None) => REOPEN_PAUSE,
            };
            MutexGuard::unlock_fair(seat);
            thread::sleep(pause);
        }
    }

    /// Runs one step; returns an error only if no absence of the primary explains it.
    fn step(&self, seat: &mut Seat) -> Result<(), Option<io::Error>> {
        let opened_at = match seat.opened_at {
            Some(opened_at) => opened_at,
            None => self.open(seat).map_err(|_| None)?,
        };
        let done = seat
            .check_after_power_loss(&self.root)
            .and_then(|()| seat.client.step());
        if done.is_ok() && self.always {
            seat.client.saved();
        }
        done.map_err(|error| {
            seat.leave();
            let now = self.absences.load(Ordering::SeqCst);
            let excused = now % 2 == 1 || now != opened_at;
            (!excused).then_some(error)
        })
    }

    fn open(&self, seat: &mut Seat) -> io::Result<u64> {
        let before = self.absences.load(Ordering::SeqCst);
        seat.client.open(&self.root)?;
        seat.opened_at = Some(before);
        Ok(before)
    }
}
