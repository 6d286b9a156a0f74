//! A disk in memory that stops at a chosen call and then has lost an arbitrary part of what was
//! not synced: files in pieces of 4 KiB, names one by one.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use lockstep_types::backing::{Backing, BackingFile, BackingStat, BackingTable, Space};

const PIECE: usize = 4096;

/// A small random generator: the same seed gives the same disk.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

/// A change of a file that no sync has covered.
#[derive(Clone)]
enum Change {
    Length(usize),
    Bytes(usize, Vec<u8>),
}

#[derive(Clone, Default)]
struct Inode {
    seen: Vec<u8>,
    kept: Vec<u8>,
    pending: Vec<Change>,
}

fn apply(content: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Length(length) => content.resize(*length, 0),
        Change::Bytes(offset, bytes) => {
            let end = offset + bytes.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            content[*offset..end].copy_from_slice(bytes);
        }
    }
}

impl Inode {
    fn change(&mut self, change: Change) {
        apply(&mut self.seen, &change);
        self.pending.push(change);
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        let mut at = 0;
        while at < data.len() {
            let room = PIECE - (offset + at) % PIECE;
            let end = data.len().min(at + room);
            self.change(Change::Bytes(offset + at, data[at..end].to_vec()));
            at = end;
        }
    }

    fn sync(&mut self) {
        self.kept.clone_from(&self.seen);
        self.pending.clear();
    }

    fn lose(&mut self, random: &mut Random, keep: u64) {
        for change in std::mem::take(&mut self.pending) {
            if random.below(100) < keep {
                apply(&mut self.kept, &change);
            }
        }
        self.seen.clone_from(&self.kept);
    }
}

#[derive(Clone, Default)]
struct Disk {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    kept_names: BTreeMap<String, usize>,
    /// Calls that change something, so far.
    calls: u64,
    /// The call at which the process stops.
    stop_at: Option<u64>,
    syncs: u64,
    fail_sync: Option<u64>,
}

impl Disk {
    /// Counts a changing call; the one that hits the limit and all after it fail.
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        match self.stop_at {
            Some(stop) if self.calls >= stop => Err(io::Error::other("the process has stopped")),
            _ => Ok(()),
        }
    }

    fn stops_now(&self) -> bool {
        self.stop_at == Some(self.calls)
    }
}

type Hook = Arc<dyn Fn(u64) + Send + Sync>;

/// The disk. Clones share it.
#[derive(Clone, Default)]
pub struct SimBacking {
    disk: Arc<Mutex<Disk>>,
    on_sync: Arc<Mutex<Option<Hook>>>,
}

impl SimBacking {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    /// A disk of its own with the same state.
    pub fn fork(&self) -> Self {
        let mut disk = self.disk().clone();
        disk.stop_at = None;
        disk.fail_sync = None;
        Self {
            disk: Arc::new(Mutex::new(disk)),
            on_sync: Arc::default(),
        }
    }

    /// The disk after the power failed: of what was not synced about `keep` per cent is left.
    pub fn power_loss(&self, random: &mut Random, keep: u64) -> Self {
        let after = self.fork();
        {
            let mut disk = after.disk();
            let names = std::mem::take(&mut disk.names);
            for (name, inode) in names {
                if random.below(100) < keep {
                    disk.kept_names.insert(name, inode);
                }
            }
            disk.names = disk.kept_names.clone();
            for inode in &mut disk.inodes {
                inode.lose(random, keep);
            }
        }
        after
    }

    /// Changing calls so far.
    pub fn calls(&self) -> u64 {
        self.disk().calls
    }

    /// Syncs of files so far.
    pub fn syncs(&self) -> u64 {
        self.disk().syncs
    }

    /// Lets the process stop in the middle of the changing call `after` calls from now.
    pub fn stop_after(&self, after: u64) {
        let mut disk = self.disk();
        disk.stop_at = Some(disk.calls + after);
    }

    /// Lets the sync `after` syncs from now fail, and forget what it should have kept.
    pub fn fail_sync_after(&self, after: u64) {
        let mut disk = self.disk();
        disk.fail_sync = Some(disk.syncs + after);
    }

    /// Calls this with the number of each sync, before it takes place.
    pub fn on_sync(&self, hook: Hook) {
        *self.on_sync.lock().unwrap() = Some(hook);
    }

