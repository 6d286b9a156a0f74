//! One file in use: the open content file, and the state that the record of the inode does not have yet.
//!
//! All rules about that state are methods in this file. Another file of the crate sees no counter and no time.
//!
//! - **Size.** Clients see the ends of completed writes. A write that still waits for the peer does not count.
//! - **Slot.** A file owns a slot of the [`UnflushedTable`] from before the first byte of a write until a durable
//!   checkpoint has its size and time. While it owns a slot, its record may be behind.
//! - **Times.** See [`WriteTimes`].
//! - **Syncs.** See [`WriteCounts`] and [`SyncPoint`].
//! - **Failed writes.** A failed write may leave bytes beyond the size. When the last write under way ends, the
//!   content is cut to the size. An earlier cut could take the bytes of another write.
//!
//! Locks: `state` before `content`. [`OpenFile::write_ended`] holds `state` while it cuts the content, so no
//! write begins meanwhile. No other lock of the store is taken under `state`, but for the table of slots and those of the sums.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::{Ino, InodeFlags, Osn, StateVersion, Timestamp};
use parking_lot::{Mutex, RwLock};

use super::unflushed_table::{SlotNumber, UnflushedSlot, UnflushedTable};
use crate::error::StoreError;
use crate::paths::content_path;
use crate::sums::{NewBytes, SumKeeper};

/// A completed write: its number and its time.
pub type LastWrite = (Osn, Timestamp);

/// Opens the content file of an inode, if the content file exists.
pub fn open_content(
    backing: &dyn Backing,
    ino: Ino,
) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
    let path = content_path(ino);
    match backing.open(&path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::disk("open", path)(error)),
    }
}

/// One regular file in use.
pub struct OpenFile {
    ino: Ino,
    content: RwLock<Option<Arc<dyn BackingFile>>>,
    state: Mutex<OpenFileState>,
    /// A change may or may not have reached the content: clients must not see the bytes.
    is_indeterminate: AtomicBool,
    /// The flags in the record, for the check of each write.
    flags: AtomicU8,
}

/// State of a file that its record does not have yet.
struct OpenFileState {
    /// Size that clients see.
    size: u64,
    times: WriteTimes,
    writes: WriteCounts,
    slot: Option<SlotNumber>,
    /// A write has failed and may have left bytes beyond the size.
    needs_truncate: bool,
    /// The last sync that succeeded on both nodes.
    synced: Option<SyncPoint>,
}

/// The time of the last write, on its way into the record of the inode, the intent log and a checkpoint.
///
/// The write with the highest OSN decides the time, in any order of completion: so both nodes agree.
#[derive(Clone, Copy, Default)]
struct WriteTimes {
    /// The last completed write, until the record has its time.
    last_write: Option<LastWrite>,
    /// The last write whose time a checkpoint has put into the record, until the next checkpoint. A write with a
    /// lower number that completes late must not set the time back.
    folded: Option<Osn>,
    /// The last write whose time the intent log has.
    logged: Option<Osn>,
    /// A metadata operation has put the time of a write into the record, and neither the log nor a checkpoint has
    /// this time: the next sync logs the time.
    time_unlogged: bool,
}

impl WriteTimes {
    /// A write has completed.
    fn complete(&mut self, osn: Osn, time: Timestamp) {
        let newest = self.last_write.map(|(last, _)| last).max(self.folded);
        if newest.is_none_or(|newest| newest < osn) {
            self.last_write = Some((osn, time));
        }
    }

    /// Whether the log lacks the time of the last write, which the record lacks too.
    fn is_last_write_unlogged(&self) -> bool {
        let unlogged = self.last_write.filter(|(osn, _)| self.logged != Some(*osn));
        unlogged.is_some()
    }

    /// Whether a sync has to log the time.
    fn must_be_logged(&self) -> bool {
        self.time_unlogged || self.is_last_write_unlogged()
    }

    /// The log has the time of `last_write`. A write that has completed since is logged by the next sync.
    fn note_logged(&mut self, last_write: Option<LastWrite>) {
        self.logged = last_write.map(|(osn, _)| osn).or(self.logged);
        self.time_unlogged = false;
    }

    /// A metadata operation has put the time of the last write into the record. The table of slots keeps the time
    /// for a later process. A power loss leaves no table, so the log has to have the time as well.
    fn taken_into_record(&mut self) {
        self.time_unlogged |= self.is_last_write_unlogged();
        self.last_write = None;
    }

