//! The trace of a node that serves alone: every place in which its copy may differ from the other one, on stable storage before the
//! change (rule P28). With it, the rest outlives a loss of power.
//!
//! The trace *begins* with all marks of the rest and of the columns since a barrier. From then on it gets
//!
//! - the region of each change of bytes, before the change. One sync puts the regions of all threads that wait on stable storage;
//! - nothing for a file that is made later: its number is not below the limit in the header, and all such files are in the trace;
//! - the keys of operations, before the checkpoint that takes the operations from the log. Until then the log has them.
//!
//! Invariants:
//! - While the header counts, the file has every place in which the copies may differ. So a change that the trace does not get
//!   ([`Trace::end`]) waits until the header is void.
//! - A new slot is written by one thread at a time, and by none while a trace is prepared.
//! - A disk without room ends the trace, and stops no change.
//!
//! Locks: the header ([`super::trace_file`]) before `state`. `state` is held during no call of the disk.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_delta::Interval;
use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::form::{Slot, add_key};
use super::kept::Lead;
use super::resync_part::ChangedRecords;
use super::trace_file::{LeftTrace, TraceFile, TraceWords};
use super::traced_places::TracedPlaces;
use crate::error::StoreError;

/// The part of the trace that a thread adds to at once.
#[derive(Default)]
struct TraceState {
    /// Changes are noted.
    is_active: bool,
    /// The trace says nothing about the other copy any more. The next change waits until the header is void.
    is_over: bool,
    /// Whether a write of slots has failed, for want of room or otherwise.
    failed: Option<bool>,
    places: TracedPlaces,
    /// Slots that no thread has written yet.
    queue: Vec<Slot>,
    /// The number of the first of them.
    next_slot: usize,
    /// The batch of the queue. Batches up to `synced` are on stable storage.
    batch: u64,
    synced: u64,
    is_syncing: bool,
    /// All files from this number on are in the header, or are about to be with the batch of the queue.
    files_from: u64,
    /// The batch with which the header has got `files_from`.
    files_from_batch: u64,
}

/// The keys of the trace.
#[derive(Default)]
struct TracedKeys {
    /// Keys in the file.
    known: BTreeSet<Vec<u8>>,
    /// Keys that the file lacks.
    owed: BTreeSet<Vec<u8>>,
    /// Bytes of the keys in the file.
    length: usize,
    /// Any record may differ.
    all: bool,
    /// The header says so.
    all_is_noted: bool,
}

/// The marks and the copies of which a trace speaks.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceSubject {
    /// The trace has all marks of the intervals after this one.
    pub live_after: Interval,
    /// The open interval.
    pub open: Interval,
    /// The copies of which the rest speaks.
    pub lead: Lead,
}

/// See the head of this file.
pub struct Trace {
    file: TraceFile,
    state: Mutex<TraceState>,
    ended: Condvar,
    keys: Mutex<TracedKeys>,
    /// A copy of the flag in `state`.
    is_active: AtomicBool,
    /// The number of the present opening of the store.
    epoch: Mutex<u32>,
    /// The rest of this process has begun with the trace.
    begins_rest: AtomicBool,
    /// It has begun with the copy at a barrier of a resync.
    has_rest_of_copy: AtomicBool,
}

/// Begin and end.
impl Trace {
    /// The trace in this file. It goes on with the trace that an earlier process has left, which is on stable storage then. The store notes
    /// the number of the present opening behind this call.
    ///
    /// # Errors
    /// If the disk fails.
    pub(super) fn open(file: TraceFile, left: Option<&LeftTrace>) -> Result<Self, StoreError> {
        let trace = Self {
            file,
            state: Mutex::default(),
            ended: Condvar::new(),
            keys: Mutex::default(),
            is_active: AtomicBool::new(false),
            epoch: Mutex::new(0),
            begins_rest: AtomicBool::new(false),
            has_rest_of_copy: AtomicBool::new(false),
        };
        if let Some(left) = left {
            trace.go_on(left);
            let begun = trace.file.begin_opening();
            trace.unless_full(begun)?;
        }
        Ok(trace)
    }

