//! A wait for a moment that is put off again and again, as the end of a lease is.
//!
//! A thread that sleeps up to a deadline wakes at that deadline, also if it has been put off meanwhile. An alarm wakes its thread
//! only when the moment has come.

use std::time::Duration;

use parking_lot::Mutex;

use super::signal::Signal;
use super::{Alarm, Host};

/// The alarm of a host without timers of its own. The thread wakes at each moment that it has seen, and sleeps on.
#[derive(Default)]
pub struct GateAlarm {
    moment: Mutex<Option<Duration>>,
    /// Raised when a wait may end earlier than before.
    sooner: Signal,
}

impl Alarm for GateAlarm {
    fn set(&self, _host: &dyn Host, moment: Option<Duration>) {
        let last = std::mem::replace(&mut *self.moment.lock(), moment);
        if moment.is_some_and(|moment| last.is_none_or(|last| moment < last)) {
            self.sooner.raise();
        }
    }

    fn wait(&self, host: &dyn Host) {
        loop {
            let seen = self.sooner.raises();
            let next = {
                let mut moment = self.moment.lock();
                if moment.take_if(|moment| *moment <= host.now()).is_some() {
                    return;
                }
                *moment
            };
            self.sooner.wait_beyond(host, seen, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::host::OsHost;

    const MOMENT: Duration = Duration::from_millis(30);
    const HOUR: Duration = Duration::from_hours(1);

    fn alarms(host: &OsHost) -> [Arc<dyn Alarm>; 2] {
        [host.alarm(), Arc::new(GateAlarm::default())]
    }

    #[test]
    fn a_moment_that_is_put_off_or_has_passed_ends_a_wait_at_its_time() {
        let host = OsHost::start("test").unwrap();
        for alarm in alarms(&host) {
            let end = host.now() + MOMENT;
            alarm.set(&host, Some(end));
            alarm.set(&host, Some(end + MOMENT));
            alarm.wait(&host);
            assert!(host.now() >= end + MOMENT);
            alarm.set(&host, Some(Duration::ZERO));
            alarm.wait(&host);
        }
        host.stop();
    }

    #[test]
    fn a_waiting_thread_learns_of_a_sooner_moment() {
        let host = OsHost::start("test").unwrap();
        for alarm in alarms(&host) {
            alarm.set(&host, Some(HOUR));
            thread::scope(|scope| {
                let waiting = scope.spawn(|| alarm.wait(&host));
                thread::sleep(MOMENT);
                alarm.set(&host, None);
                alarm.set(&host, Some(host.now()));
                waiting.join().unwrap();
            });
        }
        host.stop();
    }

    /// The time that a thread has waited is no measure on a busy machine: the number of its waits is.
    #[test]
    fn the_timer_of_the_system_wakes_no_thread_for_a_moment_that_is_put_off() {
        let host = OsHost::start("test").unwrap();
        let alarm = host.alarm();
        let begin = host.now();
        alarm.set(&host, Some(begin + MOMENT));
        let switches = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                alarm.wait(&host);
                std::fs::read_to_string("/proc/thread-self/status").unwrap()
            });
            for put_off in 1..=20 {
                alarm.set(&host, Some(begin + MOMENT * (put_off + 1) / 2));
                thread::sleep(MOMENT / 4);
            }
            waiting.join().unwrap()
        });
        let line = switches
            .lines()
            .find(|line| line.starts_with("voluntary_ctxt_switches"));
        let count = line.unwrap().split_whitespace().last().unwrap().to_owned();
        assert!(count.parse::<u32>().unwrap() <= 8, "{count} waits");
        host.stop();
    }
}
