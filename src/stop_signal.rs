//! The stop of a process that several threads wait for: each thread sleeps until the stop, and looks for nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// See the head of this file.
#[derive(Debug)]
pub struct StopSignal {
    is_set: AtomicBool,
    /// Readable from the stop on.
    event: OwnedFd,
}

impl StopSignal {
    /// A signal that is not set.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            is_set: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }

    /// Stops: every wait ends.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        // The counter of the event is far from its end, so the write does not fail.
        let _written = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Whether the stop has come.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Sleeps for `time`, or until the stop. Returns whether the stop has come.
    pub fn wait(&self, time: Duration) -> bool {
        self.wait_on(&[], Some(time))
    }

    /// Sleeps until `source` can be read, or until the stop. Returns whether the stop has come.
    pub fn wait_until_readable(&self, source: BorrowedFd<'_>) -> bool {
        self.wait_on(&[source], None)
    }

    fn wait_on(&self, sources: &[BorrowedFd<'_>], time: Option<Duration>) -> bool {
        sleep_until_readable(sources.iter().copied().chain([self.event.as_fd()]), time);
        self.is_set()
    }
}

/// Sleeps until one of the sources can be read, or until `time` is over. An interruption ends the sleep early, too: the caller
/// looks, and sleeps again.
pub(crate) fn sleep_until_readable<'a>(
    sources: impl IntoIterator<Item = BorrowedFd<'a>>,
    time: Option<Duration>,
) {
    let sources = sources.into_iter();
    let mut watched: Vec<_> = sources
        .map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN))
        .collect();
    let limit = time.and_then(|time| Timespec::try_from(time).ok());
    let _ready = poll(&mut watched, limit.as_ref());
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread;

    use super::*;

    /// A busy machine may take long for anything.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn every_wait_ends_at_the_stop() {
        let stop = Arc::new(StopSignal::new().unwrap());
        let (source, _open) = UnixStream::pair().unwrap();
        let waits = [false, true].map(|reads| {
            let (stop, source) = (Arc::clone(&stop), source.try_clone().unwrap());
            thread::spawn(move || {
                if reads {
                    stop.wait_until_readable(source.as_fd())
                } else {
                    stop.wait(LONG)
                }
            })
        });
        stop.set();
        assert!(waits.into_iter().all(|wait| wait.join().unwrap()));
        assert!(stop.wait(LONG), "also afterwards");
    }

    #[test]
    fn a_wait_ends_with_its_time_and_with_its_source() {
        let stop = StopSignal::new().unwrap();
        assert!(!stop.wait(Duration::from_millis(1)));
        let (source, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"x").unwrap();
        assert!(!stop.wait_until_readable(source.as_fd()));
    }
}
