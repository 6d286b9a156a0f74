//! The gate at which the syncs of a mounted disk wait while the disk hangs.
//!
//! Only syncs wait: on a hanging disk all other calls are served from memory, until memory is full. Syncs
//! wait outside of the threads that take requests of the kernel, or no other request would be answered.
//!
//! Invariant: a sync that has come to a gate that is closed for it saves nothing before the gate opens.

use parking_lot::{Condvar, Mutex};

/// A gate, open at first.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    closed: Closed,
    waiting: usize,
}

/// The syncs that wait.
#[derive(Default)]
enum Closed {
    #[default]
    ForNone,
    ForAll,
    /// Only syncs of the file at this path.
    For(String),
}

impl Gate {
    /// Closes the gate for all syncs.
    pub(crate) fn close(&self) {
        self.state.lock().closed = Closed::ForAll;
    }

    /// Closes the gate for syncs of the file at `path`, and for no others.
    pub(crate) fn close_for(&self, path: &str) {
        self.state.lock().closed = Closed::For(path.to_owned());
    }

    pub(crate) fn open(&self) {
        self.state.lock().closed = Closed::ForNone;
        self.changed.notify_all();
    }

    /// Whether a sync of `path` would wait. `None` is the whole disk, or a file without a name.
    pub(crate) fn is_closed_for(&self, path: Option<&str>) -> bool {
        self.state.lock().holds(path)
    }

    /// Number of waiting syncs.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Waits until the gate is open for a sync of `path`.
    pub(crate) fn pass(&self, path: Option<&str>) {
        let mut state = self.state.lock();
        state.waiting += 1;
        while state.holds(path) {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
    }
}

impl State {
    fn holds(&self, path: Option<&str>) -> bool {
        match &self.closed {
            Closed::ForNone => false,
            Closed::ForAll => true,
            Closed::For(held) => path == Some(held),
        }
    }
}
