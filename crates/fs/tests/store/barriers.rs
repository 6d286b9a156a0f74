//! Barriers on stable storage, after a loss of power at each call: a name that is there says that everything before it is there
//! (rule P27).

use lockstep_delta::{
    BarrierEffect, BarrierEvent, BarrierMachine, BarrierMessage, BarrierName, BarrierNames,
    Interval, MarkAccount,
};
use lockstep_fs::{OpError, Store, StoreError, StoreView};
use lockstep_lossy::disk::{Disk, Survivors, Verdict};
use lockstep_types::{BootId, FileName, Generation, Ino, MetaOp, MetaRequest, NodeKind};

use crate::harness::{AMPLE, Node, new_disk, open, open_in, osn_and_time, read_all};

const PART: u64 = 64 << 10;

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

fn commit(store: &Store, count: u64, request: MetaRequest) -> Result<(), OpError> {
    let (osn, time) = osn_and_time(count);
    store.commit(&MetaOp { osn, time, request }).map(drop)
}

fn create(store: &Store, count: u64, text: &str) -> Result<Ino, OpError> {
    let ino = store.next_ino()?;
    let request = MetaRequest::creation(Ino::ROOT, name(text), ino, NodeKind::File).request();
    commit(store, count, request)?;
    Ok(ino)
}

/// A write that is mirrored.
fn write(store: &Store, count: u64, ino: Ino, offset: u64, data: &[u8]) -> Result<(), OpError> {
    let (osn, time) = osn_and_time(count);
    let length = data.len() as u64;
    store.barriers().mark_write(ino, offset, length);
    store.write(ino, offset, data, osn, time)
}

fn begin(store: &Store) {
    let from = Interval::new(1);
    store
        .barriers()
        .handle(BarrierEvent::MirroringBegun { from });
}

/// Begins a barrier. Returns the names that its sync is to note.
fn attempt(store: &Store, nonce: u8) -> BarrierNames {
    let nonce = [nonce; 16];
    let effects = store.barriers().handle(BarrierEvent::Due { nonce });
    let Some(BarrierEffect::Sync(names)) = effects.last() else {
        panic!("{effects:?}");
    };
    *names
}

/// A whole barrier, with a change between its turn and its sync.
fn barrier(
    store: &Store,
    nonce: u8,
    meanwhile: impl FnOnce() -> Result<(), OpError>,
) -> Result<BarrierName, OpError> {
    let barriers = store.barriers();
    let names = attempt(store, nonce);
    meanwhile()?;
    barriers.make_stable()?;
    assert!(barriers.note_names(names)?);
    barriers.handle(BarrierEvent::Synced);
    let name = names.reached.unwrap();
    let reached = BarrierMessage::Reached(name);
    barriers.handle(BarrierEvent::Received(reached));
    barriers.drop_columns()?;
    Ok(name)
}

/// Two barriers with changes before each of them.
fn work(store: &Store, ino: Ino, names: &mut Vec<BarrierName>) -> Result<(), OpError> {
    begin(store);
    create(store, 10, "first")?;
    write(store, 11, ino, 0, b"first")?;
    names.push(barrier(store, 1, || {
        write(store, 12, ino, 9 * PART, b"meanwhile")
    })?);
    create(store, 13, "second")?;
    write(store, 14, ino, PART, b"second")?;
    let new = create(store, 15, "new")?;
    write(store, 16, new, 0, b"new")?;
    let size = 5;
    commit(
        store,
        17,
        MetaRequest::Truncate {
            ino: new,
            size,
            drop_set_id: false,
        },
    )?;
    names.push(barrier(store, 2, || create(store, 18, "third").map(drop))?);
    Ok(())
}

/// The nonces of the barriers that a store knows.
fn known(store: &Store) -> Vec<u8> {
    let known: Vec<BarrierName> = store.barriers().ask(|machine| machine.known().collect());
    known.iter().map(|name| name.nonce[0]).collect()
}

/// The account of a node that has lost power.
fn account(known: &[BarrierName]) -> MarkAccount {
    MarkAccount {
        known: known.to_vec(),
        ..MarkAccount::default()
    }
}

fn base_with(store: &Store, known: &[BarrierName]) -> Option<BarrierName> {
    let base = store.delta().base_with(&account(known));
    base.map(|base| base.name)
}

fn told(store: &Store) -> Vec<u8> {
    let told = store.delta().account().known;
    told.iter().map(|name| name.nonce[0]).collect()
}

fn has(store: &Store, ino: Ino, offset: u64, data: &[u8]) -> bool {
    let mut bytes = vec![0; data.len()];
    store.read(ino, offset, &mut bytes).is_ok() && bytes == data
}

