//! The delta of a node that is alone, after a restart.

use std::collections::BTreeSet;
use std::sync::Arc;

use lockstep_types::BootId;
use lockstep_types::backing::BackingTable;
use parking_lot::Mutex;

use super::super::changes::PART_BYTES;
use super::super::form::{HEADER_BYTES, SLOT_BYTES};
use super::*;

pub const BASE: Generation = Generation::FIRST;
/// An operation after all others.
pub const LAST: Osn = Osn {
    generation: Generation::FIRST,
    sequence: u64::MAX,
};

/// A table that notes each of its states.
pub struct Memory {
    bytes: Mutex<Vec<u8>>,
    states: Mutex<Vec<Vec<u8>>>,
}

impl Memory {
    pub fn of(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(bytes),
            states: Mutex::default(),
        })
    }

    pub fn new(slots: usize) -> Arc<Self> {
        Self::of(vec![0; HEADER_BYTES + 2 * slots * SLOT_BYTES])
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().clone()
    }

    /// The states since the last call.
    pub fn take_states(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.states.lock())
    }
}

impl BackingTable for Memory {
    fn len(&self) -> usize {
        self.bytes.lock().len()
    }
    fn load(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes.lock()[offset..offset + into.len()]);
    }
    fn store(&self, offset: usize, data: &[u8]) {
        let mut bytes = self.bytes.lock();
        bytes[offset..offset + data.len()].copy_from_slice(data);
        self.states.lock().push(bytes.clone());
    }
}

pub fn open(memory: &Arc<Memory>, last_use: LastUse) -> DeltaTracker {
    let table = Arc::clone(memory) as Arc<dyn BackingTable>;
    DeltaTracker::open(tables_of(MarkTable::over(table, last_use))).unwrap()
}

pub fn note_keys(delta: &DeltaTracker, keys: &[Vec<u8>]) {
    let mut state = delta.state();
    let DeltaState { delta, kept, .. } = &mut *state;
    if let Delta::Alone(alone) = delta {
        alone.note_keys(kept, keys.iter());
    }
}

/// The words of a delta.
#[derive(Debug)]
pub struct Said {
    pub records: ChangedRecords,
    content: ChangedContent,
    pub rest: Option<u64>,
}

impl Said {
    /// The words of the delta after a start; `None` without a delta.
    pub fn by(bytes: Vec<u8>, last_use: LastUse) -> Option<Self> {
        let delta = open(&Memory::of(bytes), last_use);
        let records = delta.records(BASE, LAST)?;
        let walk = delta.begin_walk(BASE, LAST)?;
        Some(Self {
            records,
            content: walk.content,
            rest: walk.rest.map(|rest| rest.next),
        })
    }

    pub fn has_record(&self, key: &Vec<u8>) -> bool {
        self.records.all || self.records.keys.contains(key)
    }

    pub fn has_part(&self, file: u64, part: u64) -> bool {
        let offset = part * PART_BYTES;
        let run = self.content.get(&ino(file));
        let next = run.and_then(|run| run.next(offset));
        self.rest.is_some_and(|rest| file >= rest) || next.is_some_and(|run| run.start == offset)
    }
}

fn alone(memory: &Arc<Memory>) -> DeltaTracker {
    let delta = open(memory, LastUse::of_test());
    delta.begin_alone(BASE, osn(3));
    delta.settle();
    delta
}

fn part(number: u64) -> Range<u64> {
    number * PART_BYTES..(number + 1) * PART_BYTES
}

fn key(number: u8) -> Vec<u8> {
    [&b"i1234567"[..], &[number]].concat()
}

#[test]
fn what_a_killed_node_has_noted_and_what_its_resync_has_left_are_there_again() {
    let memory = Memory::new(64);
    let delta = alone(&memory);
    note_keys(&delta, &[key(1), key(2)]);
    delta.add_bytes(ino(5), &(5..40 * PART_BYTES));
    delta.add_bytes(ino(6), &(3 * PART_BYTES..u64::MAX));
    let walk = delta.begin_walk(BASE, LAST).unwrap();
    assert!(!walk.goes_on);
    delta.walked(
        walk.job,
        WalkProgress::Equal {
            ino: ino(5),
            bytes: &(0..16 * PART_BYTES),
        },
    );
    delta.walked(
        walk.job,
        WalkProgress::Equal {
            ino: ino(6),
            bytes: &(0..9 * PART_BYTES),
        },
    );
    delta.add_bytes(ino(5), &part(2));
    let delta = open(&memory, LastUse::of_test());
    assert!(delta.records(BASE, osn(2)).is_none(), "it lacks operations");
    let records = delta.records(BASE, osn(3)).unwrap();
    assert_eq!(records.keys, BTreeSet::from([key(1), key(2)]));
    let walk = delta.begin_walk(BASE, LAST).unwrap();
    assert!(
        walk.goes_on,
        "the last process may have sent what is not noted any more"
    );
    let left = [
        (2 * PART_BYTES, 3 * PART_BYTES),
        (16 * PART_BYTES, 40 * PART_BYTES),
    ];
    assert_eq!(runs(&walk.content, 5), left);
    assert_eq!(runs(&walk.content, 6), [(9 * PART_BYTES, u64::MAX)]);
    assert_eq!(walk.rest, None);
    delta.walked(walk.job, WalkProgress::Done(ino(5)));
    delta.walked(walk.job, WalkProgress::Done(ino(6)));
    let said = Said::by(memory.bytes(), LastUse::of_test()).unwrap();
    assert_eq!(runs(&said.content, 5), []);
    assert_eq!(runs(&said.content, 6), []);
}

