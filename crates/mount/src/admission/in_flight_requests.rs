//! The requests that threads of a mount are handing to the service, and the end of them when the mount is closed.
//!
//! Invariant: once [`InFlightRequests::close`] has returned, no thread of the mount is handing a request to the
//! service, and none will. The service itself ends the work that an earlier request has started on the
//! service's own threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// The requests of one mount, which is open at first.
#[derive(Debug, Default)]
pub(crate) struct InFlightRequests {
    closed: AtomicBool,
    /// Requests that a thread of the mount is handing to the service.
    in_flight: AtomicUsize,
    /// Held between a look at the number and the wait for `emptied`, so that the closing thread misses no last request.
    looking: Mutex<()>,
    /// No request of a closed mount is in flight.
    emptied: Condvar,
}

/// A request while a thread hands it to the service. The answer may come later.
pub(crate) struct InFlightGuard<'a>(&'a InFlightRequests);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        let requests = self.0;
        let is_last = requests.in_flight.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && requests.closed.load(Ordering::SeqCst) {
            drop(requests.looking.lock());
            requests.emptied.notify_all();
        }
    }
}

impl InFlightRequests {
    /// Lets a request through, unless the mount is closed.
    pub fn enter(&self) -> Option<InFlightGuard<'_>> {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let guard = InFlightGuard(self);
        // The count comes before the check: either the closing thread sees this request, or this request sees
        // that the mount is closed.
        (!self.closed.load(Ordering::SeqCst)).then_some(guard)
    }

    /// Lets no further request through, and waits for the requests in flight. Such a request may have to wait
    /// for the disk, or for a peer that does not read its frames until the peer counts as lost.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let mut looking = self.looking.lock();
        while self.in_flight.load(Ordering::SeqCst) > 0 {
            self.emptied.wait(&mut looking);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn close_returns_when_the_last_request_has_left() {
        let requests = InFlightRequests::default();
        let (closed, closing) = channel();
        thread::scope(|scope| {
            let guard = requests.enter().unwrap();
            scope.spawn(|| {
                requests.close();
                closed.send(()).unwrap();
            });
            while requests.enter().is_some() {
                thread::yield_now();
            }
            let early = closing.recv_timeout(Duration::from_millis(20));
            assert_eq!(early, Err(RecvTimeoutError::Timeout));
            drop(guard);
            closing.recv().unwrap();
        });
        assert!(requests.enter().is_none());
    }
}