    fn go_on(&self, left: &LeftTrace) {
        let mut state = self.state.lock();
        *state = TraceState {
            is_active: true,
            next_slot: left.used_below,
            batch: 1,
            files_from: left.words.files_from,
            ..TraceState::default()
        };
        for slot in &left.slots {
            state.places.take(*slot);
        }
        if left.has_broken_slot {
            (state.files_from, state.files_from_batch) = (1, 1);
        }
        let mut keys = self.keys.lock();
        keys.known = left.keys.keys.iter().cloned().collect();
        keys.length = left.keys.length;
        keys.all = left.words.all_records || left.keys.is_broken;
        self.is_active.store(true, Ordering::Release);
        *self.epoch.lock() = left.words.epoch;
    }

    /// The rest of this process has begun with the trace.
    pub(super) fn note_begin_of_rest(&self) {
        self.begins_rest.store(true, Ordering::Release);
    }

    /// The rest of this process has begun with the copy at a barrier of a resync (rule P30).
    pub(super) fn note_rest_of_copy(&self) {
        self.has_rest_of_copy.store(true, Ordering::Release);
    }

    /// Whether the rest of this process has begun with the trace, which has not ended since, or with a copy.
    pub fn begins_rest(&self) -> bool {
        self.has_rest_of_copy.load(Ordering::Acquire)
            || self.is_active() && self.begins_rest.load(Ordering::Acquire)
    }

    /// Ends a trace that says nothing about the other copy any more.
    ///
    /// # Errors
    /// As [`Self::end`].
    pub fn end_if_over(&self) -> Result<(), StoreError> {
        if self.is_over() {
            return self.end();
        }
        Ok(())
    }