#[test]
fn a_loss_of_power_voids_the_delta_and_a_clean_stop_does_not() {
    let memory = Memory::new(64);
    let delta = alone(&memory);
    delta.add_bytes(ino(5), &part(1));
    let backing = crate::Overlay::new(lockstep_lossy::disk::Disk::default().mount());
    let said = |last_use| Said::by(memory.bytes(), last_use).is_some();
    let run = LastUse::of_test();
    let other_boot = LastUse {
        boot: BootId::from_bytes([2; 16]),
        ..run
    };
    assert!(said(run) && !said(other_boot));
    let stopped = LastUse {
        last_boot: None,
        ..other_boot
    };
    assert!(!said(stopped), "the table was not synced");
    delta.close(&backing).unwrap();
    assert!(said(stopped) && said(run));
    let used_since = LastUse {
        epoch: 2,
        ..stopped
    };
    assert!(!said(used_since), "the store was used since");
    assert!(!said(other_boot));
    // From the start on, the table is one of this run.
    drop(open(&memory, stopped));
    assert!(!said(LastUse {
        boot: BootId::from_bytes([3; 16]),
        ..stopped
    }));
}

#[test]
fn a_table_of_another_length_has_no_delta() {
    let memory = Memory::new(64);
    note_keys(&alone(&memory), &[key(1)]);
    let said = |bytes: Vec<u8>| Said::by(bytes, LastUse::of_test()).is_some();
    assert!(said(memory.bytes()));
    let mut longer = memory.bytes();
    longer.resize(longer.len() + 1000, 0);
    let mut shorter = memory.bytes();
    shorter.truncate(shorter.len() - 1000);
    assert!(!said(longer) && !said(shorter));
}

#[test]
fn a_node_goes_on_only_in_the_generation_in_which_it_led() {
    let memory = Memory::new(64);
    alone(&memory).add_bytes(ino(5), &part(1));
    let delta = open(&memory, LastUse::of_test());
    delta.lead_alone(BASE, false);
    assert!(delta.records(BASE, LAST).is_some());
    delta.lead_alone(BASE.next(), false);
    assert!(delta.records(BASE, LAST).is_none());
    assert!(Said::by(memory.bytes(), LastUse::of_test()).is_none());
}

#[test]
fn a_new_primary_keeps_what_it_had_followed() {
    let memory = Memory::new(64);
    let delta = open(&memory, LastUse::of_test());
    delta.follow(BASE, osn(10));
    note(&delta, 11);
    delta.note_done_below(osn(11));
    note(&delta, 12);
    let led = BASE.next();
    delta.lead_alone(led, false);
    let delta = open(&memory, LastUse::of_test());
    delta.lead_alone(led, false);
    let said = Said::by(memory.bytes(), LastUse::of_test()).unwrap();
    assert!(said.has_part(11, 0) && said.has_part(12, 0));
    assert!(delta.records(BASE, osn(9)).is_none());
}

#[test]
fn a_full_table_becomes_coarser_and_the_delta_stays() {
    let memory = Memory::new(8);
    let delta = alone(&memory);
    // More regions of two files than there are slots.
    for region in 0..20 {
        delta.add_bytes(ino(5), &part(16 * region));
        delta.add_bytes(ino(6), &part(16 * region + 3));
    }
    let said = Said::by(memory.bytes(), LastUse::of_test()).unwrap();
    assert_eq!(said.rest, None, "the marks of a file have become one");
    for region in 0..20 {
        assert!(said.has_part(5, 16 * region) && said.has_part(6, 16 * region + 3));
    }
    // More files than there are slots, and more keys than there is room.
    let keys: Vec<Vec<u8>> = (0..100).map(key).collect();
    for (number, key) in (10..110).zip(&keys) {
        delta.add_bytes(ino(number), &part(0));
        note_keys(&delta, std::slice::from_ref(key));
    }
    let said = Said::by(memory.bytes(), LastUse::of_test()).unwrap();
    assert!((10..110).all(|file| said.has_part(file, 0)));
    assert!(keys.iter().all(|key| said.has_record(key)));
    assert!(said.rest > Some(1), "the first files keep their own marks");
    let live = delta.records(BASE, LAST).unwrap();
    assert!(live.all);
}

#[test]
fn a_flipped_bit_makes_no_delta_smaller() {
    let memory = Memory::new(8);
    let delta = alone(&memory);
    delta.add_bytes(ino(4), &(PART_BYTES..20 * PART_BYTES));
    delta.add_bytes(ino(6), &(7 * PART_BYTES..u64::MAX));
    note_keys(&delta, &[key(1), key(2)]);
    let bytes = memory.bytes();
    let mut voided = 0;
    for bit in 0..8 * bytes.len() {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        // The bytes behind the header say nothing.
        let Some(said) = Said::by(flipped, LastUse::of_test()) else {
            voided += 1;
            continue;
        };
        let parts = (1..20).all(|part| said.has_part(4, part)) && said.has_part(6, 7);
        let far = said.has_part(6, 1 << 20);
        let keys = said.has_record(&key(1)) && said.has_record(&key(2));
        assert!(parts && far && keys, "bit {bit}: {said:?}");
    }
    assert!(voided < 8 * 100, "only a header voids a delta");
}
