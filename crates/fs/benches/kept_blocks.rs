//! The cost of a snapshot for the writes of a node. `cargo bench -p lockstep-fs --bench kept_blocks [DIRECTORY]`: in the given directory, or that of
//! temporary files.
//!
//! One store, in turns: eight threads overwrite 8 KiB at random places of a file of 256 MiB, without a snapshot; right after a
//! snapshot, each write in another chunk, so that each one keeps old blocks; and at the same places again. Last with a thousand snapshots.

// A benchmark measures real time, and its threads are its own.
#![allow(clippy::disallowed_methods)]

mod measured;

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use lockstep_fs::Store;
use lockstep_fs::snapshot_list::{SnapshotBytes, SnapshotKind, SnapshotRecord};
use lockstep_fs::store::SnapshotAccess;
use lockstep_types::{FileName, Ino, MetaOp, MetaRequest, NodeKind, SnapshotId, Timestamp};

use self::measured::{median, new_store, stamp, temporary_directory};

const ROUNDS: u8 = 9;
const FILE_BYTES: u64 = 256 << 20;
const CHUNK_BYTES: u64 = 64 << 10;
const WRITE_BYTES: usize = 8 << 10;
const THREADS: u64 = 8;
/// Chunks that one round changes.
const CHUNKS: u32 = 2_000;
const SNAPSHOTS: usize = 1_000;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = temporary_directory()?;
    let site = Site::new(dir.path())?;
    println!("{THREADS} threads, 8 KiB overwrites, median of {ROUNDS} rounds");
    println!("{:40} {:>10} {:>10}", "", "writes/s", "p50 µs");
    let mut plain = Rounds::default();
    let mut first = Rounds::default();
    let mut again = Rounds::default();
    for round in 0..ROUNDS {
        plain.add(site.overwrite(round)?);
        let snapshot = site.take()?;
        first.add(site.overwrite(round)?);
        again.add(site.overwrite(round)?);
        SnapshotAccess::of(&site.store).delete(snapshot)?;
    }
    let base = plain.print("without a snapshot", None);
    first.print("first changes since a snapshot", Some(base));
    again.print("the same places again", Some(base));
    let one = site
        .with_snapshots(1)?
        .print("again, with 1 snapshot", Some(base));
    let many = site.with_snapshots(SNAPSHOTS)?;
    many.print(&format!("again, with {SNAPSHOTS} snapshots"), Some(one));
    Ok(())
}

/// Rate and median time of a write, of each round.
#[derive(Default)]
struct Rounds {
    rates: Vec<f64>,
    times: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, (rate, time): (f64, f64)) {
        self.rates.push(rate);
        self.times.push(time);
    }

    /// Prints the medians, and the ratio of the rate to `base`. Returns the rate.
    fn print(self, name: &str, base: Option<f64>) -> f64 {
        let (rate, time) = (median(self.rates), median(self.times));
        let ratio = base.map_or(String::new(), |base| {
            format!("  {:.2} of the rate", rate / base)
        });
        println!("{name:40} {rate:10.0} {time:10.0}{ratio}");
        rate
    }
}

struct Site {
    store: Store,
    ino: Ino,
    count: AtomicU64,
}

impl Site {
    fn new(place: &Path) -> Result<Self, Box<dyn Error>> {
        let store = new_store(place)?;
        let ino = store.next_ino()?;
        let (osn, time) = stamp(1);
        let name = FileName::new(b"file").map_err(|errno| format!("{errno:?}"))?;
        let request = MetaRequest::creation(Ino::ROOT, name, ino, NodeKind::File).request();
        store.commit(&MetaOp { osn, time, request })?;
        let site = Self {
            store,
            ino,
            count: AtomicU64::new(1),
        };
        // By 8 KiB: a page cache that was filled by larger writes is slower to overwrite.
        for offset in (0..FILE_BYTES).step_by(WRITE_BYTES) {
            site.write(offset, 1)?;
        }
        site.store.sync_everything()?;
        Ok(site)
    }

    fn write(&self, offset: u64, byte: u8) -> Result<(), lockstep_fs::OpError> {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let (osn, time) = stamp(number);
        let data = [byte; WRITE_BYTES];
        self.store.write(self.ino, offset, &data, osn, time)
    }

    fn take(&self) -> Result<SnapshotId, Box<dyn Error>> {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let id = SnapshotId::of_operation(stamp(number).0);
        let record = SnapshotRecord {
            name: "s".to_owned(),
            time: Timestamp::default(),
            kind: SnapshotKind::User,
            inos_below: u64::MAX,
            is_deleted: false,
            bytes: SnapshotBytes::Unsettled,
            serial: 0,
            holds: Vec::new(),
        };
        SnapshotAccess::of(&self.store).create(id, record)?;
        Ok(id)
    }

    /// Overwrites one place in each of some chunks, in an order that depends on the round. Returns writes a second, and the median
    /// time of one in µs.
    fn overwrite(&self, round: u8) -> Result<(f64, f64), Box<dyn Error>> {
        let chunks = FILE_BYTES / CHUNK_BYTES;
        // A step without a common divisor visits each chunk once.
        let place =
            |number: u64| (number * 1_237 + u64::from(round)) % chunks * CHUNK_BYTES + 16_384;
        let byte = round.wrapping_add(2);
        let begin = Instant::now();
        let times = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut times = Vec::new();
                        let all = 0..u64::from(CHUNKS);
                        for number in all.filter(|number| number % THREADS == thread) {
                            let begin = Instant::now();
                            self.write(place(number), byte)?;
                            times.push(begin.elapsed().as_secs_f64() * 1e6);
                        }
                        Ok::<_, lockstep_fs::OpError>(times)
                    })
                })
                .collect();
            let mut times = Vec::new();
            for thread in threads {
                times.extend(thread.join().map_err(|_| "a thread has panicked")??);
            }
            Ok::<_, Box<dyn Error>>(times)
        })?;
        let rate = f64::from(CHUNKS) / begin.elapsed().as_secs_f64();
        Ok((rate, median(times)))
    }

    /// Writes to kept places, after so many snapshots, with one changed chunk between each two of them.
    fn with_snapshots(&self, count: usize) -> Result<Rounds, Box<dyn Error>> {
        for number in 0..count {
            self.take()?;
            self.write(number as u64 % 64 * CHUNK_BYTES, 1)?;
        }
        self.overwrite(0)?;
        let mut rounds = Rounds::default();
        for _ in 0..ROUNDS {
            rounds.add(self.overwrite(0)?);
        }
        Ok(rounds)
    }
}
