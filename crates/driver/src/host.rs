//! What a datastore needs of the process it lives in: time, threads, and ways to wait.
//!
//! A node gives it those of the machine ([`Machine`]). The simulator gives it a seeded world with
//! one thread, in which the same code runs; for that, nothing in this room's neighbours may read a
//! clock, start a thread, sleep, or wait for another thread but through here. Short locks are free
//! to all, as long as nobody waits while holding one.

mod machine;

use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::reserve::Withheld;
use lockstep_types::backing::Room;
use lockstep_types::{Timestamp, limits};
use parking_lot::Mutex;

pub use machine::Machine;

/// Something to do on another thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// How the bytes of writes that wait are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptLimits {
    /// Most bytes in memory.
    pub memory_bytes: u64,
    /// Most bytes that the waiting file takes of the disk.
    pub file_bytes: u64,
    /// Bytes that stay available on the disk besides the content of the writes that wait, when that file grows.
    pub spare_bytes: u64,
}

/// What is kept from clients on a disk, and from how much room on nothing is counted (rule P20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomLimits {
    /// What the store keeps for itself.
    pub withheld: Withheld,
    /// So much room is ample.
    pub ample: Room,
}

/// Where a datastore lives.
pub trait Host: Send + Sync {
    /// Monotonic time since some moment before the datastore was opened.
    fn now(&self) -> Duration;

    /// How long ago a moment of [`Self::now`] was.
    fn since(&self, moment: Duration) -> Duration {
        self.now().saturating_sub(moment)
    }

    /// Time of day, for the times of files only.
    fn time_of_day(&self) -> Timestamp;

    /// Sixteen bytes that nobody else draws, now or ever.
    fn draw(&self) -> [u8; 16];

    /// Lets this thread sleep.
    fn sleep(&self, time: Duration);

    /// A gate, closed.
    fn gate(&self) -> Arc<dyn Gate>;

    /// Does a job soon, in no order: disk flushes and what takes long.
    fn spawn(&self, job: Job);

    /// Does a job soon, after all that were given to this function before: the courier.
    fn in_order(&self, job: Job);

    /// Does a long job while the caller waits, on a thread of its own where the host has any: the job may wait for jobs
    /// of [`Self::spawn`]. Calls `meanwhile` from time to time, and once at the end.
    fn attend(&self, job: &mut (dyn FnMut() + Send), meanwhile: &mut dyn FnMut()) {
        job();
        meanwhile();
    }

    /// Does what was given to [`Self::spawn`] and [`Self::in_order`], and takes no more.
    fn stop(&self);

    /// Most bytes that may be on their way to the peer at once.
    fn bytes_in_flight_max(&self) -> u64 {
        limits::BYTES_IN_FLIGHT_MAX
    }

    /// How the bytes of writes that wait are kept.
    fn kept_limits(&self) -> KeptLimits {
        KeptLimits {
            memory_bytes: limits::KEPT_BYTES_MAX,
            file_bytes: limits::KEPT_FILE_BYTES_MAX,
            spare_bytes: limits::KEPT_SPARE_BYTES,
        }
    }

    /// What is kept from clients on the disk of the store.
    fn room_limits(&self) -> RoomLimits {
        RoomLimits {
            withheld: Withheld::default(),
            ample: Room {
                bytes: limits::AMPLE_BYTES,
                files: limits::AMPLE_FILES,
            },
        }
    }

    /// The thread that calls this reads from a peer from now on, or no more: it must not wait for the
    /// peer, for a disk flush, or for a lock that somebody holds who does.
    fn set_reading(&self, _is_reading: bool) {}

    /// Whether the thread that calls this reads from a peer.
    fn is_reading(&self) -> bool {
        false
    }

    /// Gives memory that nobody uses back to the system, as far as the allocator keeps any.
    fn give_memory_back(&self) {}

    /// Between two steps of the protocol, with no lock held: others may go first here.
    fn step(&self) {}
}

/// Something that one thread waits for and another lets happen, once.
pub trait Gate: Send + Sync {
    /// Lets all through who wait, now and later.
    fn open(&self);

    /// Waits until the gate is open.
    fn wait(&self);
}

/// While this lives, the thread that made it reads from a peer.
pub(super) struct Reading<'a>(&'a dyn Host);

impl<'a> Reading<'a> {
    pub fn on(host: &'a dyn Host) -> Self {
        host.set_reading(true);
        Self(host)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.set_reading(false);
    }
}

/// Makes a place for a value that one thread waits for.
pub(super) fn promise<T>(host: &dyn Host) -> (Promise<T>, Awaited<T>) {
    let gate = host.gate();
    let value = Arc::new(Mutex::new(None));
    let promise = Promise {
        value: Arc::clone(&value),
        gate: Arc::clone(&gate),
    };
    (promise, Awaited { value, gate })
}

