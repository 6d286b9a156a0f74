//! A disk that is only read: writes stay in memory and are lost with the overlay.
//!
//! Recovery after a crash changes files of a store. Through an overlay, recovery can run on a store that must not
//! change: for an export, and to find out whether a store can be opened at all.
//!
//! Invariant: the overlay makes only calls of the disk below that change nothing. Every later opener of a changed file
//! sees the changes; an earlier opener sees the file unchanged.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use lockstep_types::backing::{
    Backing, BackingFile, BackingStat, BackingTable, FileIdentity, Space,
};
use parking_lot::Mutex;

const PAGE: usize = 4096;
const PAGE_BYTES: u64 = PAGE as u64;

type Changed = Arc<Mutex<HashMap<String, Arc<OverlayState>>>>;

/// Changes in memory over an unchanged disk.
pub struct Overlay {
    below: Arc<dyn Backing>,
    changed: Changed,
}

impl Overlay {
    /// An overlay without changes.
    pub fn new(below: Arc<dyn Backing>) -> Self {
        let changed = Changed::default();
        Self { below, changed }
    }

    fn file(&self, path: &str, state: Arc<OverlayState>) -> Arc<OverlayFile> {
        Arc::new(OverlayFile {
            path: path.to_owned(),
            state,
            changed: Arc::clone(&self.changed),
        })
    }

    fn changed(&self, path: &str) -> Option<Arc<OverlayState>> {
        self.changed.lock().get(path).cloned()
    }

    fn open_file(&self, path: &str) -> io::Result<Arc<OverlayFile>> {
        let state = match self.changed(path) {
            Some(state) => state,
            None => Arc::new(OverlayState::over(self.below.open(path)?)?),
        };
        Ok(self.file(path, state))
    }
}

fn refused() -> io::Error {
    io::Error::new(
        io::ErrorKind::ReadOnlyFilesystem,
        "the store is open for reading only",
    )
}

