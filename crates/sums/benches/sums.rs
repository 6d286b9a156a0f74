//! The cost of sums of blocks, beside the sum of the whole: `cargo bench -p lockstep-sums`.

use std::hint::black_box;
use std::time::Instant;

use lockstep_sums::{BlockOffset, BlockSum, FileSum, SumKey, SumSecret, pieces};

/// Bytes per measurement, and number of measurements. The bench prints their median.
const BYTES: usize = 32 << 20;
const RUNS: usize = 11;

/// A name, and the work that is measured.
type Variant<'a> = (&'a str, &'a dyn Fn(&[u8]));

fn main() {
    let key = SumKey::new(&SumSecret::new([1; 32]));
    println!("µs for one write, median of {RUNS}; the variants take turns");
    for kib in [4, 8, 64, 256] {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(kib << 10).collect();
        let variants: [Variant<'_>; 5] = [
            ("XXH3-128 of all", &|bytes| {
                black_box(twox_hash::XxHash3_128::oneshot(bytes));
            }),
            ("block sums", &|bytes| {
                black_box(block_sums(&key, 0, bytes));
            }),
            ("512 bytes off a border", &|bytes| {
                black_box(block_sums(&key, 512, bytes));
            }),
            ("with the file sum", &|bytes| {
                black_box(file_sum(&key, bytes));
            }),
            ("BLAKE3 of each block", &|bytes| {
                black_box(bytes.chunks(4096).fold(0, |all, block| {
                    all ^ blake3::hash(block)
                        .as_bytes()
                        .first()
                        .copied()
                        .unwrap_or_default()
                }));
            }),
        ];
        let medians = medians_us(&bytes, &variants);
        let texts = variants.iter().zip(medians);
        let texts: Vec<String> = texts
            .map(|((name, _), us)| format!("{name} {us:.2}"))
            .collect();
        println!("{kib:4} KiB: {}", texts.join(", "));
    }
}

fn block_sums(key: &SumKey, offset: u64, bytes: &[u8]) -> u64 {
    pieces(BlockOffset::of(offset), bytes).fold(0, |all, piece| all ^ key.piece(piece))
}

fn file_sum(key: &SumKey, bytes: &[u8]) -> FileSum {
    let (mut sum, old) = (FileSum::ZEROS, BlockSum::from(black_box(7)));
    for (number, piece) in (0..).zip(pieces(BlockOffset::START, bytes)) {
        sum.replace(key, number, old, key.piece(piece).into());
    }
    sum
}

fn medians_us(bytes: &[u8], variants: &[Variant<'_>]) -> Vec<f64> {
    let mut times = vec![Vec::new(); variants.len()];
    for _ in 0..RUNS {
        for (times, (_, work)) in times.iter_mut().zip(variants) {
            times.push(measure_us(bytes, work));
        }
    }
    times
        .into_iter()
        .map(|mut times| {
            times.sort_by(f64::total_cmp);
            times.get(RUNS / 2).copied().unwrap_or_default()
        })
        .collect()
}

fn measure_us(bytes: &[u8], work: &dyn Fn(&[u8])) -> f64 {
    let repeats = (BYTES / bytes.len()).max(1);
    let start = Instant::now();
    for _ in 0..repeats {
        work(black_box(bytes));
    }
    let repeats = u32::try_from(repeats).unwrap_or(u32::MAX);
    start.elapsed().as_secs_f64() * 1e6 / f64::from(repeats)
}
