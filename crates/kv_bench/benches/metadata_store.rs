//! Compares stores for metadata in the way Lockstep would use each: batches of five keys.
//!
//! `cargo bench -p lockstep-kv-bench -- [--dir DIR] [--keys N] [--durable N] [--batches N]
//! [--checkpoint N] [--gets N]`
//!
//! Every store runs in a process of its own, which ends as if killed. Then the bench measures the reopening. `DIR`
//! should be on the disk in question: syncs take most of the time.

// A benchmark that cannot continue panics with the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "metadata_store/stores.rs"]
mod stores;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use stores::{Batch, NAMES, Store, open};

const BATCH_KEYS: u64 = 5;
const VALUE_BYTES: usize = 96;

/// Sizes of the measurements.
#[derive(Clone, Copy)]
struct Sizes {
    keys: u64,
    durable: u64,
    batches: u64,
    checkpoint: u64,
    gets: u64,
}

const SIZES: Sizes = Sizes {
    keys: 200_000,
    durable: 2_000,
    batches: 50_000,
    checkpoint: 5_000,
    gets: 300_000,
};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |name, default| value_of(&args, name).map_or(default, |n| n.parse().expect(name));
    let sizes = Sizes {
        keys: number("--keys", SIZES.keys),
        durable: number("--durable", SIZES.durable),
        batches: number("--batches", SIZES.batches),
        checkpoint: number("--checkpoint", SIZES.checkpoint),
        gets: number("--gets", SIZES.gets),
    };
    let dir = value_of(&args, "--dir").map_or_else(std::env::temp_dir, PathBuf::from);
    match value_of(&args, "--measure") {
        Some(name) => measure_and_exit(name, &dir, sizes),
        None => compare(&args, &dir),
    }
}

fn value_of<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    let mut after = args.iter().skip_while(|arg| *arg != name).skip(1);
    after.next().map(String::as_str)
}

fn compare(args: &[String], dir: &Path) {
    println!(
        "{:<26}{:>12}{:>14}{:>14}{:>12}{:>10}{:>12}{:>12}",
        "", "durable/s", "checkpt'd/s", "slowest", "gets/s", "size", "reopen", "reopen"
    );
    println!(
        "{:<26}{:>12}{:>14}{:>14}{:>12}{:>10}{:>12}{:>12}",
        "", "", "", "batch ms", "", "MB", "kill ms", "stop ms"
    );
    for name in NAMES {
        let scratch = tempfile::tempdir_in(dir).expect("a directory to work in");
        let status = Command::new(std::env::current_exe().expect("this program"))
            .args(args.iter().skip(1))
            .args(["--measure", name, "--dir"])
            .arg(scratch.path())
            .status()
            .expect("a process of its own");
        if !status.success() {
            println!("{name:<26} failed: {status}");
            continue;
        }
        let size = megabytes(scratch.path());
        let after_kill = reopen_ms(name, scratch.path());
        let after_stop = reopen_ms(name, scratch.path());
        println!("{size:>10}{after_kill:>12.1}{after_stop:>12.1}");
    }
}

/// Prints the first part of a line, and ends the process without the store's clean-up.
fn measure_and_exit(name: &str, dir: &Path, sizes: Sizes) -> ! {
    let mut store = open(name, dir);
    let mut random = Random(42);
    fill(&mut *store, sizes.keys);
    let durable = durable_rate(&mut *store, sizes, &mut random);
    let (checkpointed, slowest_ms) = checkpointed_rate(&mut *store, sizes, &mut random);
    let gets = get_rate(&*store, sizes, &mut random);
    print!("{name:<26}{durable:>12.0}{checkpointed:>14.0}{slowest_ms:>14.1}{gets:>12.0}");
    std::io::Write::flush(&mut std::io::stdout()).unwrap();
    std::process::exit(0)
}

fn fill(store: &mut dyn Store, keys: u64) {
    let numbers: Vec<u64> = (0..keys).collect();
    for chunk in numbers.chunks(10_000) {
        let pairs = chunk.iter().map(|number| (key(*number), value(0)));
        store.commit_durable(&pairs.collect::<Vec<_>>());
    }
}

fn durable_rate(store: &mut dyn Store, sizes: Sizes, random: &mut Random) -> f64 {
    let start = Instant::now();
    for round in 0..sizes.durable {
        store.commit_durable(&batch(sizes, round, random));
    }
    rate(sizes.durable, start)
}

/// Batches per second, including the time of the checkpoints, and the slowest batch in milliseconds.
fn checkpointed_rate(store: &mut dyn Store, sizes: Sizes, random: &mut Random) -> (f64, f64) {
    let start = Instant::now();
    let mut slowest_ms = 0.0_f64;
    for round in 0..sizes.batches {
        let batch = batch(sizes, round, random);
        let began = Instant::now();
        store.apply(&batch);
        if (round + 1) % sizes.checkpoint == 0 {
            store.checkpoint();
        }
        slowest_ms = slowest_ms.max(milliseconds(began));
    }
    store.checkpoint();
    store.wait();
    (rate(sizes.batches, start), slowest_ms)
}

fn get_rate(store: &dyn Store, sizes: Sizes, random: &mut Random) -> f64 {
    let start = Instant::now();
    for _ in 0..sizes.gets {
        let key = key(random.below(sizes.keys));
        assert_eq!(store.get_bytes(&key), Some(VALUE_BYTES));
    }
    rate(sizes.gets, start)
}

fn reopen_ms(name: &str, dir: &Path) -> f64 {
    let start = Instant::now();
    let store = open(name, dir);
    assert_eq!(store.get_bytes(&key(0)), Some(VALUE_BYTES));
    milliseconds(start)
}

fn batch(sizes: Sizes, round: u64, random: &mut Random) -> Batch {
    (0..BATCH_KEYS)
        .map(|_| (key(random.below(sizes.keys)), value(round)))
        .collect()
}

/// A key; keys spread over the key space as inode numbers and names do.
fn key(number: u64) -> [u8; 16] {
    let spread = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut key = [0; 16];
    let (high, low) = key.split_at_mut(8);
    high.copy_from_slice(&spread.to_be_bytes());
    low.copy_from_slice(&number.to_be_bytes());
    key
}

/// A value that is not compressible; every value is different.
fn value(round: u64) -> Vec<u8> {
    let mut random = Random(round + 1);
    let words = std::iter::repeat_with(|| random.next().to_le_bytes());
    words.take(VALUE_BYTES / 8).flatten().collect()
}

fn rate(count: u64, start: Instant) -> f64 {
    #[allow(clippy::cast_precision_loss)] // counts are far below 2^52
    let count = count as f64;
    count / start.elapsed().as_secs_f64()
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1000.0
}

/// The allocated space of the files: some stores use sparse files.
fn megabytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let metadata = entry.as_ref().unwrap().metadata().unwrap();
            if metadata.is_dir() {
                dirs.push(entry.unwrap().path());
            }
            bytes += metadata.blocks() * 512;
        }
    }
    bytes / 1_000_000
}

/// Random numbers: the same sequence in each run and for each store.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
