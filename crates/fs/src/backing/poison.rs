//! Poison: a failed disk is marked, durably, and is only read from then on (rule P16).
//!
//! [`FencedBacking`] stands between a store and its disk and sees every call. Two failures poison: the first failed
//! sync, unless it could not begin; and the first other call that fails with an error of a broken disk (`EIO` and its
//! class; a full disk does not poison). The marker is written before the failed call returns. From then on every call
//! that would change or save something is refused. So this disk never again gives anything that stands on a sync (an
//! answer, a mark "in sync", a checkpoint, a clean shutdown), in this process or a later one, until an operator removes
//! the marker.
//!
//! Invariants:
//! - A caller hears of a failure, or is refused because of it, only after the attempt to write the marker. (The attempt
//!   may fail: the disk has failed.)
//! - The name alone makes a marker: an unreadable marker is a marker.
//! - Only [`PoisonMarkers::remove`] removes a marker.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use lockstep_types::backing::{
    Backing, BackingFile, BackingStat, BackingTable, FileIdentity, ReservedRuns, Space, replace,
};
use lockstep_types::{BootId, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::backing::os_backing::{BackingFailure, os_code};

/// The marker, in the directory of the store.
pub const MARKER_FILE: &str = "poisoned.json";

/// Most bytes of a marker that are read.
const MARKER_BYTES_MAX: usize = 64 << 10;

/// The errors of Linux for a broken disk, or a broken file system on it: `EIO`, `ENODEV`, `EBADMSG` (a checksum of the
/// file system), `EILSEQ` (one of the device), `ETIMEDOUT`, `EUCLEAN` (a damaged file system), `EREMOTEIO`.
const BROKEN: [i32; 7] = [5, 19, 74, 84, 110, 117, 121];
/// A sync was not tried if it failed because no more files can be opened (`ENFILE`, `EMFILE`), or because the directory
/// does not exist (`ENOENT`).
const NOT_TRIED: [i32; 3] = [2, 23, 24];

/// The content of a marker: how a disk failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskFailure {
    /// Operation, file and error.
    pub reason: String,
    /// The time, in UTC by the clock of the machine, in the form of RFC 3339. For people only.
    pub time: String,
    /// The run of the machine in which the disk failed (the boot id); absent if unknown.
    #[serde(default)]
    pub boot: Option<BootId>,
}

impl DiskFailure {
    /// A marker without readable content.
    fn unreadable(why: &io::Error) -> Self {
        Self {
            reason: format!("unknown, as the marker cannot be read: {why}"),
            time: "an unknown time".to_owned(),
            boot: None,
        }
    }

    /// Whether an operation on the file of that name has failed.
    pub fn names(&self, file: &str) -> bool {
        self.reason.split([' ', ':']).any(|word| word == file)
    }

    fn parse(text: &[u8]) -> io::Result<Self> {
        Ok(serde_json::from_slice(text)?)
    }
}

impl std::fmt::Display for DiskFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {}: {}", self.time, self.reason)
    }
}

/// A place for a copy of the marker, independent of the failing disk. The copy need not outlive this run of the
/// machine: the page cache, which could hide the failure, does not outlive it either.
pub trait MarkerStore: Send + Sync {
    /// The copy; `None` if there is none.
    fn read(&self) -> io::Result<Option<Vec<u8>>>;

    /// Writes the copy, and replaces an earlier one.
    fn write(&self, bytes: &[u8]) -> io::Result<()>;

    /// Removes the copy; no error if there is none.
    fn remove(&self) -> io::Result<()>;
}

/// The places of the markers of one store.
#[derive(Clone)]
pub struct PoisonMarkers {
    /// The directory of the store, without a fence.
    backing: Arc<dyn Backing>,
    copy: Option<Arc<dyn MarkerStore>>,
}

impl PoisonMarkers {
    /// The places for the store on `backing`, with a place for a copy if there is one.
    pub fn new(backing: Arc<dyn Backing>, copy: Option<Arc<dyn MarkerStore>>) -> Self {
        Self { backing, copy }
    }