    /// A durable checkpoint has the time of the last write.
    fn checkpointed(&mut self) {
        self.folded = self.last_write.take().map(|(osn, _)| osn);
        self.time_unlogged = false;
    }

    /// The record has the times of the other node. A write whose time is replaced may be sent again, so no earlier
    /// write counts as folded or logged.
    fn replace(&mut self, last_write: Option<LastWrite>) {
        *self = Self {
            last_write,
            ..Self::default()
        };
    }
}

/// Counts of the writes of one file. A sync covers the writes that ended before it began.
struct WriteCounts {
    /// Writes begun and not yet ended.
    active: u32,
    /// Number of the last write begun. No two writes to any file have the same number.
    begun: u64,
    /// Number of the last nondurable write: one whose caller does not sync it. Before the first, a number that
    /// no write has.
    last_nondurable_write: u64,
    /// Nondurable writes that have ended.
    nondurable_ended: u64,
}

impl WriteCounts {
    fn begin(&mut self, number: u64, is_durable: bool) {
        self.active += 1;
        self.begun = number;
        if !is_durable {
            self.last_nondurable_write = number;
        }
    }

    /// Returns whether no other write is under way.
    fn end(&mut self, is_durable: bool) -> bool {
        self.active = self.active.saturating_sub(1);
        self.nondurable_ended += u64::from(!is_durable);
        self.active == 0
    }
}

/// The changes of a file that a sync covers: while the sync point stays the same, another sync has nothing to do.
/// A write under way may put its bytes in place before the sync or after it, so both its beginning and its end
/// change the sync point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPoint {
    last_nondurable_write: u64,
    nondurable_ended: u64,
    /// Highest metadata operation applied.
    applied: Osn,
    /// The state in which the sync counts: a sync of one node alone is no sync of both.
    state: StateVersion,
}

impl OpenFile {
    /// A file of this size by its record, without unflushed writes. No write ever has the number `unused`.
    pub(super) fn new(ino: Ino, size: u64, unused: u64) -> Self {
        Self {
            ino,
            content: RwLock::new(None),
            is_indeterminate: AtomicBool::new(false),
            flags: AtomicU8::new(InodeFlags::NONE.bits()),
            state: Mutex::new(OpenFileState {
                size,
                times: WriteTimes::default(),
                writes: WriteCounts {
                    active: 0,
                    begun: 0,
                    last_nondurable_write: unused,
                    nondurable_ended: 0,
                },
                slot: None,
                needs_truncate: false,
                synced: None,
            }),
        }
    }

    /// The record has these flags.
    pub fn set_flags(&self, flags: InodeFlags) {
        self.flags.store(flags.bits(), Ordering::Release);
    }

    /// The flags of the file.
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits(self.flags.load(Ordering::Acquire))
    }

    /// The inode of the file.
    pub const fn ino(&self) -> Ino {
        self.ino
    }

    /// Size that clients see.
    pub fn size(&self) -> u64 {
        self.state.lock().size
    }

    /// The last completed write whose time the record lacks.
    pub fn last_write(&self) -> Option<LastWrite> {
        self.state.lock().times.last_write
    }

    /// [`Self::size`] and [`Self::last_write`] at one moment.
    pub fn size_and_last_write(&self) -> (u64, Option<LastWrite>) {
        let state = self.state.lock();
        (state.size, state.times.last_write)
    }

    /// Whether the record may be behind.
    pub fn is_unflushed(&self) -> bool {
        self.state.lock().slot.is_some()
    }

    /// Whether a write is under way.
    pub fn is_written(&self) -> bool {
        self.state.lock().writes.active > 0
    }
}

/// Writes, from beginning to end.
impl OpenFile {
    /// Begins a write: makes sure that the file owns a slot, and counts the write. Returns `false`, and changes
    /// nothing, when the table has no free slot.
    pub(super) fn begin_write(
        &self,
        table: &UnflushedTable,
        number: impl FnOnce() -> u64,
        is_durable: bool,
    ) -> bool {
        let mut state = self.state.lock();
        if state.slot.is_none() {
            state.slot = table.take(&UnflushedSlot {
                ino: self.ino,
                last_write: state.times.last_write,
            });
        }
        let has_slot = state.slot.is_some();
        if has_slot {
            state.writes.begin(number(), is_durable);
        }
        has_slot
    }

