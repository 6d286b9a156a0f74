//! How many requests of programs wait for the service, as the service and the log are told.
//!
//! Invariant: the number that the service was told last is the number that was counted last. So one thread at a time counts and
//! tells.

use parking_lot::Mutex;

/// See the head of this file. The value says whether the log says that programs wait.
#[derive(Debug, Default)]
pub(crate) struct WaitingNotice(Mutex<bool>);

impl WaitingNotice {
    /// Counts the waiting requests, and tells the service. Returns whether the log has to say that programs wait.
    pub fn tell(&self, count: impl FnOnce() -> u64, tell_service: impl FnOnce(u64)) -> bool {
        let mut is_logged = self.0.lock();
        let waiting = count();
        tell_service(waiting);
        waiting > 0 && !std::mem::replace(&mut *is_logged, true)
    }

    /// The service serves: if programs wait again, the log says so again.
    pub fn reset(&self) {
        *self.0.lock() = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// How long the first thread lets the second one overtake it, if the second one can.
    const OVERTAKING: Duration = Duration::from_millis(200);

    #[test]
    fn an_older_count_is_never_told_last() {
        let (told, waiting) = (&AtomicU64::new(7), &AtomicU64::new(1));
        let notice = &WaitingNotice::default();
        let (counted, is_counted) = channel();
        let (overtaken, is_overtaken) = channel();
        let count = || waiting.load(Ordering::SeqCst);
        thread::scope(|scope| {
            scope.spawn(move || {
                let tell = |number| {
                    counted.send(()).unwrap();
                    // No other thread overtakes: the wait ends by its limit.
                    let _overtaken = is_overtaken.recv_timeout(OVERTAKING);
                    told.store(number, Ordering::SeqCst);
                };
                assert!(notice.tell(count, tell));
            });
            is_counted.recv().unwrap();
            waiting.store(0, Ordering::SeqCst);
            let tell = |number| {
                told.store(number, Ordering::SeqCst);
                // The first thread may have given up the wait.
                let _sent = overtaken.send(());
            };
            assert!(!notice.tell(count, tell));
        });
        assert_eq!(told.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn the_log_says_once_that_programs_wait() {
        let notice = WaitingNotice::default();
        let tell = |waiting| notice.tell(|| waiting, drop);
        assert_eq!(
            [0, 1, 2, 0, 1].map(tell),
            [false, true, false, false, false]
        );
        notice.reset();
        assert!(tell(1));
    }
}