    /// The failure by the markers, if there is one: the marker on the disk first. A failing disk may take the name of
    /// the marker and no bytes: then the copy tells of the failure.
    pub fn read(&self) -> Option<DiskFailure> {
        match self.read_file() {
            Some(Ok(failure)) => Some(failure),
            Some(Err(error)) => {
                let copy = self.read_copy().and_then(Result::ok);
                Some(copy.unwrap_or_else(|| DiskFailure::unreadable(&error)))
            }
            None => {
                let copy = self.read_copy()?;
                Some(copy.unwrap_or_else(|error| DiskFailure::unreadable(&error)))
            }
        }
    }

    fn read_file(&self) -> Option<io::Result<DiskFailure>> {
        let file = match self.backing.open(MARKER_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            opened => opened,
        };
        Some(file.and_then(|file| {
            let mut text = vec![0; MARKER_BYTES_MAX];
            let length = file.read_at(0, &mut text)?;
            DiskFailure::parse(text.get(..length).unwrap_or_default())
        }))
    }

    fn read_copy(&self) -> Option<io::Result<DiskFailure>> {
        match self.copy.as_ref()?.read() {
            Ok(text) => text.map(|text| DiskFailure::parse(&text)),
            Err(error) => {
                // The copy is optional. A place that cannot be read could not have been written either.
                tracing::debug!(%error, "the copy of the poison marker cannot be read");
                None
            }
        }
    }

    /// Writes both markers, as far as possible.
    fn write(&self, failure: &DiskFailure) {
        let text = serde_json::to_vec_pretty(failure).unwrap_or_default();
        // The copy first: it cannot hang on the broken disk.
        if let Some(Err(error)) = self.copy.as_ref().map(|copy| copy.write(&text)) {
            tracing::warn!(%error, "the failure could not be noted outside its disk");
        }
        if let Err(error) = self.write_file(&text) {
            tracing::warn!(%error, "the failure could not be noted on its disk: {MARKER_FILE}");
        }
    }

    /// Not by renaming a draft: the name makes the marker, so the fewest possible calls create it.
    fn write_file(&self, text: &[u8]) -> io::Result<()> {
        let file = self.backing.open_or_create(MARKER_FILE)?;
        let written = file.write_at(0, text).and_then(|()| file.sync());
        let named = self.backing.sync_dir(".");
        written.and(named)
    }

    /// Writes the marker on the disk again: a failed sync may have left the earlier marker only in the cache.
    pub fn renew(&self, failure: &DiskFailure) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(failure)?;
        replace(self.backing.as_ref(), MARKER_FILE, &text)
    }

    /// Removes the markers durably, when an operator has acted. If the removal is not certain, the markers are
    /// restored.
    pub fn remove(&self) -> io::Result<()> {
        let found = self.read();
        let removed = self.remove_file();
        if let (Err(_), Some(failure)) = (&removed, found) {
            self.write(&failure);
        }
        removed?;
        self.remove_copy()
    }

    fn remove_file(&self) -> io::Result<()> {
        match self.backing.remove(MARKER_FILE) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.backing.sync_dir("."),
        }
    }

    /// Removes the copy that an earlier store in this place has left outside of its directory.
    pub fn remove_copy(&self) -> io::Result<()> {
        self.copy.as_ref().map_or(Ok(()), |copy| copy.remove())
    }
}

/// The time of day, for markers.
pub type Clock = Box<dyn Fn() -> Timestamp + Send + Sync>;

