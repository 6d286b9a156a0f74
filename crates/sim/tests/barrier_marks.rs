//! The mutants of the marks of mirrored intervals, each found by a store that is asked what the other copy may lack.

// Clippy knows test functions by their attribute. These helpers are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use lockstep_delta::{
    BarrierEffect, BarrierEvent, BarrierMessage, BarrierName, Interval, MarkAccount,
};
use lockstep_fs::store::{
    Access, ChangedRecords, DeltaWalk, MarkTableSizes, OpenOptions, TraceAccess, WalkProgress,
};
use lockstep_fs::{Store, keys};
use lockstep_intentlog::LogOptions;
use lockstep_lossy::disk::{Disk, Survivors};
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::{
    BootId, DatastoreUuid, FileName, Generation, Ino, MetaOp, MetaRequest, NodeKind, Osn, Timestamp,
};

const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);
const BASE: Generation = Generation::FIRST;
const PART: u64 = 64 << 10;

/// The account of a node that has lost power.
fn told(base: BarrierName) -> MarkAccount {
    MarkAccount {
        known: vec![base],
        ..MarkAccount::default()
    }
}

fn open(disk: &Disk, boot: u8) -> Store {
    let options = OpenOptions {
        datastore: Some(UUID),
        boot: BootId::from_bytes([boot; 16]),
        access: Access::Write,
        log: LogOptions::default(),
        marks: MarkTableSizes::of(64),
    };
    Store::open(disk.mount(), &options).unwrap().store
}

const fn osn(sequence: u64) -> Osn {
    Osn {
        generation: BASE,
        sequence,
    }
}

/// The store of a primary that mirrors, with one file.
struct Primary {
    disk: Disk,
    store: Store,
    file: Ino,
    count: u64,
}

impl Primary {
    fn new() -> Self {
        let disk = Disk::default();
        Store::create(&disk.mount(), UUID, &LogOptions::default()).unwrap();
        let store = open(&disk, 1);
        let mut primary = Self {
            file: Ino::ROOT,
            disk,
            store,
            count: 0,
        };
        primary.file = primary.create("file");
        primary.begin();
        primary
    }

    fn begin(&self) {
        let from = Interval::new(1);
        let event = BarrierEvent::MirroringBegun { from };
        self.store.barriers().handle(event);
    }

    fn create(&mut self, name: &str) -> Ino {
        self.count += 1;
        let ino = self.store.next_ino().unwrap();
        let name = FileName::new(name.as_bytes()).unwrap();
        let request = MetaRequest::creation(Ino::ROOT, name, ino, NodeKind::File).request();
        let (osn, time) = (osn(self.count), Timestamp::default());
        self.store.commit(&MetaOp { osn, time, request }).unwrap();
        ino
    }

    fn write(&mut self, part: u64) {
        self.count += 1;
        let (osn, time) = (osn(self.count), Timestamp::default());
        let offset = part * PART;
        self.store.barriers().mark_write(self.file, offset, 5);
        let written = self.store.write(self.file, offset, b"bytes", osn, time);
        written.unwrap();
    }

    /// Begins a barrier, and reaches it.
    fn turn(&self, nonce: u8) -> BarrierName {
        let barriers = self.store.barriers();
        let nonce = [nonce; 16];
        let effects = barriers.handle(BarrierEvent::Due { nonce });
        let Some(BarrierEffect::Sync(names)) = effects.last() else {
            panic!("{effects:?}");
        };
        barriers.make_stable().unwrap();
        assert!(barriers.note_names(*names).unwrap());
        barriers.handle(BarrierEvent::Synced);
        names.reached.unwrap()
    }

    fn complete(&self, name: BarrierName) {
        let reached = BarrierMessage::Reached(name);
        let barriers = self.store.barriers();
        barriers.handle(BarrierEvent::Received(reached));
        barriers.drop_columns().unwrap();
    }

    fn barrier(&self, nonce: u8) -> BarrierName {
        let name = self.turn(nonce);
        self.complete(name);
        name
    }

    fn since(&self, base: BarrierName) -> (ChangedRecords, DeltaWalk) {
        assert!(self.store.delta().adopt_base(base, BASE, &told(base), &[]));
        let records = self.store.delta().adopted_records().unwrap();
        (records, self.walk())
    }

    fn walk(&self) -> DeltaWalk {
        let delta = self.store.delta();
        let image = delta.begin_image(false);
        delta.image_held(image, None);
        delta.image_arrived(image);
        delta.begin_walk(BASE, osn(u64::MAX)).unwrap()
    }

    fn names_part(&self, base: BarrierName, part: u64) -> bool {
        let (_, walk) = self.since(base);
        let run = walk.content.get(&self.file);
        let next = run.and_then(|run| run.next(part * PART));
        next.is_some_and(|run| run.start == part * PART)
    }
}

/// Marks that are made while a barrier is under way are there after it.
fn keeps_new_marks() -> bool {
    let mut primary = Primary::new();
    primary.write(1);
    let name = primary.turn(1);
    primary.write(2);
    primary.complete(name);
    primary.names_part(name, 2)
}

/// A node that knows a barrier after a loss of power has what was written before.
fn is_stable() -> bool {
    let mut primary = Primary::new();
    primary.write(1);
    let name = primary.turn(1);
    let store = open(&primary.disk.after_power_loss(Survivors::Nothing, 0), 2);
    let mut bytes = [0; 5];
    let known: Vec<BarrierName> = store.barriers().ask(|machine| machine.known().collect());
    assert!(known.contains(&name));
    store.read(primary.file, PART, &mut bytes).is_ok() && bytes == *b"bytes"
}

