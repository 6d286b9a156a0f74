//! The cost of a payload before it leaves: its sum, inside TLS (made of the sums of its blocks) and in clear (BLAKE3), and
//! its TLS records. XXH3-128 of the whole payload stands beside the sums of blocks, which must cost no more. The variants
//! take turns. `cargo bench -p lockstep-link --bench payload`.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use lockstep_link::Payload;
use lockstep_link::sums::Hashing;
use lockstep_sums::{SumKey, SumSecret};

/// Bytes of plaintext in a TLS record.
const RECORD_BYTES: usize = 16 << 10;

/// Bytes per measurement, and number of measurements. The bench prints their median.
const BYTES: usize = 64 << 20;
const RUNS: usize = 11;

/// The work that is measured.
type Work<'a> = &'a mut dyn FnMut(&[u8]);

fn main() -> Result<(), Box<dyn Error>> {
    let in_tls = Hashing::Blocks(Arc::new(SumKey::new(&SumSecret::new([1; 32]))));
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[1; 16])?);
    println!("µs for one payload, median of {RUNS}");
    for kib in [8, 64, 256] {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(kib << 10).collect();
        let mut record = Vec::with_capacity(RECORD_BYTES);
        let [whole, blocks, unaligned, clear, tls] = medians_us(
            &bytes,
            [
                &mut |bytes| {
                    black_box(twox_hash::XxHash3_128::oneshot(bytes));
                },
                &mut |bytes| {
                    black_box(in_tls.hash(Payload::of(bytes)));
                },
                &mut |bytes| {
                    black_box(in_tls.hash(Payload::at(512, bytes)));
                },
                &mut |bytes| {
                    black_box(Hashing::Keyed.hash(Payload::of(bytes)));
                },
                &mut |bytes| encrypt(&key, bytes, &mut record),
            ],
        );
        println!(
            "{kib:4} KiB: XXH3-128 {whole:6.2}, blocks {blocks:6.2} (512 bytes off {unaligned:6.2}), BLAKE3 {clear:6.2}, \
             TLS records {tls:6.2}"
        );
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

fn medians_us<const VARIANTS: usize>(
    payload: &[u8],
    mut variants: [Work<'_>; VARIANTS],
) -> [f64; VARIANTS] {
    let mut times = [const { Vec::new() }; VARIANTS];
    for _ in 0..RUNS {
        for (times, work) in times.iter_mut().zip(&mut variants) {
            times.push(measure_us(payload, *work));
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times.get(RUNS / 2).copied().unwrap_or_default()
    })
}

fn measure_us(payload: &[u8], work: &mut dyn FnMut(&[u8])) -> f64 {
    let repeats = (BYTES / payload.len()).max(1);
    let start = Instant::now();
    for _ in 0..repeats {
        work(black_box(payload));
    }
    let repeats = u32::try_from(repeats).unwrap_or(u32::MAX);
    start.elapsed().as_secs_f64() * 1e6 / f64::from(repeats)
}
