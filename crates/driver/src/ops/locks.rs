//! Locks of the core for work of the node itself: a resync, or a comparison.
//!
//! Such work submits an operation without effects to the core, and works while the operation holds its locks.

use std::sync::Arc;

use lockstep_repl::core::{Event, LockSet, OpId, OpKind};

use super::pending::{PendingOp, PendingOps};
use crate::host::ThreadKind;
use crate::host::oneshot::{Awaited, promise};
use crate::replication::Replication;

/// Gets locks for work of the node itself.
pub(crate) struct InternalLocks {
    replication: Arc<Replication>,
    pending: Arc<PendingOps>,
}

impl InternalLocks {
    /// Locks of the core of `replication`.
    pub const fn new(replication: Arc<Replication>, pending: Arc<PendingOps>) -> Self {
        Self {
            replication,
            pending,
        }
    }

    /// Runs `body` while `locks` are held; `None` if the node is stopping and gives none.
    pub fn with_locks<T>(&self, locks: LockSet, body: impl FnOnce() -> T) -> Option<T> {
        let mut held = self.acquire(locks);
        held.wait().then(body)
    }

    /// Asks for `locks`. A node that is stopping gives none.
    pub fn acquire(&self, locks: LockSet) -> HeldLocks<'_> {
        let (ready, wait) = promise(&*self.replication.engine.host);
        let op = self.pending.insert(PendingOp::Locks(Some(ready)));
        if self.replication.is_over() {
            // The stop may have abandoned all requests before this one was there.
            self.pending.abandon_locks();
        }
        let submit = Event::Submit {
            op,
            kind: OpKind::Read,
            locks,
            bytes: 0,
        };
        self.replication.handle_event(ThreadKind::MayWait, submit);
        HeldLocks {
            replication: &self.replication,
            op,
            wait: Some(wait),
            is_held: false,
        }
    }
}

/// Locks that were asked for. Dropped, they are given back.
pub(crate) struct HeldLocks<'a> {
    replication: &'a Replication,
    op: OpId,
    wait: Option<Awaited<()>>,
    is_held: bool,
}

impl HeldLocks<'_> {
    /// Whether the locks are granted already.
    pub fn is_held(&self) -> bool {
        self.is_held || self.wait.as_ref().is_some_and(Awaited::is_kept)
    }

    /// Waits for the locks; `false` if the node is stopping and gives none.
    pub fn wait(&mut self) -> bool {
        if let Some(wait) = self.wait.take() {
            self.is_held = wait.get().is_some();
        }
        self.is_held
    }
}

impl Drop for HeldLocks<'_> {
    fn drop(&mut self) {
        // A thread that panics must not wait; the process ends.
        if !std::thread::panicking() && self.wait() {
            let done = Event::LocalDone(self.op, Ok(()));
            self.replication.handle_event(ThreadKind::MayWait, done);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockstep_repl::lock::{LockKey, LockMode};
    use lockstep_types::Ino;
    use smallvec::smallvec;

    use crate::open::tests::Place;

    /// A thread that waits for longer waits forever.
    const LONG_ENOUGH: Duration = Duration::from_secs(60);

    /// An operation may hold its locks forever once the threads that execute its parts take no more jobs.
    #[test]
    fn a_stop_does_not_wait_for_a_thread_that_waits_for_locks() {
        let place = Place::in_sync();
        let datastore = place.start_out_of_sync();
        let session = datastore.primary().unwrap();
        let locks = || smallvec![(LockKey::File(Ino::ROOT), LockMode::Exclusive)];
        let mut held = session.jobs.locks.acquire(locks());
        assert!(held.wait());
        let waiting = session.clone();
        let (told, outcome) = std::sync::mpsc::channel();
        datastore.engine().host.spawn(Box::new(move || {
            told.send(waiting.jobs.locks.with_locks(locks(), || ()).is_some())
                .unwrap();
        }));
        let stopping = datastore.clone();
        let stop = std::thread::spawn(move || stopping.stop());
        let granted = outcome.recv_timeout(LONG_ENOUGH);
        assert_eq!(granted, Ok(false));
        stop.join().unwrap();
        assert!(
            !session.jobs.locks.acquire(locks()).wait(),
            "after the stop"
        );
        drop(held);
        assert_eq!(session.replication.core.lock().in_flight().submitted, 0);
        datastore.close();
    }
}
