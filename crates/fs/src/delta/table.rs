//! The table that holds the delta while the node is alone: memory that outlives the process. [`form`](super::form) has its form.
//!
//! The file of a store keeps its length: a test makes a small table. A disk without room for the table gets one in memory, and
//! the delta then ends with the process.

use std::sync::Arc;

use lockstep_types::BootId;
use lockstep_types::backing::{Backing, BackingTable};
use lockstep_types::mutants::{Mutant, is_active};

use super::form::{FoundKeys, FoundSlot, HEADER_BYTES, Header, SLOT_BYTES, Slot, read_keys};
use crate::backing::overlay::Table;
use crate::error::StoreError;
use crate::paths::{DELTA_FILE, TABLES_DIR};

/// Bytes of a new table: 65,536 slots, and 2 MiB of keys.
const TABLE_BYTES: usize = HEADER_BYTES + (4 << 20);
/// Bytes of the least and of the greatest table.
const TABLE_BYTES_MIN: usize = HEADER_BYTES + 2 * SLOT_BYTES * SLOTS_MIN;
const TABLE_BYTES_MAX: usize = HEADER_BYTES + (64 << 20);
/// Slots of the least table.
const SLOTS_MIN: usize = 8;
/// Slots that are read at once.
const READ_SLOTS: usize = 256;
/// Bytes that are written over a header to void it.
const VOID: [u8; 256] = [0; 256];

/// The state of the store that the table must belong to.
#[derive(Clone, Copy)]
pub struct LastUse {
    /// The run of the machine of this start.
    pub boot: BootId,
    /// The run of the machine in which the store was in use; `None` after a clean shutdown.
    pub last_boot: Option<BootId>,
    /// How often the store was opened before.
    pub epoch: u32,
}

impl LastUse {
    /// Whether a header of the table is as new as the store.
    fn has_kept(&self, header: &Header) -> bool {
        // A loss of power leaves the table in some state of before.
        if self.last_boot.is_some_and(|last| last != self.boot) {
            return false;
        }
        let is_of_shutdown = self.last_boot.is_none() && header.closed == Some(self.epoch);
        header.boot == self.boot || is_of_shutdown
    }
}

/// The delta that the last process has left.
pub(super) struct LeftDelta {
    pub header: Header,
    /// Slots that are not free.
    pub slots: Vec<(usize, FoundSlot)>,
    pub keys: FoundKeys,
}

/// See the head of this file.
pub struct DeltaTable {
    table: Arc<dyn BackingTable>,
    last_use: LastUse,
    slots: usize,
}

impl DeltaTable {
    /// Opens the table of a store, or makes one.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn open(backing: &dyn Backing, last_use: LastUse) -> Result<Self, StoreError> {
        let length = match backing.stat(DELTA_FILE) {
            Ok(stat) => usize::try_from(stat.length).unwrap_or(TABLE_BYTES_MAX),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => TABLE_BYTES,
            Err(error) => return Err(StoreError::disk("stat", DELTA_FILE)(error)),
        };
        let length = length.clamp(TABLE_BYTES_MIN, TABLE_BYTES_MAX);
        let opened = backing.open_table(DELTA_FILE, length);
        let table = match opened.map_err(StoreError::disk("open", DELTA_FILE)) {
            Err(error) if error.is_full_disk() => {
                tracing::warn!(%error, "the delta of this node will not outlive the process");
                Arc::new(Table::empty(length))
            }
            opened => opened?,
        };
        Ok(Self::over(table, last_use))
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
        }
    }

    pub(super) const fn slots(&self) -> usize {
        self.slots
    }

    pub(super) const fn last_use(&self) -> LastUse {
        self.last_use
    }

    /// Where the keys begin.
    const fn keys_at(&self) -> usize {
        HEADER_BYTES + self.slots * SLOT_BYTES
    }

    /// Bytes for keys.
    pub(super) fn key_bytes(&self) -> usize {
        self.table.len() - self.keys_at()
    }

    /// The delta that the last process has left; `None` if the table has none that is as new as the store.
    pub(super) fn left(&self) -> Option<LeftDelta> {
        let mut header = [0; HEADER_BYTES];
        self.table.load(0, &mut header);
        let is_whole = |header: &Header| header.slots == self.slots;
        let header = Header::decode(&header).filter(is_whole);
        let header = header.filter(|header| self.last_use.has_kept(header))?;
        let mut keys = vec![0; self.key_bytes()];
        self.table.load(self.keys_at(), &mut keys);
        Some(LeftDelta {
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

    pub(super) fn store_header(&self, header: &Header) {
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

/// Puts the table on stable storage.
///
/// # Errors
/// If the disk fails.
pub fn sync_table(backing: &dyn Backing) -> Result<(), StoreError> {
    match backing.open(DELTA_FILE) {
        // The disk had no room for the table.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        opened => opened.and_then(|file| file.sync()),
    }
    .map_err(StoreError::disk("sync", DELTA_FILE))?;
    let named = backing.sync_dir(TABLES_DIR);
    named.map_err(StoreError::disk("sync the names in", TABLES_DIR))
}

/// Makes a table with this number of slots, for a test of a full one. A loss of power does not take the table.
///
/// # Errors
/// If the disk fails.
pub fn make_table(backing: &dyn Backing, slots: usize) -> Result<(), StoreError> {
    let length = HEADER_BYTES + 2 * slots.max(SLOTS_MIN) * SLOT_BYTES;
    let made = backing.open_table(DELTA_FILE, length);
    made.map_err(StoreError::disk("make", DELTA_FILE))?;
    sync_table(backing)
}

#[cfg(test)]
impl LastUse {
    /// The use of a store in a test.
    pub(super) fn of_test() -> Self {
        Self {
            boot: BootId::from_bytes([1; 16]),
            last_boot: Some(BootId::from_bytes([1; 16])),
            epoch: 1,
        }
    }
}
