//! What a datastore needs of the process it lives in: time, threads, and ways to wait.
//!
//! A node gives it those of the machine ([`OsHost`]). The simulator gives it a seeded world with
//! one thread, in which the same code runs; for that, nothing in this room's neighbours may read a
//! clock, start a thread, sleep, or wait for another thread but through here. Short locks are free
//! to all, as long as nobody waits while holding one.

pub(crate) mod exclusive;
pub(crate) mod oneshot;
mod os;

use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::reserve::Withheld;
use lockstep_types::backing::Room;
use lockstep_types::{Timestamp, limits};

pub use os::OsHost;

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
    fn random_id(&self) -> [u8; 16];

    /// Lets this thread sleep.
    fn sleep(&self, time: Duration);

    /// A gate, closed.
    fn gate(&self) -> Arc<dyn Gate>;

    /// Does a job soon, in no order: disk flushes and what takes long.
    fn spawn(&self, job: Job);

    /// Does a job soon, after all that were given to this function before: the courier.
    fn spawn_ordered(&self, job: Job);

    /// Does a long job while the caller waits, on a thread of its own where the host has any: the job may wait for jobs
    /// of [`Self::spawn`]. Calls `meanwhile` from time to time, and once at the end.
    fn attend(&self, job: &mut (dyn FnMut() + Send), meanwhile: &mut dyn FnMut()) {
        job();
        meanwhile();
    }

    /// Does what was given to [`Self::spawn`] and [`Self::spawn_ordered`], and takes no more.
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

/// While this lives, the thread that made it reads from a peer.
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
