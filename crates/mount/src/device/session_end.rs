//! The end of a mount's FUSE session, and failures before the end, for the owner of the mount.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::error::MountError;
use crate::options::MountNotice;

/// The end of one session, set once, and the failures before that.
#[derive(Debug, Default)]
pub(crate) struct SessionEnd {
    state: Mutex<EndState>,
    changed: Condvar,
    notice: MountNotice,
}

#[derive(Debug, Default)]
struct EndState {
    ended: bool,
    failure: Option<MountError>,
}

impl SessionEnd {
    /// A session that goes on. Its owner learns by `notice` of each event.
    pub fn new(notice: MountNotice) -> Self {
        Self {
            notice,
            ..Self::default()
        }
    }

    /// Notes that the session has ended.
    pub fn end(&self, outcome: Result<(), MountError>) {
        let mut state = self.state.lock();
        state.ended = true;
        if let Err(failure) = outcome {
            state.failure.get_or_insert(failure);
        }
        self.changed.notify_all();
        drop(state);
        self.notice.give();
    }

    /// Notes a failure after which the mount goes on. Only the first failure is kept until
    /// [`Self::take_event`] takes it.
    pub fn fail(&self, failure: MountError) {
        self.state.lock().failure.get_or_insert(failure);
        self.changed.notify_all();
        self.notice.give();
    }

    /// Takes a failure that was not taken yet; otherwise returns the end of the session, if it has ended.
    pub fn take_event(&self) -> Option<Result<(), MountError>> {
        let mut state = self.state.lock();
        match state.failure.take() {
            Some(failure) => Some(Err(failure)),
            None => state.ended.then_some(Ok(())),
        }
    }

    /// Blocks until the session has ended, but not after `deadline`. Returns whether the session has ended.
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
