//! The workload of the store: a list of steps, and the effect of each step on a plain model of the
//! files.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockstep_fs::{OpError, Store, StoreError, StoreView};
use lockstep_sim::disk::Disk;
use lockstep_sums::{BlockOffset, PieceSums};
use lockstep_types::backing::Backing;
use lockstep_types::{
    Errno, FileName, Ino, MetaOp, MetaRequest, NodeKind, Osn, RenameMode, Timestamp,
};

use super::{BOOT, creation, file_name, open, osn, sum_secret};

/// One step. Paths are names in the root or in one directory of the root.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Create(&'static str),
    MakeDirectory(&'static str),
    Write(&'static str, usize, usize, u8),
    Truncate(&'static str, usize),
    Rename(&'static str, &'static str),
    Unlink(&'static str),
    /// Frees the inode that an earlier unlink has left.
    Reap,
    Sync(&'static str),
    Checkpoint,
    SyncEverything,
    /// Removes garbage: content of freed inodes, and empty directories.
    CollectGarbage,
    /// Uses up inode numbers, so that the content of the next files is in another directory.
    SkipNumbers,
    /// Kills the process, and opens the store in the next process.
    Reopen,
    Close,
}

/// Every kind of step, with content on both sides of each checkpoint, sync and kill, and in a
/// directory that was removed in between.
pub const STEPS: [Step; 42] = [
    Step::Create("a"),
    Step::Write("a", 0, 10_000, 1),
    Step::Sync("a"),
    Step::MakeDirectory("d"),
    Step::Create("d/b"),
    Step::Write("d/b", 100, 5_000, 2),
    Step::Sync("d/b"),
    Step::Write("a", 3_000, 9_000, 3),
    Step::Rename("a", "d/a"),
    Step::Checkpoint,
    Step::Write("d/a", 8_000, 2_000, 4),
    Step::Sync("d/a"),
    Step::Truncate("d/a", 5_000),
    Step::Create("c"),
    Step::Write("c", 0, 4_096, 5),
    Step::Rename("c", "d/b"),
    Step::Reap,
    Step::CollectGarbage,
    Step::Reopen,
    Step::Sync("d/b"),
    Step::Write("d/b", 4_000, 20_000, 6),
    Step::Unlink("d/a"),
    Step::SyncEverything,
    Step::Create("a"),
    Step::Write("a", 0, 1, 7),
    Step::Reap,
    Step::Reopen,
    Step::Sync("d/b"),
    Step::Write("d/b", 0, 9_000, 8),
    Step::Sync("a"),
    Step::SkipNumbers,
    Step::Create("e"),
    Step::Create("f"),
    Step::SkipNumbers,
    Step::Write("e", 0, 3_000, 9),
    Step::Sync("e"),
    Step::Unlink("e"),
    Step::Reap,
    Step::CollectGarbage,
    Step::Write("f", 0, 5_000, 10),
    Step::Sync("f"),
    Step::Close,
];

impl Step {
    /// Returns whether the acknowledged step makes every earlier metadata operation durable.
    pub fn saves_names(self) -> bool {
        matches!(
            self,
            Self::Sync(_)
                | Self::Checkpoint
                | Self::SyncEverything
                | Self::CollectGarbage
                | Self::Close
        )
    }

    /// Returns whether the acknowledged step makes the content of a file durable.
    pub fn saves_content(self, path: &str) -> bool {
        match self {
            Self::Sync(synced) => synced == path,
            Self::SyncEverything | Self::Close => true,
            _ => false,
        }
    }
}

/// A file of the model, or a directory, which has no bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The number of the step that created the file.
    pub made_by: usize,
    pub bytes: Option<Vec<u8>>,
}

/// All files by path.
pub type Files = BTreeMap<String, File>;

/// Applies a step to the files.
fn model(files: &mut Files, number: usize, step: Step) {
    let made = |bytes| File {
        made_by: number,
        bytes,
    };
    let resize = |files: &mut Files, path: &str, length: &dyn Fn(usize) -> usize| {
        let bytes = files.get_mut(path).unwrap().bytes.as_mut().unwrap();
        bytes.resize(length(bytes.len()), 0);
    };
    match step {
        Step::Create(path) => drop(files.insert(path.into(), made(Some(Vec::new())))),
        Step::MakeDirectory(path) => drop(files.insert(path.into(), made(None))),
        Step::Write(path, offset, length, byte) => {
            resize(files, path, &|now| now.max(offset + length));
            let bytes = files.get_mut(path).unwrap().bytes.as_mut().unwrap();
            bytes[offset..offset + length].fill(byte);
        }
        Step::Truncate(path, length) => resize(files, path, &|_| length),
        Step::Rename(from, to) => {
            let file = files.remove(from).unwrap();
            files.insert(to.into(), file);
        }
        Step::Unlink(path) => drop(files.remove(path)),
        Step::Reap
        | Step::Sync(_)
        | Step::Checkpoint
        | Step::SyncEverything
        | Step::CollectGarbage
        | Step::SkipNumbers
        | Step::Reopen
        | Step::Close => {}
    }
}

/// Returns the files before the first step, and after each step.
pub fn states() -> Vec<Files> {
    let mut states = vec![Files::new()];
    for (number, step) in STEPS.into_iter().enumerate() {
        let mut files = states[number].clone();
        model(&mut files, number, step);
        states.push(files);
    }
    states
}

/// Opens the store and does the steps until one fails, which ends the process. Returns the number
/// of acknowledged steps.
pub fn run(disk: &Disk) -> usize {
    let Ok(mut client) = Client::new(disk) else {
        return 0;
    };
    let acknowledged = client.run();
    disk.kill();
    acknowledged
}

/// A process that does the steps.
struct Client {
    disk: Disk,
    backing: Arc<dyn Backing>,
    store: Store,
    count: u64,
    orphan: Option<Ino>,
}

impl Client {
    /// Opens the store.
    fn new(disk: &Disk) -> Result<Self, StoreError> {
        let backing = disk.mount();
        let store = open(disk, BOOT)?.store;
        // As a driver, which goes on without sums on a full disk.
        drop(store.sums().take_secret(&sum_secret()));
        Ok(Self {
            disk: disk.clone(),
            backing,
            count: store.first_sequence(),
            store,
            orphan: None,
        })
    }

    /// Does the steps until one fails, or until the process ends. The step during which the process
    /// ends is not acknowledged, even if its last part only changed memory. Returns the number of
    /// acknowledged steps.
    fn run(&mut self) -> usize {
        let is_acknowledged =
            |step: &&Step| self.step(**step).is_ok() && self.backing.space().is_ok();
        STEPS.iter().take_while(is_acknowledged).count()
    }

    fn step(&mut self, step: Step) -> Result<(), OpError> {
        match step {
            Step::Create(path) => self.make(path, NodeKind::File),
            Step::MakeDirectory(path) => self.make(path, NodeKind::Directory),
            Step::Write(path, offset, length, byte) => {
                self.write(path, offset, &vec![byte; length])
            }
            Step::Truncate(path, length) => self.truncate(path, length),
            Step::Rename(from, to) => self.rename(from, to),
            Step::Unlink(path) => self.unlink(path),
            Step::Reap => self.reap(),
            Step::Sync(path) => self.store.sync_file(find(&self.store, path)?, true),
            Step::Checkpoint => Ok(self.store.checkpoint()?),
            Step::SyncEverything => Ok(self.store.sync_everything()?),
            Step::CollectGarbage => {
                self.store.collect_garbage()?;
                Ok(self.store.remove_empty_directories().map(drop)?)
            }
            Step::SkipNumbers => skip_numbers(&self.store),
            Step::Reopen => self.reopen(),
            Step::Close => Ok(self.store.close()?),
        }
    }

    fn reopen(&mut self) -> Result<(), OpError> {
        // The process ends here if a crash has begun.
        self.backing.space().map_err(|_| Errno::Io)?;
        self.disk.kill();
        let orphan = self.orphan;
        *self = Self::new(&self.disk)?;
        self.orphan = orphan;
        Ok(())
    }

    fn reap(&mut self) -> Result<(), OpError> {
        let ino = self.orphan.take().unwrap();
        self.commit(MetaRequest::Reap { ino })
    }

    fn next_osn(&mut self) -> (Osn, Timestamp) {
        self.count += 1;
        let osn = osn(self.count);
        let time = Timestamp {
            secs: i64::try_from(self.count).unwrap(),
            nanos: 5,
        };
        (osn, time)
    }

    fn commit(&mut self, request: MetaRequest) -> Result<(), OpError> {
        let (osn, time) = self.next_osn();
        let applied = self.store.commit(&MetaOp { osn, time, request })?;
        self.orphan = applied.orphaned.or(self.orphan);
        Ok(())
    }

    fn make(&mut self, path: &str, kind: NodeKind) -> Result<(), OpError> {
        let (parent, name) = place(&self.store, path)?;
        let ino = self.store.next_ino()?;
        self.commit(creation(parent, name, ino, kind))
    }

    fn write(&mut self, path: &str, offset: usize, data: &[u8]) -> Result<(), OpError> {
        let ino = find(&self.store, path)?;
        let (osn, time) = self.next_osn();
        // As the driver, which needs the sums for the frame, too.
        let start = BlockOffset::of(offset as u64);
        let key = self.store.sums().key();
        let sums = key.map(|key| PieceSums::of(&key, start, data));
        let data = match &sums {
            Some(sums) => sums.with(data),
            None => data.into(),
        };
        self.store.write(ino, offset as u64, data, osn, time)
    }

    fn truncate(&mut self, path: &str, length: usize) -> Result<(), OpError> {
        let ino = find(&self.store, path)?;
        self.commit(MetaRequest::Truncate {
            ino,
            size: length as u64,
            drop_set_id: false,
        })
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), OpError> {
        let (parent, name) = place(&self.store, from)?;
        let (new_parent, new_name) = place(&self.store, to)?;
        self.commit(MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode: RenameMode::Replace,
        })
    }

    fn unlink(&mut self, path: &str) -> Result<(), OpError> {
        let (parent, name) = place(&self.store, path)?;
        self.commit(MetaRequest::Unlink { parent, name })
    }
}

/// Uses up as many inode numbers as a directory of content holds.
pub fn skip_numbers(store: &Store) -> Result<(), OpError> {
    (0..256).try_for_each(|_| store.next_ino().map(drop))?;
    Ok(())
}

/// Returns the directory and the name of a path.
fn place(store: &Store, path: &str) -> Result<(Ino, FileName), OpError> {
    match path.split_once('/') {
        None => Ok((Ino::ROOT, file_name(path))),
        Some((directory, name)) => {
            let directory = store.tree().lookup(Ino::ROOT, &file_name(directory))?;
            Ok((directory.ino, file_name(name)))
        }
    }
}

/// Returns the inode of a path.
fn find(store: &Store, path: &str) -> Result<Ino, OpError> {
    let (parent, name) = place(store, path)?;
    Ok(store.tree().lookup(parent, &name)?.ino)
}
