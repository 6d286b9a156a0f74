//! Poison: a disk that failed is noted as such, durably, and only read from then on (rule P16).
//!
//! [`Guarded`] stands between a store and its disk and sees every call. The first sync that fails for
//! whatever reason but that it could not be begun, and the first other call that fails as a broken disk
//! makes it fail (`EIO` and its kin; not for want of room), poisons: the mark is written before the call
//! that failed returns. After that every call that would change or save something is refused, so that whatever
//! stands on a sync (an answer, a mark "in sync", a checkpoint, a close in order) can never be had
//! again from this disk, in this process or a later one, until an operator takes the mark away.
//!
//! Invariants:
//! - Who is told of a failure, or refused because of one, is told after the mark was tried to be
//!   written. (It may not be possible: the disk has failed.)
//! - A mark counts by its name alone: one that cannot be read is a mark.
//! - Nothing here takes a mark away but [`Marks::remove`].

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_types::backing::{Backing, BackingFile, BackingStat, BackingTable, Space, replace};
use lockstep_types::{BootId, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::os_backing::{BackingFailure, os_code};

/// The mark, in the directory of the store.
pub const MARK_FILE: &str = "poisoned.json";

/// Most bytes of a mark that are read.
const MARK_BYTES_MAX: usize = 64 << 10;

/// What Linux answers when a disk, or the file system on it, is broken: `EIO`, `ENODEV`, `EBADMSG`
/// (a checksum of the file system), `EILSEQ` (one of the device), `ETIMEDOUT`, `EUCLEAN` (a damaged
/// file system), `EREMOTEIO`.
const BROKEN: [i32; 7] = [5, 19, 74, 84, 110, 117, 121];
/// A sync that failed because no more files can be opened (`ENFILE`, `EMFILE`), or there is no such
/// directory (`ENOENT`), was not tried.
const NOT_TRIED: [i32; 3] = [2, 23, 24];

/// What a mark says: how a disk failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What failed, on which file, with which error.
    pub reason: String,
    /// When, in UTC by the clock of that machine, as RFC 3339 has it. For people only.
    pub time: String,
    /// The run of the machine in which it failed (its boot id); absent if that is not known.
    #[serde(default)]
    pub boot: Option<BootId>,
}

impl Failure {
    /// A mark that says nothing.
    fn unreadable(why: &io::Error) -> Self {
        Self {
            reason: format!("unknown, as the mark cannot be read: {why}"),
            time: "an unknown time".to_owned(),
            boot: None,
        }
    }

    fn parse(text: &[u8]) -> io::Result<Self> {
        Ok(serde_json::from_slice(text)?)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {}: {}", self.time, self.reason)
    }
}

/// A place for a copy of the mark that does not depend on the disk that fails. It need not outlive
/// this run of the machine: what a lost cache could hide is gone with it.
pub trait Stamp: Send + Sync {
    /// What was put there; `None` if nothing was.
    fn read(&self) -> io::Result<Option<Vec<u8>>>;

    /// Puts something there, in the place of what there was.
    fn write(&self, bytes: &[u8]) -> io::Result<()>;

    /// Takes it away; no error if nothing is there.
    fn remove(&self) -> io::Result<()>;
}

/// Where the marks of one store lie.
#[derive(Clone)]
pub struct Marks {
    /// The directory of the store, as it is.
    backing: Arc<dyn Backing>,
    stamp: Option<Arc<dyn Stamp>>,
}

impl Marks {
    /// Those of the store on `backing`, with a second place if there is one.
    pub fn new(backing: Arc<dyn Backing>, stamp: Option<Arc<dyn Stamp>>) -> Self {
        Self { backing, stamp }
    }

    /// What the marks say, if there is one: the mark on the disk first. A disk that takes no more
    /// bytes may still have taken the name of the mark: what happened is then told by the other.
    pub fn read(&self) -> Option<Failure> {
        match self.read_file() {
            Some(Ok(failure)) => Some(failure),
            Some(Err(error)) => {
                let stamp = self.read_stamp().and_then(Result::ok);
                Some(stamp.unwrap_or_else(|| Failure::unreadable(&error)))
            }
            None => {
                let stamp = self.read_stamp()?;
                Some(stamp.unwrap_or_else(|error| Failure::unreadable(&error)))
            }
        }
    }