/// The end that gives the value. Dropped without one, it lets the other end know.
pub(super) struct Promise<T> {
    value: Arc<Mutex<Option<T>>>,
    gate: Arc<dyn Gate>,
}

impl<T> Promise<T> {
    /// Gives the value.
    pub fn keep(self, value: T) {
        *self.value.lock() = Some(value);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.gate.open();
    }
}

/// The end that waits.
pub(super) struct Awaited<T> {
    value: Arc<Mutex<Option<T>>>,
    gate: Arc<dyn Gate>,
}

impl<T> Awaited<T> {
    /// Whether the value is there.
    pub fn is_kept(&self) -> bool {
        self.value.lock().is_some()
    }

    /// Waits for the value; `None` when there will be none.
    pub fn get(self) -> Option<T> {
        self.gate.wait();
        self.value.lock().take()
    }
}

/// Lets one in at a time, who may wait for others while inside: what a lock must not be held for (rule P9).
#[derive(Default)]
pub(super) struct Turnstile(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    occupied: bool,
    /// Counts those who came as the newest.
    comers: u64,
    waiting: Vec<Arc<dyn Gate>>,
}

impl Inside {
    fn occupy(&mut self) -> bool {
        !std::mem::replace(&mut self.occupied, true)
    }

    fn gate(&mut self, host: &dyn Host) -> Arc<dyn Gate> {
        let gate = host.gate();
        self.waiting.push(Arc::clone(&gate));
        gate
    }
}

impl Turnstile {
    /// Waits until nobody is inside, and goes in.
    pub fn enter(&self, host: &dyn Host) -> Turn<'_> {
        loop {
            let gate = {
                let mut inside = self.0.lock();
                if inside.occupy() {
                    return Turn(self);
                }
                inside.gate(host)
            };
            gate.wait();
        }
    }

    /// The same, but gives up (`None`) when a later caller of this comes.
    pub fn enter_as_newest(&self, host: &dyn Host) -> Option<Turn<'_>> {
        let (mine, others) = {
            let mut inside = self.0.lock();
            inside.comers += 1;
            (inside.comers, std::mem::take(&mut inside.waiting))
        };
        open_all(others);
        loop {
            let gate = {
                let mut inside = self.0.lock();
                if inside.comers != mine {
                    return None;
                }
                if inside.occupy() {
                    return Some(Turn(self));
                }
                inside.gate(host)
            };
            gate.wait();
        }
    }
}

/// Whoever is inside; leaves when this is dropped.
pub(super) struct Turn<'a>(&'a Turnstile);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut inside = self.0.0.lock();
            inside.occupied = false;
            std::mem::take(&mut inside.waiting)
        };
        open_all(waiting);
    }
}

fn open_all(gates: Vec<Arc<dyn Gate>>) {
    for gate in gates {
        gate.open();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_promise_is_kept_or_dropped() {
        let machine = Machine::start("test").unwrap();
        let (kept, awaited) = promise(&machine);
        machine.spawn(Box::new(move || kept.keep(7)));
        assert_eq!(awaited.get(), Some(7));
        let (dropped, awaited) = promise::<u8>(&machine);
        machine.in_order(Box::new(move || drop(dropped)));
        assert_eq!(awaited.get(), None);
        machine.stop();
        let (refused, awaited) = promise::<u8>(&machine);
        machine.in_order(Box::new(move || refused.keep(1)));
        assert_eq!(awaited.get(), None, "a job that is never done");
    }

    #[test]
    fn of_those_who_wait_only_the_newest_goes_in() {
        let machine = Machine::start("test").unwrap();
        let (turnstile, entered) = (Turnstile::default(), AtomicUsize::new(0));
        let has_waiting = || !turnstile.0.lock().waiting.is_empty();
        let turn = turnstile.enter(&machine);
        std::thread::scope(|scope| {
            let wait = || {
                let turn = turnstile.enter_as_newest(&machine);
                turn.is_some() && entered.fetch_add(1, Ordering::SeqCst) == 0
            };
            let mut comers: Vec<_> = (0..5)
                .map(|_| {
                    let before = turnstile.0.lock().comers;
                    let comer = scope.spawn(wait);
                    while turnstile.0.lock().comers == before || !has_waiting() {
                        std::thread::yield_now();
                    }
                    comer
                })
                .collect();
            let newest = comers.pop().unwrap();
            for comer in comers {
                assert!(!comer.join().unwrap(), "it goes while one is inside");
            }
            drop(turn);
            assert!(newest.join().unwrap());
        });
        machine.stop();
    }

    #[test]
    fn one_at_a_time_is_inside() {
        let machine = Machine::start("test").unwrap();
        let (turnstile, inside) = (Turnstile::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _turn = turnstile.enter(&machine);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        machine.stop();
    }
}
