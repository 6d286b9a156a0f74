//! The one way to wait for a change of a state: a thread sleeps until the owner of the state raises a signal, or until a deadline.
//!
//! No thread looks again and again. A wait takes a condition, because a raise only says that something has changed: a woken thread
//! looks, and sleeps on if its condition does not hold.
//!
//! Invariants:
//! - No raise is lost. The owner changes the state first and raises the signal after that; a waiting thread enters itself
//!   first and looks at the state after that. So the thread sees the change, or the owner sees the thread.
//! - Every change that a condition reads is followed by a raise of one of the signals of the wait, or is due at its deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Gate, Host};

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Signal {
    /// Number of raises so far.
    raises: AtomicU64,
    /// Number of threads that wait, or are about to.
    waiting: AtomicU64,
    gates: Mutex<Vec<Arc<dyn Gate>>>,
}

/// The number of raises of a signal at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Raises(u64);

impl Signal {
    /// Wakes all threads that wait. The caller has changed the state before.
    pub fn raise(&self) {
        self.raises.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let gates = std::mem::take(&mut *self.gates.lock());
        for gate in gates {
            gate.open();
        }
    }

    /// The number of raises so far. A thread that reads it, and a state after that, misses no later change of the state.
    pub fn raises(&self) -> Raises {
        Raises(self.raises.load(Ordering::SeqCst))
    }

    /// Waits until the signal has been raised since `seen`, or until `deadline` on the host's clock.
    pub fn wait_beyond(&self, host: &dyn Host, seen: Raises, deadline: Option<Duration>) {
        wait_until(host, &[self], deadline, || self.raises() != seen);
    }

    /// As [`wait_until`], on this signal alone.
    pub fn wait_until(
        &self,
        host: &dyn Host,
        deadline: Option<Duration>,
        is_met: impl FnMut() -> bool,
    ) -> bool {
        wait_until(host, &[self], deadline, is_met)
    }

    /// Enters a thread whose gate a raise opens, until the return value is dropped.
    fn enter<'a>(&'a self, gate: &'a Arc<dyn Gate>) -> Entered<'a> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.gates.lock().push(Arc::clone(gate));
        fence(Ordering::SeqCst);
        Entered { signal: self, gate }
    }
}

/// A thread that waits for a signal.
struct Entered<'a> {
    signal: &'a Signal,
    gate: &'a Arc<dyn Gate>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let Self { signal, gate } = self;
        signal
            .gates
            .lock()
            .retain(|other| !Arc::ptr_eq(other, gate));
        signal.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until a condition holds. The thread looks at first, after each raise of one of the signals, and at `deadline` on the
/// host's clock. Returns whether the condition holds; it does, unless the deadline has passed.
pub(crate) fn wait_until(
    host: &dyn Host,
    signals: &[&Signal],
    deadline: Option<Duration>,
    mut is_met: impl FnMut() -> bool,
) -> bool {
    loop {
        if is_met() {
            return true;
        }
        let gate = host.gate();
        let _entered: Vec<Entered<'_>> = signals.iter().map(|signal| signal.enter(&gate)).collect();
        if is_met() {
            return true;
        }
        let left = deadline.map(|deadline| deadline.saturating_sub(host.now()));
        if left == Some(Duration::ZERO) {
            return false;
        }
        // Open or not: the condition and the deadline decide.
        let _is_open = gate.wait_for(left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::host::OsHost;

    /// A busy machine may take long for anything.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_wait_ends_with_its_condition_or_at_its_deadline() {
        let host = OsHost::start("test").unwrap();
        let signal = Signal::default();
        assert!(signal.wait_until(&host, None, || true));
        let deadline = host.now() + Duration::from_millis(20);
        signal.raise();
        assert!(!signal.wait_until(&host, Some(deadline), || false));
        assert!(host.now() >= deadline);
        let seen = signal.raises();
        signal.raise();
        signal.wait_beyond(&host, seen, None);
        assert_eq!(
            (signal.waiting.into_inner(), signal.gates.into_inner().len()),
            (0, 0)
        );
        host.stop();
    }

    #[test]
    fn a_thread_that_waits_for_several_signals_is_woken_by_each() {
        let host = OsHost::start("test").unwrap();
        let signals = [Signal::default(), Signal::default()];
        for signal in &signals {
            let is_set = AtomicBool::new(false);
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let both = [&signals[0], &signals[1]];
                    wait_until(&host, &both, None, || is_set.load(Ordering::Acquire))
                });
                is_set.store(true, Ordering::Release);
                signal.raise();
                assert!(waiter.join().unwrap());
            });
        }
        host.stop();
    }

    /// Two threads hand a number back and forth: a raise that is lost stops both.
    #[test]
    fn no_raise_is_lost_between_the_look_and_the_wait() {
        const ROUNDS: u64 = 20_000;
        let host = OsHost::start("test").unwrap();
        let (signal, turn) = (Signal::default(), AtomicU64::new(0));
        let deadline = host.now() + LONG;
        let play = |rest: u64| {
            for round in (0..ROUNDS).filter(|round| round % 2 == rest) {
                let is_mine = || turn.load(Ordering::Relaxed) == round;
                assert!(signal.wait_until(&host, Some(deadline), is_mine), "lost");
                turn.store(round + 1, Ordering::Relaxed);
                signal.raise();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| play(1));
            play(0);
        });
        host.stop();
    }
}
