//! The bytes that a resync may read by its limit for a second (rule P19).
//!
//! A piece of work begins while bytes are left, and may take more: the next piece then waits until the debt is paid. So the limit
//! holds over each time that is long beside one piece. Bytes that were not used are kept for [`KEPT`] only.

use std::num::NonZeroU64;
use std::time::Duration;

/// Time for which unused bytes are kept.
const KEPT: Duration = Duration::from_millis(100);

/// See the head of this file.
pub(super) struct ByteBudget {
    /// Bytes that are left; a debt if negative.
    left: i128,
    /// The time up to which the bytes have come.
    at: Duration,
}

impl ByteBudget {
    /// A budget without bytes and without a debt.
    pub const fn new(now: Duration) -> Self {
        Self { left: 0, at: now }
    }

    /// The moment at which the next piece of work may begin: `None` is now. Without a limit there is no debt.
    pub fn due(&mut self, limit: Option<NonZeroU64>, now: Duration) -> Option<Duration> {
        let Some(limit) = limit else {
            *self = Self::new(now);
            return None;
        };
        self.left =
            (self.left + in_time(limit, now.saturating_sub(self.at))).min(in_time(limit, KEPT));
        self.at = now;
        (self.left < 0).then(|| now + time_of(limit, self.left.unsigned_abs()))
    }

    /// Takes the bytes of a piece of work.
    pub fn spend(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(i128::from(bytes));
    }
}

/// The bytes that come in a time.
fn in_time(limit: NonZeroU64, time: Duration) -> i128 {
    let bytes = u128::from(limit.get()).saturating_mul(time.as_nanos()) / 1_000_000_000;
    i128::try_from(bytes).unwrap_or(i128::MAX / 2)
}

/// The time in which so many bytes come.
fn time_of(limit: NonZeroU64, bytes: u128) -> Duration {
    let nanos = bytes
        .saturating_mul(1_000_000_000)
        .div_ceil(u128::from(limit.get()));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LIMIT: Option<NonZeroU64> = NonZeroU64::new(10 * MIB);

    /// Bytes read from `start` for `time`, in pieces of `piece` bytes that take no time themselves.
    fn read_in(budget: &mut ByteBudget, start: Duration, time: Duration, piece: u64) -> u64 {
        let (mut now, mut bytes) = (start, 0);
        while now < start + time {
            if let Some(due) = budget.due(LIMIT, now) {
                assert!(due > now);
                now = due;
            } else {
                budget.spend(piece);
                bytes += piece;
            }
        }
        bytes
    }

    #[test]
    fn the_limit_holds_over_seconds() {
        for piece in [1, 4 << 10, 100_000, MIB, 4 * MIB] {
            let mut budget = ByteBudget::new(Duration::ZERO);
            let seconds = if piece == 1 { 0 } else { 20 };
            let bytes = read_in(
                &mut budget,
                Duration::ZERO,
                Duration::from_secs(seconds),
                piece,
            );
            let expected = 10 * MIB * seconds;
            assert!(
                bytes >= expected && bytes <= expected + piece + 2 * MIB,
                "{piece}: {bytes}"
            );
        }
    }

    #[test]
    fn an_idle_time_saves_no_bytes_for_later() {
        let mut budget = ByteBudget::new(Duration::ZERO);
        assert_eq!(budget.due(LIMIT, Duration::from_secs(3600)), None);
        let start = Duration::from_secs(7200);
        let bytes = read_in(&mut budget, start, Duration::from_secs(1), MIB);
        assert!((10 * MIB..=12 * MIB).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_debt_lasts_by_the_limit_of_this_moment_and_ends_with_it() {
        let mut budget = ByteBudget::new(Duration::ZERO);
        budget.spend(10 * MIB);
        assert_eq!(
            budget.due(LIMIT, Duration::ZERO),
            Some(Duration::from_secs(1))
        );
        let half = NonZeroU64::new(5 * MIB);
        assert_eq!(
            budget.due(half, Duration::ZERO),
            Some(Duration::from_secs(2))
        );
        assert_eq!(budget.due(None, Duration::ZERO), None);
        assert_eq!(budget.due(half, Duration::ZERO), None);
    }

    #[test]
    fn the_largest_numbers_overflow_nothing() {
        let mut budget = ByteBudget::new(Duration::ZERO);
        budget.spend(u64::MAX);
        assert!(budget.due(NonZeroU64::new(1), Duration::ZERO).is_some());
        assert_eq!(budget.due(NonZeroU64::new(u64::MAX), Duration::MAX), None);
    }
}
