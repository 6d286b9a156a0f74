//! A disk in memory that knows what was synced, and of which copies can be taken at any moment:
//! what a process that is killed then leaves behind.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use lockstep_types::backing::{Backing, BackingFile, BackingStat, BackingTable, Space};
use parking_lot::Mutex;

/// Shared with copies of the disk until one of them changes it.
#[derive(Clone, Default)]
struct Content {
    bytes: Arc<Vec<u8>>,
    synced: Arc<Vec<u8>>,
    dirty: bool,
}

impl Content {
    fn sync(&mut self) {
        self.synced = Arc::clone(&self.bytes);
        self.dirty = false;
    }
}

/// One file.
#[derive(Default)]
pub struct File(Mutex<Content>);

impl File {
    #[allow(clippy::unnecessary_wraps)] // as the calls that end with it
    fn change(&self, body: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut content = self.0.lock();
        content.dirty = true;
        body(Arc::make_mut(&mut content.bytes));
        Ok(())
    }

    /// Changes what is on the disk behind the store's back.
    pub fn tamper(&self, body: impl FnOnce(&mut Vec<u8>)) {
        body(Arc::make_mut(&mut self.0.lock().bytes));
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

fn grow(bytes: &mut Vec<u8>, end: u64) {
    if bytes.len() < index(end) {
        bytes.resize(index(end), 0);
    }
}

impl BackingFile for File {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let content = self.0.lock();
        let rest = content.bytes.get(index(offset)..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(|bytes| {
            grow(bytes, offset + data.len() as u64);
            bytes[index(offset)..][..data.len()].copy_from_slice(data);
        })
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.change(|bytes| bytes.resize(index(length), 0))
    }

    fn stat(&self) -> io::Result<BackingStat> {
        let length = self.0.lock().bytes.len() as u64;
        let blocks = length.div_ceil(512);
        Ok(BackingStat { length, blocks })
    }

    fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        self.change(|bytes| {
            if !keep_size {
                grow(bytes, offset + length);
            }
        })
    }

    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        self.change(|bytes| {
            let end = index(offset + length).min(bytes.len());
            let from = index(offset).min(end);
            bytes[from..end].fill(0);
        })
    }

    fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        self.allocate(offset, length, keep_size)?;
        self.punch_hole(offset, length)
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let length = self.0.lock().bytes.len() as u64;
        Ok((offset < length).then_some(offset))
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        let length = self.0.lock().bytes.len() as u64;
        Ok((offset < length).then_some(length))
    }

    fn sync(&self) -> io::Result<()> {
        self.0.lock().sync();
        Ok(())
    }
}

/// Some bytes of a file as memory.
struct Table(Arc<File>, usize);

impl BackingTable for Table {
    fn len(&self) -> usize {
        self.1
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.0.lock().bytes[offset..offset + into.len()]);
    }

    fn store(&self, offset: usize, data: &[u8]) {
        let mut content = self.0.0.lock();
        Arc::make_mut(&mut content.bytes)[offset..offset + data.len()].copy_from_slice(data);
    }
}

#[derive(Clone, Default)]
struct Names {
    files: BTreeMap<String, Arc<File>>,
    unsynced: BTreeSet<String>,
}

/// A disk of such files.
#[derive(Default)]
pub struct Disk(Mutex<Names>);

impl Disk {
    /// What a process that is killed now leaves behind.
    pub fn killed(&self) -> Arc<Self> {
        let mut names = self.0.lock().clone();
        for file in names.files.values_mut() {
            let content = file.0.lock().clone();
            *file = Arc::new(File(Mutex::new(content)));
        }
        Arc::new(Self(Mutex::new(names)))
    }

    /// What a power loss now leaves, if nothing survives but what was synced.
    pub fn after_power_loss(&self) -> Arc<Self> {
        let disk = self.killed();
        let mut names = disk.0.lock();
        let unsynced = std::mem::take(&mut names.unsynced);
        names.files.retain(|path, _| !unsynced.contains(path));
        for file in names.files.values() {
            let mut content = file.0.lock();
            content.bytes = Arc::clone(&content.synced);
            content.dirty = false;
        }
        drop(names);
        disk
    }

    pub fn file(&self, path: &str) -> Option<Arc<File>> {
        self.0.lock().files.get(path).cloned()
    }

    pub fn paths(&self) -> Vec<String> {
        self.0.lock().files.keys().cloned().collect()
    }

    /// Every file with its bytes.
    pub fn all(&self) -> BTreeMap<String, Vec<u8>> {
        let names = self.0.lock();
        let bytes = |file: &Arc<File>| file.0.lock().bytes.to_vec();
        let files = names.files.iter();
        files
            .map(|(path, file)| (path.clone(), bytes(file)))
            .collect()
    }

    /// Whether power loss may take the content of a file, or its name.
    pub fn is_durable(&self, path: &str) -> bool {
        let names = self.0.lock();
        !names.files[path].0.lock().dirty && !names.unsynced.contains(path)
    }

    fn found(&self, path: &str) -> io::Result<Arc<File>> {
        self.file(path)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn made(&self, path: &str) -> Arc<File> {
        let mut names = self.0.lock();
        if let Some(file) = names.files.get(path) {
            return Arc::clone(file);
        }
        names.unsynced.insert(path.to_owned());
        let file = Arc::new(File::default());
        names.files.insert(path.to_owned(), Arc::clone(&file));
        file
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn directory(path: &str) -> &str {
    if path == "." { "" } else { path }
}

impl Backing for Disk {
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        Ok(self.found(path)?)
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        Ok(self.made(path))
    }

    fn open_table(&self, path: &str, length: usize) -> io::Result<Arc<dyn BackingTable>> {
        let file = self.made(path);
        grow(Arc::make_mut(&mut file.0.lock().bytes), length as u64);
        Ok(Arc::new(Table(file, length)))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let removed = self.0.lock().files.remove(path);
        removed
            .map(drop)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn remove_empty_dir(&self, _: &str) -> io::Result<bool> {
        Ok(false)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let file = self.found(from)?;
        let mut names = self.0.lock();
        names.files.remove(from);
        names.unsynced.insert(to.to_owned());
        names.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        Ok(self.file(path).is_some())
    }

    fn stat(&self, path: &str) -> io::Result<BackingStat> {
        self.found(path)?.stat()
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let path = directory(path);
        let prefix = if path.is_empty() {
            String::new()
        } else {
            format!("{path}/")
        };
        let inside = |name: &String| {
            let rest = name.strip_prefix(&prefix)?;
            Some(rest.split('/').next()?.to_owned())
        };
        let names: BTreeSet<_> = self.0.lock().files.keys().filter_map(inside).collect();
        Ok(names.into_iter().collect())
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let path = directory(path).to_owned();
        self.0.lock().unsynced.retain(|name| parent(name) != path);
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut names = self.0.lock();
        names.unsynced.clear();
        for file in names.files.values() {
            file.0.lock().sync();
        }
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space::default())
    }
}
