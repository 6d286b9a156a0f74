//! The parts that the benchmarks of a store share.

use lockstep_types::{Generation, Osn, Timestamp};

/// The number and the time of an operation.
pub fn stamp(sequence: u64) -> (Osn, Timestamp) {
    let osn = Osn {
        generation: Generation::FIRST,
        sequence,
    };
    (osn, Timestamp { secs: 1, nanos: 0 })
}

/// The median of the times of all rounds.
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}
