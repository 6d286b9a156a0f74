//! The marks of mirrored intervals: the base that they give, and the places since then.

use std::sync::Arc;

use lockstep_delta::{
    BarrierEffect, BarrierEvent, BarrierMachine, BarrierMessage, BarrierName, Interval, MarkAccount,
};
use lockstep_lossy::disk::{Disk, Survivors, Verdict};
use lockstep_types::BootId;
use lockstep_types::backing::BackingTable;
use parking_lot::Mutex;

use super::super::changes::PART_BYTES;
use super::super::form::{HEADER_BYTES, SLOT_BYTES};
use super::super::trace_file::TraceFile;
use super::kept::{BASE, LAST, note_keys};
use super::*;

/// A state of the three tables.
pub type TableBytes = [Vec<u8>; 3];

/// The tables of a store, each state of them, and the disk with the names.
pub struct Tables {
    bytes: Arc<Mutex<TableBytes>>,
    states: Arc<Mutex<Vec<TableBytes>>>,
    pub disk: Disk,
}

struct OneTable {
    number: usize,
    bytes: Arc<Mutex<TableBytes>>,
    states: Arc<Mutex<Vec<TableBytes>>>,
}

impl BackingTable for OneTable {
    fn len(&self) -> usize {
        self.bytes.lock()[self.number].len()
    }
    fn load(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes.lock()[self.number][offset..offset + into.len()]);
    }
    fn store(&self, offset: usize, data: &[u8]) {
        let mut bytes = self.bytes.lock();
        bytes[self.number][offset..offset + data.len()].copy_from_slice(data);
        self.states.lock().push(bytes.clone());
    }
}

impl Tables {
    pub fn new(slots: usize) -> Self {
        let empty = || vec![0; HEADER_BYTES + 2 * slots * SLOT_BYTES];
        Self::of([empty(), empty(), empty()], Disk::default())
    }

    pub fn of(bytes: TableBytes, disk: Disk) -> Self {
        Self {
            bytes: Arc::new(Mutex::new(bytes)),
            states: Arc::default(),
            disk,
        }
    }

    pub fn open(&self, last_use: LastUse) -> DeltaTracker {
        let table = |number| {
            let table = OneTable {
                number,
                bytes: Arc::clone(&self.bytes),
                states: Arc::clone(&self.states),
            };
            MarkTable::over(Arc::new(table), last_use)
        };
        DeltaTracker::open(MarkTables {
            delta: table(0),
            columns: [table(1), table(2)],
            names: BarrierFile::open(self.disk.mount()).unwrap(),
            trace: TraceFile::open(self.disk.mount(), 64, last_use).unwrap(),
            rest: None,
        })
        .unwrap()
    }

    pub fn bytes(&self) -> TableBytes {
        self.bytes.lock().clone()
    }

    /// The states since the last call.
    pub fn take_states(&self) -> Vec<TableBytes> {
        std::mem::take(&mut *self.states.lock())
    }

    /// The delta of the next process, which is killed at this moment.
    fn restarted(&self) -> DeltaTracker {
        Self::of(self.bytes(), self.disk.fork()).open(LastUse::of_test())
    }
}

/// The youngest of these barriers since which a node has all marks.
pub fn base_with(delta: &DeltaTracker, known: &[BarrierName]) -> Option<BarrierName> {
    let peer = MarkAccount {
        known: known.to_vec(),
        ..MarkAccount::default()
    };
    delta.base_with(&peer).map(|base| base.name)
}

/// The places since a base.
#[derive(Debug)]
pub struct Since {
    records: ChangedRecords,
    walk: DeltaWalk,
}

impl Since {
    /// The places since a barrier.
    pub fn of(delta: &DeltaTracker, name: BarrierName) -> Self {
        let account = MarkAccount {
            known: vec![name],
            ..MarkAccount::default()
        };
        assert!(delta.adopt_base(name, BASE, Osn::ZERO, &account, &[]));
        let records = delta.adopted_records().unwrap();
        let image = delta.begin_image(false);
        delta.image_held(image, None, LAST);
        delta.image_arrived(image);
        let walk = delta.begin_walk(BASE, LAST).unwrap();
        Self { records, walk }
    }

    pub fn has_part(&self, file: u64, part: u64) -> bool {
        let offset = part * PART_BYTES;
        let run = self.walk.content.get(&ino(file));
        let next = run.and_then(|run| run.next(offset));
        self.walk.rest.is_some_and(|rest| file >= rest.next)
            || next.is_some_and(|run| run.start == offset)
    }

