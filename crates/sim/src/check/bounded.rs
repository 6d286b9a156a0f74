//! Tables, logs and queues stay within their limits. They drain when nothing is under way.
//!
//! The world samples every counter at any time. It marks the samples taken while the nodes are in
//! sync, no call is open, and the nodes have had the time to settle. The largest value of a counter
//! in such a sample is its floor. The floor is zero for most counters. The floor of the log is not
//! zero, because the log keeps the segment to which it writes.

use super::violation::Violation;
use crate::world::Side;

/// The quantity that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// Entries of the PAW table.
    PawEntries,
    /// Entries of the SAW table.
    SawEntries,
    /// Bytes of the intent log that cannot take records.
    LogBytes,
    /// Mirrored writes that are not done on both nodes.
    WritesInFlight,
    /// Bytes of mirrored operations that were admitted and are not over.
    BytesInFlight,
    /// Mirrored metadata operations that are not applied on the primary.
    PendingIntents,
    /// Operations that the core has, for any reason of their waiting.
    Operations,
    /// Operations of the core that wait for a change of the state.
    HeldOperations,
    /// Operations for which the driver remembers outstanding work.
    PendingOps,
    /// Bytes of waiting writes, in memory.
    SpilledBytes,
    /// Bytes of waiting writes, on the disk.
    SpilledToDisk,
    /// Bytes in memory of writes that have begun and that were read from the disk or given to
    /// another thread.
    BegunBytes,
}

/// The limits of a counter.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The counter.
    pub counter: Counter,
    /// The largest permitted value at any time.
    pub limit: u64,
    /// The largest permitted value when idle.
    pub floor: u64,
}

/// The state of one counter of one node at one time.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Time of the sample.
    pub at: u64,
    /// The node of the counter.
    pub node: Side,
    /// The counter.
    pub counter: Counter,
    /// The number or the amount.
    pub value: u64,
    /// Whether nothing was under way and the node had had the time to drain.
    pub is_idle: bool,
}

/// Judges all samples. Counters without a bound are not judged.
pub fn check(samples: &[Sample], bounds: &[Bound]) -> Result<(), Violation> {
    for bound in bounds {
        let of_counter = samples
            .iter()
            .filter(|sample| sample.counter == bound.counter);
        for sample in of_counter {
            let (most, when) = if sample.is_idle {
                (bound.floor.min(bound.limit), "when idle")
            } else {
                (bound.limit, "ever")
            };
            if sample.value > most {
                return Err(exceeded(sample, most, when));
            }
        }
    }
    Ok(())
}

fn exceeded(sample: &Sample, most: u64, when: &str) -> Violation {
    let Sample {
        at,
        node,
        counter,
        value,
        ..
    } = sample;
    let what = format!("{counter:?} of {node:?} at {at}: {value}, more than {most} {when}");
    Violation::new("bounded", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound {
        counter: Counter::PawEntries,
        limit: 10,
        floor: 0,
    };

    fn sample(value: u64, is_idle: bool) -> Sample {
        Sample {
            at: 3,
            node: Side::A,
            counter: Counter::PawEntries,
            value,
            is_idle,
        }
    }

    #[test]
    fn counters_are_held_to_limit_and_floor() {
        assert_eq!(
            check(&[sample(10, false), sample(0, true)], &[BOUND]),
            Ok(())
        );
        let over = check(&[sample(11, false)], &[BOUND])
            .unwrap_err()
            .to_string();
        assert_eq!(over, "bounded: PawEntries of A at 3: 11, more than 10 ever");
        let leak = check(&[sample(1, true)], &[BOUND]).unwrap_err().to_string();
        assert!(leak.contains("more than 0 when idle"), "{leak}");
    }
}
