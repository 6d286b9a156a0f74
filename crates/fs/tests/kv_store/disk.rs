//! A disk in memory that can be damaged, can refuse, and can lose what was not synced.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use lockstep_types::backing::{Backing, BackingFile, BackingStat, BackingTable, Space};
use parking_lot::Mutex;

/// Grain of a power loss.
const PIECE: usize = 4096;

/// What the disk refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    Nothing,
    Reads,
    Writes,
    Syncs,
}

/// One write that was not yet synced.
#[derive(Clone, Debug)]
enum Change {
    Piece { at: usize, data: Vec<u8> },
    SetLen(usize),
}

#[derive(Debug)]
struct State {
    content: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<Change>,
    refuse: Refuse,
    /// Writes and syncs that still succeed before power is lost.
    calls_left: Option<u64>,
}

/// One file of the disk.
#[derive(Debug)]
pub struct MemoryFile(Mutex<State>);

impl MemoryFile {
    fn new(content: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            synced: content.clone(),
            content,
            unsynced: Vec::new(),
            refuse: Refuse::Nothing,
            calls_left: None,
        })))
    }

    pub fn content(&self) -> Vec<u8> {
        self.0.lock().content.clone()
    }

    pub fn refuse(&self, what: Refuse) {
        self.0.lock().refuse = what;
    }

    pub fn lose_power_after(&self, calls: u64) {
        self.0.lock().calls_left = Some(calls);
    }

    /// What a power loss now leaves: the synced content and those pieces written since of which
    /// `keep` says so, in the order they were written.
    pub fn after_power_loss(&self, mut keep: impl FnMut() -> bool) -> Vec<u8> {
        let state = self.0.lock();
        let mut content = state.synced.clone();
        for change in state.unsynced.iter().filter(|_| keep()) {
            change.apply(&mut content);
        }
        content
    }
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::SetLen(length) => content.resize(*length, 0),
            Self::Piece { at, data } => {
                let end = at + data.len();
                content.resize(content.len().max(end), 0);
                content[*at..end].copy_from_slice(data);
            }
        }
    }
}

impl State {
    fn check(&mut self, kind: Refuse) -> io::Result<()> {
        if self.refuse == kind {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if let (Some(left), true) = (&mut self.calls_left, kind != Refuse::Reads) {
            if *left == 0 {
                return Err(io::Error::other("no power"));
            }
            *left -= 1;
        }
        Ok(())
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.content);
        self.unsynced.push(change);
    }
}

impl BackingFile for MemoryFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.lock();
        state.check(Refuse::Reads)?;
        let rest = state.content.get(index(offset)..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        state.check(Refuse::Writes)?;
        let (mut at, mut data) = (index(offset), data);
        while !data.is_empty() {
            let (piece, rest) = data.split_at(data.len().min(PIECE - at % PIECE));
            state.change(Change::Piece {
                at,
                data: piece.to_vec(),
            });
            at += piece.len();
            data = rest;
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.check(Refuse::Writes)?;
        state.change(Change::SetLen(index(length)));
        Ok(())
    }

    fn stat(&self) -> io::Result<BackingStat> {
        let length = self.0.lock().content.len() as u64;
        let blocks = length.div_ceil(512);
        Ok(BackingStat { length, blocks })
    }

    fn allocate(&self, _: u64, _: u64, _: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn punch_hole(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn zero_range(&self, _: u64, _: u64, _: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn seek_data(&self, _: u64) -> io::Result<Option<u64>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn seek_hole(&self, _: u64) -> io::Result<Option<u64>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.check(Refuse::Syncs)?;
        state.unsynced.clear();
        let State {
            content, synced, ..
        } = &mut *state;
        synced.clone_from(content);
        Ok(())
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// A disk of such files.
#[derive(Default)]
pub struct MemoryDisk(Mutex<BTreeMap<String, Arc<MemoryFile>>>);

impl MemoryDisk {
    /// A disk with one file.
    pub fn with(path: &str, content: Vec<u8>) -> Self {
        let disk = Self::default();
        disk.0.lock().insert(path.into(), MemoryFile::new(content));
        disk
    }

    pub fn file(&self, path: &str) -> Arc<MemoryFile> {
        Arc::clone(&self.0.lock()[path])
    }
}

impl Backing for MemoryDisk {
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        let files = self.0.lock();
        let file = files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::clone(file) as Arc<dyn BackingFile>)
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        let mut files = self.0.lock();
        let file = files
            .entry(path.into())
            .or_insert_with(|| MemoryFile::new(Vec::new()));
        Ok(Arc::clone(file) as Arc<dyn BackingFile>)
    }

    fn open_table(&self, _: &str, _: usize) -> io::Result<Arc<dyn BackingTable>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let removed = self.0.lock().remove(path);
        removed.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn remove_empty_dir(&self, _: &str) -> io::Result<bool> {
        Ok(false)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.0.lock();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.into(), file);
        Ok(())
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        Ok(self.0.lock().contains_key(path))
    }

    fn stat(&self, path: &str) -> io::Result<BackingStat> {
        self.open(path)?.stat()
    }

    fn list(&self, _: &str) -> io::Result<Vec<String>> {
        Ok(self.0.lock().keys().cloned().collect())
    }

    fn sync_dir(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        let files: Vec<_> = self.0.lock().values().cloned().collect();
        files.iter().try_for_each(|file| file.sync())
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space::default())
    }
}
