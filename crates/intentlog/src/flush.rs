//! Group commit: the syncing thread, the waiting threads, and the end of the durable log.
//!
//! Invariants: at most one thread syncs at a time. `durable` never exceeds the position up to which the log
//! was written when the last successful sync began. Once poisoned, the log stays poisoned.

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::position::Position;

/// An earlier write or sync failed.
pub(crate) struct IsPoisoned;

/// The range that one sync will cover: all frames of segment `number` before `written`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) number: u64,
    pub(crate) written: Position,
}

/// The next step of a thread that wants a record to be durable.
pub(crate) enum Turn {
    /// Nothing: the record is durable.
    Durable,
    /// Sync this batch, then call [`Flush::finish`] or [`Flush::poison`].
    Sync(Batch),
}

struct FlushState {
    batch: Batch,
    durable: Position,
    syncing: bool,
    poisoned: bool,
}

/// The state of group commit of one log.
pub(crate) struct Flush {
    state: Mutex<FlushState>,
    changed: Condvar,
}

impl Flush {
    /// Creates the state of a log whose frames are all durable and end at `durable`, in segment `number`.
    pub(crate) const fn new(number: u64, durable: Position) -> Self {
        let batch = Batch {
            number,
            written: durable,
        };
        Self {
            state: Mutex::new(FlushState {
                batch,
                durable,
                syncing: false,
                poisoned: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// All records before this position are durable.
    pub(crate) fn durable(&self) -> Position {
        self.state.lock().durable
    }

    /// The durable position, unless the log is poisoned.
    pub(crate) fn healthy(&self) -> Result<Position, IsPoisoned> {
        let state = self.state.lock();
        state.check()?;
        Ok(state.durable)
    }

    /// Notes that all records before this position have been written.
    pub(crate) fn wrote(&self, written: Position) {
        self.state.lock().batch.written = written;
    }

    /// Waits until the record at `up_to` is durable, or until it is this thread's turn to sync.
    pub(crate) fn join(&self, up_to: Position) -> Result<Turn, IsPoisoned> {
        let mut state = self.state.lock();
        let written = state.batch.written;
        loop {
            state.check()?;
            if state.durable > up_to || state.durable >= written {
                return Ok(Turn::Durable);
            }
            if !state.syncing {
                return Ok(Turn::Sync(state.begin()));
            }
            self.changed.wait(&mut state);
        }
    }

    /// Waits for this thread's turn, even if everything is durable by then.
    pub(crate) fn take_turn(&self) -> Result<Batch, IsPoisoned> {
        let mut state = self.state.lock();
        loop {
            state.check()?;
            if !state.syncing {
                return Ok(state.begin());
            }
            self.changed.wait(&mut state);
        }
    }

    /// Notes that the sync of `batch` succeeded.
    pub(crate) fn finish(&self, batch: Batch) {
        let state = self.state.lock();
        self.end(state, |state| {
            state.durable = state.durable.max(batch.written);
        });
    }

    /// Notes that segment `number` was begun and is durable. Its frames begin at `base`.
    pub(crate) fn finish_switch(&self, number: u64, base: Position) {
        let state = self.state.lock();
        self.end(state, |state| {
            state.durable = base;
            state.batch = Batch {
                number,
                written: base,
            };
        });
    }

    /// Refuses every operation from now on.
    pub(crate) fn poison(&self) {
        let state = self.state.lock();
        self.end(state, |state| state.poisoned = true);
    }

    fn end(&self, mut state: MutexGuard<'_, FlushState>, change: impl FnOnce(&mut FlushState)) {
        change(&mut state);
        state.syncing = false;
        drop(state);
        self.changed.notify_all();
    }
}

impl FlushState {
    const fn check(&self) -> Result<(), IsPoisoned> {
        if self.poisoned {
            Err(IsPoisoned)
        } else {
            Ok(())
        }
    }

    const fn begin(&mut self) -> Batch {
        self.syncing = true;
        self.batch
    }
}