/// Checks that the store has everything from before the barriers that it knows.
fn check(store: &Store, ino: Ino, calls: u64) {
    let known = known(store);
    let lookup = |text| store.tree().lookup(Ino::ROOT, &name(text));
    if known.contains(&1) || known.contains(&2) {
        assert!(has(store, ino, 0, b"first"), "call {calls}");
        assert!(lookup("first").is_ok(), "call {calls}");
    }
    if known.contains(&2) {
        assert!(has(store, ino, PART, b"second"), "call {calls}");
        assert!(has(store, ino, 9 * PART, b"meanwhile"), "call {calls}");
        assert!(lookup("second").is_ok(), "call {calls}");
        let new = lookup("new").unwrap();
        assert_eq!(read_all(store, new.ino), b"new\0\0", "call {calls}");
    }
}

fn with_file() -> (Disk, Ino) {
    let disk = new_disk();
    let store = open(&disk);
    let ino = create(&store, 1, "file").unwrap();
    store.close().unwrap();
    (disk, ino)
}

fn lose_power_at_each_call(verdict: Verdict) {
    let (before, ino) = with_file();
    let mut found = 0;
    for calls in 1.. {
        let disk = before.fork();
        let store = open(&disk);
        disk.set_verdict(calls, verdict);
        let mut names = Vec::new();
        let is_done = work(&store, ino, &mut names).is_ok();
        for survivors in [
            Survivors::Nothing,
            Survivors::Everything,
            Survivors::Mixed { percent: 40 },
        ] {
            let left = disk.after_power_loss(survivors, calls);
            let mut node = Node::of(left, open(&new_disk()));
            node.lose_power();
            check(&node.store, ino, calls);
            assert_eq!(base_with(&node.store, &names), None);
            let reached = known(&node.store);
            let last = names.last().map(|name| name.nonce[0]);
            let is_known = |last: u8| reached.iter().any(|nonce| *nonce >= last);
            assert!(last.is_none_or(is_known));
            found += usize::from(!reached.is_empty());
        }
        if is_done {
            break;
        }
    }
    assert!(found > 20);
}

#[test]
fn a_name_on_stable_storage_says_that_everything_before_it_is_there() {
    lose_power_at_each_call(Verdict::CrashBefore);
}

#[test]
fn a_torn_name_is_none() {
    lose_power_at_each_call(Verdict::CrashTorn(13));
}

/// The disk of a barrier is full: nothing is noted, and nothing is poisoned.
#[test]
fn a_full_disk_notes_no_name() {
    let (disk, ino) = with_file();
    let store = open(&disk);
    begin(&store);
    write(&store, 11, ino, 0, b"first").unwrap();
    let names = attempt(&store, 1);
    disk.fill();
    let error: StoreError = store.barriers().note_names(names).unwrap_err();
    assert!(error.is_full_disk(), "{error}");
    assert!(!store.is_poisoned());
    store.barriers().handle(BarrierEvent::SyncFailed);
    assert!(!store.barriers().ask(BarrierMachine::is_under_way));
    assert!(
        store.barriers().ask(BarrierMachine::is_due),
        "the marks are there"
    );
}

/// A copy that is about to be overwritten forgets its names also on a full disk.
#[test]
fn a_full_disk_forgets_names() {
    let (disk, _) = with_file();
    let store = open(&disk);
    store.barriers().forget().unwrap();
    assert!(!disk.mount().exists("tables/barrier").unwrap());
    begin(&store);
    barrier(&store, 1, || Ok(())).unwrap();
    disk.fill();
    store.barriers().forget().unwrap();
    disk.set_capacity(AMPLE);
    let mut node = Node::of(disk, store);
    node.lose_power();
    assert!(known(&node.store).is_empty());
}

#[test]
fn a_kill_keeps_the_marks_of_a_store_and_a_loss_of_power_takes_them() {
    let (disk, ino) = with_file();
    let store = open(&disk);
    begin(&store);
    let base = barrier(&store, 1, || Ok(())).unwrap();
    write(&store, 11, ino, 3 * PART, b"later").unwrap();
    let made = create(&store, 12, "made").unwrap();
    let mut node = Node::of(disk, store);
    node.kill();
    let delta = node.store.delta();
    assert!(delta.adopt_base(base, Generation::FIRST, &account(&[base]), &[]));
    let records = delta.adopted_records().unwrap();
    let key = lockstep_fs::keys::inode(made);
    assert!(records.keys.contains(&key), "{records:?}");
    node.kill();
    assert_eq!(base_with(&node.store, &[base]), Some(base));
    node.restart();
    assert_eq!(base_with(&node.store, &[base]), Some(base));
    node.lose_power();
    assert_eq!(base_with(&node.store, &[base]), None);
}

