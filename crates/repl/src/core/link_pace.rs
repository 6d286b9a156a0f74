//! The pace of the way to the peer (rule P19): how many bytes in flight keep the way busy without a long queue. Mirrored
//! operations have one, and the bulk of a resync has another one.
//!
//! The way carries some rate, measured from the operations that end while others wait for room. Bytes in flight beyond
//! that rate times the round trip only wait somewhere on the way, and every later operation waits behind them. The bound
//! leaves a queue of [`QUEUE_MS`].
//!
//! The round trip is the shortest time of an operation over the present connection. If every operation takes much longer
//! for [`SLOW_MS`], the way may have become longer: large operations then wait until one of them is alone on the way,
//! and its time counts.

/// Time for which bytes may queue on the way.
const QUEUE_MS: u64 = 100;
/// Shortest time over which a rate is measured.
const SAMPLE_MS: u64 = 100;
/// The least bound, in bytes: several usual requests.
const LIMIT_MIN: u64 = 256 << 10;
/// After this time in which every operation took [`QUEUE_MS`] longer than expected, the round trip is measured again.
const SLOW_MS: u64 = 10_000;

/// How an operation began its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The time.
    pub at_ms: u64,
    /// No other operation was on the way.
    pub was_alone: bool,
}

/// See the head of this file.
pub struct LinkPace {
    bytes_max: u64,
    limit: u64,
    /// The round trip, once an operation has made it.
    trip_ms: Option<u64>,
    /// Since when every operation has taken much longer than the round trip.
    slow_since_ms: Option<u64>,
    /// The round trip is to be measured again.
    is_measuring: bool,
    sample: Sample,
}

/// The operations that ended since a moment.
#[derive(Default)]
struct Sample {
    since_ms: u64,
    bytes: u64,
    /// Operations waited for room at that moment: the way was busy from then on.
    was_busy: bool,
}

impl LinkPace {
    /// The pace of a way of which nothing is known.
    pub fn new(bytes_max: u64, now_ms: u64) -> Self {
        Self {
            bytes_max,
            limit: bytes_max,
            trip_ms: None,
            slow_since_ms: None,
            is_measuring: false,
            sample: Sample {
                since_ms: now_ms,
                ..Sample::default()
            },
        }
    }

    /// Large operations begin while fewer bytes are in flight.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether a large operation begins only when it is alone on the way.
    pub const fn is_measuring(&self) -> bool {
        self.is_measuring
    }

    /// An operation has ended. `is_busy` says whether operations wait for room now.
    pub fn ended(&mut self, dispatch: Dispatch, bytes: u64, is_busy: bool, now_ms: u64) {
        self.note_time(dispatch, now_ms);
        self.sample.bytes = self.sample.bytes.saturating_add(bytes);
        let lasted_ms = now_ms.saturating_sub(self.sample.since_ms);
        if lasted_ms < SAMPLE_MS {
            return;
        }
        let span_ms = self.trip_ms.unwrap_or(0).saturating_add(QUEUE_MS);
        let wanted = self.sample.bytes.saturating_mul(span_ms) / lasted_ms;
        let wanted = wanted.max(LIMIT_MIN).min(self.bytes_max);
        if wanted > self.limit {
            self.limit = wanted;
        } else if self.sample.was_busy && is_busy {
            // One slow moment is no slow way.
            self.limit = wanted.max(self.limit / 4 * 3).min(self.bytes_max);
        }
        self.sample = Sample {
            since_ms: now_ms,
            bytes: 0,
            was_busy: is_busy,
        };
    }

