//! Whether requests still come through a mount to its service.
//!
//! Invariant: once [`Doorway::close`] has returned, no thread of the mount is giving a request to the
//! service, and none will. What follows from a request that was given before, on the threads of the service,
//! is the service's to end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// How often it is looked whether the last request is through.
const LOOK: Duration = Duration::from_millis(1);

/// The way in, open at first.
#[derive(Debug, Default)]
pub(super) struct Doorway {
    closed: AtomicBool,
    /// Requests that are being given to the service.
    inside: AtomicUsize,
}

/// A request while it is given to the service; whether it is answered by then is another matter.
pub(super) struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Doorway {
    /// Lets a request through, unless it is closed.
    pub fn enter(&self) -> Option<Inside<'_>> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(&self.inside);
        // Looked at after it was counted: either it is seen by who closes, or it sees that.
        (!self.closed.load(Ordering::SeqCst)).then_some(inside)
    }

    /// Lets no more through, and waits for those that are: they may have to wait for the disk, and for a
    /// peer that does not read what it is sent, until it counts as lost.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        while self.inside.load(Ordering::SeqCst) > 0 {
            thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use super::*;

    #[test]
    fn it_is_closed_when_the_last_request_is_through() {
        let doorway = Doorway::default();
        let (closed, hears) = channel();
        thread::scope(|scope| {
            let inside = doorway.enter().unwrap();
            scope.spawn(|| {
                doorway.close();
                closed.send(()).unwrap();
            });
            while doorway.enter().is_some() {
                thread::yield_now();
            }
            let early = hears.recv_timeout(LOOK * 20);
            assert_eq!(early, Err(RecvTimeoutError::Timeout));
            drop(inside);
            hears.recv().unwrap();
        });
        assert!(doorway.enter().is_none());
    }
}
