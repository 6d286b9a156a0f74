//! The table: entries in memory, mirrored slot by slot into the backing table, whose memory outlives the process.
//!
//! Invariants: between calls, a reader of the backing table would decode exactly the entries in memory. Slots are
//! written only under the lock, so memory and backing table cannot diverge. An entry is in the backing table before
//! [`InFlightTable::insert`] returns. A table that may have lost an entry is never opened.

use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use lockstep_types::Osn;
use lockstep_types::backing::BackingTable;
use lockstep_types::limits::WRITES_IN_FLIGHT_MAX;
use parking_lot::Mutex;

use crate::entry::{CHECKSUM_BYTES, Content, EMPTY, InFlightEntry, SLOT_BYTES};
use crate::entry_list::{EntryHandle, EntryList};

/// Length of the backing table in bytes.
pub const TABLE_BYTES: usize = WRITES_IN_FLIGHT_MAX * SLOT_BYTES;

/// Every slot is taken: [`WRITES_IN_FLIGHT_MAX`] writes already wait for the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too many writes wait for the other side: all {slots} slots are taken; finish or recover some \
     before starting more"
)]
pub struct Full {
    /// Number of slots in the table.
    pub slots: usize,
}

/// Damage of a table that no stop of a process can cause. Writes in flight may be missing from the table: only a
/// comparison of the whole datastore is safe now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The table was cut.
    #[error("it has {found} bytes of {expected}")]
    Short {
        /// The found length in bytes.
        found: usize,
        /// The length at creation, in bytes.
        expected: usize,
    },
    /// A slot is neither an entry nor empty.
    #[error(
        "slot {slot} (bytes {} to {}) does not match its checksum",
        slot * SLOT_BYTES, slot * SLOT_BYTES + SLOT_BYTES - 1
    )]
    Slot {
        /// The slot, counted from 0.
        slot: usize,
    },
}

/// Checks the bytes of a table's file without changing them.
pub fn check(bytes: &[u8]) -> Result<(), Damage> {
    if bytes.len() < TABLE_BYTES {
        return Err(Damage::Short {
            found: bytes.len(),
            expected: TABLE_BYTES,
        });
    }
    let slots = bytes.as_chunks().0.iter().take(WRITES_IN_FLIGHT_MAX);
    for (index, slot) in slots.enumerate() {
        read(index, slot)?;
    }
    Ok(())
}

/// The entry in a slot; `None` for an empty slot.
fn read(index: usize, slot: &[u8; SLOT_BYTES]) -> Result<Option<InFlightEntry>, Damage> {
    match Content::decode(slot) {
        Content::Empty => Ok(None),
        Content::Entry(entry) => Ok(Some(entry)),
        Content::Damaged => Err(Damage::Slot { slot: index }),
    }
}

/// The writes of one datastore that wait for the other side: PAW on the primary, SAW on the secondary. Safe to use from
/// many threads at once.
pub struct InFlightTable {
    table: Arc<dyn BackingTable>,
    entries: Mutex<EntryList>,
}

impl InFlightTable {
    /// Creates an empty table and overwrites the old content. If the process stops in this call, the table must be
    /// created again before use.
    ///
    /// The table has as many slots as fit into `table`, at most [`WRITES_IN_FLIGHT_MAX`].
    pub fn make(table: Arc<dyn BackingTable>) -> Self {
        let slots = slots_of(&*table);
        table.store(0, &EMPTY.repeat(slots));
        let entries = Mutex::new(EntryList::new(slots, &[]));
        Self { table, entries }
    }

    /// Opens an existing table and returns its entries, lowest OSN first: the writes in flight when the process
    /// stopped. The entries stay in the table until [`Self::remove_below`] or [`Self::clear`].
    pub fn open(table: Arc<dyn BackingTable>) -> Result<(Self, Vec<InFlightEntry>), Damage> {
        let slots = slots_of(&*table);
        let mut found = Vec::new();
        // One call for all slots: a call costs far more than decoding a slot.
        let mut bytes = vec![0; slots * SLOT_BYTES];
        table.load(0, &mut bytes);
        for (index, slot) in bytes.as_chunks().0.iter().enumerate() {
            found.extend(read(index, slot)?.map(|entry| (index, entry)));
        }
        found.sort_unstable_by_key(|(_, entry)| entry.osn);
        let entries = Mutex::new(EntryList::new(slots, &found));
        let found = found.into_iter().map(|(_, entry)| entry).collect();
        Ok((Self { table, entries }, found))
    }

    /// Records a write that is about to begin. A write that is already recorded keeps its slot.
    pub fn insert(&self, entry: InFlightEntry) -> Result<EntryHandle, Full> {
        let bytes = entry.encode();
        let mut entries = self.entries.lock();
        let handle = entries.insert(entry).ok_or(Full {
            slots: entries.slots(),
        })?;
        let (checksum, words) = bytes.split_at(CHECKSUM_BYTES);
        let start = handle.slot * SLOT_BYTES;
        self.table.store(start + CHECKSUM_BYTES, words);
        // The words first: a process that stops between the two stores leaves the slot empty.
        compiler_fence(Ordering::SeqCst);
        self.table.store(start, checksum);
        Ok(handle)
    }

    /// Removes one write. Does nothing if the write is already removed.
    pub fn remove(&self, handle: EntryHandle) {
        let mut entries = self.entries.lock();
        if entries.remove(handle) {
            self.erase(handle.slot);
        }
    }

    /// Removes every write with an OSN below `bound`, and returns their number. The remaining writes cost no time.
    pub fn remove_below(&self, bound: Osn) -> usize {
        let mut entries = self.entries.lock();
        let mut removed = 0;
        while let Some(slot) = entries.take_oldest_below(bound) {
            self.erase(slot);
            removed += 1;
        }
        removed
    }

    /// The recorded writes, lowest OSN first.
    pub fn entries(&self) -> Vec<InFlightEntry> {
        let entries = self.entries.lock();
        let mut copies = Vec::with_capacity(entries.len());
        copies.extend(entries.entries());
        copies
    }

    /// Number of recorded writes.
    pub fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// Whether no write is recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes every write.
    pub fn clear(&self) {
        let mut entries = self.entries.lock();
        while let Some(slot) = entries.take_oldest() {
            self.erase(slot);
        }
    }

    /// Empties a slot of the backing table. The caller holds the lock.
    fn erase(&self, slot: usize) {
        self.table.store(slot * SLOT_BYTES, &[0; CHECKSUM_BYTES]);
    }
}

fn slots_of(table: &dyn BackingTable) -> usize {
    (table.len() / SLOT_BYTES).min(WRITES_IN_FLIGHT_MAX)
}

#[cfg(test)]
mod tests;
