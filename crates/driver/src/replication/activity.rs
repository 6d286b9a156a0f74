//! The work of one replication: each thread that changes the store or the core for a replication does so inside an activity.
//!
//! Invariant: once a replication is over and idle, no thread changes the store for that replication any more. So the next replication of the
//! datastore begins with a store that nothing else changes.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::host::Host;
use crate::host::signal::Signal;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Activity {
    state: Mutex<ActivityState>,
    /// The replication is over, and no thread is at work.
    idle: Signal,
}

#[derive(Default)]
struct ActivityState {
    /// Threads at work.
    working: usize,
    /// No more work begins.
    is_over: bool,
}

/// The work of one thread, until this is dropped.
#[must_use]
pub(crate) struct Working(Arc<Activity>);

impl Drop for Working {
    fn drop(&mut self) {
        let Self(activity) = self;
        let is_idle = {
            let mut state = activity.state.lock();
            state.working -= 1;
            state.is_over && state.working == 0
        };
        if is_idle {
            activity.idle.raise();
        }
    }
}

impl Activity {
    /// Begins the work of this thread; `None` if the replication is over.
    pub fn begin(self: &Arc<Self>) -> Option<Working> {
        let mut state = self.state.lock();
        if state.is_over {
            return None;
        }
        state.working += 1;
        Some(Working(Arc::clone(self)))
    }

    /// Whether the replication is over.
    pub fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    /// Ends the replication: no more work begins.
    pub fn end(&self) {
        self.state.lock().is_over = true;
    }

    /// Waits until no thread is at work. The replication is over.
    pub fn wait_until_idle(&self, host: &dyn Host) {
        self.idle
            .wait_until(host, None, || self.state.lock().working == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::OsHost;

    #[test]
    fn work_ends_before_the_term_is_idle_and_none_begins_after_it() {
        let host = OsHost::start("test").unwrap();
        let activity = Arc::new(Activity::default());
        let working = activity.begin().unwrap();
        activity.end();
        assert!(activity.is_over() && activity.begin().is_none());
        let waits = Arc::clone(&activity);
        let waiter = std::thread::spawn(move || {
            waits.wait_until_idle(&OsHost::start("waiter").unwrap());
        });
        assert!(!waiter.is_finished());
        drop(working);
        waiter.join().unwrap();
        host.stop();
    }
}