impl Backing for Overlay {
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        Ok(self.open_file(path)?)
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        match self.open_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = self.file(path, Arc::default());
                file.change(|_| Ok(()))?;
                Ok(file)
            }
            opened => Ok(opened?),
        }
    }

    fn open_table(&self, path: &str, length: usize) -> io::Result<Arc<dyn BackingTable>> {
        let mut bytes = vec![0; length];
        match self.below.open(path) {
            Ok(file) => drop(file.read_at(0, &mut bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Arc::new(Table(Mutex::new(bytes))))
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(refused())
    }

    fn remove_empty_dir(&self, _: &str) -> io::Result<bool> {
        Err(refused())
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Err(refused())
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        Ok(self.changed(path).is_some() || self.below.exists(path)?)
    }

    fn stat(&self, path: &str) -> io::Result<BackingStat> {
        match self.changed(path) {
            Some(state) => state.stat(),
            None => self.below.stat(path),
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.below.list(path)
    }

    fn sync_dir(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }

    fn identity(&self, path: &str) -> io::Result<Option<FileIdentity>> {
        self.below.identity(path)
    }

    fn is_in_place(&self) -> io::Result<Option<bool>> {
        self.below.is_in_place()
    }

    fn is_poisoned(&self) -> bool {
        self.below.is_poisoned()
    }
}

/// A file with its changes.
#[derive(Default)]
struct OverlayState {
    base: Option<Arc<dyn BackingFile>>,
    changes: Mutex<PageChanges>,
}

impl OverlayState {
    fn over(base: Arc<dyn BackingFile>) -> io::Result<Self> {
        let length = base.stat()?.length;
        let changes = PageChanges {
            length,
            ..PageChanges::default()
        };
        Ok(Self {
            base: Some(base),
            changes: Mutex::new(changes),
        })
    }

    fn stat(&self) -> io::Result<BackingStat> {
        let base = self.base.as_ref().map(|base| base.stat()).transpose()?;
        Ok(BackingStat {
            length: self.changes.lock().length,
            blocks: base.unwrap_or_default().blocks,
        })
    }

    fn read(&self, changes: &PageChanges, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let left = changes.length.saturating_sub(offset);
        let count = usize::try_from(left).map_or(into.len(), |left| left.min(into.len()));
        let into = into.get_mut(..count).unwrap_or_default();
        let read = match &self.base {
            Some(base) => base.read_at(offset, into)?,
            None => 0,
        };
        into.get_mut(read..).unwrap_or_default().fill(0);
        for &(from, to) in &changes.zeros {
            part(offset, into, from, to).0.fill(0);
        }
        changes.lay_pages(offset, into);
        Ok(count)
    }
}

/// The differences from the file below. A page in `pages` wins over `zeros`.
#[derive(Default)]
struct PageChanges {
    length: u64,
    zeros: Vec<(u64, u64)>,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl PageChanges {
    fn lay_pages(&self, offset: u64, into: &mut [u8]) {
        let end = offset + into.len() as u64;
        let first = offset - offset % PAGE_BYTES;
        for (&at, page) in self.pages.range(first..end.max(first)) {
            let (to, skipped) = part(offset, into, at, at + PAGE_BYTES);
            let from = page.get(skipped..).unwrap_or_default();
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
    }

    fn zero(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        self.zeros.push((from, to));
        let first = from - from % PAGE_BYTES;
        for (&at, page) in self.pages.range_mut(first..to) {
            part(at, page, from, to).0.fill(0);
        }
    }

    fn resize(&mut self, length: u64) {
        self.zero(length, self.length);
        self.length = length;
    }
}

/// The part of `bytes` (at `offset`) between `from` and `to`, and its offset in that range.
fn part(offset: u64, bytes: &mut [u8], from: u64, to: u64) -> (&mut [u8], usize) {
    let index = |at: u64| usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX);
    let end = index(to).min(bytes.len());
    let start = index(from).min(end);
    let skipped = usize::try_from(offset.saturating_sub(from)).unwrap_or(usize::MAX);
    (bytes.get_mut(start..end).unwrap_or_default(), skipped)
}

struct OverlayFile {
    path: String,
    state: Arc<OverlayState>,
    changed: Changed,
}

impl OverlayFile {
    fn change(&self, body: impl FnOnce(&mut PageChanges) -> io::Result<()>) -> io::Result<()> {
        body(&mut self.state.changes.lock())?;
        let mut changed = self.changed.lock();
        if !changed.contains_key(&self.path) {
            changed.insert(self.path.clone(), Arc::clone(&self.state));
        }
        Ok(())
    }

    /// Writes bytes within one page.
    fn write_page(&self, changes: &mut PageChanges, offset: u64, data: &[u8]) -> io::Result<()> {
        let at = offset - offset % PAGE_BYTES;
        let end = offset + data.len() as u64;
        changes.length = changes.length.max(end);
        let mut page = vec![0; PAGE];
        self.state.read(changes, at, &mut page)?;
        part(at, &mut page, offset, end).0.copy_from_slice(data);
        changes.pages.insert(at, page);
        Ok(())
    }
}

impl BackingFile for OverlayFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.state.read(&self.state.changes.lock(), offset, into)
    }

    fn write_at(&self, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        self.change(|changes| {
            while !data.is_empty() {
                let room = usize::try_from(PAGE_BYTES - offset % PAGE_BYTES).unwrap_or(1);
                let (piece, rest) = data.split_at(room.min(data.len()));
                self.write_page(changes, offset, piece)?;
                offset += piece.len() as u64;
                data = rest;
            }
            Ok(())
        })
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.change(|changes| {
            changes.resize(length);
            Ok(())
        })
    }

    fn stat(&self) -> io::Result<BackingStat> {
        self.state.stat()
    }

    fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        self.change(|changes| {
            if !keep_size {
                changes.length = changes.length.max(offset.saturating_add(length));
            }
            Ok(())
        })
    }

    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        self.change(|changes| {
            changes.zero(offset, offset.saturating_add(length));
            Ok(())
        })
    }

    fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        self.allocate(offset, length, keep_size)?;
        self.punch_hole(offset, length)
    }

    /// A zeroed range is data or a hole as in the file below.
    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let changes = self.state.changes.lock();
        let below = match &self.state.base {
            Some(base) => base.seek_data(offset)?,
            None => None,
        };
        let first = offset - offset % PAGE_BYTES;
        let page = changes.pages.range(first..).next();
        let page = page.map(|(&at, _)| at.max(offset));
        let found = below.into_iter().chain(page).min();
        Ok(found.filter(|found| *found < changes.length))
    }

    /// If any page changed, the whole file is data.
    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        let changes = self.state.changes.lock();
        if offset >= changes.length {
            return Ok(None);
        }
        let below = match &self.state.base {
            Some(base) if changes.pages.is_empty() => base.seek_hole(offset)?,
            Some(_) => Some(changes.length),
            None => Some(offset),
        };
        Ok(Some(below.unwrap_or(offset).min(changes.length)))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A copy of a table, or a table that ends with the process.
