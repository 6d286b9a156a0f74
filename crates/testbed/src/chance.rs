//! Random numbers from a seed: they choose the faults and their times. Content that is compared later must not come
//! from here: it has numbers of its own (see `cells`).
//!
//! The same seed gives the same order of events. The timing between these events and the nodes depends on the
//! machine.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The environment variable that repeats a run.
const SEED_VARIABLE: &str = "LOCKSTEP_FAULT_SEED";

/// Longest time between two events that come at random moments.
const MOMENT_MAX: Duration = Duration::from_millis(600);

/// A source of random numbers.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The source of a test, from the seed in the environment or from a fresh one, which is printed.
    pub fn of_run() -> Self {
        let given = std::env::var(SEED_VARIABLE);
        let seed = given.map_or_else(|_| fresh(), |text| text.parse().expect(SEED_VARIABLE));
        println!("{SEED_VARIABLE}={seed}");
        Self::of(seed)
    }

    /// The source from that seed.
    pub const fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// A separate source for one client.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.any())
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number of that range, which is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.any() % (range.end - range.start)
    }

    /// True in `chance` of a hundred calls.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.within(0..100) < chance
    }

    /// One of these; there must be at least one.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let index = self.any() % from.len() as u64;
        &from[usize::try_from(index).unwrap()]
    }

    /// The same things in random order.
    pub fn shuffled<T>(&mut self, mut things: Vec<T>) -> Vec<T> {
        for last in (1..things.len()).rev() {
            let other = self.any() % (last as u64 + 1);
            things.swap(last, usize::try_from(other).unwrap());
        }
        things
    }

    /// Sleeps for a random time between two events.
    pub fn pause_moment(&mut self) {
        self.pause(MOMENT_MAX);
    }

    /// Sleeps for a random time up to `longest`.
    pub fn pause(&mut self, longest: Duration) {
        let longest = u64::try_from(longest.as_micros()).unwrap();
        std::thread::sleep(Duration::from_micros(self.within(0..longest + 1)));
    }
}

/// A number that looks unrelated to `number` (the last step of splitmix64).
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Reproducible content: `length` bytes that look unrelated for different `start`.
pub fn content(start: u64, length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).map(|at| mix(start.wrapping_add(at)));
    let mut content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    content.truncate(length);
    content
}

/// A seed that no earlier run had.
pub fn fresh() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::from(now.subsec_nanos()) << 20 ^ u64::from(std::process::id())
}