    /// Looks at or changes the bytes of a file, on the disk as well.
    pub fn edit<T>(&self, path: &str, edit: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut disk = self.disk();
        let inode = disk.names[path];
        let inode = &mut disk.inodes[inode];
        let result = edit(&mut inode.seen);
        inode.sync();
        result
    }

    /// All content, to see whether anything was changed.
    pub fn content(&self) -> BTreeMap<String, Vec<u8>> {
        let disk = self.disk();
        let content = |(name, inode): (&String, &usize)| {
            let seen = disk.inodes[*inode].seen.clone();
            (name.clone(), seen)
        };
        disk.names.iter().map(content).collect()
    }
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Backing for SimBacking {
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        let inode = *self.disk().names.get(path).ok_or_else(not_found)?;
        let backing = self.clone();
        Ok(Arc::new(SimFile { backing, inode }))
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        if !self.exists(path)? {
            let mut disk = self.disk();
            disk.call()?;
            let inode = disk.inodes.len();
            disk.inodes.push(Inode::default());
            disk.names.insert(path.to_owned(), inode);
        }
        self.open(path)
    }

    fn open_table(&self, _: &str, _: usize) -> io::Result<Arc<dyn BackingTable>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove_empty_dir(&self, _: &str) -> io::Result<bool> {
        Ok(false)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call()?;
        let inode = disk.names.remove(from).ok_or_else(not_found)?;
        disk.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        Ok(self.disk().names.contains_key(path))
    }

    fn stat(&self, path: &str) -> io::Result<BackingStat> {
        self.open(path)?.stat()
    }

    fn list(&self, _: &str) -> io::Result<Vec<String>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call()?;
        let inside = |name: &String| name.rsplit_once('/').map_or("", |(dir, _)| dir) == path;
        let Disk {
            names, kept_names, ..
        } = &mut *disk;
        kept_names.retain(|name, _| !inside(name));
        kept_names.extend(names.clone().into_iter().filter(|(name, _)| inside(name)));
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call()?;
        disk.inodes.iter_mut().for_each(Inode::sync);
        disk.kept_names = disk.names.clone();
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space::default())
    }
}

struct SimFile {
    backing: SimBacking,
    inode: usize,
}

impl SimFile {
    fn set_length(&self, length: impl FnOnce(usize) -> usize) -> io::Result<()> {
        let mut disk = self.backing.disk();
        disk.call()?;
        let inode = &mut disk.inodes[self.inode];
        let length = length(inode.seen.len());
        inode.change(Change::Length(length));
        Ok(())
    }
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

impl BackingFile for SimFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let disk = self.backing.disk();
        let seen = &disk.inodes[self.inode].seen;
        let start = seen.len().min(size(offset));
        let length = into.len().min(seen.len() - start);
        into[..length].copy_from_slice(&seen[start..start + length]);
        Ok(length)
    }

    /// The call at which the process stops gets half of its bytes done.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut disk = self.backing.disk();
        let called = disk.call();
        let length = match called {
            Ok(()) => data.len(),
            Err(_) if disk.stops_now() => data.len() / 2,
            Err(_) => 0,
        };
        disk.inodes[self.inode].write(size(offset), &data[..length]);
        called
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.set_length(|_| size(length))
    }

    fn stat(&self) -> io::Result<BackingStat> {
        let disk = self.backing.disk();
        let length = disk.inodes[self.inode].seen.len() as u64;
        Ok(BackingStat { length, blocks: 0 })
    }

    fn allocate(&self, offset: u64, length: u64, _: bool) -> io::Result<()> {
        self.set_length(|now| now.max(size(offset + length)))
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
        let hook = self.backing.on_sync.lock().unwrap().clone();
        let (number, covered) = {
            let mut disk = self.backing.disk();
            disk.call()?;
            disk.syncs += 1;
            let covered = std::mem::take(&mut disk.inodes[self.inode].pending);
            (disk.syncs, covered)
        };
        if let Some(hook) = hook {
            hook(number);
        }
        let mut disk = self.backing.disk();
        if disk.fail_sync == Some(number) {
            // as Linux does it: what is seen stays, counts as clean, and is not on the disk
            return Err(io::Error::other("the disk lost the pages"));
        }
        for change in covered {
            apply(&mut disk.inodes[self.inode].kept, &change);
        }
        Ok(())
    }
}