/// Whether the disk of one store has failed, and the reaction to a failure.
pub struct Poison {
    markers: PoisonMarkers,
    boot: BootId,
    clock: Clock,
    has_failed: AtomicBool,
    failure: Mutex<Option<DiskFailure>>,
    /// Held while the markers are written.
    writing: Mutex<()>,
    /// Called once this disk has failed.
    observer: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Why a call is refused.
#[derive(Debug, thiserror::Error)]
#[error("the disk of this store has failed and is only read until an operator acts ({0})")]
struct DiskRefused(String);

impl Poison {
    /// For a disk with the marker `found`, or without a marker. `boot` is the run of the machine.
    pub fn new(
        markers: PoisonMarkers,
        boot: BootId,
        clock: Clock,
        found: Option<DiskFailure>,
    ) -> Self {
        Self {
            markers,
            boot,
            clock,
            has_failed: AtomicBool::new(found.is_some()),
            failure: Mutex::new(found),
            writing: Mutex::new(()),
            observer: OnceLock::new(),
        }
    }

    /// Has a function called when the disk fails, before the markers are written. Only the first such function is ever called.
    pub fn observe(&self, observer: Box<dyn Fn() + Send + Sync>) {
        // The observer of a store is set once, when the store is opened.
        let _is_first = self.observer.set(observer);
    }

    /// Whether the disk has failed. Costs nothing.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// How the disk has failed, if it has. For display only: the markers may not be written yet.
    pub fn failure(&self) -> Option<DiskFailure> {
        self.failure.lock().clone()
    }

    /// The disk has failed. Returns once the markers are written, by this thread or another.
    pub fn fail(&self, reason: &str) {
        let _writing = self.writing.lock();
        if self.has_failed() {
            return;
        }
        let failure = DiskFailure {
            reason: reason.to_owned(),
            time: (self.clock)().utc(),
            boot: Some(self.boot),
        };
        *self.failure.lock() = Some(failure.clone());
        // Before the markers, which may take long: no thread may go on meanwhile.
        self.has_failed.store(true, Ordering::Release);
        tracing::error!(
            reason,
            "the disk has failed: nothing more is promised on it"
        );
        if let Some(observer) = self.observer.get() {
            observer();
        }
        self.markers.write(&failure);
    }

    /// Refuses once the disk has failed and the markers are written.
    fn check(&self) -> io::Result<()> {
        if !self.has_failed() {
            return Ok(());
        }
        drop(self.writing.lock());
        let failure = self.failure().map(|failure| failure.to_string());
        Err(io::Error::other(DiskRefused(failure.unwrap_or_default())))
    }

    /// Passes on the result of a call that is no sync.
    fn poison_if_broken<T>(&self, what: &str, path: &str, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            if os_code(error).is_some_and(|code| BROKEN.contains(&code)) {
                self.fail(&describe(what, path, error));
            }
        })
    }

    /// Makes a call that changes something.
    fn change<T>(
        &self,
        what: &str,
        path: &str,
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.check()?;
        self.poison_if_broken(what, path, call())
    }

    /// Makes a sync. A success is not believed if another sync failed meanwhile: the kernel may have reported the
    /// failure of this sync's bytes to the other sync only.
    fn sync(&self, path: &str, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.check()?;
        match call() {
            Ok(()) => self.check(),
            Err(error) => {
                if was_tried(&error) {
                    self.fail(&describe("sync", path, &error));
                }
                Err(error)
            }
        }
    }
}

/// Whether a sync that failed with this error has reached the disk. A sync that has not lost nothing.
pub(crate) fn was_tried(error: &io::Error) -> bool {
    !os_code(error).is_some_and(|code| NOT_TRIED.contains(&code))
}

/// Operation, path and cause: in the words of the disk, if its error has all three.
fn describe(what: &str, path: &str, error: &io::Error) -> String {
    let below = error
        .get_ref()
        .and_then(|below| below.downcast_ref::<BackingFailure>());
    if below.is_some() {
        return error.to_string();
    }
    format!("cannot {what} {path}: {error}")
}

/// A disk that its first failure poisons.
pub struct FencedBacking {
    below: Arc<dyn Backing>,
    poison: Arc<Poison>,
}

impl FencedBacking {
    /// Fences `below`. A file that is opened past this fence is not fenced.
    pub fn new(below: Arc<dyn Backing>, poison: Arc<Poison>) -> Self {
        Self { below, poison }
    }

