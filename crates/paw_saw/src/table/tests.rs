//! The table against a naive model, across stops of the process.

use std::collections::HashMap;

use lockstep_types::{Generation, Ino};
use proptest::prelude::*;

use super::*;

/// Memory that outlives the table opened on it.
struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![0; bytes])))
    }
}

impl BackingTable for Memory {
    fn len(&self) -> usize {
        self.0.lock().len()
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.lock()[offset..offset + into.len()]);
    }

    fn store(&self, offset: usize, data: &[u8]) {
        self.0.lock()[offset..offset + data.len()].copy_from_slice(data);
    }
}

fn osn(sequence: u64) -> Osn {
    Osn {
        generation: Generation::FIRST,
        sequence,
    }
}

fn entry(sequence: u64) -> Entry {
    Entry {
        ino: Ino::ROOT,
        osn: osn(sequence),
        offset: sequence * 512,
        length: 4096,
    }
}

#[test]
fn finds_after_a_stop_what_was_in_flight() {
    let memory = Memory::new(TABLE_BYTES);
    let (table, found) = InFlightTable::open(memory.clone());
    assert!(found.is_empty());
    let slots: Vec<_> = [3, 1, 2].map(|n| table.insert(entry(n)).unwrap()).into();
    table.remove(slots[1]);
    drop(table);
    let (table, found) = InFlightTable::open(memory.clone());
    assert_eq!(found, [entry(2), entry(3)]);
    assert_eq!((table.len(), table.torn()), (2, 0));
    assert_eq!(table.remove_below(osn(3)), 1);
    assert_eq!(table.entries(), [entry(3)]);
    table.clear();
    assert!(table.is_empty());
    assert!(InFlightTable::open(memory).1.is_empty());
}

#[test]
fn refuses_more_than_it_has_slots_for() {
    let (table, _) = InFlightTable::open(Memory::new(2 * SLOT_BYTES + 63));
    let first = table.insert(entry(1)).unwrap();
    let _second = table.insert(entry(2)).unwrap();
    assert_eq!(table.insert(entry(3)), Err(Full { slots: 2 }));
    table.remove(first);
    let _third = table.insert(entry(3)).unwrap();
    table.remove(first); // stale: its place belongs to another entry now
    assert_eq!(table.entries(), [entry(2), entry(3)]);
}

#[test]
fn a_write_that_is_sent_again_takes_one_slot() {
    let (table, _) = InFlightTable::open(Memory::new(2 * SLOT_BYTES));
    let first = table.insert(entry(1)).unwrap();
    let _second = table.insert(entry(2)).unwrap();
    for _ in 0..3 {
        assert_eq!(table.insert(entry(1)), Ok(first));
    }
    table.remove(first);
    assert_eq!(table.entries(), [entry(2)]);
}

#[test]
fn counts_torn_slots_until_cleared() {
    let memory = Memory::new(TABLE_BYTES);
    let (table, _) = InFlightTable::open(memory.clone());
    let _kept = (
        table.insert(entry(1)).unwrap(),
        table.insert(entry(2)).unwrap(),
    );
    memory.0.lock()[20] ^= 1;
    let (table, found) = InFlightTable::open(memory.clone());
    assert_eq!((found.len(), table.torn()), (1, 1));
    let _reused = table.insert(entry(5)).unwrap();
    assert_eq!(table.len(), 2);
    memory.0.lock()[SLOT_BYTES * 9] = 1;
    InFlightTable::open(memory.clone()).0.clear();
    assert_eq!(InFlightTable::open(memory).0.torn(), 0);
}

#[test]
fn many_threads_share_it() {
    let memory = Memory::new(TABLE_BYTES);
    let (table, _) = InFlightTable::open(memory.clone());
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
    assert_eq!(InFlightTable::open(memory).1, table.entries());
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64),
    Remove(usize),
    RemoveBelow(u64),
    Clear,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..100u64).prop_map(Step::Insert),
        6 => any::<usize>().prop_map(Step::Remove),
        3 => (0..110u64).prop_map(Step::RemoveBelow),
        1 => Just(Step::Clear),
        1 => Just(Step::Reopen),
    ]
}

const SLOTS: usize = 16;

/// Entries by the order of their insertion, and the slots that may be removed.
#[derive(Default)]
struct Model {
    entries: HashMap<u64, Entry>,
    slots: Vec<(u64, Slot)>,
    inserted: u64,
}

impl Model {
    fn sorted(&self) -> Vec<Entry> {
        let mut entries: Vec<_> = self.entries.values().copied().collect();
        entries.sort_unstable();
        entries
    }

    fn insert(&mut self, table: &InFlightTable, sequence: u64) {
        self.inserted += 1;
        // offset tells apart entries that share an OSN
        let entry = Entry {
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
        let memory = Memory::new(SLOTS * SLOT_BYTES);
        let mut table = InFlightTable::open(memory.clone()).0;
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Insert(sequence) => model.insert(&table, sequence),
                Step::Remove(pick) if !model.slots.is_empty() => {
                    // stays in the list: removing twice must do no harm
                    let (key, slot) = model.slots[pick % model.slots.len()];
                    model.entries.remove(&key);
                    table.remove(slot);
                }
                Step::Remove(_) => {}
                Step::RemoveBelow(bound) => model.remove_below(&table, osn(bound)),
                Step::Clear => {
                    model.entries.clear();
                    table.clear();
                }
                Step::Reopen => {
                    model.slots.clear();
                    let (again, found) = InFlightTable::open(memory.clone());
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
        let mut survivors = InFlightTable::open(memory).1;
        survivors.sort_unstable();
        prop_assert_eq!(survivors, model.sorted());
    }
}
