//! The cost of a payload before it leaves: its sum, inside TLS (XXH3-128) and in clear (BLAKE3), and its TLS records.
//! `cargo bench -p lockstep-link --bench payload`.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// Bytes of plaintext in a TLS record.
const RECORD_BYTES: usize = 16 << 10;

/// Bytes per measurement, and number of measurements. The bench prints their median.
const BYTES: usize = 64 << 20;
const RUNS: usize = 11;

fn main() -> Result<(), Box<dyn Error>> {
    println!("µs for one payload, median of {RUNS}");
    for kib in [8, 64, 256] {
        let payload: Vec<u8> = (0..=u8::MAX).cycle().take(kib << 10).collect();
        let xxh3 = median_us(&payload, |bytes| {
            black_box(twox_hash::XxHash3_128::oneshot(bytes));
        });
        let blake3 = median_us(&payload, |bytes| {
            black_box(blake3::hash(bytes));
        });
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[1; 16])?);
        let mut record = Vec::with_capacity(RECORD_BYTES);
        let tls = median_us(&payload, |bytes| encrypt(&key, bytes, &mut record));
        println!("{kib:4} KiB: XXH3-128 {xxh3:6.2}, BLAKE3 {blake3:6.2}, TLS records {tls:6.2}");
    }
    Ok(())
}

/// Makes records as rustls does: copies each record, then encrypts it in place. One nonce for all records is safe only
/// in a bench.
fn encrypt(key: &LessSafeKey, payload: &[u8], record: &mut Vec<u8>) {
    for bytes in payload.chunks(RECORD_BYTES) {
        record.clear();
        record.extend_from_slice(bytes);
        let nonce = Nonce::assume_unique_for_key([2; 12]);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from([3; 5]), record);
        let _tag = black_box(tag);
    }
}

fn median_us(payload: &[u8], mut work: impl FnMut(&[u8])) -> f64 {
    let mut times: Vec<f64> = (0..RUNS).map(|_| measure_us(payload, &mut work)).collect();
    times.sort_by(f64::total_cmp);
    times.get(RUNS / 2).copied().unwrap_or_default()
}

fn measure_us(payload: &[u8], mut work: impl FnMut(&[u8])) -> f64 {
    let repeats = (BYTES / payload.len()).max(1);
    let start = Instant::now();
    for _ in 0..repeats {
        work(black_box(payload));
    }
    let repeats = u32::try_from(repeats).unwrap_or(u32::MAX);
    start.elapsed().as_secs_f64() * 1e6 / f64::from(repeats)
}
