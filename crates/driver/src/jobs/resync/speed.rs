//! The speed of a resync over the last seconds, and the time that is left at this speed.
//!
//! Invariant: both are unknown until enough has been seen, and the time left is unknown while the speed changes much. A resync
//! passes long holes, files that are equal and files that differ with very different speeds.

use std::collections::VecDeque;
use std::time::Duration;

use lockstep_types::time::millis;

/// Least time between two samples.
const INTERVAL: Duration = Duration::from_millis(400);
/// The speed is that of this time.
const WINDOW: Duration = Duration::from_secs(10);
/// A speed is known after this time.
const SPEED_AFTER: Duration = Duration::from_secs(1);
/// A time left is known after this time.
const LEFT_AFTER: Duration = Duration::from_secs(3);
/// A time left is unknown while one half of the window has more than so many times the speed of the other half.
const STEADY_FACTOR: u64 = 4;

/// The work that is done, or left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub bytes: u64,
    pub files: u64,
}

impl Work {
    /// The work beyond another one.
    pub const fn beyond(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            files: self.files.saturating_sub(other.files),
        }
    }

    const fn is_less(self, other: Self) -> bool {
        self.bytes < other.bytes || self.files < other.files
    }
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct Speed {
    samples: VecDeque<(Duration, Work)>,
}

impl Speed {
    /// Notes the work that is done at `now`. If it is less than before, another job has begun.
    pub fn note(&mut self, now: Duration, done: Work) {
        let last = self.samples.back().copied();
        if last.is_some_and(|(_, before)| done.is_less(before)) {
            self.samples.clear();
        } else if last.is_some_and(|(at, _)| now < at + INTERVAL) {
            return;
        }
        self.samples.push_back((now, done));
        // The first sample is at least a window ago, if there is one.
        while self
            .samples
            .get(1)
            .is_some_and(|(at, _)| *at + WINDOW <= now)
        {
            self.samples.pop_front();
        }
    }

    /// Forgets all: no job works.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    /// Bytes in a second.
    pub fn bytes_per_second(&self) -> Option<u64> {
        let (took, work) = self.between(0, self.samples.len().checked_sub(1)?)?;
        (took >= SPEED_AFTER).then(|| per_second(work.bytes, took))
    }

    /// The time for the work that is left.
    pub fn time_for(&self, left: Work) -> Option<Duration> {
        if left == Work::default() {
            return Some(Duration::ZERO);
        }
        let last = self.samples.len().checked_sub(1)?;
        let (took, work) = self.between(0, last)?;
        if took < LEFT_AFTER || !self.is_steady(last) {
            return None;
        }
        let of_bytes = time_at(left.bytes, work.bytes, took);
        let of_files = time_at(left.files, work.files, took);
        match (left.bytes, of_bytes) {
            // While a long file is compared, no file ends.
            (1.., Some(_)) | (0, _) => of_bytes.max(of_files),
            (_, None) => None,
        }
    }

    /// Whether both halves of the window have about the same speed.
    fn is_steady(&self, last: usize) -> bool {
        let halves = self.between(0, last / 2).zip(self.between(last / 2, last));
        halves.is_some_and(|((first, before), (second, after))| {
            let [before, after] =
                [(before, first), (after, second)].map(|(work, took)| per_second(work.bytes, took));
            before.max(after) <= before.min(after).saturating_mul(STEADY_FACTOR)
        })
    }

    /// The time and the work between two samples.
    fn between(&self, first: usize, last: usize) -> Option<(Duration, Work)> {
        let (from, before) = *self.samples.get(first)?;
        let (to, after) = *self.samples.get(last)?;
        Some((to.saturating_sub(from), after.beyond(before)))
    }
}

fn per_second(count: u64, took: Duration) -> u64 {
    u64::try_from(u128::from(count) * 1_000_000_000 / took.as_nanos().max(1)).unwrap_or(u64::MAX)
}

/// The time for `left` at the speed of `done` in a time; `None` for ever.
fn time_at(left: u64, done: u64, took: Duration) -> Option<Duration> {
    if left == 0 {
        return Some(Duration::ZERO);
    }
    let time = (u128::from(left) * u128::from(millis(took))).checked_div(u128::from(done))?;
    Some(Duration::from_millis(
        u64::try_from(time).unwrap_or(u64::MAX),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    const fn work(mib: u64, files: u64) -> Work {
        Work {
            bytes: mib * MIB,
            files,
        }
    }

    /// A job that does `bytes_per_half` MiB and `files_per_half` files in each half of a second.
    fn steady(seconds: u64, mib_per_half: u64, files_per_half: u64) -> Speed {
        let mut speed = Speed::default();
        for half in 0..=seconds * 2 {
            let now = Duration::from_millis(half * 500);
            speed.note(now, work(half * mib_per_half, half * files_per_half));
        }
        speed
    }

    #[test]
    fn a_steady_job_has_a_speed_and_an_end() {
        for seconds in [5, 60] {
            let speed = steady(seconds, 10, 1);
            assert_eq!(speed.bytes_per_second(), Some(20 * MIB));
            assert_eq!(speed.time_for(work(200, 5)), Some(at(10.0)));
            assert_eq!(
                speed.time_for(work(20, 60)),
                Some(at(30.0)),
                "many small files are left"
            );
            assert_eq!(speed.time_for(Work::default()), Some(Duration::ZERO));
        }
    }

    #[test]
    fn a_job_that_has_just_begun_has_no_end_yet() {
        let mut speed = Speed::default();
        assert_eq!(speed.bytes_per_second(), None);
        speed.note(at(0.0), work(0, 0));
        speed.note(at(0.5), work(1000, 10));
        assert_eq!(speed.bytes_per_second(), None);
        speed.note(at(2.0), work(4000, 40));
        assert_eq!(speed.bytes_per_second(), Some(2000 * MIB));
        assert_eq!(speed.time_for(work(1, 1)), None);
    }

    #[test]
    fn the_speed_is_that_of_the_last_seconds() {
        let mut speed = steady(60, 10, 0);
        for second in 61..=75_u32 {
            speed.note(
                at(f64::from(second)),
                work(1200 + u64::from(second - 60), 0),
            );
        }
        assert_eq!(speed.bytes_per_second(), Some(MIB));
        assert_eq!(
            speed.time_for(work(60, 7)),
            Some(at(60.0)),
            "no file ends in a long one"
        );
    }

    #[test]
    fn the_end_is_unknown_while_the_speed_changes_or_is_zero() {
        let mut speed = steady(10, 10, 0);
        speed.note(at(15.0), work(20_000, 0));
        assert!(speed.bytes_per_second().is_some());
        assert_eq!(speed.time_for(work(100, 0)), None, "a long hole");
        let stands = steady(10, 0, 0);
        assert_eq!(stands.bytes_per_second(), Some(0));
        assert_eq!(stands.time_for(work(1, 0)), None);
        let empty = steady(10, 0, 5);
        assert_eq!(empty.time_for(work(0, 100)), Some(at(10.0)), "empty files");
    }

    #[test]
    fn another_job_begins_anew() {
        let mut speed = steady(10, 10, 0);
        speed.note(at(10.6), work(1, 0));
        assert_eq!(speed.bytes_per_second(), None);
        speed.clear();
        assert_eq!(speed.time_for(work(1, 0)), None);
    }
}