    fn file(&self, path: &str, file: Arc<dyn BackingFile>) -> Arc<dyn BackingFile> {
        Arc::new(FencedFile {
            below: file,
            path: path.into(),
            poison: Arc::clone(&self.poison),
        })
    }
}

impl Backing for FencedBacking {
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        let opened = self
            .poison
            .poison_if_broken("open", path, self.below.open(path))?;
        Ok(self.file(path, opened))
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        let open = || self.below.open_or_create(path);
        let opened = self.poison.change("open", path, open)?;
        Ok(self.file(path, opened))
    }

    /// A store to a table never fails, and promises nothing about the disk.
    fn open_table(&self, path: &str, length: usize) -> io::Result<Arc<dyn BackingTable>> {
        let open = || self.below.open_table(path, length);
        self.poison.change("open", path, open)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.poison
            .change("remove", path, || self.below.remove(path))
    }

    fn remove_empty_dir(&self, path: &str) -> io::Result<bool> {
        let remove = || self.below.remove_empty_dir(path);
        self.poison.change("remove directory", path, remove)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.poison
            .change("rename", from, || self.below.rename(from, to))
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        self.poison
            .poison_if_broken("look for", path, self.below.exists(path))
    }

    fn stat(&self, path: &str) -> io::Result<BackingStat> {
        self.poison
            .poison_if_broken("stat", path, self.below.stat(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.poison
            .poison_if_broken("list", path, self.below.list(path))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.poison.sync(path, || self.below.sync_dir(path))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.poison.sync("everything", || self.below.sync_all())
    }

    fn space(&self) -> io::Result<Space> {
        self.poison
            .poison_if_broken("stat", ".", self.below.space())
    }

    fn scatter(&self, directory: &str) {
        if !self.poison.has_failed() {
            self.below.scatter(directory);
        }
    }

    fn identity(&self, path: &str) -> io::Result<Option<FileIdentity>> {
        self.below.identity(path)
    }

    fn is_in_place(&self) -> io::Result<Option<bool>> {
        self.below.is_in_place()
    }

    /// `true` only once the markers are written.
    fn is_poisoned(&self) -> bool {
        self.poison.check().is_err()
    }

    fn poison(&self, reason: &str) {
        self.poison.fail(reason);
    }
}

/// A file of a fenced disk.
struct FencedFile {
    below: Arc<dyn BackingFile>,
    path: Box<str>,
    poison: Arc<Poison>,
}

impl FencedFile {
    fn change(&self, what: &str, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.poison.change(what, &self.path, call)
    }

    fn poison_if_broken<T>(&self, what: &str, result: io::Result<T>) -> io::Result<T> {
        self.poison.poison_if_broken(what, &self.path, result)
    }
}

impl BackingFile for FencedFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.poison_if_broken("read", self.below.read_at(offset, into))
    }

    fn read_disk(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        // A block that cannot be read is found before a program asks for it. The disk goes on to serve.
        self.below.read_disk(offset, into)
    }

    fn will_read(&self, range: Range<u64>) {
        self.below.will_read(range);
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change("write", || self.below.write_at(offset, data))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.change("set the length of", || self.below.set_len(length))
    }

    fn stat(&self) -> io::Result<BackingStat> {
        self.poison_if_broken("stat", self.below.stat())
    }

    fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        self.change("reserve space for", || {
            self.below.allocate(offset, length, keep_size)
        })
    }

    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        self.change("punch a hole into", || {
            self.below.punch_hole(offset, length)
        })
    }

    fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        self.change("zero a range of", || {
            self.below.zero_range(offset, length, keep_size)
        })
    }

    fn reserved(&self, range: Range<u64>) -> io::Result<ReservedRuns> {
        self.poison_if_broken("look for reserved space in", self.below.reserved(range))
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.poison_if_broken("look for data in", self.below.seek_data(offset))
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.poison_if_broken("look for holes in", self.below.seek_hole(offset))
    }

    fn sync(&self) -> io::Result<()> {
        self.poison.sync(&self.path, || self.below.sync())
    }
}

#[cfg(test)]
mod tests;
