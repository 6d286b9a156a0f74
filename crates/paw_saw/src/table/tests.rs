//! The table against a simple model, across stops of the process.

use std::collections::HashMap;

use lockstep_types::{Generation, Ino};
use proptest::prelude::*;

use super::*;

/// Memory that outlives the table. Its process stops after it has stored `left` bytes.
struct OutlivingMemory {
    bytes: Mutex<Vec<u8>>,
    left: Mutex<usize>,
}

impl OutlivingMemory {
    fn new(bytes: usize) -> Arc<Self> {
        Self::stopping(vec![0; bytes], usize::MAX)
    }

    fn stopping(bytes: Vec<u8>, left: usize) -> Arc<Self> {
        let (bytes, left) = (Mutex::new(bytes), Mutex::new(left));
        Arc::new(Self { bytes, left })
    }

    fn flip(&self, at: usize, bits: u8) {
        self.bytes.lock()[at] ^= bits;
    }

    fn copy(&self) -> Vec<u8> {
        self.bytes.lock().clone()
    }
}

fn opened(memory: &Arc<OutlivingMemory>) -> (InFlightTable, Vec<InFlightEntry>) {
    InFlightTable::open(memory.clone()).unwrap()
}

impl BackingTable for OutlivingMemory {
    fn len(&self) -> usize {
        self.bytes.lock().len()
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes.lock()[offset..offset + into.len()]);
    }

    fn store(&self, offset: usize, data: &[u8]) {
        let mut left = self.left.lock();
        let count = data.len().min(*left);
        *left -= count;
        self.bytes.lock()[offset..offset + count].copy_from_slice(&data[..count]);
    }
}

fn osn(sequence: u64) -> Osn {
    Osn {
        generation: Generation::FIRST,
        sequence,
    }
}

fn entry(sequence: u64) -> InFlightEntry {
    InFlightEntry {
        ino: Ino::ROOT,
        osn: osn(sequence),
        offset: sequence * 512,
        length: 4096,
    }
}

#[test]
fn finds_the_writes_in_flight_after_a_stop() {
    let memory = OutlivingMemory::new(TABLE_BYTES);
    let table = InFlightTable::make(memory.clone());
    let slots: Vec<_> = [3, 1, 2].map(|n| table.insert(entry(n)).unwrap()).into();
    table.remove(slots[1]);
    drop(table);
    let (table, found) = opened(&memory);
    assert_eq!(found, [entry(2), entry(3)]);
    assert_eq!(table.len(), 2);
    assert_eq!(table.remove_below(osn(3)), 1);
    assert_eq!(table.entries(), [entry(3)]);
    table.clear();
    assert!(table.is_empty());
    assert!(opened(&memory).1.is_empty());
}

#[test]
fn refuses_an_entry_without_a_free_slot() {
    let table = InFlightTable::make(OutlivingMemory::new(2 * SLOT_BYTES + 63));
    let first = table.insert(entry(1)).unwrap();
    let _second = table.insert(entry(2)).unwrap();
    assert_eq!(table.insert(entry(3)), Err(Full { slots: 2 }));
    table.remove(first);
    let _third = table.insert(entry(3)).unwrap();
    table.remove(first); // a stale handle: its slot belongs to another entry now
    assert_eq!(table.entries(), [entry(2), entry(3)]);
}

#[test]
fn a_write_that_is_sent_again_takes_one_slot() {
    let table = InFlightTable::make(OutlivingMemory::new(2 * SLOT_BYTES));
    let first = table.insert(entry(1)).unwrap();
    let _second = table.insert(entry(2)).unwrap();
    for _ in 0..3 {
        assert_eq!(table.insert(entry(1)), Ok(first));
    }
    table.remove(first);
    assert_eq!(table.entries(), [entry(2)]);
}

#[test]
fn creation_discards_the_old_content() {
    let memory = OutlivingMemory::stopping(vec![7; TABLE_BYTES], usize::MAX);
    drop(InFlightTable::make(memory.clone()));
    assert_eq!(check(&memory.copy()), Ok(()));
    assert!(opened(&memory).1.is_empty());
}

/// A table with missing bytes is never treated as a table with fewer entries.
#[test]
fn a_damaged_table_is_not_opened() {
    let memory = OutlivingMemory::new(TABLE_BYTES);
    let table = InFlightTable::make(memory.clone());
    let _kept = [1, 2].map(|n| table.insert(entry(n)).unwrap());
    assert_eq!(check(&memory.copy()), Ok(()));
    for (at, bits) in [(20, 1), (SLOT_BYTES + 3, 0x55), (SLOT_BYTES * 9, 1)] {
        memory.flip(at, bits);
        let slot = at / SLOT_BYTES;
        assert_eq!(check(&memory.copy()), Err(Damage::Slot { slot }));
        assert_eq!(
            InFlightTable::open(memory.clone()).err(),
            Some(Damage::Slot { slot })
        );
        memory.flip(at, bits);
    }
    let mut zeroed = memory.copy();
    zeroed[..4096].fill(0);
    assert_eq!(check(&zeroed), Err(Damage::Slot { slot: 0 }));
    zeroed.truncate(4096);
    let (found, expected) = (4096, TABLE_BYTES);
    assert_eq!(check(&zeroed), Err(Damage::Short { found, expected }));
}