    pub fn has_key(&self, key: &Vec<u8>) -> bool {
        self.records.all || self.records.keys.contains(key)
    }
}

impl IntervalMarks {
    fn known(&self) -> Vec<BarrierName> {
        self.machine(|machine| machine.known().collect())
    }

    fn is_due(&self) -> bool {
        self.machine(BarrierMachine::is_due)
    }
}

pub fn begin(delta: &DeltaTracker) {
    let from = Interval::new(1);
    delta
        .barriers()
        .handle(BarrierEvent::MirroringBegun { from });
}

/// Begins a barrier, and has this node reach it.
pub fn turn(delta: &DeltaTracker, nonce: u8) -> Option<BarrierName> {
    let nonce = [nonce; 16];
    let effects = delta.barriers().handle(BarrierEvent::Due { nonce });
    let names = effects.iter().find_map(|effect| match effect {
        BarrierEffect::Sync(names) => Some(*names),
        _ => None,
    })?;
    assert!(delta.barriers().note_names(names).unwrap());
    delta.barriers().handle(BarrierEvent::Synced);
    names.reached
}

/// The other node has reached a barrier. The columns are not emptied yet.
pub fn complete(delta: &DeltaTracker, name: BarrierName) {
    let reached = BarrierMessage::Reached(name);
    delta.barriers().handle(BarrierEvent::Received(reached));
}

/// A whole barrier.
fn barrier(delta: &DeltaTracker, nonce: u8) -> BarrierName {
    let name = turn(delta, nonce).unwrap();
    complete(delta, name);
    delta.barriers().drop_columns();
    name
}

/// A change of a client.
pub fn change(delta: &DeltaTracker, file: u64, part: u64) {
    let offset = part * PART_BYTES;
    delta.note_change(ino(file), &(offset..offset + 1), true);
}

pub fn change_key(delta: &DeltaTracker, key: &[u8]) {
    let keys = [key.to_vec()];
    note_keys(delta, &keys);
    let is_alone = matches!(delta.state().delta, Delta::Alone(_));
    if delta.intervals.notes_changes(is_alone) {
        delta.intervals.mark(|column| column.note_keys(keys.iter()));
    }
}

fn mirroring(slots: usize) -> (Tables, DeltaTracker) {
    let tables = Tables::new(slots);
    let delta = tables.open(LastUse::of_test());
    begin(&delta);
    (tables, delta)
}

#[test]
fn a_base_has_the_marks_since_then_and_no_older_ones() {
    let (tables, delta) = mirroring(64);
    change(&delta, 5, 1);
    change_key(&delta, b"iold");
    assert_eq!(base_with(&delta, &[]), None);
    let first = barrier(&delta, 1);
    change(&delta, 5, 2);
    change_key(&delta, b"inew");
    let second = turn(&delta, 2).unwrap();
    change(&delta, 5, 3);
    assert_eq!(base_with(&delta, &[first]), Some(first));
    assert_eq!(base_with(&delta, &[first, second]), Some(second));
    // Before the second barrier is complete, and also after a restart.
    let delta = tables.restarted();
    let since = Since::of(&delta, first);
    assert!(since.has_part(5, 2) && since.has_part(5, 3));
    assert!(!since.has_part(5, 1));
    assert!(since.has_key(&b"inew".to_vec()) && !since.has_key(&b"iold".to_vec()));
}

#[test]
fn a_mark_that_is_made_before_the_columns_are_emptied_stays() {
    let (tables, delta) = mirroring(64);
    let mut base = barrier(&delta, 1);
    for round in 2..8 {
        change(&delta, 5, 1);
        let name = turn(&delta, round).unwrap();
        change(&delta, 5, 2);
        complete(&delta, name);
        // The column of the complete barrier is free, and takes the marks of the next interval, of the same places.
        let next = turn(&delta, 100 + round).unwrap();
        change(&delta, 5, 1);
        change(&delta, 6, 1);
        delta.barriers().drop_columns();
        let since = Since::of(&tables.restarted(), name);
        assert!(since.has_part(5, 1) && since.has_part(5, 2) && since.has_part(6, 1));
        assert!(Since::of(&tables.restarted(), next).has_part(6, 1));
        assert_eq!(base_with(&delta, &[base]), None, "its marks are gone");
        complete(&delta, next);
        delta.barriers().drop_columns();
        base = next;
    }
}

