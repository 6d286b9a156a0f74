//! The cost of the sums for each write of a node. `cargo bench -p lockstep-fs --bench sums [DIRECTORY]`: in the given directory, or that of
//! temporary files.
//!
//! Two stores on one disk, with and without a secret, take turns in one run. The one with a secret hashes the bytes, or gets them with
//! their sums, which the frame of a mirrored write needs anyway: 8 KiB at random places of a file of 256 MiB, 8 KiB over
//! a small file, whole blocks and off their borders, and 256 KiB.

// A benchmark measures real time.
#![allow(clippy::disallowed_methods)]

mod measured;

use std::error::Error;
use std::time::{Duration, Instant};

use lockstep_fs::Store;
use lockstep_sums::{BlockOffset, PieceSums, SumSecret, SummedBytes};
use lockstep_types::{FileName, Ino, MetaOp, MetaRequest, NodeKind};

use self::measured::{median, new_store, stamp, temporary_directory};

const ROUNDS: usize = 41;
const FILE_BYTES: u64 = 256 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let dirs = [temporary_directory()?, temporary_directory()?];
    let mut without = Writer::new(dirs[0].path(), false)?;
    let mut with = Writer::new(dirs[1].path(), true)?;
    for writer in [&mut without, &mut with] {
        writer.fill()?;
    }
    println!("µs for one write, median of {ROUNDS} rounds");
    println!(
        "{:34} {:>8} {:>8} {:>8} {:>8}",
        "", "without", "with", "given", "cost given"
    );
    for kind in KINDS {
        let (mut plain, mut summed, mut given) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            plain.push(without.round_us(&kind, false)?);
            summed.push(with.round_us(&kind, false)?);
            given.push(with.round_us(&kind, true)?);
        }
        let [plain, summed, given] = [plain, summed, given].map(median);
        let cost = given - plain;
        println!(
            "{:34} {plain:8.2} {summed:8.2} {given:8.2} {cost:8.2}",
            kind.name
        );
    }
    Ok(())
}

/// A kind of writes.
struct Kind {
    name: &'static str,
    bytes: usize,
    /// The range of the file in which the writes lie.
    within: u64,
    /// The borders at which they begin.
    border: u64,
    writes: u32,
}

const KINDS: [Kind; 5] = [
    Kind {
        name: "8 KiB, random, 256 MiB file",
        bytes: 8 << 10,
        within: FILE_BYTES,
        border: 8 << 10,
        writes: 4096,
    },
    Kind {
        name: "8 KiB, small file",
        bytes: 8 << 10,
        within: 64 << 10,
        border: 8 << 10,
        writes: 4096,
    },
    Kind {
        name: "8 KiB, 512 bytes off a border",
        bytes: 8 << 10,
        within: FILE_BYTES,
        border: (8 << 10) + 512,
        writes: 4096,
    },
    Kind {
        name: "512 bytes, random",
        bytes: 512,
        within: FILE_BYTES,
        border: 512,
        writes: 4096,
    },
    Kind {
        name: "256 KiB, random",
        bytes: 256 << 10,
        within: FILE_BYTES,
        border: 256 << 10,
        writes: 512,
    },
];

struct Writer {
    store: Store,
    ino: Ino,
    count: u64,
    random: u64,
}

impl Writer {
    fn new(place: &std::path::Path, sums: bool) -> Result<Self, Box<dyn Error>> {
        let store = new_store(place)?;
        if sums {
            store.sums().take_secret(&SumSecret::new([3; 32]))?;
        }
        let ino = store.next_ino()?;
        let (osn, time) = stamp(1);
        let name = FileName::new(b"file").map_err(|errno| format!("{errno:?}"))?;
        let request = MetaRequest::creation(Ino::ROOT, name, ino, NodeKind::File).request();
        store.commit(&MetaOp { osn, time, request })?;
        Ok(Self {
            store,
            ino,
            count: 1,
            random: 1,
        })
    }

    fn write(&mut self, offset: u64, data: SummedBytes<'_>) -> Result<(), Box<dyn Error>> {
        self.count += 1;
        let (osn, time) = stamp(self.count);
        Ok(self.store.write(self.ino, offset, data, osn, time)?)
    }

    fn fill(&mut self) -> Result<(), Box<dyn Error>> {
        let data = vec![7; 1 << 20];
        for offset in (0..FILE_BYTES).step_by(1 << 20) {
            self.write(offset, (&data).into())?;
        }
        Ok(self.store.sync_everything()?)
    }

    /// `is_given`: the sums come with the bytes. Their making is not measured.
    fn round_us(&mut self, kind: &Kind, is_given: bool) -> Result<f64, Box<dyn Error>> {
        let mut data = vec![7_u8; kind.bytes];
        let places = kind.within / kind.border;
        let key = self.store.sums().key().filter(|_| is_given);
        let mut spent = Duration::ZERO;
        for _ in 0..kind.writes {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            if let Some(byte) = data.first_mut() {
                *byte = byte.wrapping_add(1);
            }
            let offset = self.random % places * kind.border;
            let sums = key
                .as_ref()
                .map(|key| PieceSums::of(key, BlockOffset::of(offset), &data));
            let bytes = match &sums {
                Some(sums) => sums.with(&data),
                None => (&data).into(),
            };
            let start = Instant::now();
            self.write(offset, bytes)?;
            spent += start.elapsed();
        }
        Ok(spent.as_secs_f64() * 1e6 / f64::from(kind.writes))
    }
}