    fn read_file(&self) -> Option<io::Result<Failure>> {
        let file = match self.backing.open(MARK_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            opened => opened,
        };
        Some(file.and_then(|file| {
            let mut text = vec![0; MARK_BYTES_MAX];
            let length = file.read_at(0, &mut text)?;
            Failure::parse(text.get(..length).unwrap_or_default())
        }))
    }

    fn read_stamp(&self) -> Option<io::Result<Failure>> {
        match self.stamp.as_ref()?.read() {
            Ok(text) => text.map(|text| Failure::parse(&text)),
            Err(error) => {
                // It is a help. Where it cannot be read, there could not have been one either.
                tracing::debug!(%error, "the second place for marks cannot be read");
                None
            }
        }
    }

    /// Writes both marks, as far as that is possible.
    fn write(&self, failure: &Failure) {
        let text = serde_json::to_vec_pretty(failure).unwrap_or_default();
        // First what cannot hang on the broken disk.
        if let Some(Err(error)) = self.stamp.as_ref().map(|stamp| stamp.write(&text)) {
            tracing::warn!(%error, "the failure could not be noted outside its disk");
        }
        if let Err(error) = self.write_file(&text) {
            tracing::warn!(%error, "the failure could not be noted on its disk: {MARK_FILE}");
        }
    }

    /// Not by a draft and a renaming: the name counts, and the less is needed for it the better.
    fn write_file(&self, text: &[u8]) -> io::Result<()> {
        let file = self.backing.open_or_create(MARK_FILE)?;
        let written = file.write_at(0, text).and_then(|()| file.sync());
        let named = self.backing.sync_dir(".");
        written.and(named)
    }

    /// Puts the mark on the disk once more, anew: what a failed sync has left of an earlier one may go
    /// with the cache.
    pub fn renew(&self, failure: &Failure) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(failure)?;
        replace(self.backing.as_ref(), MARK_FILE, &text)
    }

    /// Takes the marks away, durably: an operator has acted. If that cannot be made sure they are put
    /// back.
    pub fn remove(&self) -> io::Result<()> {
        let found = self.read();
        let removed = self.remove_file();
        if let (Err(_), Some(failure)) = (&removed, found) {
            self.write(&failure);
        }
        removed?;
        self.remove_stamp()
    }

    fn remove_file(&self) -> io::Result<()> {
        match self.backing.remove(MARK_FILE) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.backing.sync_dir("."),
        }
    }

    /// Takes away what an earlier store in this place has left outside of it.
    pub fn remove_stamp(&self) -> io::Result<()> {
        self.stamp.as_ref().map_or(Ok(()), |stamp| stamp.remove())
    }
}

/// The time of day, for marks.
pub type Clock = Box<dyn Fn() -> Timestamp + Send + Sync>;

/// Whether the disk of one store has failed, and what is done when it does.
pub struct Poison {
    marks: Marks,
    boot: BootId,
    clock: Clock,
    has_failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    /// Held while the marks are written.
    marking: Mutex<()>,
}

/// Why a call is refused.
#[derive(Debug, thiserror::Error)]
#[error("the disk of this store has failed and is only read until an operator acts ({0})")]
struct Refused(String);

impl Poison {
    /// Of a disk that bears the mark `found`, or none. `boot` is the run of the machine.
    pub fn new(marks: Marks, boot: BootId, clock: Clock, found: Option<Failure>) -> Self {
        Self {
            marks,
            boot,
            clock,
            has_failed: AtomicBool::new(found.is_some()),
            failure: Mutex::new(found),
            marking: Mutex::new(()),
        }
    }

    /// Whether the disk has failed. Costs nothing.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// How the disk has failed, if it has. The marks may still be on their way: for those who show
    /// it, not for those who act on it.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.lock().clone()
    }

    /// The disk has failed. Returns when that is noted, whoever was first.
    pub fn fail(&self, reason: &str) {
        let _marking = self.marking.lock();
        if self.has_failed() {
            return;
        }
        let failure = Failure {
            reason: reason.to_owned(),
            time: utc((self.clock)()),
            boot: Some(self.boot),
        };
        *self.failure.lock() = Some(failure.clone());
        // Before the marks, which may take long: nobody is to go on meanwhile.
        self.has_failed.store(true, Ordering::Release);
        tracing::error!(
            reason,
            "the disk has failed: nothing more is promised on it"
        );
        self.marks.write(&failure);
    }

    /// Refuses once the disk has failed and that is noted.
    fn check(&self) -> io::Result<()> {
        if !self.has_failed() {
            return Ok(());
        }
        drop(self.marking.lock());
        let failure = self.failure().map(|failure| failure.to_string());
        Err(io::Error::other(Refused(failure.unwrap_or_default())))
    }

    /// Passes on how a call went that only looks, or changes something.
    fn seen<T>(&self, what: &str, path: &str, result: io::Result<T>) -> io::Result<T> {
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
        self.seen(what, path, call())
    }

    /// Makes a sync. One that succeeded while another failed is not believed: the kernel may have
    /// told only the other of what both should have saved.
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

