//! The signals that request a clean shutdown of a process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::stop_signal::sleep_until_readable;

/// The requests for a clean shutdown that a process has got: one thread sleeps until the next.
pub struct ShutdownRequests {
    signals: Signals,
    /// Readable once a signal has come.
    raised: UnixStream,
    woken: Waker,
}

/// Ends the wait for a request early, from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(Arc::new(eventfd(0, flags)?)))
    }

    /// Ends the present wait, or the next one.
    pub fn wake(&self) {
        // The counter of the event is far from its end, so the write does not fail.
        let _written = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// The next wait does not end early.
    fn rest(&self) {
        // Without a call of `wake` there is nothing to read.
        let _read = rustix::io::read(&self.0, &mut [0; size_of::<u64>()]);
    }
}

impl ShutdownRequests {
    /// Handles SIGTERM, SIGINT, and SIGHUP unless that is ignored, from now on.
    ///
    /// # Errors
    /// If a signal cannot be handled.
    pub fn new() -> io::Result<Self> {
        Self::of(stop_signals())
    }

    /// Handles these signals from now on.
    ///
    /// # Errors
    /// If a signal cannot be handled.
    pub fn of(numbers: Vec<i32>) -> io::Result<Self> {
        let (raised, raise) = UnixStream::pair()?;
        for number in &numbers {
            signal_hook::low_level::pipe::register(*number, raise.try_clone()?)?;
        }
        Ok(Self {
            signals: Signals::new(numbers)?,
            raised,
            woken: Waker::new()?,
        })
    }

    /// Ends a wait of these requests early.
    pub fn waker(&self) -> Waker {
        self.woken.clone()
    }

    /// Sleeps for `time` at most, until a request, or until a [`Waker`] ends the wait. Returns the name of the signal that has
    /// come.
    pub fn wait(&mut self, time: Option<Duration>) -> Option<&'static str> {
        sleep_until_readable([self.raised.as_fd(), self.woken.0.as_fd()], time);
        self.woken.rest();
        let signal = self.signals.pending().next()?;
        Some(signal_hook::low_level::signal_name(signal).unwrap_or("a signal"))
    }
}

/// Readable once a request has come.
impl AsFd for ShutdownRequests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raised.as_fd()
    }
}

/// Returns the signals that request a clean shutdown. A closed terminal sends SIGHUP: it is one of these signals
/// unless the parent of the process has set it to be ignored (`nohup`).
pub fn stop_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut signals = vec![SIGTERM, SIGINT];
    if !ignores(&status, SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

/// Ignores the signals of [`ShutdownRequests::new`] in a helper process. A signal to the whole unit or terminal is for the node, which
/// needs its helpers until it has unmounted.
///
/// # Errors
/// If a signal cannot be handled.
pub fn leave_to_the_node() -> io::Result<()> {
    for signal in stop_signals() {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

/// Whether `/proc/PID/status` shows a signal as ignored.
fn ignores(status: &str, signal: i32) -> bool {
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_found_in_the_mask() {
        let status = "Name:\tlockstep\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, SIGHUP));
        assert!(!ignores(status, SIGTERM));
        assert!(!ignores("", SIGHUP));
    }
}
