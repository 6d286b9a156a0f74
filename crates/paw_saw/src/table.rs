//! The table itself: entries in memory, mirrored slot by slot into memory that outlives the
//! process.
//!
//! Invariants: between calls, the entries in memory are exactly those that a reader of the backing
//! table would decode; a slot is written only under the lock, so the two cannot part. An entry is
//! in the backing table before [`InFlightTable::insert`] returns. A table that may have lost an
//! entry is never opened.

use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use lockstep_types::Osn;
use lockstep_types::backing::BackingTable;
use lockstep_types::limits::WRITES_IN_FLIGHT_MAX;
use parking_lot::Mutex;

use crate::entry::{CHECKSUM_BYTES, Content, EMPTY, Entry, SLOT_BYTES};
use crate::order::{Order, Place};

/// Length in bytes of the backing table to open.
pub const TABLE_BYTES: usize = WRITES_IN_FLIGHT_MAX * SLOT_BYTES;

/// Every slot is taken: [`WRITES_IN_FLIGHT_MAX`] writes wait for the other side already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too many writes wait for the other side: all {slots} slots are taken; finish or recover some \
     before starting more"
)]
pub struct Full {
    /// Slots of the table.
    pub slots: usize,
}

/// A table that was not left so by any stop of a process: writes that were in flight may be missing
/// from it. Only a comparison of the whole datastore is safe then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It was cut.
    #[error("it has {found} bytes of {expected}")]
    Short {
        /// Bytes found.
        found: usize,
        /// Bytes it is made with.
        expected: usize,
    },
    /// A slot holds neither an entry nor the mark of an empty one.
    #[error(
        "slot {slot} (bytes {} to {}) does not match its checksum",
        slot * SLOT_BYTES, slot * SLOT_BYTES + SLOT_BYTES - 1
    )]
    Slot {
        /// Which, from 0.
        slot: usize,
    },
}

/// Looks at the bytes of a table, as they lie in its file, without changing anything.
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

/// What a slot holds, if anything.
fn read(index: usize, slot: &[u8; SLOT_BYTES]) -> Result<Option<Entry>, Damage> {
    match Content::decode(slot) {
        Content::Empty => Ok(None),
        Content::Entry(entry) => Ok(Some(entry)),
        Content::Damaged => Err(Damage::Slot { slot: index }),
    }
}

/// Names one inserted entry, to remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an entry that is never removed fills the table"]
pub struct Slot(Place);

/// The writes of one datastore and node that wait for the other side: PAW on the primary, SAW on
/// the secondary. Safe to use from many threads at once.
pub struct InFlightTable {
    table: Arc<dyn BackingTable>,
    order: Mutex<Order>,
}

impl InFlightTable {
    /// Makes an empty table, whatever there was. If the process stops in the middle, the table is
    /// to be made again before anybody relies on it.
    ///
    /// It has as many slots as fit `table`, at most [`WRITES_IN_FLIGHT_MAX`].
    pub fn make(table: Arc<dyn BackingTable>) -> Self {
        let slots = slots_of(&*table);
        table.store(0, &EMPTY.repeat(slots));
        let order = Mutex::new(Order::new(slots, &[]));
        Self { table, order }
    }

    /// Opens a table that was made and returns the entries in it, lowest OSN first: the writes in
    /// flight when the process stopped. They stay in it until [`Self::remove_below`] or
    /// [`Self::clear`].
    pub fn open(table: Arc<dyn BackingTable>) -> Result<(Self, Vec<Entry>), Damage> {
        let slots = slots_of(&*table);
        let mut found = Vec::new();
        // At one go: a call for each slot costs far more than to look at it.
        let mut bytes = vec![0; slots * SLOT_BYTES];
        table.load(0, &mut bytes);
        for (index, slot) in bytes.as_chunks().0.iter().enumerate() {
            found.extend(read(index, slot)?.map(|entry| (index, entry)));
        }
        found.sort_unstable_by_key(|(_, entry)| entry.osn);
        let order = Mutex::new(Order::new(slots, &found));
        let entries = found.into_iter().map(|(_, entry)| entry).collect();
        Ok((Self { table, order }, entries))
    }

    /// Records a write that is about to begin; again, if it was recorded before.
    pub fn insert(&self, entry: Entry) -> Result<Slot, Full> {
        let bytes = entry.encode();
        let mut order = self.order.lock();
        let place = order.insert(entry).ok_or(Full {
            slots: order.places(),
        })?;
        let (checksum, words) = bytes.split_at(CHECKSUM_BYTES);
        let start = place.index * SLOT_BYTES;
        self.table.store(start + CHECKSUM_BYTES, words);
        // The words first: a process that stops in between leaves the slot empty.
        compiler_fence(Ordering::SeqCst);
        self.table.store(start, checksum);
        Ok(Slot(place))
    }

    /// Forgets one write; nothing happens when it is forgotten already.
    pub fn remove(&self, slot: Slot) {
        let mut order = self.order.lock();
        if order.remove(slot.0) {
            self.erase(slot.0.index);
        }
    }

    /// Forgets every write with an OSN below `bound` and tells how many. Costs time for those
    /// only, however many remain.
    pub fn remove_below(&self, bound: Osn) -> usize {
        let mut order = self.order.lock();
        let mut removed = 0;
        while let Some(index) = order.take_oldest_below(bound) {
            self.erase(index);
            removed += 1;
        }
        removed
    }

    /// The writes that wait, lowest OSN first.
    pub fn entries(&self) -> Vec<Entry> {
        let order = self.order.lock();
        let mut entries = Vec::with_capacity(order.len());
        entries.extend(order.entries());
        entries
    }

    /// How many writes wait.
    pub fn len(&self) -> usize {
        self.order.lock().len()
    }

    /// Whether no write waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets every write.
    pub fn clear(&self) {
        let mut order = self.order.lock();
        while let Some(index) = order.take_oldest() {
            self.erase(index);
        }
    }

    /// Empties a slot of the backing table. The caller holds the lock.
    fn erase(&self, index: usize) {
        self.table.store(index * SLOT_BYTES, &[0; CHECKSUM_BYTES]);
    }
}

fn slots_of(table: &dyn BackingTable) -> usize {
    (table.len() / SLOT_BYTES).min(WRITES_IN_FLIGHT_MAX)
}

#[cfg(test)]
mod tests;
