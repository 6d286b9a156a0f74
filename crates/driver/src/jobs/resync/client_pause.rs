//! The pause of a resync while clients wait (rule P19).
//!
//! Clients wait if more than one in [`SLOW_SHARE`] of the operations that ended in the last [`WINDOW`] were slow, or if none
//! ended for as long as an operation may take, although operations were under way all the time.
//!
//! A pause lasts until clients do not wait any more, and at most [`PAUSE_FACTOR`] times as long as the work before it: the
//! operations may be slow for another reason than the resync. Then the next piece of work begins, and after it the next pause.

use std::time::Duration;

use crate::service_gate::client_waits::WaitSample;

/// The time of a sample.
const WINDOW: Duration = Duration::from_millis(250);
/// Clients wait if more than one in so many operations is slow.
const SLOW_SHARE: u64 = 20;
/// A pause lasts at most this many times as long as the work before it.
const PAUSE_FACTOR: u32 = 9;
/// The longest pause, however long the work before it has lasted.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// See the head of this file.
pub(super) struct ClientPause {
    /// Begin of the present sample.
    sampled: Duration,
    /// Begin of the samples in which no operation ended, and one was under way at the begin of each.
    stuck_since: Option<Duration>,
    /// Clients wait, by the last sample.
    is_slow: bool,
    /// End of the last pause.
    worked_since: Duration,
    /// The latest end of the present pause.
    paused_until: Option<Duration>,
}

impl ClientPause {
    /// No sample, and no pause.
    pub const fn new(now: Duration) -> Self {
        Self {
            sampled: now,
            stuck_since: None,
            is_slow: false,
            worked_since: now,
            paused_until: None,
        }
    }

    /// The moment of the next look at the clients, if the resync pauses until then; `None`: it works. `limit`: the time of an
    /// operation that is not slow. `sample` gives the operations since its last call.
    pub fn due(
        &mut self,
        limit: Duration,
        now: Duration,
        sample: impl FnOnce() -> WaitSample,
    ) -> Option<Duration> {
        if now >= self.sampled + WINDOW {
            self.look(limit, now, sample());
        }
        if !self.is_slow {
            if self.paused_until.take().is_some() {
                self.worked_since = now;
            }
            return None;
        }
        let worked = now.saturating_sub(self.worked_since);
        let longest = (worked * PAUSE_FACTOR).min(PAUSE_MAX);
        let until = *self.paused_until.get_or_insert(now + longest);
        if now >= until {
            self.paused_until = None;
            self.worked_since = now;
            return None;
        }
        Some(until.min(self.sampled + WINDOW))
    }

    fn look(&mut self, limit: Duration, now: Duration, sample: WaitSample) {
        let stuck_since = self.stuck_since.filter(|_| sample.ended == 0);
        let is_stuck = stuck_since.is_some_and(|since| now.saturating_sub(since) > limit);
        self.is_slow = is_stuck || sample.slow.saturating_mul(SLOW_SHARE) > sample.ended;
        self.stuck_since = (sample.under_way > 0).then(|| stuck_since.unwrap_or(now));
        self.sampled = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);
    /// The time of one piece of work.
    const WORK: Duration = Duration::from_millis(50);

    const fn sample(ended: u64, slow: u64, under_way: u64) -> WaitSample {
        WaitSample {
            ended,
            slow,
            under_way,
        }
    }

    /// The share of the time for which a resync works, with the same sample all the time.
    fn share_of_work(each: WaitSample) -> f64 {
        let (mut pause, mut now, mut worked) = (
            ClientPause::new(Duration::ZERO),
            Duration::ZERO,
            Duration::ZERO,
        );
        let end = Duration::from_secs(100);
        while now < end {
            if let Some(next) = pause.due(LIMIT, now, || each) {
                assert!(next > now);
                now = next;
            } else {
                now += WORK;
                worked += WORK;
            }
        }
        worked.as_secs_f64() / now.as_secs_f64()
    }

    #[test]
    fn a_resync_works_unless_clients_wait() {
        for each in [
            sample(0, 0, 0),
            sample(1000, 0, 3),
            sample(1000, 50, 3),
            sample(1, 0, 1),
        ] {
            assert!(share_of_work(each) > 0.999, "{each:?}");
        }
    }

    #[test]
    fn on_a_disk_that_is_always_slow_a_resync_works_a_tenth_of_the_time() {
        for each in [sample(1000, 51, 3), sample(1, 1, 0), sample(0, 0, 1)] {
            let share = share_of_work(each);
            assert!((0.09..0.12).contains(&share), "{each:?}: {share}");
        }
    }

    #[test]
    fn a_pause_ends_with_the_first_good_sample() {
        let mut pause = ClientPause::new(Duration::ZERO);
        let later = Duration::from_secs(1);
        let next = pause.due(LIMIT, later, || sample(10, 10, 1)).unwrap();
        assert_eq!(next, later + WINDOW);
        assert_eq!(pause.due(LIMIT, next, || sample(10, 0, 1)), None);
    }

    #[test]
    fn an_operation_that_does_not_end_counts_once_it_is_slow() {
        let mut pause = ClientPause::new(Duration::ZERO);
        let long = WINDOW * 3;
        let mut slow = Vec::new();
        for number in 1..=6 {
            slow.push(
                pause
                    .due(long, WINDOW * number, || sample(0, 0, 1))
                    .is_some(),
            );
        }
        assert_eq!(slow, [false, false, false, false, true, true]);
    }
}
