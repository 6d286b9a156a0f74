//! Group commit: who syncs, who waits, and up to where the log is durable.
//!
//! Invariants: at most one thread syncs at a time; `durable` never exceeds what a sync that began
//! after the writing of it has covered; once poisoned, always poisoned.

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::position::Position;

/// An earlier write or sync failed.
pub(crate) struct IsPoisoned;

/// What one sync will cover: everything written to segment `number` before `written`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) number: u64,
    pub(crate) written: Position,
}

/// What a thread that wants something durable is to do.
pub(crate) enum Turn {
    /// Nothing: it is durable.
    Durable,
    /// Sync this, then call [`Flush::finish`] or [`Flush::poison`].
    Sync(Batch),
}

struct State {
    batch: Batch,
    durable: Position,
    syncing: bool,
    poisoned: bool,
}

/// The state of group commit of one log.
pub(crate) struct Flush {
    state: Mutex<State>,
    changed: Condvar,
}

impl Flush {
    /// Everything in segment `number` up to `durable` is durable, and nothing lies beyond.
    pub(crate) const fn new(number: u64, durable: Position) -> Self {
        let batch = Batch {
            number,
            written: durable,
        };
        Self {
            state: Mutex::new(State {
                batch,
                durable,
                syncing: false,
                poisoned: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Everything before this position is durable.
    pub(crate) fn durable(&self) -> Position {
        self.state.lock().durable
    }

    /// The same, unless the log is poisoned.
    pub(crate) fn healthy(&self) -> Result<Position, IsPoisoned> {
        let state = self.state.lock();
        state.check()?;
        Ok(state.durable)
    }

    /// Everything before this position has been written.
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

    /// Waits for this thread's turn, whatever is durable by then.
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

    /// The sync of `batch` succeeded.
    pub(crate) fn finish(&self, batch: Batch) {
        let state = self.state.lock();
        self.end(state, |state| {
            state.durable = state.durable.max(batch.written);
        });
    }

    /// Segment `number` was begun, is durable so far, and its frames begin at `base`.
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

    /// Refuses everything from now on.
    pub(crate) fn poison(&self) {
        let state = self.state.lock();
        self.end(state, |state| state.poisoned = true);
    }

    fn end(&self, mut state: MutexGuard<'_, State>, change: impl FnOnce(&mut State)) {
        change(&mut state);
        state.syncing = false;
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
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
