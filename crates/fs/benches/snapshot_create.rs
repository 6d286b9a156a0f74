//! The time of making a snapshot by an operation, in one store. `cargo bench -p lockstep-fs --bench snapshot_create [DIRECTORY]`: in the given
//! directory, or that of temporary files.
//!
//! The clients of a datastore wait for that time on each node. It depends on the number of files that were written since the last
//! checkpoint, and not on the number of all files.

// A benchmark measures real time.
#![allow(clippy::disallowed_methods)]

mod measured;

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use lockstep_fs::{OpError, Store};
use lockstep_types::{FileName, Ino, MetaOp, MetaRequest, NodeKind, SnapshotKind, SnapshotName};

use self::measured::{median, new_store, stamp, temporary_directory};

const ROUNDS: usize = 9;
/// Numbers of all files.
const FILES: [u64; 2] = [20_000, 1_000_000];
/// Numbers of files that are written between two snapshots.
const WRITTEN: [u64; 4] = [0, 100, 1_000, 10_000];

fn main() -> Result<(), Box<dyn Error>> {
    let dir = temporary_directory()?;
    let mut site = Site::new(dir.path())?;
    println!("ms of a snapshot with a sync of the log, median and most of {ROUNDS}");
    for files in FILES {
        site.fill(files)?;
        for written in WRITTEN {
            let mut times = Vec::new();
            for _ in 0..ROUNDS {
                site.write(written)?;
                times.push(site.take()?);
            }
            let most = times.iter().copied().fold(0.0, f64::max);
            let median = median(times);
            println!("{files:9} files, {written:6} of them written: {median:8.2} {most:8.2}");
        }
    }
    Ok(())
}

struct Site {
    store: Store,
    inos: Vec<Ino>,
    count: u64,
}

impl Site {
    fn new(place: &Path) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            store: new_store(place)?,
            inos: Vec::new(),
            count: 0,
        })
    }

    fn op(&mut self, request: MetaRequest) -> MetaOp {
        self.count += 1;
        let (osn, time) = stamp(self.count);
        MetaOp { osn, time, request }
    }

    /// Makes files until there are so many, a thousand in each directory.
    fn fill(&mut self, files: u64) -> Result<(), Box<dyn Error>> {
        let mut directory = Ino::ROOT;
        while (self.inos.len() as u64) < files {
            let number = self.inos.len();
            if number.is_multiple_of(1_000) {
                directory = self.create(Ino::ROOT, &format!("d{number}"), NodeKind::Directory)?;
            }
            let ino = self.create(directory, &number.to_string(), NodeKind::File)?;
            self.inos.push(ino);
            if self.store.needs_checkpoint() {
                self.store.checkpoint()?;
            }
        }
        Ok(self.store.checkpoint()?)
    }

    fn create(&mut self, parent: Ino, name: &str, kind: NodeKind) -> Result<Ino, Box<dyn Error>> {
        let ino = self.store.next_ino()?;
        let name = FileName::new(name.as_bytes()).map_err(|errno| format!("{errno:?}"))?;
        let op = self.op(MetaRequest::creation(parent, name, ino, kind).request());
        self.store.commit(&op)?;
        Ok(ino)
    }

    /// Writes to so many files, after a checkpoint.
    fn write(&mut self, files: u64) -> Result<(), OpError> {
        self.store.checkpoint()?;
        for ino in self.inos.iter().take(usize::try_from(files).unwrap_or(0)) {
            self.count += 1;
            let (osn, time) = stamp(self.count);
            self.store
                .write(*ino, self.count % 8, b"bytes", osn, time)?;
        }
        Ok(())
    }

    /// Makes a snapshot. Returns its time in ms.
    fn take(&mut self) -> Result<f64, Box<dyn Error>> {
        let op = self.op(MetaRequest::SnapshotCreate {
            name: SnapshotName::new(format!("s{}", self.count))?,
            kind: SnapshotKind::User,
            inos_below: self.store.image().inos_below(),
        });
        let begin = Instant::now();
        let applied = self.store.commit(&op)?;
        self.store.sync_applied(&applied)?;
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    }
}
