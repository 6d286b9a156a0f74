//! Where the syncs of a mounted disk wait while it hangs.
//!
//! Only syncs do: all else comes from memory on a disk that hangs, until that is full. They wait apart
//! from the threads that take requests of the kernel, or nothing else would be answered either.
//!
//! Invariant: a sync that has come to a closed gate has saved nothing before that is opened.

use parking_lot::{Condvar, Mutex};

/// A gate, open at first.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    waiting: usize,
}

impl Gate {
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
    }

    pub(crate) fn open(&self) {
        self.state.lock().is_closed = false;
        self.changed.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Waits until it is open.
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock();
        state.waiting += 1;
        while state.is_closed {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
    }
}
