//! The file of the trace, `tables/trace`: a header, region marks in slots, and keys, on stable storage (rule P28).
//!
//! | Place | Form |
//! |---|---|
//! | first 8 KiB | two headers of 4 KiB. Each change of the header writes the other one; the one with the higher number counts |
//! | first half of the rest | slots of 32 bytes ([`form`](super::form)), one behind the other |
//! | second half of the rest | keys, one behind the other; zeros behind |
//!
//! A header says whether the trace counts, and for which opening of the store. A slot or a key that cannot be read counts as much as
//! it could have said: a slot as all content, and a key as all records.
//!
//! Invariants:
//! - Each function that changes the file returns when the change is on stable storage.
//! - The file has its length, and its space, before a header says that the trace counts. So a full disk stops no later change of a
//!   disk that overwrites in place.
//!
//! Locks: that of the header is held across its change. No lock of another file is taken below it.

use std::io;
use std::sync::Arc;

use lockstep_delta::Interval;
use lockstep_types::backing::{Backing, BackingFile};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::form::{FoundKeys, FoundSlot, SLOT_BYTES, Slot, read_keys, seal, unseal};
use super::kept::Lead;
use crate::error::StoreError;
use crate::namespace::last_use::LastUse;
use crate::paths::{TABLES_DIR, TRACE_FILE};

/// The version of this form.
const VERSION: u16 = 1;
/// Bytes of one of the two headers. A disk writes each of them by itself.
const HEADER_BYTES: u64 = 4096;
/// Where the slots begin.
const SLOTS_AT: u64 = 2 * HEADER_BYTES;
/// Most slots of a file that is read.
const SLOTS_MAX: usize = 1 << 20;
/// Bytes that are written at once when the file is made.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The words of a trace that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TraceWords {
    /// The opening of the store that has left the trace.
    pub epoch: u32,
    /// The trace is of an earlier opening, and the store notes its next number at this moment: each later number counts.
    pub is_opening: bool,
    /// The trace has all marks of the intervals after this one.
    pub live_after: u64,
    /// The interval that was open when the trace began. No later one is heard of.
    pub open: u64,
    /// The copies of which the rest speaks.
    pub lead: Lead,
    /// Slots of the file. A file of another length has its keys in another place.
    pub slots: usize,
    /// All files from this number on may differ: the new ones, or more.
    pub files_from: u64,
    /// Any record may differ.
    pub all_records: bool,
}

/// The content of a header.
#[derive(Clone, Serialize, Deserialize)]
struct TraceNote {
    version: u16,
    /// Counts the changes of the header.
    number: u64,
    /// `None`: the trace does not count.
    words: Option<TraceWords>,
}

/// A trace that counts, as an earlier process has left it.
pub(super) struct LeftTrace {
    pub words: TraceWords,
    pub slots: Vec<Slot>,
    /// A slot cannot be read.
    pub has_broken_slot: bool,
    /// Slots from this number on were never used.
    pub used_below: usize,
    pub keys: FoundKeys,
    /// The machine has lost power since.
    pub is_of_lost_run: bool,
}

/// The intervals of a trace.
#[derive(Clone, Copy)]
pub(super) struct TracedIntervals {
    /// The rest has all marks of the intervals after this one.
    pub live_after: Interval,
    /// The interval that was open.
    pub open: Interval,
}

impl LeftTrace {
    /// The intervals of the trace.
    pub const fn intervals(&self) -> TracedIntervals {
        TracedIntervals {
            live_after: Interval::new(self.words.live_after),
            open: Interval::new(self.words.open),
        }
    }
}

/// The header in memory.
struct HeaderState {
    /// The number of the last change.
    number: u64,
    words: Option<TraceWords>,
}

/// See the head of this file.
pub(super) struct TraceFile {
    backing: Arc<dyn Backing>,
    slots: usize,
    header: Mutex<HeaderState>,
    /// The file, from the first use on.
    file: Mutex<Option<Arc<dyn BackingFile>>>,
}