#[test]
fn a_column_that_a_barrier_has_emptied_forgets_its_coarse_marks() {
    let (_, delta) = mirroring(8);
    for file in 1..100 {
        change(&delta, file, 0);
        change_key(&delta, format!("i{file}").as_bytes());
    }
    assert!(delta.barriers().fill() > 500);
    assert!(delta.barriers().is_due());
    let name = barrier(&delta, 1);
    assert_eq!(delta.barriers().fill(), 0);
    assert!(!delta.barriers().is_due());
    let since = Since::of(&delta, name);
    assert!(!(1..100).any(|file| since.has_part(file, 0)));
    assert!(!since.has_key(&b"i5".to_vec()));
}

#[test]
fn a_full_column_becomes_coarser_and_forgets_nothing() {
    let (tables, delta) = mirroring(8);
    let name = barrier(&delta, 1);
    for file in 1..100 {
        change(&delta, file, 16 * file);
        change_key(&delta, format!("i{file}").as_bytes());
    }
    let since = Since::of(&tables.restarted(), name);
    for file in 1..100 {
        assert!(since.has_part(file, 16 * file), "{file}");
        assert!(since.has_key(&format!("i{file}").into_bytes()));
    }
}

#[test]
fn a_loss_of_power_leaves_the_names_and_no_coverage() {
    let (tables, delta) = mirroring(64);
    let name = barrier(&delta, 1);
    change(&delta, 5, 1);
    let run = LastUse::of_test();
    let lost = LastUse {
        boot: BootId::from_bytes([2; 16]),
        ..run
    };
    let disk = tables.disk.after_power_loss(Survivors::Nothing, 0);
    let delta = Tables::of(tables.bytes(), disk).open(lost);
    assert!(delta.barriers().known().contains(&name));
    assert_eq!(base_with(&delta, &[name]), None);
    // Coverage that begins now is after each barrier that any node may know.
    begin(&delta);
    assert_eq!(base_with(&delta, &[name]), None);
    assert!(delta.barriers().machine(BarrierMachine::open) > name.through.next());
    let next = barrier(&delta, 2);
    assert_eq!(base_with(&delta, &[name, next]), Some(next));
}

#[test]
fn marks_beside_a_copy_of_the_store_of_another_opening_do_not_count() {
    let (tables, delta) = mirroring(64);
    delta.opened(5).unwrap();
    let name = barrier(&delta, 1);
    let base_at = |epoch| {
        let last_use = LastUse {
            epoch,
            ..LastUse::of_test()
        };
        let tables = Tables::of(tables.bytes(), tables.disk.fork());
        base_with(&tables.open(last_use), &[name])
    };
    assert_eq!(base_at(5), Some(name));
    assert_eq!(base_at(4), None, "the store is older");
    assert_eq!(base_at(6), None, "the store is newer");
}

/// A process that is killed while it opens the store counts for the opening of before and for the next one.
#[test]
fn a_kill_at_the_opening_keeps_the_coverage() {
    let (tables, delta) = mirroring(64);
    delta.opened(5).unwrap();
    let name = barrier(&delta, 1);
    drop(delta);
    let at = |epoch| LastUse {
        epoch,
        ..LastUse::of_test()
    };
    drop(tables.open(at(5)));
    assert_eq!(base_with(&tables.restarted(), &[name]), None);
    drop(tables.open(at(5)));
    let delta = tables.open(at(6));
    assert_eq!(base_with(&delta, &[name]), Some(name));
    delta.opened(7).unwrap();
    assert_eq!(base_with(&tables.open(at(7)), &[name]), Some(name));
}

#[test]
fn a_clean_stop_of_the_machine_keeps_the_coverage() {
    let (tables, delta) = mirroring(64);
    delta.opened(5).unwrap();
    let name = barrier(&delta, 1);
    change(&delta, 5, 1);
    delta.close(tables.disk.mount().as_ref()).unwrap();
    let stopped = LastUse {
        boot: BootId::from_bytes([2; 16]),
        last_boot: None,
        epoch: 5,
    };
    let delta = Tables::of(tables.bytes(), tables.disk.fork()).open(stopped);
    assert!(Since::of(&delta, name).has_part(5, 1));
}

