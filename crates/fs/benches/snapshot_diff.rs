//! The time of reading the difference between two snapshots, in one store. `cargo bench -p lockstep-fs --bench snapshot_diff [DIRECTORY]`: in the
//! given directory, or that of temporary files.
//!
//! The time depends on the number of changes between the two, and neither on the number of all files nor on changes before and after.

// A benchmark measures real time.
#![allow(clippy::disallowed_methods)]

mod measured;

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use lockstep_fs::store::{DiffPlace, DiffReader, DiffWish, SnapshotAccess};
use lockstep_fs::{OpError, Store};
use lockstep_types::{
    FileName, Ino, MetaOp, MetaRequest, NodeKind, RenameMode, SnapshotId, SnapshotKind,
    SnapshotName,
};

use self::measured::{median, new_store, stamp, temporary_directory};

const ROUNDS: usize = 9;
/// Numbers of all files.
const FILES: [u64; 2] = [20_000, 1_000_000];
/// Numbers of files that are changed between the two snapshots.
const CHANGED: [u64; 3] = [100, 1_000, 10_000];
/// Files of a directory.
const PER_DIRECTORY: u64 = 1_000;
/// Work of a page, as a node reads them.
const PAGE_WORK: usize = 2048;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = temporary_directory()?;
    let mut site = Site::new(dir.path())?;
    println!("ms of reading a difference, median and most of {ROUNDS}, and the entries");
    for files in FILES {
        site.fill(files)?;
        for changed in CHANGED {
            let from = site.take()?;
            site.change(changed)?;
            let to = site.take()?;
            // None of these is in the difference.
            site.change(changed)?;
            site.store.checkpoint()?;
            let mut times = Vec::new();
            let mut entries = 0;
            for _ in 0..ROUNDS {
                let begin = Instant::now();
                entries = read(&site.store, from, to)?;
                times.push(begin.elapsed().as_secs_f64() * 1e3);
            }
            let most = times.iter().copied().fold(0.0, f64::max);
            let median = median(times);
            println!(
                "{files:9} files, {changed:6} changed: {median:8.2} {most:8.2} {entries:7} entries"
            );
        }
    }
    Ok(())
}

/// Reads a difference with the bytes. Returns the number of entries.
fn read(store: &Store, from: SnapshotId, to: SnapshotId) -> Result<usize, Box<dyn Error>> {
    let mut reader = DiffReader::open(store, from, Some(to)).ok_or("a snapshot is gone")?;
    let (mut place, mut entries) = (DiffPlace::BEGIN, 0);
    let wish = DiffWish {
        work: PAGE_WORK,
        bytes: true,
    };
    loop {
        let page = reader.page(&place, wish)?;
        entries += page.entries.len();
        match page.next {
            Some(next) => place = next,
            None => return Ok(entries),
        }
    }
}

struct Site {
    store: Store,
    /// The files that are there, each with its directory and the number in its name.
    files: Vec<(Ino, Ino, u64)>,
    directory: Ino,
    count: u64,
}

impl Site {
    fn new(place: &Path) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            store: new_store(place)?,
            files: Vec::new(),
            directory: Ino::ROOT,
            count: 0,
        })
    }

    fn op(&mut self, request: MetaRequest) -> MetaOp {
        self.count += 1;
        let (osn, time) = stamp(self.count);
        MetaOp { osn, time, request }
    }

    fn commit(&mut self, request: MetaRequest) -> Result<SnapshotId, Box<dyn Error>> {
        let op = self.op(request);
        self.store.commit(&op)?;
        if self.store.needs_checkpoint() {
            self.store.checkpoint()?;
        }
        Ok(SnapshotId::of_operation(op.osn))
    }

    /// Makes files until there are so many.
    fn fill(&mut self, files: u64) -> Result<(), Box<dyn Error>> {
        while (self.files.len() as u64) < files {
            if (self.files.len() as u64).is_multiple_of(PER_DIRECTORY) {
                let number = self.count;
                self.directory = self.create(Ino::ROOT, number, NodeKind::Directory)?;
            }
            self.make()?;
        }
        Ok(self.store.checkpoint()?)
    }

    fn make(&mut self) -> Result<(), Box<dyn Error>> {
        let (directory, number) = (self.directory, self.count);
        let ino = self.create(directory, number, NodeKind::File)?;
        self.files.push((ino, directory, number));
        Ok(())
    }

    fn create(&mut self, parent: Ino, name: u64, kind: NodeKind) -> Result<Ino, Box<dyn Error>> {
        let ino = self.store.next_ino()?;
        let creation = MetaRequest::creation(parent, file_name(name)?, ino, kind);
        self.commit(creation.request())?;
        Ok(ino)
    }

    /// Changes so many files, all over the store: writes to most of them, renames some, and removes some and makes others.
    fn change(&mut self, files: u64) -> Result<(), Box<dyn Error>> {
        let step = (self.files.len() as u64 / files).max(1);
        for nth in 0..files {
            let at = usize::try_from(nth * step)?;
            let Some((ino, directory, number)) = self.files.get(at).copied() else {
                return Ok(());
            };
            match nth % 10 {
                0 => self.rename(at)?,
                1 => {
                    let name = file_name(number)?;
                    let parent = directory;
                    self.commit(MetaRequest::Unlink { parent, name })?;
                    self.commit(MetaRequest::Reap { ino })?;
                    self.files.swap_remove(at);
                    self.make()?;
                }
                _ => self.write(ino)?,
            }
        }
        Ok(())
    }

    fn rename(&mut self, at: usize) -> Result<(), Box<dyn Error>> {
        let new_number = self.count;
        let Some((_, directory, number)) = self.files.get_mut(at) else {
            return Ok(());
        };
        let (parent, name) = (*directory, file_name(*number)?);
        *number = new_number;
        self.commit(MetaRequest::Rename {
            parent,
            name,
            new_parent: parent,
            new_name: file_name(new_number)?,
            mode: RenameMode::Replace,
        })?;
        Ok(())
    }

    fn write(&mut self, ino: Ino) -> Result<(), OpError> {
        self.count += 1;
        let (osn, time) = stamp(self.count);
        if !self.store.has_room_for_writes(ino) {
            self.store.checkpoint()?;
        }
        let bytes = self.count.to_be_bytes();
        self.store.write(ino, self.count % 8192, &bytes, osn, time)
    }

    /// Makes a snapshot.
    fn take(&mut self) -> Result<SnapshotId, Box<dyn Error>> {
        let name = SnapshotName::new(format!("s{}", self.count))?;
        let inos_below = self.store.image().inos_below();
        let id = self.commit(MetaRequest::SnapshotCreate {
            name,
            kind: SnapshotKind::User,
            inos_below,
        })?;
        let made = SnapshotAccess::of(&self.store).get(id);
        made.map(|_| id)
            .ok_or_else(|| "no snapshot was made".into())
    }
}

fn file_name(number: u64) -> Result<FileName, Box<dyn Error>> {
    let name = FileName::new(number.to_string().as_bytes());
    name.map_err(|errno| format!("{errno:?}").into())
}
