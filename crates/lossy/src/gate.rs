//! Where the syncs of a mounted disk wait while it hangs.
//!
//! Only syncs do: all else comes from memory on a disk that hangs, until that is full. They wait apart
//! from the threads that take requests of the kernel, or nothing else would be answered either.
//!
//! Invariant: a sync that has come to a gate that is closed for it has saved nothing before that is
//! opened.

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

/// Which syncs wait.
#[derive(Default)]
enum Closed {
    #[default]
    ForNone,
    ForAll,
    /// Those of the file at this path alone.
    For(String),
}

impl Gate {
    /// All syncs wait from now on.
    pub(crate) fn close(&self) {
        self.state.lock().closed = Closed::ForAll;
    }

    /// The syncs of the file at `path` wait from now on, and no others.
    pub(crate) fn close_for(&self, path: &str) {
        self.state.lock().closed = Closed::For(path.to_owned());
    }

    pub(crate) fn open(&self) {
        self.state.lock().closed = Closed::ForNone;
        self.changed.notify_all();
    }

    /// Whether a sync of `path` would wait; none is the whole disk, or a file without a name.
    pub(crate) fn is_closed_for(&self, path: Option<&str>) -> bool {
        self.state.lock().holds(path)
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Waits until it is open for a sync of `path`.
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