#[test]
fn forgotten_names_stay_forgotten() {
    let (tables, delta) = mirroring(64);
    let name = barrier(&delta, 1);
    let nonce = [2; 16];
    let effects = delta.barriers().handle(BarrierEvent::Due { nonce });
    let Some(BarrierEffect::Sync(names)) = effects.last() else {
        panic!("{effects:?}");
    };
    delta.barriers().forget().unwrap();
    // The sync of the barrier that was under way ends late.
    assert!(!delta.barriers().note_names(*names).unwrap());
    assert!(delta.barriers().known().is_empty());
    assert!(tables.restarted().barriers().known().is_empty());
    assert_eq!(base_with(&delta, &[name]), None);
    begin(&delta);
    change(&delta, 5, 1);
    assert_eq!(base_with(&delta, &[name]), None);
}

#[test]
fn an_interrupted_change_of_the_names_leaves_the_old_ones_or_the_new_ones() {
    for calls in 1..40 {
        let (tables, delta) = mirroring(64);
        let first = barrier(&delta, 1);
        let before = delta.barriers().known();
        tables.disk.set_verdict(calls, Verdict::CrashTorn(13));
        let nonce = [2; 16];
        let effects = delta.barriers().handle(BarrierEvent::Due { nonce });
        let Some(BarrierEffect::Sync(names)) = effects.last() else {
            panic!("{effects:?}");
        };
        let is_done = delta.barriers().note_names(*names).is_ok();
        for survivors in [Survivors::Nothing, Survivors::Everything] {
            let disk = tables.disk.after_power_loss(survivors, calls);
            let (_, left) = BarrierFile::open(disk.mount()).unwrap();
            let found = left.that_count(false);
            let is_new = found == *names;
            assert!(is_new || !is_done, "call {calls}: {found:?}");
            assert!(is_new || (found.reached == Some(first) && before.contains(&first)));
        }
        if is_done {
            assert!(calls > 2);
            return;
        }
    }
    panic!("no end");
}

/// A rest with one place, of a node that mirrors again.
fn with_rest(slots: usize) -> (Tables, DeltaTracker, BarrierName) {
    let (tables, delta) = mirroring(slots);
    let base = barrier(&delta, 1);
    delta.begin_alone(BASE, Osn::ZERO);
    delta.settle();
    delta.barriers().handle(BarrierEvent::MirroringEnded);
    change(&delta, 5, 1);
    change_key(&delta, b"ialone");
    let since = Since::of(&tables.restarted(), base);
    assert!(since.has_part(5, 1) && since.has_key(&b"ialone".to_vec()));
    begin(&delta);
    delta.keep_in_columns();
    (tables, delta, base)
}

#[test]
fn what_a_resync_has_finished_stays_in_the_columns_until_a_barrier() {
    let (tables, delta, base) = with_rest(64);
    let image = delta.begin_image(false);
    delta.image_held(image, None, LAST);
    delta.image_arrived(image);
    let walk = delta.begin_walk(BASE, LAST).unwrap();
    delta.walked(
        walk.job,
        WalkProgress::Equal {
            ino: ino(5),
            bytes: &(PART_BYTES..2 * PART_BYTES),
        },
    );
    delta.walked(walk.job, WalkProgress::Done(ino(5)));
    delta.end_equal();
    delta.settle();
    assert_eq!(files(&delta), None);
    let since = Since::of(&tables.restarted(), base);
    assert!(since.has_part(5, 1) && since.has_key(&b"ialone".to_vec()));
    let next = barrier(&delta, 2);
    let since = Since::of(&tables.restarted(), next);
    assert!(!since.has_part(5, 1) && !since.has_key(&b"ialone".to_vec()));
}

#[test]
fn a_place_that_is_finished_after_a_barrier_of_its_resync_is_marked_again() {
    let (tables, delta, _) = with_rest(64);
    let during = barrier(&delta, 2);
    let image = delta.begin_image(false);
    delta.image_held(image, None, LAST);
    delta.image_arrived(image);
    let walk = delta.begin_walk(BASE, LAST).unwrap();
    delta.walked(
        walk.job,
        WalkProgress::Equal {
            ino: ino(5),
            bytes: &(PART_BYTES..2 * PART_BYTES),
        },
    );
    let since = Since::of(&tables.restarted(), during);
    assert!(since.has_part(5, 1) && since.has_key(&b"ialone".to_vec()));
}

/// A killed primary in sync applies an operation in doubt before its delta has heard of the connection.
#[test]
fn a_rest_that_ends_without_a_resync_goes_into_the_columns() {
    let (tables, delta) = mirroring(64);
    let base = barrier(&delta, 1);
    let delta = tables.restarted();
    delta.begin_alone(BASE, Osn::ZERO);
    change_key(&delta, b"idoubt");
    change(&delta, 7, 7);
    begin(&delta);
    delta.end_equal();
    delta.settle();
    let since = Since::of(&delta, base);
    assert!(since.has_part(7, 7) && since.has_key(&b"idoubt".to_vec()));
}

