//! The alarm of the operating system: a timer that is put off wakes no thread.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::{Errno, read};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::{Alarm, Host};

/// A moment that has passed. A time of zero would set no moment.
const AT_ONCE: Duration = Duration::from_nanos(1);

/// See the head of this file.
pub(crate) struct SystemTimer {
    timer: OwnedFd,
}

impl SystemTimer {
    /// A timer without a moment.
    ///
    /// # Errors
    /// If the process or the system has no descriptor left.
    pub fn new() -> Result<Self, Errno> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Self { timer })
    }

    fn start(&self, left: Duration) -> Result<(), Errno> {
        let never = Timespec::default();
        // A moment beyond the end of the clock never comes.
        let it_value = Timespec::try_from(left).unwrap_or(never);
        let time = Itimerspec {
            it_interval: never,
            it_value,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time).map(drop)
    }
}

impl Alarm for SystemTimer {
    fn set(&self, host: &dyn Host, moment: Option<Duration>) {
        let left = moment.map_or(Duration::ZERO, |moment| {
            moment.saturating_sub(host.now()).max(AT_ONCE)
        });
        // The call fails for no time that a duration can name.
        if let Err(error) = self.start(left) {
            tracing::error!(%error, "a timer of the system cannot be set");
        }
    }

    fn wait(&self, _host: &dyn Host) {
        let mut count = [0_u8; size_of::<u64>()];
        while read(&self.timer, &mut count) == Err(Errno::INTR) {}
    }
}
