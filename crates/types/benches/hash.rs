//! The cost of hashing 256 KiB in blocks of 4 KiB and in larger pieces: `cargo bench -p lockstep-types`.

use std::hint::black_box;
use std::time::Instant;

use lockstep_types::Hash128;

const BYTES: usize = 256 << 10;
/// Hashings per measurement, and number of measurements. The bench prints their median.
const REPEATS: u32 = 200;
const RUNS: usize = 11;

fn main() {
    let data: Vec<u8> = (0..=u8::MAX).cycle().take(BYTES).collect();
    println!("µs for hashing 256 KiB, median of {RUNS}");
    for piece in [4, 8, 16, 64, 256] {
        println!(
            "in pieces of {piece:3} KiB: {:6.1}",
            median_us(&data, piece << 10)
        );
    }
}

fn median_us(data: &[u8], piece: usize) -> f64 {
    let mut times: Vec<f64> = (0..RUNS).map(|_| measure_us(data, piece)).collect();
    times.sort_by(f64::total_cmp);
    times.get(RUNS / 2).copied().unwrap_or_default()
}

fn measure_us(data: &[u8], piece: usize) -> f64 {
    let start = Instant::now();
    for _ in 0..REPEATS {
        for piece in data.chunks(piece) {
            black_box(Hash128::of(piece));
        }
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(REPEATS)
}
