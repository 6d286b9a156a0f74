//! How a mount ends, told to whoever looks, or waits for it.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::MountError;

/// The end of one mount: set once, and failures on the way there.
#[derive(Debug, Default)]
pub(super) struct Ending {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ended: bool,
    failure: Option<MountError>,
}

impl Ending {
    /// The mount has ended.
    pub fn end(self: &Arc<Self>, outcome: Result<(), MountError>) {
        let mut state = self.state.lock();
        state.ended = true;
        if let Err(failure) = outcome {
            state.failure.get_or_insert(failure);
        }
        self.changed.notify_all();
    }

    /// Something failed; the mount goes on. Only the first failure is kept until it is taken.
    pub fn fail(&self, failure: MountError) {
        self.state.lock().failure.get_or_insert(failure);
        self.changed.notify_all();
    }

    /// A failure that was not told yet, or else the end, if it has come.
    pub fn news(&self) -> Option<Result<(), MountError>> {
        let mut state = self.state.lock();
        match state.failure.take() {
            Some(failure) => Some(Err(failure)),
            None => state.ended.then_some(Ok(())),
        }
    }

    /// Blocks until the end, but no longer than `deadline`; whether it has ended.
    pub fn wait_until(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        while !state.ended {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.ended
    }
}