#[test]
fn a_delta_that_ends_without_equal_copies_ends_the_coverage_before_the_next_change() {
    let (tables, delta) = mirroring(64);
    let base = barrier(&delta, 1);
    delta.begin_alone(BASE, Osn::ZERO);
    change(&delta, 5, 1);
    delta.end();
    assert_eq!(base_with(&delta, &[base]), None);
    change(&delta, 5, 2);
    assert_eq!(base_with(&tables.restarted(), &[base]), None);
    // Nor does a later coverage count for that base.
    begin(&delta);
    change(&delta, 5, 3);
    assert_eq!(base_with(&delta, &[base]), None);
    assert_eq!(base_with(&tables.restarted(), &[base]), None);
}

/// The end of the rest waits for the table when the coverage is lost.
#[test]
fn a_kill_between_two_ends_leaves_no_base_without_its_rest() {
    let (tables, delta) = mirroring(64);
    let base = barrier(&delta, 1);
    let delta = {
        drop(delta);
        tables.open(LastUse::of_test())
    };
    delta.begin_alone(BASE, Osn::ZERO);
    change(&delta, 5, 1);
    begin(&delta);
    delta.end_equal();
    delta.end();
    tables.take_states();
    delta.settle();
    for state in tables.take_states() {
        let delta = Tables::of(state, tables.disk.fork()).open(LastUse::of_test());
        let is_base = base_with(&delta, &[base]).is_some();
        assert!(!is_base || Since::of(&delta, base).has_part(5, 1));
    }
}

#[test]
fn a_change_without_a_rest_is_noted_in_the_columns_while_they_count() {
    let (tables, delta) = mirroring(64);
    let base = barrier(&delta, 1);
    delta.barriers().handle(BarrierEvent::MirroringEnded);
    change(&delta, 5, 1);
    assert!(Since::of(&tables.restarted(), base).has_part(5, 1));
}

#[test]
fn a_node_that_follows_keeps_its_coverage() {
    let (tables, delta) = mirroring(64);
    let base = barrier(&delta, 1);
    let from = Interval::new(9);
    delta
        .barriers()
        .handle(BarrierEvent::FollowingBegun { from });
    change(&delta, 5, 1);
    assert_eq!(base_with(&delta, &[base]), Some(base));
    delta.settle();
    assert!(Since::of(&tables.restarted(), base).has_part(5, 1));
    assert!(delta.barriers().known().contains(&base));
}

/// The primary writes to a new file without an announcement (P26).
#[test]
fn a_new_file_is_marked_as_a_whole() {
    let (tables, delta) = mirroring(64);
    let base = barrier(&delta, 1);
    let plan = Plan {
        new_file: Some(ino(5)),
        ..Plan::default()
    };
    delta.note_operation(LAST, &plan).unwrap();
    let told = delta.tell_marks(base, 0);
    assert_eq!(told.bytes, [(5, 0, u64::MAX)]);
    for delta in [tables.restarted(), delta] {
        let since = Since::of(&delta, base);
        assert!([0, 1, 999_999].iter().all(|part| since.has_part(5, *part)));
        assert!(!since.has_part(6, 0));
    }
}

#[test]
fn a_damaged_header_costs_the_coverage() {
    let (tables, delta) = mirroring(8);
    let base = barrier(&delta, 1);
    delta.begin_alone(BASE, Osn::ZERO);
    change(&delta, 5, 1);
    drop(delta);
    for table in 0..3 {
        let mut kept = 0;
        for bit in 0..8 * 40 {
            let mut bytes = tables.bytes();
            bytes[table][bit / 8] ^= 1 << (bit % 8);
            let delta = Tables::of(bytes, tables.disk.fork()).open(LastUse::of_test());
            kept += usize::from(base_with(&delta, &[base]).is_some());
        }
        assert_eq!(kept, 0, "table {table}");
    }
}

#[test]
fn a_mark_that_the_open_column_has_touches_no_table() {
    let (tables, delta) = mirroring(64);
    change(&delta, 5, 1);
    let _held = delta.delta.lock();
    tables.take_states();
    delta
        .barriers()
        .mark_bytes(ino(5), &(PART_BYTES..PART_BYTES + 10));
    assert!(tables.take_states().is_empty());
}
