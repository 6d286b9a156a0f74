//! Whether there is work for the next tick of a datastore (`maintenance.rs`).
//!
//! A tick follows each change of the core and each operation of the peer. While nothing happens, there is no tick.
//!
//! Invariant: a note that comes after the beginning of a tick leads to another tick.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::host::signal::Signal;

/// See the head of this file.
pub(crate) struct TickWork {
    is_noted: AtomicBool,
    pub noted: Signal,
}

impl Default for TickWork {
    /// The first tick of a datastore does not wait.
    fn default() -> Self {
        Self {
            is_noted: AtomicBool::new(true),
            noted: Signal::default(),
        }
    }
}

impl TickWork {
    /// Notes that there may be work. The first note since a tick wakes the thread that ticks.
    pub fn note(&self) {
        if !self.is_noted.swap(true, Ordering::SeqCst) {
            self.noted.raise();
        }
    }

    /// Whether there may be work since the last tick has begun.
    pub fn is_noted(&self) -> bool {
        self.is_noted.load(Ordering::SeqCst)
    }

    /// A tick begins: it does the work of all notes so far.
    pub fn begin_tick(&self) {
        self.is_noted.swap(false, Ordering::SeqCst);
    }
}