/// Begin and end.
impl TraceFile {
    /// Reads the trace of a store, with the trace in it if it counts. `slots`: those of the next file.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn open(
        backing: Arc<dyn Backing>,
        slots: usize,
        last_use: LastUse,
    ) -> Result<(Self, Option<LeftTrace>), StoreError> {
        let file = match backing.open(TRACE_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened.map_err(StoreError::disk("open", TRACE_FILE))?),
        };
        let newest = file.as_deref().map(read_header).transpose();
        let newest = newest.map_err(StoreError::disk("read", TRACE_FILE))?;
        let newest = newest.flatten();
        let words = newest.as_ref().and_then(|note| note.words.clone());
        let counts = |words: &TraceWords| {
            let later = words.is_opening && words.epoch < last_use.epoch;
            (words.epoch == last_use.epoch || later) && words.slots <= SLOTS_MAX
        };
        let left = match (&file, words.clone().filter(counts)) {
            (Some(file), Some(words)) => {
                let is_of_lost_run = last_use.last_boot.is_some_and(|last| last != last_use.boot);
                let left = read_left(&**file, words, is_of_lost_run);
                Some(left.map_err(StoreError::disk("read", TRACE_FILE))?)
            }
            _ => None,
        };
        let header = HeaderState {
            number: newest.map_or(0, |note| note.number),
            // Also those of another opening: they are taken back before the file changes.
            words,
        };
        let opened = Self {
            backing,
            slots: left.as_ref().map_or(slots, |left| left.words.slots),
            header: Mutex::new(header),
            file: Mutex::new(file),
        };
        Ok((opened, left))
    }

    /// Slots of the file.
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes for keys.
    pub const fn key_bytes(&self) -> usize {
        self.slots * SLOT_BYTES
    }

    /// Makes the file, empty, with room for as many slots and keys as it may get. The trace does not count.
    ///
    /// # Errors
    /// If the disk fails or is full.
    pub fn prepare(&self) -> Result<(), StoreError> {
        self.void()?;
        let length = SLOTS_AT + 2 * bytes(self.slots * SLOT_BYTES);
        let opened = self.backing.open_or_create(TRACE_FILE);
        let file = opened.map_err(StoreError::disk("make", TRACE_FILE))?;
        let made = file.stat().and_then(|stat| {
            if stat.length < length {
                file.allocate(0, length, false)?;
            }
            write_zeros(&*file, SLOTS_AT, length)?;
            file.sync()
        });
        made.map_err(StoreError::disk("make", TRACE_FILE))?;
        let named = self.backing.sync_dir(TABLES_DIR);
        named.map_err(StoreError::disk("sync the names in", TABLES_DIR))?;
        *self.file.lock() = Some(file);
        Ok(())
    }

    /// The disk has failed: nothing is promised any more (P16).
    pub fn poison(&self, error: &StoreError) {
        let is_of_disk = matches!(error, StoreError::Disk { .. });
        if is_of_disk && error.poisons() && !error.is_full_disk() {
            self.backing.poison(&error.to_string());
        }
    }
}

/// The header.
impl TraceFile {
    /// The trace counts from now on, unless `may_count` refuses.
    ///
    /// # Errors
    /// If the disk fails or is full. Then the trace may count or not.
    pub fn set_words(
        &self,
        words: TraceWords,
        may_count: impl FnOnce() -> bool,
    ) -> Result<bool, StoreError> {
        let mut header = self.header.lock();
        if !may_count() {
            return Ok(false);
        }
        self.put_header(&mut header, Some(words))?;
        Ok(true)
    }

    /// Puts the trace that counts on stable storage, as an earlier process has left it. The store notes the number of the next opening
    /// then.
    ///
    /// # Errors
    /// If the disk fails or is full.
    pub fn begin_opening(&self) -> Result<(), StoreError> {
        let mut header = self.header.lock();
        let words = header.words.clone().map(|words| TraceWords {
            is_opening: true,
            ..words
        });
        self.put_header(&mut header, words)
    }

    /// Changes the words of a trace that counts.
    ///
    /// # Errors
    /// If the disk fails or is full.
    pub fn change_words(&self, change: impl FnOnce(&mut TraceWords)) -> Result<(), StoreError> {
        let mut header = self.header.lock();
        let Some(mut words) = header.words.clone() else {
            return Ok(());
        };
        change(&mut words);
        if header.words.as_ref() == Some(&words) {
            return Ok(());
        }
        self.put_header(&mut header, Some(words))
    }

