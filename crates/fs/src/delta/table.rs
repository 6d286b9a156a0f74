//! A table of marks: memory that outlives the process. [`form`](super::form) has its form. A store has three of them: `tables/delta`
//! with the delta of a node that is alone, and `tables/marks.0` and `tables/marks.1` with the columns of the mirrored intervals.
//!
//! The file of a store keeps its length. A disk without room for a table gets one in memory, whose marks then end with the process.
//!
//! A table counts only for the opening of the store that has left it ([`LastUse`]): not after a loss of power, and not beside a copy
//! of the store of another opening.

use std::sync::Arc;

use lockstep_types::backing::{Backing, BackingTable};
use lockstep_types::mutants::{Mutant, is_active};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::form::{
    FoundKeys, FoundSlot, HEADER_BYTES, Header, SLOT_BYTES, Slot, TableStamp, read_keys,
};
use crate::backing::overlay::Table;
use crate::error::StoreError;
use crate::namespace::last_use::LastUse;
use crate::paths::{DELTA_FILE, MARK_FILES, TABLES_DIR};

/// Bytes of the least and of the greatest table.
const TABLE_BYTES_MIN: usize = HEADER_BYTES + 2 * SLOT_BYTES * SLOTS_MIN;
const TABLE_BYTES_MAX: usize = HEADER_BYTES + (64 << 20);
/// Slots of the least table.
const SLOTS_MIN: usize = 8;
/// Slots that are read at once.
const READ_SLOTS: usize = 256;
/// Bytes that are written over a header to void it.
const VOID: [u8; 256] = [0; 256];

impl LastUse {
    /// Whether a table with this stamp is as new as the store.
    fn has_kept(&self, stamp: &TableStamp) -> bool {
        // A loss of power leaves the table in some state of before.
        if self.last_boot.is_some_and(|last| last != self.boot) {
            return false;
        }
        // A copy of the store that was put back is of another opening than the table, or the other way round.
        let is_of_opening =
            stamp.epoch == self.epoch || (stamp.is_opening && stamp.epoch < self.epoch);
        let is_of_shutdown = self.last_boot.is_none() && stamp.is_closed;
        (is_of_opening || is_active(Mutant::MarksOfOldCopy))
            && (stamp.boot == self.boot || is_of_shutdown)
    }

    /// The stamp of a table from the opening on.
    const fn stamp(&self) -> TableStamp {
        TableStamp {
            boot: self.boot,
            epoch: self.epoch,
            is_opening: true,
            is_closed: false,
        }
    }
}

/// Slots of the tables that a store does not have yet. The other half of each table holds keys, in as many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkTableSizes {
    /// Slots of the table of the delta.
    pub delta_slots: usize,
    /// Slots of each of the two columns of the mirrored intervals.
    pub column_slots: usize,
}

impl MarkTableSizes {
    /// The same number of slots in each table.
    pub const fn of(slots: usize) -> Self {
        Self {
            delta_slots: slots,
            column_slots: slots,
        }
    }
}

impl Default for MarkTableSizes {
    /// 65,536 slots, and 2 MiB of keys, in each table.
    fn default() -> Self {
        Self::of(64 << 10)
    }
}

/// Bytes of a table with this number of slots.
fn bytes_of(slots: usize) -> usize {
    (HEADER_BYTES + 2 * slots * SLOT_BYTES).clamp(TABLE_BYTES_MIN, TABLE_BYTES_MAX)
}

/// The marks that the last process has left.
pub(super) struct LeftTable<T> {
    pub header: Header<T>,
    /// Slots that are not free.
    pub slots: Vec<(usize, FoundSlot)>,
    pub keys: FoundKeys,
}

/// See the head of this file.
pub struct MarkTable {
    table: Arc<dyn BackingTable>,
    last_use: LastUse,
    slots: usize,
    /// The store had no such table.
    is_new: bool,
}

