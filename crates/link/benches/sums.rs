//! What the sum of a payload costs: inside TLS (XXH3-128) and in clear (BLAKE3).
//! `cargo bench -p lockstep-link --bench sums`.

use std::hint::black_box;
use std::time::Instant;

/// Bytes hashed in one measurement, and measurements, of which the median counts.
const BYTES: usize = 64 << 20;
const RUNS: usize = 11;

fn main() {
    println!("µs for one payload, median of {RUNS}");
    for kib in [8, 64, 256] {
        let payload: Vec<u8> = (0..=u8::MAX).cycle().take(kib << 10).collect();
        let xxh3 = median_us(&payload, |bytes| {
            black_box(twox_hash::XxHash3_128::oneshot(bytes));
        });
        let blake3 = median_us(&payload, |bytes| {
            black_box(blake3::hash(bytes));
        });
        println!("{kib:4} KiB: XXH3-128 {xxh3:6.2}, BLAKE3 {blake3:6.2}");
    }
}

fn median_us(payload: &[u8], hash: impl Fn(&[u8])) -> f64 {
    let mut times: Vec<f64> = (0..RUNS).map(|_| measure_us(payload, &hash)).collect();
    times.sort_by(f64::total_cmp);
    times.get(RUNS / 2).copied().unwrap_or_default()
}

fn measure_us(payload: &[u8], hash: impl Fn(&[u8])) -> f64 {
    let repeats = (BYTES / payload.len()).max(1);
    let start = Instant::now();
    for _ in 0..repeats {
        hash(black_box(payload));
    }
    let repeats = u32::try_from(repeats).unwrap_or(u32::MAX);
    start.elapsed().as_secs_f64() * 1e6 / f64::from(repeats)
}