/// An attempt that is not complete leaves the base before it.
fn takes_both_columns() -> bool {
    let mut primary = Primary::new();
    let base = primary.barrier(1);
    primary.write(1);
    primary.turn(2);
    primary.write(2);
    primary.names_part(base, 1) && primary.names_part(base, 2)
}

/// The secondary may lose what a resync has made equal.
fn keeps_the_rest() -> bool {
    let mut primary = Primary::new();
    let base = primary.barrier(1);
    let delta = |primary: &Primary| {
        let event = BarrierEvent::MirroringEnded;
        primary.store.delta().begin_alone(BASE);
        primary.store.delta().settle();
        primary.store.barriers().handle(event);
    };
    delta(&primary);
    primary.count += 1;
    let (number, time) = (osn(primary.count), Timestamp::default());
    let written = primary
        .store
        .write(primary.file, 3 * PART, b"alone", number, time);
    written.unwrap();
    primary.begin();
    primary.store.delta().keep_in_columns();
    let walk = primary.walk();
    primary
        .store
        .delta()
        .walked(walk.job, WalkProgress::Done(primary.file));
    primary.store.delta().end_equal();
    primary.names_part(base, 3)
}

/// The tables are those of the machine that goes on, and the store beside them is older.
fn knows_the_age_of_its_copy() -> bool {
    let primary = Primary::new();
    primary.store.close().unwrap();
    let older = primary.disk.fork();
    let newer = Primary {
        store: open(&primary.disk, 1),
        ..primary
    };
    newer.begin();
    let base = newer.barrier(1);
    for path in [
        "tables/delta",
        "tables/marks.0",
        "tables/marks.1",
        "tables/barrier",
    ] {
        let bytes = newer.disk.read_all(path).unwrap();
        older.put(path, &bytes).unwrap();
    }
    open(&older, 1).delta().base_with(&told(base)).is_none()
}

/// The secondary may lose a new file.
fn keeps_keys() -> bool {
    let mut primary = Primary::new();
    let base = primary.barrier(1);
    let made = primary.create("made");
    let (records, _) = primary.since(base);
    records.all || records.keys.contains(&keys::inode(made))
}

/// A node that serves alone, with a trace.
fn alone(primary: &Primary) {
    primary
        .store
        .barriers()
        .handle(BarrierEvent::MirroringEnded);
    primary.store.barriers().hide_names().unwrap();
    primary.store.delta().begin_alone(BASE);
    assert!(TraceAccess::of(&primary.store).begin().unwrap());
}

/// The node loses its power, and all changes that were not synced.
fn lose_power(primary: &Primary) -> Primary {
    let disk = primary.disk.after_power_loss(Survivors::Nothing, 1);
    Primary {
        store: open(&disk, 2),
        disk,
        file: primary.file,
        count: primary.count,
    }
}

/// A write alone is on stable storage, and the machine goes down.
fn traces_regions() -> bool {
    let mut primary = Primary::new();
    let base = primary.barrier(1);
    alone(&primary);
    primary.write(20);
    primary.store.sync_file(primary.file, true).unwrap();
    let primary = lose_power(&primary);
    primary.names_part(base, 20)
}

/// A checkpoint takes an operation from the log.
fn traces_keys() -> bool {
    let mut primary = Primary::new();
    let base = primary.barrier(1);
    alone(&primary);
    let made = primary.create("alone");
    primary.store.checkpoint().unwrap();
    let primary = lose_power(&primary);
    let (records, _) = primary.since(base);
    records.all || records.keys.contains(&keys::inode(made))
}

/// The other node has a write that is lost here.
fn traces_what_was_mirrored() -> bool {
    let mut primary = Primary::new();
    let base = primary.barrier(1);
    primary.write(7);
    alone(&primary);
    let primary = lose_power(&primary);
    primary.names_part(base, 7)
}

/// A file that is made alone is on stable storage.
fn traces_new_files() -> bool {
    let mut primary = Primary::new();
    let base = primary.barrier(1);
    alone(&primary);
    let made = primary.create("alone");
    let old = std::mem::replace(&mut primary.file, made);
    primary.write(3);
    primary.store.sync_file(made, true).unwrap();
    primary.file = old;
    let primary = lose_power(&primary);
    let rest = primary.since(base).1.rest;
    rest.is_some_and(|rest| made.get() >= rest.next)
}

/// A resync begins, and gives the other node what this one loses.
fn ends_its_trace() -> bool {
    let primary = Primary::new();
    let base = primary.barrier(1);
    alone(&primary);
    TraceAccess::of(&primary.store).end().unwrap();
    let primary = lose_power(&primary);
    primary.store.delta().base_with(&told(base)).is_none()
}

#[test]
fn each_mutant_of_the_marks_is_found() {
    let scenarios: [(Mutant, fn() -> bool); 11] = [
        (Mutant::BarrierDropsNewMarks, keeps_new_marks),
        (Mutant::BarrierBeforeSync, is_stable),
        (Mutant::AdoptForgetsColumn, takes_both_columns),
        (Mutant::ColumnsLackRest, keeps_the_rest),
        (Mutant::MarksOfOldCopy, knows_the_age_of_its_copy),
        (Mutant::KeysNotInColumns, keeps_keys),
        (Mutant::MarkUndurableAlone, traces_regions),
        (Mutant::KeysCutWithLog, traces_keys),
        (Mutant::ColumnsUnsyncedAlone, traces_what_was_mirrored),
        (Mutant::NewInodeBelowLimit, traces_new_files),
        (Mutant::TraceOutlivesAlone, ends_its_trace),
    ];
    for (mutant, is_right) in scenarios {
        assert!(is_right(), "without {mutant:?}");
        activate(Some(mutant));
        let is_found = !is_right();
        activate(None);
        assert!(is_found, "{mutant:?} is not found");
    }
}
