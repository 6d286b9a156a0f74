//! The services that a datastore takes from its process: time, threads, and ways to wait.
//!
//! A node uses the operating system ([`OsHost`]). The simulator runs the same code in a seeded world with one thread. So
//! no other module of the driver may read a clock, start a thread, sleep, or wait for another thread by any other way.
//! Every module may take a short lock, as long as the holder does not wait.
//!
//! There is one way to wait: at a [`Gate`]. A thread that waits for a state waits for the signal of its owner (`signal.rs`), which is
//! made of gates. A thread that waits for nothing but a moment waits at an [`Alarm`].

pub(crate) mod alarm;
pub(crate) mod exclusive;
mod hook_process;
pub mod memory;
pub(crate) mod oneshot;
mod os;
pub(crate) mod signal;
pub(crate) mod single_job;
pub mod threads;
mod timer;

use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::reserve::Withheld;
use lockstep_fs::store::MarkTableSizes;
use lockstep_types::backing::Room;
use lockstep_types::{Timestamp, limits};

pub use hook_process::{HookCommand, HookFailure};
pub use os::OsHost;

/// Time between two barriers, of which a loss of power of one node costs a comparison of what was written.
const BARRIER_INTERVAL: Duration = Duration::from_secs(30);

/// A job for another thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// A wait for a moment that is put off again and again (`alarm.rs`). One thread waits.
pub trait Alarm: Send + Sync {
    /// Sets the moment, on the host's clock: at once if it has passed, never if it is `None`. The moment before counts no more.
    fn set(&self, host: &dyn Host, moment: Option<Duration>);

    /// Waits until the moment has come. Each setting ends one wait at most. A wait may end too early: the caller looks.
    fn wait(&self, host: &dyn Host);
}

/// Limits for the bytes of waiting writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillLimits {
    /// Most bytes in memory.
    pub memory_bytes: u64,
    /// Most bytes that the spill file takes of the disk.
    pub file_bytes: u64,
    /// Bytes that stay available on the disk when that file grows, besides the content of the waiting writes.
    pub spare_bytes: u64,
}

/// The space of a disk that clients do not get, and the room above which changes are not counted (rule P20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomLimits {
    /// Space that the store keeps for itself.
    pub withheld: Withheld,
    /// The least room that is ample.
    pub ample: Room,
}

/// The process of a datastore.
pub trait Host: Send + Sync {
    /// Monotonic time since some moment before the datastore was opened.
    fn now(&self) -> Duration;

    /// Time since a moment of [`Self::now`].
    fn since(&self, moment: Duration) -> Duration {
        self.now().saturating_sub(moment)
    }

    /// Time of day, for the times of files only.
    fn time_of_day(&self) -> Timestamp;

    /// Sixteen random bytes, unique for all practical purposes.
    fn random_id(&self) -> [u8; 16];

    /// A closed gate.
    fn gate(&self) -> Arc<dyn Gate>;

    /// An alarm without a moment.
    fn alarm(&self) -> Arc<dyn Alarm>;

    /// Has the worker pool do a job, in no order: for disk flushes and long work.
    fn spawn(&self, job: Job);

    /// Has the courier thread do a job, after all earlier jobs of this function.
    fn spawn_ordered(&self, job: Job);

    /// Has a thread do a job that may wait for the disk without end, so that no other job waits for that thread. The job is
    /// dropped if there is no thread for it.
    fn spawn_alone(&self, job: Job) {
        self.spawn(job);
    }

    /// Does a long job while the caller waits, on a thread of its own if the host has threads: the job may wait for jobs
    /// of [`Self::spawn`]. Calls `meanwhile` from time to time, and once at the end.
    fn attend(&self, job: &mut (dyn FnMut() + Send), meanwhile: &mut dyn FnMut()) {
        job();
        meanwhile();
    }

    /// Runs a command of the operator until its end. Each line of its output goes to `log`, within bounds. A host without processes runs nothing.
    ///
    /// # Errors
    /// The command cannot be started, or fails, or is killed: after its limit, or because `gives_up` says so.
    fn run_hook(
        &self,
        _hook: &HookCommand,
        _gives_up: &dyn Fn() -> bool,
        _log: &mut dyn FnMut(&str),
    ) -> Result<(), HookFailure> {
        Ok(())
    }

    /// Does the queued jobs of [`Self::spawn`] and [`Self::spawn_ordered`], and takes no more jobs.
    fn stop(&self);

    /// Most bytes of changes in flight to the peer.
    fn bytes_in_flight_max(&self) -> u64 {
        limits::BYTES_IN_FLIGHT_MAX
    }

    /// Limits for the bytes of waiting writes.
    fn spill_limits(&self) -> SpillLimits {
        SpillLimits {
            memory_bytes: limits::SPILL_MEMORY_BYTES_MAX,
            file_bytes: limits::SPILL_FILE_BYTES_MAX,
            spare_bytes: limits::SPILL_SPARE_BYTES,
        }
    }

    /// The space of the store's disk that clients do not get.
    fn room_limits(&self) -> RoomLimits {
        RoomLimits {
            withheld: Withheld::default(),
            ample: Room {
                bytes: limits::AMPLE_BYTES,
                files: limits::AMPLE_FILES,
            },
        }
    }

    /// The sizes of the tables of marks of a store that has none.
    fn mark_tables(&self) -> MarkTableSizes {
        MarkTableSizes::default()
    }

    /// Time between two barriers.
    fn barrier_interval(&self) -> Duration {
        BARRIER_INTERVAL
    }

    /// Notes whether the calling thread reads from a peer. Such a thread must not wait for the peer, for a disk flush,
    /// or for a lock whose holder waits for one of them.
    fn set_reading(&self, _is_reading: bool) {}

    /// Whether the calling thread reads from a peer.
    fn is_reading(&self) -> bool {
        false
    }

    /// Gives unused memory of the allocator back to the system.
    fn give_memory_back(&self) {}

    /// A point between two steps of the protocol, with no lock held. The simulator may run other threads here.
    fn step(&self) {}
}

/// A gate that opens once. Threads wait until another thread opens it.
pub trait Gate: Send + Sync {
    /// Opens the gate for all threads, now and later.
    fn open(&self);

    /// Waits until the gate is open, but for no longer than `limit`. Returns whether the gate is open.
    fn wait_for(&self, limit: Option<Duration>) -> bool;

    /// Waits until the gate is open.
    fn wait(&self) {
        let _is_open = self.wait_for(None);
    }
}

/// The kind of the thread that executes effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadKind {
    /// A thread that may wait for a disk flush.
    MayWait,
    /// A thread that serves clients. It may wait for a disk flush while it has a berth.
    Client,
    /// The thread that reads from the peer. It never waits.
    Reader,
}

/// Marks the thread that made this as the reader of a peer, until this is dropped.
pub(crate) struct Reading<'a>(&'a dyn Host);

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
