//! The table itself: entries in memory, mirrored slot by slot into memory that outlives the
//! process.
//!
//! Invariants: between calls, the entries in memory are exactly those that a reader of the backing
//! table would decode; a slot is written only under the lock, so the two cannot part. An entry is
//! in the backing table before [`InFlightTable::insert`] returns.

use std::sync::Arc;

use lockstep_types::Osn;
use lockstep_types::backing::BackingTable;
use lockstep_types::limits::WRITES_IN_FLIGHT_MAX;
use parking_lot::Mutex;

use crate::entry::{CHECKSUM_BYTES, Content, Entry, SLOT_BYTES};
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

/// Names one inserted entry, to remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an entry that is never removed fills the table"]
pub struct Slot(Place);

/// The writes of one datastore and node that wait for the other side: PAW on the primary, SAW on
/// the secondary. Safe to use from many threads at once.
pub struct InFlightTable {
    table: Arc<dyn BackingTable>,
    order: Mutex<Order>,
    torn: usize,
}

impl InFlightTable {
    /// Opens the table and returns the entries in it, lowest OSN first: the writes in flight when
    /// the process stopped. They stay in it until [`Self::remove_below`] or [`Self::clear`].
    ///
    /// The table has as many slots as fit `table`, at most [`WRITES_IN_FLIGHT_MAX`].
    pub fn open(table: Arc<dyn BackingTable>) -> (Self, Vec<Entry>) {
        let slots = (table.len() / SLOT_BYTES).min(WRITES_IN_FLIGHT_MAX);
        let mut found = Vec::new();
        let mut torn = 0;
        for index in 0..slots {
            match load(&*table, index) {
                Content::Entry(entry) => found.push((index, entry)),
                Content::Torn => torn += 1,
                Content::Empty => {}
            }
        }
        found.sort_unstable_by_key(|(_, entry)| entry.osn);
        let order = Order::new(slots, &found);
        let entries = found.into_iter().map(|(_, entry)| entry).collect();
        let order = Mutex::new(order);
        (Self { table, order, torn }, entries)
    }

    /// Slots found half written when the table was opened. A process that stops leaves at most
    /// one, and the write it belongs to had not begun or was done on both sides. More of them mean
    /// damage: entries may be missing, and only a comparison of the whole datastore is safe.
    pub const fn torn(&self) -> usize {
        self.torn
    }

    /// Records a write that is about to begin; again, if it was recorded before.
    pub fn insert(&self, entry: Entry) -> Result<Slot, Full> {
        let bytes = entry.encode();
        let mut order = self.order.lock();
        let place = order.insert(entry).ok_or(Full {
            slots: order.places(),
        })?;
        self.table.store(place.index * SLOT_BYTES, &bytes);
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

    /// Forgets every write, and cleans slots found half written, which only then stop being
    /// counted by the next opening.
    pub fn clear(&self) {
        let mut order = self.order.lock();
        while order.take_oldest().is_some() {}
        for index in 0..order.places() {
            self.erase(index);
        }
    }

    /// Empties a slot of the backing table. The caller holds the lock.
    fn erase(&self, index: usize) {
        self.table.store(index * SLOT_BYTES, &[0; CHECKSUM_BYTES]);
    }
}

fn load(table: &dyn BackingTable, index: usize) -> Content {
    let mut slot = [0; SLOT_BYTES];
    table.load(index * SLOT_BYTES, &mut slot);
    Content::decode(&slot)
}

#[cfg(test)]
mod tests;