    /// A nondurable write has put its bytes in place. It takes a number once more: a sync that ran since the write
    /// began has not covered these bytes.
    pub(super) fn nondurable_bytes_written(&self, number: impl FnOnce() -> u64) {
        self.state.lock().writes.last_nondurable_write = number();
    }

    /// Makes size and time of a write visible.
    pub(super) fn complete_write(
        &self,
        table: &UnflushedTable,
        end: u64,
        osn: Osn,
        time: Timestamp,
    ) {
        let mut state = self.state.lock();
        state.size = state.size.max(end);
        state.times.complete(osn, time);
        self.store_slot(&state, table);
    }

    fn store_slot(&self, state: &OpenFileState, table: &UnflushedTable) {
        if let Some(number) = state.slot {
            let slot = UnflushedSlot {
                ino: self.ino,
                last_write: state.times.last_write,
            };
            table.store(number, &slot);
        }
    }

    /// Bytes up to `end` are in place that belong to no write of a client: the times stay.
    pub fn grow_to(&self, end: u64) {
        let mut state = self.state.lock();
        state.size = state.size.max(end);
    }

    /// A write has failed and may have left bytes beyond the size.
    pub(super) fn mark_needs_truncate(&self) {
        self.state.lock().needs_truncate = true;
    }

    /// A write has ended. The last write under way cuts the bytes that failed writes left beyond the size. Returns
    /// whether the content was cut.
    pub(super) fn write_ended(&self, is_durable: bool, sums: &SumKeeper) -> bool {
        let mut state = self.state.lock();
        let is_last = state.writes.end(is_durable);
        let is_cut = is_last && std::mem::take(&mut state.needs_truncate);
        if is_cut {
            self.cut_content(state.size, sums);
        }
        is_cut
    }

    fn cut_content(&self, size: u64, sums: &SumKeeper) {
        let Some(content) = self.content.read().clone() else {
            return;
        };
        let cut = content.stat().and_then(|stat| {
            if stat.length > size {
                let cut = NewBytes::Zeros {
                    from: size,
                    to: u64::MAX,
                };
                sums.carry_out(self.ino, &cut, &*content, || content.set_len(size))
            } else {
                Ok(())
            }
        });
        if let Err(error) = cut {
            tracing::warn!(%error, ino = %self.ino, "could not take back a failed write");
        }
    }
}

/// The way of size and times into record, log and checkpoint.
impl OpenFile {
    /// The last write, and whether a sync has to log its time.
    pub fn time_to_log(&self) -> (Option<LastWrite>, bool) {
        let times = self.state.lock().times;
        (times.last_write, times.must_be_logged())
    }

    /// The last write, and whether a metadata operation has left a time to log.
    pub fn time_left_by_operation(&self) -> (Option<LastWrite>, bool) {
        let times = self.state.lock().times;
        (times.last_write, times.time_unlogged)
    }

    /// The log has the time of `last_write`.
    pub fn note_time_logged(&self, last_write: Option<LastWrite>) {
        self.state.lock().times.note_logged(last_write);
    }

    /// A metadata operation has written the record, with this size and the unflushed times.
    pub fn record_written(&self, size: u64) {
        let mut state = self.state.lock();
        state.size = size;
        state.times.taken_into_record();
    }

    /// The record has size and times of the other node; `last_write` is the write that the times belong to.
    pub fn replace(&self, table: &UnflushedTable, size: u64, last_write: Option<LastWrite>) {
        let mut state = self.state.lock();
        state.size = size;
        state.times.replace(last_write);
        self.store_slot(&state, table);
    }

    /// The last write begun, for a checkpoint that takes size and time into the record; `None` if a write is
    /// under way, whose size and time the record does not get.
    pub fn settled_write(&self) -> Option<u64> {
        let writes = &self.state.lock().writes;
        (writes.active == 0).then_some(writes.begun)
    }

    /// A checkpoint has size and time durably. Gives up the slot, unless a write has begun since `settled`.
    pub(super) fn checkpointed(&self, settled: Option<u64>) -> Option<SlotNumber> {
        let mut state = self.state.lock();
        if settled != Some(state.writes.begun) {
            return None;
        }
        state.times.checkpointed();
        state.slot.take()
    }

    /// Gives up the slot of a file that no longer exists.
    pub(super) fn take_slot(&self) -> Option<SlotNumber> {
        self.state.lock().slot.take()
    }