pub(crate) struct Table(Mutex<Vec<u8>>);

impl Table {
    /// A table of zeros.
    pub fn empty(length: usize) -> Self {
        Self(Mutex::new(vec![0; length]))
    }
}

impl BackingTable for Table {
    fn len(&self) -> usize {
        self.0.lock().len()
    }

    #[allow(clippy::indexing_slicing)] // panics outside the table, as the trait says
    fn load(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.lock()[offset..][..into.len()]);
    }

    #[allow(clippy::indexing_slicing)] // panics outside the table, as the trait says
    fn store(&self, offset: usize, data: &[u8]) {
        self.0.lock()[offset..][..data.len()].copy_from_slice(data);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::backing::os_backing::OsBacking;

    fn over(dir: &Path, content: &[u8]) -> Overlay {
        std::fs::write(dir.join("f"), content).unwrap();
        Overlay::new(Arc::new(OsBacking::open(dir).unwrap()))
    }

    #[derive(Clone, Debug)]
    enum Call {
        Write(u16, u16, u8),
        SetLen(u16),
        Punch(u16, u16),
    }

    fn call() -> impl Strategy<Value = Call> {
        prop_oneof![
            (0..20_000u16, 1..9_000u16, 1..9u8).prop_map(|(o, l, b)| Call::Write(o, l, b)),
            (0..30_000u16).prop_map(Call::SetLen),
            (0..20_000u16, 1..9_000u16).prop_map(|(o, l)| Call::Punch(o, l)),
        ]
    }

    proptest! {
        #[test]
        fn reads_its_writes_and_leaves_the_disk_unchanged(calls in prop::collection::vec(call(), 1..20)) {
            let dir = tempfile::tempdir().unwrap();
            let mut model = vec![7; 10_000];
            let overlay = over(dir.path(), &model);
            let file = overlay.open("f").unwrap();
            for call in calls {
                match call {
                    Call::Write(offset, length, byte) => {
                        let data = vec![byte; length.into()];
                        file.write_at(offset.into(), &data).unwrap();
                        let end = usize::from(offset) + data.len();
                        model.resize(model.len().max(end), 0);
                        model[offset.into()..end].copy_from_slice(&data);
                    }
                    Call::SetLen(length) => {
                        file.set_len(length.into()).unwrap();
                        model.resize(length.into(), 0);
                    }
                    Call::Punch(offset, length) => {
                        file.punch_hole(offset.into(), length.into()).unwrap();
                        let end = usize::from(offset) + usize::from(length);
                        model.iter_mut().take(end).skip(offset.into()).for_each(|b| *b = 0);
                    }
                }
                let mut read = vec![1; 40_000];
                let count = overlay.open("f").unwrap().read_at(0, &mut read).unwrap();
                prop_assert_eq!(&read[..count], &model[..]);
            }
            prop_assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), vec![7; 10_000]);
        }
    }

    #[test]
    fn new_files_are_not_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let overlay = over(dir.path(), b"x");
        overlay.open_or_create("new").unwrap();
        overlay.open_table("table", 64).unwrap().store(0, &[1]);
        assert!(overlay.exists("new").unwrap());
        assert!(overlay.remove("f").is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
