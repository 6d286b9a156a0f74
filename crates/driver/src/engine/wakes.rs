//! The reasons for which the threads of a datastore wake: its stop, rare changes, and work for a tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_fs::poison::Poison;

use super::tick_work::TickWork;
use crate::host::signal::Signal;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Wakes {
    /// Raised at the stop, and at each rare change that a thread may wait for: of the role and its session, the state, the
    /// connection, the role file, the lease, the knowledge of the witness, and the health of the disk. No operation of a client
    /// raises it.
    pub changes: Arc<Signal>,
    /// Work for the next tick.
    pub tick_work: Arc<TickWork>,
    /// Set once, when the datastore is stopped.
    is_stopping: AtomicBool,
}

impl Wakes {
    /// Whether the datastore is being stopped.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Stops the datastore.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.changes.raise();
    }

    /// Wakes the threads when a disk fails, from now on.
    pub fn observe(&self, poison: &Poison) {
        let (changes, work) = (Arc::clone(&self.changes), Arc::clone(&self.tick_work));
        poison.observe(Box::new(move || {
            changes.raise();
            work.note();
        }));
    }
}