    fn note_time(&mut self, dispatch: Dispatch, now_ms: u64) {
        let took_ms = now_ms.saturating_sub(dispatch.at_ms);
        let trip_ms = self.trip_ms.unwrap_or(took_ms).min(took_ms);
        self.trip_ms = Some(trip_ms);
        if self.is_measuring && dispatch.was_alone {
            self.trip_ms = Some(took_ms);
            self.is_measuring = false;
            self.slow_since_ms = None;
        } else if took_ms <= trip_ms.saturating_add(2 * QUEUE_MS) {
            self.is_measuring = false;
            self.slow_since_ms = None;
        } else {
            let since_ms = *self.slow_since_ms.get_or_insert(dispatch.at_ms);
            self.is_measuring |= now_ms.saturating_sub(since_ms) >= SLOW_MS;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const MIB: u64 = 1 << 20;
    const MAX: u64 = 16 * MIB;

    /// A way with a rate and a round trip, and a sender who always has operations of some size.
    struct Way {
        pace: LinkPace,
        bytes_per_ms: u64,
        trip_ms: u64,
        op_bytes: u64,
        now_ms: u64,
        /// Dispatch and arrival of each operation on the way.
        moving: VecDeque<(Dispatch, u64)>,
        free_ms: u64,
        carried: u64,
    }

    impl Way {
        fn new(bytes_per_ms: u64, trip_ms: u64, op_bytes: u64) -> Self {
            Self {
                pace: LinkPace::new(MAX, 0),
                bytes_per_ms,
                trip_ms,
                op_bytes,
                now_ms: 0,
                moving: VecDeque::new(),
                free_ms: 0,
                carried: 0,
            }
        }

        fn in_flight(&self) -> u64 {
            self.moving.len() as u64 * self.op_bytes
        }

        fn fill(&mut self) {
            while self.moving.is_empty()
                || !self.pace.is_measuring()
                    && self.in_flight() < self.pace.limit()
                    && self.in_flight() + self.op_bytes <= MAX
            {
                let dispatch = Dispatch {
                    at_ms: self.now_ms,
                    was_alone: self.moving.is_empty(),
                };
                self.free_ms = self.free_ms.max(self.now_ms) + self.op_bytes / self.bytes_per_ms;
                self.moving
                    .push_back((dispatch, self.free_ms + self.trip_ms));
            }
        }

        /// Lets time pass. Returns the bytes carried meanwhile.
        fn run(&mut self, ms: u64) -> u64 {
            let before = self.carried;
            for _ in 0..ms {
                self.fill();
                self.now_ms += 1;
                while let Some((dispatch, _)) =
                    self.moving.pop_front_if(|(_, at)| *at <= self.now_ms)
                {
                    self.carried += self.op_bytes;
                    let (bytes, now_ms) = (self.op_bytes, self.now_ms);
                    self.pace.ended(dispatch, bytes, true, now_ms);
                }
            }
            self.carried - before
        }

        /// The share of the rate that is used, in percent.
        fn use_of(&mut self, ms: u64) -> u64 {
            self.run(ms) * 100 / (self.bytes_per_ms * ms)
        }
    }

    #[test]
    fn bytes_queue_for_a_bounded_time_on_every_way_and_keep_it_busy() {
        // 10 Mbit/s to 10 Gbit/s.
        for bytes_per_ms in [1250, 12_500, 125_000, 1_250_000] {
            for trip_ms in [0, 1, 20, 100] {
                for op_bytes in [64 << 10, MIB] {
                    let mut way = Way::new(bytes_per_ms, trip_ms, op_bytes);
                    way.run(15_000);
                    let most = (bytes_per_ms * (trip_ms + 2 * QUEUE_MS)).max(LIMIT_MIN) + op_bytes;
                    let what = format!("{bytes_per_ms} {trip_ms} {op_bytes}");
                    let in_flight = way.in_flight();
                    assert!(in_flight <= most, "{what}: {in_flight} above {most}");
                    let share = (100 * MAX / (bytes_per_ms * (trip_ms + 1))).min(100);
                    let used = way.use_of(10_000);
                    assert!(used * 10 >= share * 8, "{what}: {used} of {share}");
                }
            }
        }
    }

    #[test]
    fn a_way_that_becomes_longer_or_faster_is_used_again() {
        let mut way = Way::new(125_000, 1, MIB);
        way.run(1000);
        way.trip_ms = 400;
        way.run(30_000);
        // 16 MiB for each round trip.
        assert!(way.use_of(10_000) >= 25, "{}", way.pace.limit());
        let mut way = Way::new(1250, 1, 64 << 10);
        // The first 16 MiB take 13 s.
        way.run(20_000);
        assert_eq!(way.pace.limit(), LIMIT_MIN);
        way.bytes_per_ms = 125_000;
        way.run(5000);
        assert!(way.use_of(1000) >= 80, "{}", way.pace.limit());
    }

    #[test]
    fn an_idle_way_keeps_its_bound() {
        let mut pace = LinkPace::new(MAX, 0);
        for second in 1..60 {
            let dispatch = Dispatch {
                at_ms: second * 1000 - 1,
                was_alone: true,
            };
            pace.ended(dispatch, 4096, false, second * 1000);
        }
        assert_eq!(pace.limit(), MAX);
    }
}