    /// The next checkpoint is durable: no write that began before the checkpoint of the folded time is under way.
    pub(super) fn forget_folded(&self) {
        self.state.lock().times.folded = None;
    }

    /// Whether the entry may be dropped: no other holder, and no state that the record lacks.
    pub(super) fn is_idle(file: &Arc<Self>) -> bool {
        let state = file.state.lock();
        Arc::strong_count(file) == 1 && state.slot.is_none() && state.times.folded.is_none()
    }
}

/// Syncs.
impl OpenFile {
    /// The sync point of a sync that begins now.
    pub(super) fn sync_point(&self, applied: Osn, state: StateVersion) -> SyncPoint {
        let writes = &self.state.lock().writes;
        SyncPoint {
            last_nondurable_write: writes.last_nondurable_write,
            nondurable_ended: writes.nondurable_ended,
            applied,
            state,
        }
    }

    /// A sync that covers `point` has succeeded.
    pub(super) fn note_synced(&self, point: SyncPoint) {
        self.state.lock().synced = Some(point);
    }

    /// The last sync that succeeded.
    pub(super) fn synced(&self) -> Option<SyncPoint> {
        self.state.lock().synced
    }
}

/// The content file.
impl OpenFile {
    /// The content file, if it is open.
    pub fn opened(&self) -> Option<Arc<dyn BackingFile>> {
        self.content.read().clone()
    }

    /// The content file, if it exists.
    pub fn content(
        &self,
        backing: &dyn Backing,
    ) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        if let Some(content) = &*self.content.read() {
            return Ok(Some(Arc::clone(content)));
        }
        let found = open_content(backing, self.ino)?;
        Ok(found.map(|content| Arc::clone(self.content.write().get_or_insert(content))))
    }

    /// The content file, created if it does not exist. `created` is called before another thread can write to the
    /// new file: a sync of such a write has to know that the name is new.
    pub(super) fn content_to_write(
        &self,
        backing: &dyn Backing,
        created: impl FnOnce(),
    ) -> Result<Arc<dyn BackingFile>, StoreError> {
        if let Some(content) = &*self.content.read() {
            return Ok(Arc::clone(content));
        }
        let mut opened = self.content.write();
        if let Some(content) = &*opened {
            return Ok(Arc::clone(content));
        }
        if let Some(content) = open_content(backing, self.ino)? {
            return Ok(Arc::clone(opened.insert(content)));
        }
        let path = content_path(self.ino);
        let content = backing.open_or_create(&path);
        let content = content.map_err(StoreError::disk("create", path))?;
        created();
        Ok(Arc::clone(opened.insert(content)))
    }

    /// A change may or may not have reached the content, and the record says that it did not.
    pub fn mark_indeterminate(&self) {
        self.is_indeterminate.store(true, Ordering::Release);
    }

    /// Whether the bytes of the content are unknown.
    pub fn is_indeterminate(&self) -> bool {
        self.is_indeterminate.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_types::Generation;

    fn osn(sequence: u64) -> Osn {
        Osn {
            generation: Generation::FIRST,
            sequence,
        }
    }

    fn time(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    #[test]
    fn the_highest_number_decides_the_time() {
        let mut times = WriteTimes::default();
        times.complete(osn(5), time(50));
        times.complete(osn(3), time(30));
        assert_eq!(times.last_write, Some((osn(5), time(50))));
        times.checkpointed();
        times.complete(osn(4), time(40));
        assert_eq!(times.last_write, None, "the record has a newer time");
        times.complete(osn(6), time(60));
        assert_eq!(times.last_write, Some((osn(6), time(60))));
    }

    #[test]
    fn a_time_stays_to_be_logged_until_log_or_checkpoint_has_it() {
        let mut times = WriteTimes::default();
        assert!(!times.must_be_logged());
        times.complete(osn(1), time(1));
        assert!(times.must_be_logged());
        times.note_logged(Some((osn(1), time(1))));
        assert!(!times.must_be_logged());
        times.complete(osn(2), time(2));
        times.taken_into_record();
        assert!(times.must_be_logged(), "a power loss leaves no table");
        times.checkpointed();
        assert!(!times.must_be_logged());
    }

    #[test]
    fn replaced_times_allow_an_earlier_write_again() {
        let mut times = WriteTimes::default();
        times.complete(osn(5), time(50));
        times.checkpointed();
        times.replace(None);
        times.complete(osn(4), time(40));
        assert_eq!(times.last_write, Some((osn(4), time(40))));
    }
}
