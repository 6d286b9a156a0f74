//! The timer that rings when the lease of a node is over (`docs/adr/0014`).
//!
//! The node and the guard of its mount share one timer of the kernel. The node sets the timer anew with each lease that it shows,
//! which wakes nobody. The guard sleeps until the timer rings, also if the node is suspended or gone by then. The timer of a
//! process ends with that process and its guard: the next process makes its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_gettime, timerfd_settime,
};

/// The time at which the kernel lets no timer ring.
const NEVER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The first time at which a timer can ring.
const FIRST: Duration = Duration::from_nanos(1);

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct LeaseTimer(OwnedFd);

impl LeaseTimer {
    /// A timer that is not set.
    pub fn new() -> io::Result<Self> {
        // A look at a timer that has not rung must not wait.
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Takes the descriptor of a timer that another process has made.
    ///
    /// # Errors
    /// If it is no timer.
    pub fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        timerfd_gettime(&descriptor)?;
        Ok(Self(descriptor))
    }

    /// Has the timer ring at a time of the machine's monotonic clock, at once if that is over, and not at the time that was set
    /// before.
    pub fn set(&self, at: Duration) -> io::Result<()> {
        let at = Timespec::try_from(at.max(FIRST)).map_err(|_| Errno::INVAL)?;
        self.set_value(at)
    }

    /// Has the timer ring no more.
    pub fn unset(&self) -> io::Result<()> {
        self.set_value(NEVER)
    }

    fn set_value(&self, it_value: Timespec) -> io::Result<()> {
        let value = Itimerspec {
            it_interval: NEVER,
            it_value,
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &value)?;
        Ok(())
    }

    /// Whether the timer is set and has not rung. A timer that cannot be asked counts as not set.
    pub fn is_set(&self) -> bool {
        timerfd_gettime(&self.0).is_ok_and(|left| left.it_value != NEVER)
    }

    /// Returns whether the timer has rung since it was set, and since the last such question. A timer that has rung can be read
    /// until this question.
    pub fn take_ring(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; size_of::<u64>()]).is_ok()
    }
}

impl AsFd for LeaseTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::guard_words::machine_time;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn a_timer_rings_once_for_a_time_that_is_over() {
        let timer = LeaseTimer::new().unwrap();
        assert!(!timer.is_set() && !timer.take_ring());
        for over in [machine_time(), Duration::ZERO] {
            timer.set(over).unwrap();
            assert!(!timer.is_set());
            assert!(timer.take_ring());
            assert!(!timer.take_ring());
        }
    }

    #[test]
    fn a_timer_that_is_set_anew_or_unset_has_not_rung() {
        let timer = LeaseTimer::new().unwrap();
        timer.set(machine_time()).unwrap();
        timer.set(machine_time() + HOUR).unwrap();
        assert!(timer.is_set() && !timer.take_ring());
        timer.set(machine_time()).unwrap();
        timer.unset().unwrap();
        assert!(!timer.is_set() && !timer.take_ring());
    }

    #[test]
    fn only_a_timer_is_adopted() {
        let timer = LeaseTimer::new().unwrap();
        let theirs = LeaseTimer::adopt(timer.0.try_clone().unwrap()).unwrap();
        timer.set(machine_time()).unwrap();
        assert!(theirs.take_ring(), "both have the same timer");
        let file = tempfile::tempfile().unwrap();
        assert!(LeaseTimer::adopt(file.into()).is_err());
    }
}