    /// Whether changes are noted.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// The store has noted that this is the opening `epoch`.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn opened(&self, epoch: u32) -> Result<(), StoreError> {
        *self.epoch.lock() = epoch;
        let noted = self.file.change_words(|words| {
            (words.epoch, words.is_opening) = (epoch, false);
        });
        self.unless_full(noted)
    }

    /// Makes the file of a trace that is about to begin. One thread at a time.
    ///
    /// # Errors
    /// If the disk fails or is full.
    pub fn prepare(&self) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        while state.is_syncing {
            self.ended.wait(&mut state);
        }
        drop(state);
        self.file.prepare()
    }

    /// Changes are noted from now on. The file is empty ([`Self::prepare`]), and does not count before [`Self::complete`].
    /// `ino_limit`: no file has this number or a later one.
    pub fn begin(&self, ino_limit: u64) {
        let mut state = self.state.lock();
        *state = TraceState {
            is_active: true,
            batch: 1,
            files_from: ino_limit,
            ..TraceState::default()
        };
        *self.keys.lock() = TracedKeys::default();
        self.is_active.store(true, Ordering::Release);
    }

    /// The trace counts from now on, if it has not ended meanwhile.
    ///
    /// # Errors
    /// If the disk fails or is full.
    pub(super) fn complete(&self, about: TraceSubject) -> Result<(), StoreError> {
        let done = self.try_complete(about);
        if done.is_err() {
            // The header may be there.
            self.end()?;
        }
        done.inspect_err(|error| self.file.poison(error))
    }

    fn try_complete(&self, about: TraceSubject) -> Result<(), StoreError> {
        let batch = self.state.lock().batch;
        self.until_synced(batch)?;
        self.put_owed()?;
        let (files_from, all_records) = {
            let (state, mut keys) = (self.state.lock(), self.keys.lock());
            keys.all_is_noted = keys.all;
            (state.files_from, keys.all)
        };
        let beyond = if is_active(Mutant::NewInodeBelowLimit) {
            1 << 20
        } else {
            0
        };
        let words = TraceWords {
            epoch: *self.epoch.lock(),
            is_opening: false,
            live_after: about.live_after.get(),
            open: about.open.get(),
            lead: about.lead,
            slots: self.file.slots(),
            files_from: files_from + beyond,
            all_records,
        };
        self.file.set_words(words, || {
            let state = self.state.lock();
            state.is_active && !state.is_over && state.failed.is_none()
        })?;
        Ok(())
    }

    /// The trace says nothing about the other copy any more. Changes memory only: the next change ends it.
    pub fn note_over(&self) {
        if self.is_active() {
            self.state.lock().is_over = true;
        }
    }

    /// Whether the next change ends the trace.
    pub fn is_over(&self) -> bool {
        self.is_active() && self.state.lock().is_over
    }

    /// The trace does not count when this returns, also after a loss of power, and no change is noted.
    ///
    /// # Errors
    /// If the disk fails or is full. Then the trace may count, and the next change tries again.
    pub fn end(&self) -> Result<(), StoreError> {
        self.state.lock().is_over = true;
        let ended = self.file.void_and(|| {
            let mut state = self.state.lock();
            (state.is_active, state.is_over) = (false, false);
            (state.failed, state.places) = (None, TracedPlaces::default());
            *self.keys.lock() = TracedKeys::default();
            self.is_active.store(false, Ordering::Release);
        });
        self.ended.notify_all();
        ended.inspect_err(|error| self.file.poison(error))
    }

    /// A full disk ends the trace.
    fn unless_full(&self, done: Result<(), StoreError>) -> Result<(), StoreError> {
        match done {
            Err(error) if error.is_full_disk() => self.end(),
            Err(error) => {
                self.file.poison(&error);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Bytes.
impl Trace {
    /// Bytes of a file are about to change. Returns when the trace has them on stable storage. `is_alone`: the rest has them, too;
    /// otherwise the trace ends.
    ///
    /// # Errors
    /// If the disk fails, or is full and cannot end the trace. Then the change must not be made.
    pub fn before_change(
        &self,
        ino: Ino,
        bytes: &Range<u64>,
        is_alone: bool,
    ) -> Result<(), StoreError> {
        if !self.is_active() {
            return Ok(());
        }
        let batch = {
            let mut state = self.state.lock();
            if !state.is_active {
                return Ok(());
            }
            if !is_alone || state.is_over {
                drop(state);
                return self.end();
            }
            state.need(ino, bytes, self.file.slots())
        };
        if is_active(Mutant::MarkUndurableAlone) {
            return Ok(());
        }
        let synced = self.until_synced(batch);
        self.unless_full(synced)
    }

    /// Adds bytes that may differ already, and whose slots the next batch has.
    pub fn add(&self, ino: Ino, bytes: &Range<u64>) {
        let mut state = self.state.lock();
        if ino.get() < state.files_from {
            let batch = state.batch;
            let new = state.places.add(ino, bytes, batch);
            state.push(new, self.file.slots());
        }
    }

    /// Adds all files from this number on.
    pub fn add_files_from(&self, number: u64) {
        self.state.lock().note_files_from(number);
    }

    /// Returns when this batch, and those before, are on stable storage: one thread writes them, and the others wait.
    fn until_synced(&self, batch: u64) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        loop {
            // A trace that has ended needs nothing.
            if state.synced >= batch || !state.is_active {
                return Ok(());
            }
            if let Some(is_full) = state.failed {
                drop(state);
                return if is_full {
                    self.end()
                } else {
                    Err(StoreError::Poisoned)
                };
            }
            if state.is_syncing {
                self.ended.wait(&mut state);
            } else {
                state = self.write_batch(state)?;
            }
        }
    }

    /// Writes the queue.
    fn write_batch<'a>(
        &'a self,
        mut state: MutexGuard<'a, TraceState>,
    ) -> Result<MutexGuard<'a, TraceState>, StoreError> {
        state.is_syncing = true;
        let queue = std::mem::take(&mut state.queue);
        let (first, batch) = (state.next_slot, state.batch);
        state.next_slot += queue.len();
        state.batch += 1;
        let files_from = (state.files_from_batch == batch).then_some(state.files_from);
        drop(state);
        let written = self.write(first, &queue, files_from);
        let mut state = self.state.lock();
        state.is_syncing = false;
        match &written {
            Ok(()) => state.synced = batch,
            Err(error) => state.failed = Some(error.is_full_disk()),
        }
        self.ended.notify_all();
        match written {
            Err(error) if !error.is_full_disk() => {
                drop(state);
                self.file.poison(&error);
                Err(error)
            }
            _ => Ok(state),
        }
    }

    fn write(
        &self,
        first: usize,
        queue: &[Slot],
        files_from: Option<u64>,
    ) -> Result<(), StoreError> {
        if !queue.is_empty() {
            let bytes: Vec<u8> = queue.iter().flat_map(|slot| slot.encode()).collect();
            self.file.put_slots(first, &bytes)?;
        }
        files_from.map_or(Ok(()), |number| {
            self.file
                .change_words(|words| words.files_from = words.files_from.min(number))
        })
    }
}