impl MarkTable {
    /// Opens a table of a store, or makes one with this number of slots.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn open(
        backing: &dyn Backing,
        path: &'static str,
        slots: usize,
        last_use: LastUse,
    ) -> Result<Self, StoreError> {
        let (length, is_new) = match backing.stat(path) {
            Ok(stat) => {
                let length = usize::try_from(stat.length).unwrap_or(TABLE_BYTES_MAX);
                (length.clamp(TABLE_BYTES_MIN, TABLE_BYTES_MAX), false)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => (bytes_of(slots), true),
            Err(error) => return Err(StoreError::disk("stat", path)(error)),
        };
        let opened = backing.open_table(path, length);
        let table = match opened.map_err(StoreError::disk("open", path)) {
            Err(error) if error.is_full_disk() => {
                tracing::warn!(path, %error, "the marks of this table will not outlive the process");
                Arc::new(Table::empty(length))
            }
            opened => opened?,
        };
        Ok(Self {
            is_new,
            ..Self::over(table, last_use)
        })
    }

    /// A table in memory, of a store that was closed.
    #[cfg(test)]
    pub(super) fn in_memory(slots: usize) -> Self {
        let table = Table::empty(HEADER_BYTES + 2 * slots * SLOT_BYTES);
        Self::over(Arc::new(table), LastUse::of_test())
    }

    /// The table in this memory.
    pub(super) fn over(table: Arc<dyn BackingTable>, last_use: LastUse) -> Self {
        let slots = (table.len() - HEADER_BYTES) / 2 / SLOT_BYTES;
        Self {
            table,
            last_use,
            slots,
            is_new: false,
        }
    }

    pub(super) const fn slots(&self) -> usize {
        self.slots
    }

    /// The stamp of the table from this opening on.
    pub(super) const fn stamp(&self) -> TableStamp {
        self.last_use.stamp()
    }

    /// Whether the table had no words that are lost: it was there, and its header was void or can be read.
    pub(super) fn has_kept_words<T: Serialize + DeserializeOwned>(&self) -> bool {
        let header = self.read_header();
        let is_void = header.iter().all(|byte| *byte == 0);
        !self.is_new && (is_void || self.header_in::<T>(&header).is_some())
    }

    /// Where the keys begin.
    const fn keys_at(&self) -> usize {
        HEADER_BYTES + self.slots * SLOT_BYTES
    }

    /// Bytes for keys.
    pub(super) fn key_bytes(&self) -> usize {
        self.table.len() - self.keys_at()
    }

    fn read_header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        self.table.load(0, &mut header);
        header
    }

    fn header_in<T: Serialize + DeserializeOwned>(&self, bytes: &[u8]) -> Option<Header<T>> {
        let is_whole = |header: &Header<T>| header.slots == self.slots;
        let header = Header::decode(bytes).filter(is_whole)?;
        self.last_use.has_kept(&header.stamp).then_some(header)
    }

    /// The marks that the last process has left; `None` if the table has none that are as new as the store.
    pub(super) fn left<T: Serialize + DeserializeOwned>(&self) -> Option<LeftTable<T>> {
        let header = self.header_in(&self.read_header())?;
        let mut keys = vec![0; self.key_bytes()];
        self.table.load(self.keys_at(), &mut keys);
        Some(LeftTable {
            header,
            slots: self.used_slots(),
            keys: read_keys(&keys),
        })
    }

    fn used_slots(&self) -> Vec<(usize, FoundSlot)> {
        let mut used = Vec::new();
        let mut bytes = [0; READ_SLOTS * SLOT_BYTES];
        let mut first = 0;
        while first < self.slots {
            let count = READ_SLOTS.min(self.slots - first);
            let (bytes, _) = bytes.split_at_mut(count * SLOT_BYTES);
            self.table.load(HEADER_BYTES + first * SLOT_BYTES, bytes);
            for (number, slot) in (first..).zip(bytes.as_chunks().0) {
                match Slot::decode(slot) {
                    FoundSlot::Free => {}
                    found => used.push((number, found)),
                }
            }
            first += count;
        }
        used
    }

    /// Makes every byte zero. The header goes first: a table without one says nothing.
    pub(super) fn clear(&self) {
        self.void();
        let zeros = [0; READ_SLOTS * SLOT_BYTES];
        let mut found = [0; READ_SLOTS * SLOT_BYTES];
        let mut at = 0;
        while at < self.table.len() {
            let count = zeros.len().min(self.table.len() - at);
            let (found, _) = found.split_at_mut(count);
            self.table.load(at, found);
            let (zeros, _) = zeros.split_at(count);
            if found != zeros {
                self.table.store(at, zeros);
            }
            at += count;
        }
    }

    /// Takes the header away.
    pub(super) fn void(&self) {
        self.table.store(0, &VOID);
    }

    pub(super) fn store_header<T: Serialize + DeserializeOwned>(&self, header: &Header<T>) {
        self.table.store(0, &header.encode());
    }

    pub(super) fn store_slot(&self, number: usize, slot: Slot) {
        if is_active(Mutant::MarksDieWithProcess) {
            return;
        }
        let at = HEADER_BYTES + number * SLOT_BYTES;
        self.table.store(at, &slot.encode());
    }

    /// Frees a slot.
    pub(super) fn clear_slot(&self, number: usize) {
        let at = HEADER_BYTES + number * SLOT_BYTES;
        self.table.store(at, &[0; SLOT_BYTES]);
    }

    /// Frees the first slots, and the first bytes of keys.
    pub(super) fn clear_used(&self, slots: usize, key_bytes: usize) {
        let runs = [
            (HEADER_BYTES, slots * SLOT_BYTES),
            (self.keys_at(), key_bytes),
        ];
        for (at, length) in runs.into_iter().filter(|(_, length)| *length > 0) {
            self.table.store(at, &vec![0; length]);
        }
    }

    /// Puts the bytes of keys behind those that are there.
    pub(super) fn store_keys(&self, at: usize, run: &[u8]) {
        if is_active(Mutant::MarksDieWithProcess) {
            return;
        }
        self.table.store(self.keys_at() + at, run);
    }
}

/// Puts the tables on stable storage.
///
/// # Errors
/// If the disk fails.
pub fn sync_tables(backing: &dyn Backing) -> Result<(), StoreError> {
    for path in [DELTA_FILE, MARK_FILES[0], MARK_FILES[1]] {
        match backing.open(path) {
            // The disk had no room for the table.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            opened => opened.and_then(|file| file.sync()),
        }
        .map_err(StoreError::disk("sync", path))?;
    }
    let named = backing.sync_dir(TABLES_DIR);
    named.map_err(StoreError::disk("sync the names in", TABLES_DIR))
}

/// Makes a table of the delta with this number of slots, for a test of a full one. A loss of power does not take the table.
///
/// # Errors
/// If the disk fails.
pub fn make_table(backing: &dyn Backing, slots: usize) -> Result<(), StoreError> {
    let made = backing.open_table(DELTA_FILE, bytes_of(slots));
    made.map_err(StoreError::disk("make", DELTA_FILE))?;
    sync_tables(backing)
}
