//! The primary's table of writes in flight (PAW) while the session runs.
//!
//! Invariants (rule P6): a write has its entry before the first byte is put anywhere. The entry of a write that
//! failed here and not on the secondary stays until the secondary is marked out of sync.

use lockstep_paw_saw::{EntryHandle, Full, InFlightEntry, InFlightTable};
use lockstep_types::Osn;
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

/// The entries of the primary.
pub(crate) struct PawEntries {
    table: InFlightTable,
    /// Slots of writes that failed here and not on the secondary.
    failed: Mutex<Vec<EntryHandle>>,
    /// Older entries are those of the previous process.
    first_osn: Osn,
}

impl PawEntries {
    /// The entries in `table`. Those below `first_osn` are of the previous process.
    pub fn new(table: InFlightTable, first_osn: Osn) -> Self {
        Self {
            table,
            failed: Mutex::default(),
            first_osn,
        }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// `Full` if all slots are taken. The core admits fewer writes than there are slots.
    pub fn insert(&self, entry: InFlightEntry) -> Result<EntryHandle, Full> {
        self.table.insert(entry)
    }

    /// Removes the entry of a write that is over on both nodes.
    pub fn remove(&self, slot: EntryHandle) {
        if !is_active(Mutant::KeepPawEntry) {
            self.table.remove(slot);
        }
    }

    /// Removes the entry of a write that neither node has begun.
    pub fn withdraw(&self, slot: EntryHandle) {
        self.table.remove(slot);
    }

    /// Keeps the entry of a write that failed here and not on the secondary.
    pub fn keep_failed(&self, slot: EntryHandle) {
        self.failed.lock().push(slot);
    }

    /// The secondary is marked out of sync. A resync compares everything, so neither the failed writes nor
    /// those of the previous process need their entries.
    pub fn release_uncompared(&self) {
        for slot in std::mem::take(&mut *self.failed.lock()) {
            self.table.remove(slot);
        }
        self.remove_old();
    }

    /// Removes the entries of the previous process: recovery or a resync has compared their blocks.
    pub fn remove_old(&self) {
        self.table.remove_below(self.first_osn);
    }

    /// The writes of the previous process that may be on one node only.
    pub fn old_entries(&self) -> Vec<InFlightEntry> {
        if is_active(Mutant::IgnorePawInRecovery) {
            return Vec::new();
        }
        let mut entries = self.table.entries();
        entries.retain(|entry| entry.osn < self.first_osn);
        entries
    }

    /// All entries: the writes that may be on one node only.
    pub fn entries(&self) -> Vec<InFlightEntry> {
        self.table.entries()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.table.len()
    }
}