/// Wherever the process stops, the next start finds every write in flight, and reports no damage.
#[test]
fn a_stop_at_any_byte_loses_no_entry() {
    let first = OutlivingMemory::new(4 * SLOT_BYTES);
    let table = InFlightTable::make(first.clone());
    let _held = table.insert(entry(1)).unwrap();
    let passed = table.insert(entry(2)).unwrap();
    table.remove(passed);
    drop(table);
    for bytes in 0..=2 * SLOT_BYTES {
        let memory = OutlivingMemory::stopping(first.copy(), bytes);
        let (table, _) = opened(&memory);
        // The third entry takes the slot of the second, and leaves it again.
        let third = table.insert(entry(3)).unwrap();
        let inserted = *memory.left.lock() > 0 || bytes == SLOT_BYTES;
        table.remove(third);
        let removed = bytes >= SLOT_BYTES + CHECKSUM_BYTES;
        let (_, found) = opened(&OutlivingMemory::stopping(memory.copy(), usize::MAX));
        assert_eq!(found[0], entry(1), "stopped after {bytes} bytes");
        assert!(found[1..].iter().all(|found| *found == entry(3)));
        if inserted && !removed {
            assert_eq!(found.len(), 2, "stopped after {bytes} bytes");
        }
    }
}

#[test]
fn many_threads_share_it() {
    let memory = OutlivingMemory::new(TABLE_BYTES);
    let table = InFlightTable::make(memory.clone());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let table = &table;
            scope.spawn(move || {
                for n in 0..500 {
                    let slot = table.insert(entry(n * 4 + thread)).unwrap();
                    if n % 100 != 0 {
                        table.remove(slot);
                    }
                }
            });
        }
    });
    assert_eq!(table.len(), 20);
    assert_eq!(opened(&memory).1, table.entries());
}

#[derive(Clone, Debug)]
enum TableStep {
    Insert(u64),
    Remove(usize),
    RemoveBelow(u64),
    Clear,
    Reopen,
}

fn step() -> impl Strategy<Value = TableStep> {
    prop_oneof![
        12 => (0..100u64).prop_map(TableStep::Insert),
        6 => any::<usize>().prop_map(TableStep::Remove),
        3 => (0..110u64).prop_map(TableStep::RemoveBelow),
        1 => Just(TableStep::Clear),
        1 => Just(TableStep::Reopen),
    ]
}

const SLOTS: usize = 16;

/// The entries in the order of their insertion, and the handles that may be removed.
#[derive(Default)]
struct TableModel {
    entries: HashMap<u64, InFlightEntry>,
    slots: Vec<(u64, EntryHandle)>,
    inserted: u64,
}

impl TableModel {
    fn sorted(&self) -> Vec<InFlightEntry> {
        let mut entries: Vec<_> = self.entries.values().copied().collect();
        entries.sort_unstable();
        entries
    }

    fn insert(&mut self, table: &InFlightTable, sequence: u64) {
        self.inserted += 1;
        // Different offsets tell entries with the same OSN apart.
        let entry = InFlightEntry {
            offset: self.inserted,
            ..entry(sequence)
        };
        let slot = table.insert(entry);
        assert_eq!(slot.is_err(), self.entries.len() == SLOTS);
        if let Ok(slot) = slot {
            self.entries.insert(self.inserted, entry);
            self.slots.push((self.inserted, slot));
        }
    }

    fn remove_below(&mut self, table: &InFlightTable, bound: Osn) {
        let before = self.entries.len();
        self.entries.retain(|_, entry| entry.osn >= bound);
        let removed = before - self.entries.len();
        assert_eq!(table.remove_below(bound), removed);
    }
}

proptest! {
    #[test]
    fn behaves_as_a_map(steps in prop::collection::vec(step(), 0..200)) {
        let memory = OutlivingMemory::new(SLOTS * SLOT_BYTES);
        let mut table = InFlightTable::make(memory.clone());
        let mut model = TableModel::default();
        for step in steps {
            match step {
                TableStep::Insert(sequence) => model.insert(&table, sequence),
                TableStep::Remove(pick) if !model.slots.is_empty() => {
                    // The handle stays in the model: a second removal must do no harm.
                    let (key, slot) = model.slots[pick % model.slots.len()];
                    model.entries.remove(&key);
                    table.remove(slot);
                }
                TableStep::Remove(_) => {}
                TableStep::RemoveBelow(bound) => model.remove_below(&table, osn(bound)),
                TableStep::Clear => {
                    model.entries.clear();
                    table.clear();
                }
                TableStep::Reopen => {
                    model.slots.clear();
                    let (again, found) = opened(&memory);
                    prop_assert_eq!(found, again.entries());
                    table = again;
                }
            }
            let mut entries = table.entries();
            prop_assert!(entries.is_sorted_by_key(|entry| entry.osn));
            entries.sort_unstable();
            prop_assert_eq!(entries, model.sorted());
            prop_assert_eq!(table.len(), model.entries.len());
        }
        let mut survivors = opened(&memory).1;
        survivors.sort_unstable();
        prop_assert_eq!(survivors, model.sorted());
    }
}