impl TraceState {
    /// The batch that a change needs. `slots`: those of the file.
    fn need(&mut self, ino: Ino, bytes: &Range<u64>, slots: usize) -> u64 {
        if ino.get() >= self.files_from {
            return self.files_from_batch;
        }
        let needed = self.places.change(ino, bytes, self.batch);
        self.push(needed.new, slots);
        if ino.get() >= self.files_from {
            return self.files_from_batch;
        }
        needed.batch
    }

    fn push(&mut self, new: Vec<Slot>, slots: usize) {
        if self.next_slot + self.queue.len() + new.len() > slots {
            self.note_files_from(1);
        } else {
            self.queue.extend(new);
        }
    }

    fn note_files_from(&mut self, number: u64) {
        if number < self.files_from {
            (self.files_from, self.files_from_batch) = (number, self.batch);
        }
    }
}

/// Keys.
impl Trace {
    /// Keys of records that are about to change. The log has their operations until a checkpoint.
    pub fn owe_keys<'a>(&self, keys: impl Iterator<Item = &'a Vec<u8>>) {
        let mut traced = self.keys.lock();
        if traced.all {
            return;
        }
        for key in keys {
            if !traced.known.contains(key) {
                traced.owed.insert(key.clone());
            }
        }
    }

    /// Adds records that may differ already.
    pub(super) fn owe_records(&self, records: &ChangedRecords) {
        self.owe_keys(records.keys.iter());
        self.keys.lock().all |= records.all;
    }

    /// A checkpoint is about to take operations from the log. Puts the keys of all operations so far on stable storage. One thread at a
    /// time.
    ///
    /// # Errors
    /// If the disk fails, or is full and cannot end the trace. Then no checkpoint must be made.
    pub fn before_checkpoint(&self) -> Result<(), StoreError> {
        if !self.is_active() || is_active(Mutant::KeysCutWithLog) {
            return Ok(());
        }
        let put = self.put_owed();
        self.unless_full(put)
    }

    fn put_owed(&self) -> Result<(), StoreError> {
        let (at, taken, run) = {
            let mut keys = self.keys.lock();
            let taken: BTreeSet<Vec<u8>> = keys.owed.clone();
            let mut run = Vec::new();
            for key in &taken {
                add_key(&mut run, key);
            }
            keys.all |= keys.length + run.len() > self.file.key_bytes();
            (keys.length, taken, run)
        };
        if self.keys.lock().all {
            return self.note_all_records();
        }
        if run.is_empty() {
            return Ok(());
        }
        self.file.put_keys(at, &run)?;
        let mut keys = self.keys.lock();
        keys.length = at + run.len();
        keys.owed.retain(|key| !taken.contains(key));
        keys.known.extend(taken);
        Ok(())
    }

    fn note_all_records(&self) -> Result<(), StoreError> {
        if self.keys.lock().all_is_noted {
            return Ok(());
        }
        self.file.change_words(|words| words.all_records = true)?;
        let mut keys = self.keys.lock();
        keys.all_is_noted = true;
        (keys.owed, keys.known) = (BTreeSet::new(), BTreeSet::new());
        Ok(())
    }
}
