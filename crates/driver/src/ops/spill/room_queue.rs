//! The threads that wait for room in a spill buffer.
//!
//! Invariant: a thread that begins to wait after a look finds the gate open if there may be new room since that look.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_types::Errno;
use parking_lot::Mutex;

use crate::engine::tick_work::TickWork;
use crate::host::{Gate, Host};

/// See the head of this file.
pub(crate) struct RoomQueue {
    host: Arc<dyn Host>,
    /// Each tick wakes the waiting threads.
    tick_work: Arc<TickWork>,
    waiters: Mutex<Waiters>,
    has_waiters: AtomicBool,
    /// Number of times that there may be new room.
    rounds: AtomicU64,
}

/// The gates of the waiting threads.
#[derive(Default)]
struct Waiters {
    gates: Vec<Arc<dyn Gate>>,
    /// No thread may wait any more.
    closed: bool,
}

/// Number of times that there may have been new room, at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round(u64);

impl RoomQueue {
    /// No thread waits.
    pub fn new(host: Arc<dyn Host>, tick_work: Arc<TickWork>) -> Self {
        Self {
            host,
            tick_work,
            waiters: Mutex::default(),
            has_waiters: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
        }
    }

    /// The round of this moment. A thread takes it before it looks for room, for [`Self::wait`].
    pub fn round(&self) -> Round {
        Round(self.rounds.load(Ordering::SeqCst))
    }

    /// Waits until there may be new room since `looked`.
    ///
    /// # Errors
    /// `Io` when no thread may wait any more.
    pub fn wait(&self, looked: Round) -> Result<(), Errno> {
        let gate = self.host.gate();
        {
            let mut waiters = self.waiters.lock();
            if waiters.closed {
                return Err(Errno::Io);
            }
            waiters.gates.push(Arc::clone(&gate));
            self.has_waiters.store(true, Ordering::SeqCst);
        }
        self.tick_work.note();
        // New room after this look opens the gate.
        if self.rounds.load(Ordering::SeqCst) == looked.0 {
            gate.wait();
        }
        Ok(())
    }

    /// Wakes the waiting threads, because there may be new room.
    pub fn look_again(&self) {
        self.rounds.fetch_add(1, Ordering::SeqCst);
        if !self.has_waiters.load(Ordering::SeqCst) {
            return;
        }
        let gates = {
            let mut waiters = self.waiters.lock();
            self.has_waiters.store(false, Ordering::SeqCst);
            std::mem::take(&mut waiters.gates)
        };
        for gate in gates {
            gate.open();
        }
    }

    /// Ends all waiting, now and later: a thread that would wait gets an error.
    pub fn close(&self) {
        self.waiters.lock().closed = true;
        self.look_again();
    }

    /// Whether a thread waits for room.
    #[cfg(test)]
    pub fn has_waiters(&self) -> bool {
        self.has_waiters.load(Ordering::SeqCst)
    }
}
