//! Tables, logs and queues stay within their limits, and drain when nothing is under way.
//!
//! The world samples every counter as often as it likes, and marks the samples taken when the pair
//! was in sync, no call was open and it had been given the time to settle. What a counter may show
//! then is its floor: zero for most; the log keeps the segment that it is writing to.

use super::violation::Violation;
use crate::world::Side;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// Entries of the PAW table.
    PawEntries,
    /// Entries of the SAW table.
    SawEntries,
    /// Bytes of the intent log that cannot take records.
    LogBytes,
    /// Mirrored writes not done on both nodes.
    WritesInFlight,
    /// Bytes of mirrored operations that were admitted and are not over.
    BytesInFlight,
    /// Mirrored metadata operations not applied on the primary.
    PendingIntents,
    /// Operations that the core has, whatever they wait for.
    Operations,
    /// Those of them that wait for the state to change.
    HeldOperations,
    /// Operations of which the driver remembers what has to be done.
    Works,
    /// Bytes of writes that wait, in memory.
    KeptBytes,
    /// Bytes of writes that wait, on the disk.
    KeptOnDisk,
    /// Bytes in memory of writes that have begun, and that were read from there or given to another thread.
    BegunBytes,
}

/// How far a counter may go.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// What is bounded.
    pub counter: Counter,
    /// The most it may ever be.
    pub limit: u64,
    /// The most it may be when idle.
    pub floor: u64,
}

/// The state of one counter of one node at one time.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When.
    pub at: u64,
    /// Of which node.
    pub node: Side,
    /// What was counted.
    pub counter: Counter,
    /// How many or how much.
    pub value: u64,
    /// Whether nothing was under way and it had had the time to drain.
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
            node: Side::Primary,
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
        assert_eq!(
            over,
            "bounded: PawEntries of Primary at 3: 11, more than 10 ever"
        );
        let leak = check(&[sample(1, true)], &[BOUND]).unwrap_err().to_string();
        assert!(leak.contains("more than 0 when idle"), "{leak}");
    }
}