/// The next process notes an attempt, and not in the place of the barrier whose marks are gone: the other node may not have heard of the
/// attempt.
#[test]
fn an_attempt_of_the_next_process_leaves_the_complete_barrier() {
    let (disk, ino) = with_file();
    let store = open(&disk);
    begin(&store);
    barrier(&store, 1, || Ok(())).unwrap();
    write(&store, 11, ino, 0, b"first").unwrap();
    let base = barrier(&store, 2, || Ok(())).unwrap();
    let mut node = Node::of(disk, store);
    node.kill();
    let store = &node.store;
    begin(store);
    write(store, 12, ino, PART, b"second").unwrap();
    let names = attempt(store, 3);
    assert!(store.barriers().note_names(names).unwrap());
    store.barriers().handle(BarrierEvent::Synced);
    assert_eq!(base_with(store, &[base]), Some(base));
    node.kill();
    assert_eq!(base_with(&node.store, &[base]), Some(base));
}

/// A node that follows marks what it changes, until a resync of its copy begins.
#[test]
fn a_node_that_follows_goes_on_with_its_marks() {
    let (disk, ino) = with_file();
    let store = open(&disk);
    begin(&store);
    write(&store, 11, ino, 0, b"first").unwrap();
    let base = barrier(&store, 1, || Ok(())).unwrap();
    let from = Interval::new(9);
    let barriers = store.barriers();
    barriers.handle(BarrierEvent::FollowingBegun { from });
    store.delta().follow(Generation::FIRST);
    let made = create(&store, 12, "followed").unwrap();
    let next = open(&disk.fork());
    assert!(
        next.delta()
            .adopt_base(base, Generation::FIRST, &account(&[base]), &[])
    );
    let records = next.delta().adopted_records().unwrap();
    let key = lockstep_fs::keys::inode(made);
    assert!(records.keys.contains(&key), "{records:?}");
    store.delta().end();
    create(&store, 13, "resynced").unwrap();
    assert_eq!(base_with(&open(&disk.fork()), &[base]), None);
}

/// The marks of a secondary begin with the first interval of which it reads. Writes of that interval may be under way, so its barrier
/// is the first base.
#[test]
fn a_turn_begins_the_marks_of_a_node_that_follows() {
    let (disk, ino) = with_file();
    let store = open(&disk);
    let barriers = store.barriers();
    let from = Interval::new(0);
    barriers.handle(BarrierEvent::FollowingBegun { from });
    let to = Interval::new(5);
    barriers.handle(BarrierEvent::Turned { to });
    assert_eq!(barriers.open(), to.next());
    let (osn, time) = osn_and_time(11);
    store.write(ino, 0, b"followed", osn, time).unwrap();
    let name = |through| BarrierName {
        through: Interval::new(through),
        nonce: [1; 16],
    };
    // A word about the barrier of that interval, which this node reaches.
    let complete = None;
    let effects = barriers.handle(BarrierEvent::Received(BarrierMessage::Barrier {
        name: name(5),
        complete,
    }));
    let Some(BarrierEffect::Sync(names)) = effects.last() else {
        panic!("{effects:?}");
    };
    assert!(barriers.note_names(*names).unwrap());
    barriers.handle(BarrierEvent::Synced);
    assert_eq!(base_with(&store, &[name(5)]), Some(name(5)));
    assert_eq!(base_with(&store, &[name(4)]), None);
}

/// A node that has served alone says so: no other node has marks of its changes. After the next barrier they are of no use any more. After a
/// loss of its marks the node knows no barrier.
#[test]
fn a_node_that_has_served_alone_says_so_as_long_as_it_has_its_marks() {
    let (disk, _) = with_file();
    let store = open(&disk);
    begin(&store);
    barrier(&store, 1, || Ok(())).unwrap();
    assert_eq!(told(&store), known(&store));
    assert!(!store.delta().account().served_alone);
    store.barriers().hide_names().unwrap();
    drop(store);
    let store = open(&disk);
    assert!(known(&store).contains(&1));
    assert_eq!(told(&store), known(&store));
    assert!(store.delta().account().served_alone);
    store.delta().end();
    assert_eq!(told(&store), [0_u8; 0]);
    begin(&store);
    barrier(&store, 2, || Ok(())).unwrap();
    assert_eq!(told(&store), known(&store));
    assert!(!store.delta().account().served_alone);
}

/// A node that serves alone knows its barriers while it has its power.
#[test]
fn hidden_names_count_until_a_loss_of_power() {
    let (disk, _) = with_file();
    let store = open(&disk);
    begin(&store);
    barrier(&store, 1, || Ok(())).unwrap();
    disk.fill();
    store.barriers().hide_names().unwrap();
    disk.set_capacity(AMPLE);
    assert!(known(&open(&disk.fork())).contains(&1));
    let lost = disk.after_power_loss(Survivors::Everything, 0);
    let next_run = BootId::from_bytes([2; 16]);
    assert_eq!(known(&open_in(&lost, next_run)), [0_u8; 0]);
    assert_eq!(known(&open_in(&lost.fork(), next_run)), [0_u8; 0]);
}