/// Whether a sync that failed so has reached the disk at all. One that has not took nothing with it.
pub(crate) fn was_tried(error: &io::Error) -> bool {
    !os_code(error).is_some_and(|code| NOT_TRIED.contains(&code))
}

/// Operation, path and cause: as the disk says it, if it says all of that.
fn describe(what: &str, path: &str, error: &io::Error) -> String {
    let below = error
        .get_ref()
        .and_then(|below| below.downcast_ref::<BackingFailure>());
    if below.is_some() {
        return error.to_string();
    }
    format!("cannot {what} {path}: {error}")
}

/// A time in UTC for people, such as `2025-11-20T21:46:00Z`.
pub fn utc(time: Timestamp) -> String {
    let moment = OffsetDateTime::from_unix_timestamp(time.secs).ok();
    let text = moment.and_then(|moment| moment.format(&Rfc3339).ok());
    text.unwrap_or_else(|| format!("{} s after 1970", time.secs))
}

/// A disk that is poisoned by its first failure.
pub struct Guarded {
    below: Arc<dyn Backing>,
    poison: Arc<Poison>,
}

impl Guarded {
    /// Guards `below`. What is opened past this is not guarded.
    pub fn new(below: Arc<dyn Backing>, poison: Arc<Poison>) -> Self {
        Self { below, poison }
    }

    fn file(&self, path: &str, file: Arc<dyn BackingFile>) -> Arc<dyn BackingFile> {
        Arc::new(GuardedFile {
            below: file,
            path: path.into(),
            poison: Arc::clone(&self.poison),
        })
    }
}

impl Backing for Guarded {
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        let opened = self.poison.seen("open", path, self.below.open(path))?;
        Ok(self.file(path, opened))
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        let open = || self.below.open_or_create(path);
        let opened = self.poison.change("open", path, open)?;
        Ok(self.file(path, opened))
    }

    /// What is stored in a table never fails, and is no promise about the disk.
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
        self.poison.seen("look for", path, self.below.exists(path))
    }

    fn stat(&self, path: &str) -> io::Result<BackingStat> {
        self.poison.seen("stat", path, self.below.stat(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.poison.seen("list", path, self.below.list(path))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.poison.sync(path, || self.below.sync_dir(path))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.poison.sync("everything", || self.below.sync_all())
    }

    fn space(&self) -> io::Result<Space> {
        self.poison.seen("stat", ".", self.below.space())
    }

    fn scatter(&self, directory: &str) {
        if !self.poison.has_failed() {
            self.below.scatter(directory);
        }
    }

    /// Whoever hears of the failure hears of it when it is noted.
    fn is_poisoned(&self) -> bool {
        self.poison.check().is_err()
    }

    fn poison(&self, reason: &str) {
        self.poison.fail(reason);
    }
}

/// A file of it.
struct GuardedFile {
    below: Arc<dyn BackingFile>,
    path: Box<str>,
    poison: Arc<Poison>,
}

impl GuardedFile {
    fn change(&self, what: &str, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.poison.change(what, &self.path, call)
    }

    fn seen<T>(&self, what: &str, result: io::Result<T>) -> io::Result<T> {
        self.poison.seen(what, &self.path, result)
    }
}

impl BackingFile for GuardedFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.seen("read", self.below.read_at(offset, into))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change("write", || self.below.write_at(offset, data))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.change("set the length of", || self.below.set_len(length))
    }

    fn stat(&self) -> io::Result<BackingStat> {
        self.seen("stat", self.below.stat())
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

    fn reserved(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        self.seen("look for reserved space in", self.below.reserved(offset))
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.seen("look for data in", self.below.seek_data(offset))
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.seen("look for holes in", self.below.seek_hole(offset))
    }

    fn sync(&self) -> io::Result<()> {
        self.poison.sync(&self.path, || self.below.sync())
    }
}

#[cfg(test)]
mod tests;