    /// The trace does not count when this returns.
    ///
    /// # Errors
    /// If the disk fails or is full. Then the trace may count or not.
    pub fn void(&self) -> Result<(), StoreError> {
        self.void_and(|| ())
    }

    /// The same, and calls `over` before another thread changes the header.
    ///
    /// # Errors
    /// As [`Self::void`].
    pub fn void_and(&self, over: impl FnOnce()) -> Result<(), StoreError> {
        let mut header = self.header.lock();
        if header.words.is_some() {
            self.put_header(&mut header, None)?;
        }
        over();
        Ok(())
    }

    fn put_header(
        &self,
        header: &mut HeaderState,
        words: Option<TraceWords>,
    ) -> Result<(), StoreError> {
        header.number += 1;
        let note = TraceNote {
            version: VERSION,
            number: header.number,
            words: words.clone(),
        };
        let sealed = seal(&postcard::to_allocvec(&note).unwrap_or_default());
        let written = self.file().and_then(|file| {
            file.write_at(header.number % 2 * HEADER_BYTES, &sealed)?;
            file.sync()
        });
        // The words of before may count still after a failure: the next change of the header begins with them.
        header.words = match (&written, words) {
            (Err(_), None) => header.words.take(),
            (_, words) => words,
        };
        written.map_err(StoreError::disk("write", TRACE_FILE))
    }
}

/// Marks.
impl TraceFile {
    /// Puts slots behind those that are there.
    pub fn put_slots(&self, first: usize, slots: &[u8]) -> Result<(), StoreError> {
        self.put(SLOTS_AT + bytes(first * SLOT_BYTES), slots)
    }

    /// Puts keys behind those that are there.
    pub fn put_keys(&self, at: usize, run: &[u8]) -> Result<(), StoreError> {
        let keys_at = SLOTS_AT + bytes(self.slots * SLOT_BYTES);
        self.put(keys_at + bytes(at), run)
    }

    fn put(&self, at: u64, run: &[u8]) -> Result<(), StoreError> {
        let put = self.file().and_then(|file| {
            file.write_at(at, run)?;
            file.sync()
        });
        put.map_err(StoreError::disk("write", TRACE_FILE))
    }

    fn file(&self) -> io::Result<Arc<dyn BackingFile>> {
        let file = self.file.lock().clone();
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

const fn bytes(count: usize) -> u64 {
    count as u64
}

fn write_zeros(file: &dyn BackingFile, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let count = bytes(ZEROS.len()).min(to - at);
        let (zeros, _) = ZEROS.split_at(usize::try_from(count).unwrap_or(0));
        file.write_at(at, zeros)?;
        at += count;
    }
    Ok(())
}

fn read_header(file: &dyn BackingFile) -> io::Result<Option<TraceNote>> {
    let mut newest: Option<TraceNote> = None;
    for slot in 0..2 {
        let mut bytes = [0; 512];
        file.read_at(slot * HEADER_BYTES, &mut bytes)?;
        let note: Option<TraceNote> =
            unseal(&bytes).and_then(|body| postcard::from_bytes(body).ok());
        let is_newer = |note: &TraceNote| {
            note.version == VERSION && newest.as_ref().is_none_or(|it| note.number > it.number)
        };
        newest = note.filter(is_newer).or(newest);
    }
    Ok(newest)
}

fn read_left(
    file: &dyn BackingFile,
    words: TraceWords,
    is_of_lost_run: bool,
) -> io::Result<LeftTrace> {
    let area = words.slots * SLOT_BYTES;
    let mut content = vec![0; 2 * area];
    let count = file.read_at(SLOTS_AT, &mut content)?;
    let (slot_bytes, key_bytes) = content.split_at(area);
    let (mut slots, mut has_broken_slot, mut used_below) = (Vec::new(), false, 0);
    for (number, slot) in slot_bytes.as_chunks().0.iter().enumerate() {
        match Slot::decode(slot) {
            FoundSlot::Free => continue,
            FoundSlot::Used(slot) => slots.push(slot),
            FoundSlot::Broken => has_broken_slot = true,
        }
        used_below = number + 1;
    }
    Ok(LeftTrace {
        words,
        slots,
        has_broken_slot: has_broken_slot || count < content.len(),
        used_below,
        keys: read_keys(key_bytes),
        is_of_lost_run,
    })
}
