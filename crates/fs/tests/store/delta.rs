//! The delta of a node that is alone, after a stop of its process at each call: it names each place in which the store differs
//! from the other copy (rule P21).

use std::ops::ControlFlow;

use lockstep_fs::store::{ChangedRecords, DeltaWalk};
use lockstep_fs::{OpError, Store, StoreView, keys};
use lockstep_lossy::disk::{Disk, Verdict};
use lockstep_types::{AllocateMode, FileName, Ino, MetaOp, MetaRequest, NodeKind};

use crate::harness::{BASE, LAST, Node, new_disk, open, osn_and_time};

const PART: u64 = 64 << 10;
const FILE_BYTES: u64 = 40 * PART;

/// A client of a store that may stop at any moment.
struct Client<'a> {
    store: &'a Store,
    count: u64,
}

impl<'a> Client<'a> {
    const fn new(store: &'a Store, count: u64) -> Self {
        Self { store, count }
    }

    fn meta(&mut self, request: MetaRequest) -> Result<(), OpError> {
        self.count += 1;
        let (osn, time) = osn_and_time(self.count);
        self.store.commit(&MetaOp { osn, time, request }).map(drop)
    }

    fn create(&mut self, text: &str) -> Result<Ino, OpError> {
        let ino = self.store.next_ino()?;
        self.meta(MetaRequest::creation(Ino::ROOT, name(text), ino, NodeKind::File).request())?;
        Ok(ino)
    }

    fn write(&mut self, ino: Ino, offset: u64, length: u64) -> Result<(), OpError> {
        self.count += 1;
        let (osn, time) = osn_and_time(self.count);
        let byte = u8::try_from(self.count % 251).unwrap_or(1);
        let data = vec![byte; usize::try_from(length).unwrap_or(0)];
        self.store.write(ino, offset, &data, osn, time)
    }
}

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

/// A disk with two files, whose other copy is equal.
fn equal_copies() -> (Disk, Ino, Ino) {
    let disk = new_disk();
    let store = open(&disk);
    let mut client = Client::new(&store, 0);
    let (first, second) = (client.create("a").unwrap(), client.create("b").unwrap());
    for ino in [first, second] {
        client.write(ino, 0, FILE_BYTES).unwrap();
    }
    store.close().unwrap();
    (disk, first, second)
}

/// The changes of a node that is alone, up to the stop.
fn change(store: &Store, first: Ino, second: Ino) -> Result<(), OpError> {
    let mut client = Client::new(store, 1000);
    client.write(first, 5 * PART + 100, 3 * PART)?;
    let third = client.create("c")?;
    client.write(third, 0, 100)?;
    client.meta(MetaRequest::Truncate {
        ino: second,
        size: 7 * PART,
        drop_set_id: false,
    })?;
    store.checkpoint()?;
    client.write(second, 30 * PART, 10)?;
    client.meta(MetaRequest::Allocate {
        ino: first,
        offset: 20 * PART,
        length: 5000,
        mode: AllocateMode::PunchHole,
    })?;
    client.meta(MetaRequest::Unlink {
        parent: Ino::ROOT,
        name: name("c"),
    })?;
    client.meta(MetaRequest::Reap { ino: third })?;
    store.checkpoint()?;
    store.collect_garbage()?;
    client.create("d")?;
    client.write(first, 0, 10)
}

/// All records that both copies have.
fn records(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    for table in keys::REPLICATED {
        let mut each = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        store.tree().scan(&keys::table(table), &mut each).unwrap();
    }
    found
}

fn content(store: &Store, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(2 * FILE_BYTES).unwrap()];
    let count = store.read(ino, 0, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

fn names_file(ino: Ino, walk: &DeltaWalk) -> bool {
    walk.rest.is_some_and(|rest| ino.get() >= rest.next)
}

/// Whether the delta has this record, or sends it with the file.
fn names_record(key: &Vec<u8>, records: &ChangedRecords, walk: &DeltaWalk) -> bool {
    let with_file = keys::ino_of(key).filter(|_| key.first() == Some(&keys::INODES));
    records.all
        || records.keys.contains(key)
        || with_file.is_some_and(|ino| names_file(ino, walk) || walk.content.contains_key(&ino))
}

fn names_part(ino: Ino, part: u64, walk: &DeltaWalk) -> bool {
    let file = walk.content.get(&ino);
    let next = file.and_then(|file| file.next(part * PART));
    names_file(ino, walk) || next.is_some_and(|run| run.start == part * PART)
}

/// Checks that the delta names each difference between a store and the other copy.
fn check(store: &Store, other: &Store, files: [Ino; 2], calls: u64) {
    let delta = store.delta();
    let changed = delta.records(BASE, LAST).expect("there is a delta");
    let walk = delta.begin_walk(BASE, LAST).unwrap();
    let (here, there) = (records(store), records(other));
    let differing = here.iter().filter(|record| !there.contains(record));
    let differing = differing.chain(there.iter().filter(|record| !here.contains(record)));
    for (key, _) in differing {
        assert!(names_record(key, &changed, &walk), "call {calls}: {key:?}");
    }
    for ino in files {
        let (here, there) = (content(store, ino), content(other, ino));
        for part in 0..2 * FILE_BYTES / PART {
            let of = |bytes: &[u8]| {
                let parts = bytes.chunks(usize::try_from(PART).unwrap());
                parts
                    .skip(usize::try_from(part).unwrap())
                    .take(1)
                    .next()
                    .map(<[u8]>::to_vec)
            };
            let is_equal = of(&here) == of(&there);
            assert!(
                is_equal || names_part(ino, part, &walk),
                "call {calls}: part {part} of {ino}"
            );
        }
    }
}

/// Stops at each call in this way. Returns the number of stops.
fn stop_at_each_call(verdict: Verdict) -> u64 {
    let (before, first, second) = equal_copies();
    let other = open(&before.fork());
    for calls in 0.. {
        let disk = before.fork();
        let store = open(&disk);
        store.delta().begin_alone(BASE);
        store.delta().settle();
        disk.set_verdict(calls + 1, verdict);
        let done = change(&store, first, second).is_ok();
        let disk = disk.fork();
        check(&open(&disk), &other, [first, second], calls);
        if done {
            return calls;
        }
    }
    0
}

#[test]
fn a_stop_at_any_call_leaves_a_delta_that_names_every_difference() {
    assert!(stop_at_each_call(Verdict::CrashBefore) > 40);
}

#[test]
fn a_stop_in_the_middle_of_any_call_does_so_too() {
    assert!(stop_at_each_call(Verdict::CrashTorn(13)) > 40);
}

#[test]
fn a_clean_stop_of_the_machine_keeps_the_delta_and_a_loss_of_power_does_not() {
    let (before, first, second) = equal_copies();
    let other = open(&before.fork());
    let store = open(&before);
    store.delta().begin_alone(BASE);
    store.delta().settle();
    change(&store, first, second).unwrap();
    store.close().unwrap();
    let mut node = Node::of(before, store);
    node.lose_power();
    check(&node.store, &other, [first, second], 0);
    // A node that is in use when the power goes has no delta.
    node.lose_power();
    assert!(node.store.delta().records(BASE, LAST).is_none());
}
