//! Snapshots of a store against deep copies of a model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_fs::snapshot_list::{SnapshotBytes, SnapshotKind, SnapshotRecord};
use lockstep_fs::store::SnapshotAccess;
use lockstep_fs::{Store, keys};
use lockstep_lossy::disk::{CallKind, Verdict};
use lockstep_model::Model;
use lockstep_types::limits::SNAPSHOT_HOLDS_MAX;
use lockstep_types::{Errno, Ino, MetaOp, MetaRequest, SnapshotId, SnapshotName, Timestamp};
use proptest::prelude::*;

use crate::durability::Client;
use crate::harness::{Node, World, osn_and_time, read_all, read_view};
use crate::steps::{Step, step};

/// A step of a test with snapshots.
#[derive(Clone, Debug)]
pub enum PastStep {
    Present(Step),
    /// Makes a snapshot of this copy.
    Take,
    /// Deletes one.
    Delete(u8),
    /// Makes a snapshot of the datastore.
    Create(u8),
    /// Renames one.
    Rename(u8, u8),
    /// Deletes one.
    Flag(u8),
    /// Puts a hold on one.
    Hold(u8, u8),
    /// Takes a hold off one.
    Release(u8, u8),
    /// Goes on with deletions.
    Resume,
}

pub fn past_step(restarts: u32) -> impl Strategy<Value = PastStep> {
    prop_oneof![
        12 => step(restarts).prop_map(PastStep::Present),
        1 => Just(PastStep::Take),
        1 => any::<u8>().prop_map(PastStep::Delete),
        2 => (0..8_u8).prop_map(PastStep::Create),
        1 => (any::<u8>(), 0..8_u8).prop_map(|(of, name)| PastStep::Rename(of, name)),
        1 => any::<u8>().prop_map(PastStep::Flag),
        2 => (any::<u8>(), 0..3_u8).prop_map(|(of, hold)| PastStep::Hold(of, hold)),
        1 => (any::<u8>(), 0..3_u8).prop_map(|(of, hold)| PastStep::Release(of, hold)),
        1 => Just(PastStep::Resume),
    ]
}

/// Makes a snapshot of the node's own copy.
pub fn take_local(store: &Store) -> SnapshotId {
    let kind = SnapshotKind::Fallback {
        is_exact: true,
        own_of: None,
    };
    let snapshots = SnapshotAccess::of(store);
    let id = snapshots.create_local("s".to_owned(), kind, Timestamp::default());
    id.unwrap()
}

/// A store with a model of the present, and one of each snapshot.
pub struct PastWorld {
    pub present: World,
    taken: BTreeMap<SnapshotId, Model>,
}

impl PastWorld {
    pub fn new() -> Self {
        Self {
            present: World::new(),
            taken: BTreeMap::new(),
        }
    }

    pub fn store(&self) -> &Store {
        &self.present.node.store
    }

    /// The model of the present.
    pub fn model(&self) -> &Model {
        &self.present.model
    }

    /// The snapshots, the oldest first, each with its model.
    pub fn moments(&self) -> BTreeMap<SnapshotId, &Model> {
        let local = self.taken.iter().map(|(id, model)| (*id, model));
        let made = self.present.model.snapshots().iter();
        local.chain(made.map(|(id, it)| (*id, &*it.copy))).collect()
    }

    /// See [`World::begin_behind`].
    pub fn begin_behind(&mut self, other: &Self) {
        self.present.begin_behind(&other.present);
    }

    /// See [`World::follow`].
    pub fn follow(&mut self, other: &Self) {
        self.present.follow(&other.present);
    }

    /// Makes a snapshot of this copy that no step deletes. Returns the snapshot, with its model.
    pub fn lose(&self) -> (SnapshotId, Model) {
        (take_local(self.store()), self.model().clone())
    }

    pub fn kill(&mut self) {
        self.present.node.kill();
    }

    /// Deletes a snapshot to the end.
    pub fn remove(&mut self, id: SnapshotId) {
        if self.taken.remove(&id).is_none() {
            self.release_and_delete(id);
        }
        SnapshotAccess::of(self.store()).delete(id).unwrap();
    }

    pub fn step(&mut self, step: &PastStep) {
        match step {
            PastStep::Present(step) => self.present.step(step),
            PastStep::Take => self.take(),
            PastStep::Delete(number) => self.delete(*number),
            PastStep::Create(name) => {
                let inos_below = self.store().image().inos_below();
                self.present.commit(MetaRequest::SnapshotCreate {
                    name: snapshot_name(*name),
                    kind: if name % 2 == 0 {
                        SnapshotKind::User
                    } else {
                        SnapshotKind::Scheduled
                    },
                    inos_below,
                });
            }
            PastStep::Rename(number, name) => {
                let (id, name) = (self.any_made(*number), snapshot_name(*name));
                self.present
                    .commit(MetaRequest::SnapshotRename { id, name });
            }
            PastStep::Flag(number) => {
                let id = self.any_made(*number);
                self.present.commit(MetaRequest::SnapshotDelete { id });
            }
            PastStep::Hold(number, hold) => {
                let (id, hold) = (self.any_made(*number), snapshot_name(*hold));
                self.present.commit(MetaRequest::SnapshotHold { id, hold });
            }
            PastStep::Release(number, hold) => {
                let (id, hold) = (self.any_made(*number), snapshot_name(*hold));
                self.present
                    .commit(MetaRequest::SnapshotRelease { id, hold });
            }
            PastStep::Resume => SnapshotAccess::of(self.store()).resume_deletions().unwrap(),
        }
    }

    /// A snapshot of the datastore, or one that never was.
    fn any_made(&self, number: u8) -> SnapshotId {
        let mut ids = self.present.model.snapshots().keys();
        let count = ids.len() + 1;
        let id = ids.nth(usize::from(number) % count);
        id.copied().unwrap_or(SnapshotId::FIRST)
    }

    fn take(&mut self) {
        let id = take_local(self.store());
        let model = self.present.model.clone();
        let before = self.taken.insert(id, model);
        assert!(before.is_none(), "an id was given out twice");
    }

    fn delete(&mut self, number: u8) {
        let ids: Vec<SnapshotId> = self.taken.keys().copied().collect();
        if let Some(id) = ids.get(usize::from(number) % ids.len().max(1)) {
            self.taken.remove(id);
            assert!(SnapshotAccess::of(self.store()).delete(*id).unwrap());
        }
    }

    fn compare(&self) {
        self.present.compare();
        let alive = SnapshotAccess::of(self.store()).list();
        let (local, made): (Vec<_>, Vec<_>) = alive.iter().partition(|(id, _)| id.is_local());
        assert!(local.iter().map(|(id, _)| id).eq(self.taken.keys()));
        let expected = self.present.model.snapshots();
        let shared = made.iter();
        let shared = shared.map(|(id, it)| (id, &*it.name, it.kind, &it.holds));
        let expect = expected.iter();
        let expect = expect.map(|(id, it)| (id, it.name.as_str(), it.kind, &it.holds));
        assert!(shared.eq(expect));
        let copies = expected.iter().map(|(id, it)| (id, &*it.copy));
        for (id, model) in self.taken.iter().chain(copies) {
            let view = SnapshotAccess::of(self.store()).view(*id).unwrap();
            self.present.compare_past(&view, model);
        }
    }

    /// Deletes a snapshot by operations, also one with holds.
    fn release_and_delete(&mut self, id: SnapshotId) {
        let made = self.present.model.snapshots().get(&id);
        for hold in made.map(|it| it.holds.clone()).unwrap_or_default() {
            self.present
                .commit(MetaRequest::SnapshotRelease { id, hold });
        }
        self.present.commit(MetaRequest::SnapshotDelete { id });
    }

    /// After the deletion of all snapshots nothing is left of them, but an empty pack.
    fn delete_all(&mut self) {
        for id in std::mem::take(&mut self.taken).into_keys() {
            assert!(SnapshotAccess::of(self.store()).delete(id).unwrap());
        }
        let made: Vec<SnapshotId> = self.present.model.snapshots().keys().copied().collect();
        for id in made {
            self.release_and_delete(id);
        }
        SnapshotAccess::of(self.store()).resume_deletions().unwrap();
        for table in keys::OF_SNAPSHOTS {
            let left = SnapshotAccess::of(self.store()).kept_keys(table).unwrap();
            assert_eq!(left, Vec::<Vec<u8>>::new(), "table {}", char::from(table));
        }
        let files = self.present.node.disk.files();
        let kept = files
            .iter()
            .filter(|path| path.starts_with("packs/") || path.starts_with("bodies/"));
        let kept: Vec<&String> = kept.collect();
        assert!(kept.len() <= 1, "{kept:?}");
    }
}

fn snapshot_name(number: u8) -> SnapshotName {
    SnapshotName::new(format!("s{number}")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Each snapshot shows the moment at which it was made, over everything that happens later: changes, restarts, kills, and other snapshots that
    /// come and go.
    #[test]
    fn a_snapshot_shows_its_moment(steps in prop::collection::vec(past_step(8), 1..40)) {
        let mut world = PastWorld::new();
        for step in &steps {
            world.step(step);
            world.compare();
        }
        world.present.node.kill();
        world.compare();
        world.delete_all();
        world.compare();
    }
}

/// Threads change blocks of the same chunks while another one reads what the snapshot sees.
#[test]
fn threads_that_change_a_file_leave_a_snapshot_as_it_is() {
    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = 64;
    const THREADS: u64 = 4;
    let node = Node::new();
    let (store, mut client) = (&node.store, Client::new());
    let ino = client.create(&node, "f");
    let old: Vec<u8> = (0..BLOCKS * BLOCK)
        .map(|at| (at / 7).to_le_bytes()[0])
        .collect();
    client.write(&node, ino, &old);
    let id = take_local(store);
    let view = SnapshotAccess::of(store).view(id).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                assert!(read_view(&view, ino) == old);
            }
        });
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    // Each block has one thread, and each chunk has all of them.
                    for block in (0..BLOCKS).filter(|block| block % THREADS == thread) {
                        for round in 0..3_u8 {
                            let (osn, time) = osn_and_time(10 + u64::from(round));
                            let data = [0xf0 + round; 100];
                            store
                                .write(ino, block * BLOCK + 50, &data, osn, time)
                                .unwrap();
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        is_over.store(true, Ordering::Release);
        reader.join().unwrap();
    });
    assert!(read_view(&view, ino) == old);
    assert!(read_all(store, ino).get(50) == Some(&0xf2));
}

/// The room of a change has the old bytes that it has to keep for a snapshot of the datastore, and no others.
#[test]
fn the_room_of_a_change_has_the_bytes_that_a_snapshot_sees() {
    let (node, mut client) = (Node::new(), Client::new());
    let ino = client.create(&node, "f");
    client.write(&node, ino, &vec![1; 3 * 65_536]);
    let store = &node.store;
    let write = || {
        store
            .capacity()
            .room_for_write(ino, 100, 8192)
            .unwrap()
            .bytes
    };
    let cut = MetaRequest::Truncate {
        ino,
        size: 65_536,
        drop_set_id: false,
    };
    let cut = || store.capacity().room_for_request(&cut).unwrap().bytes;
    take_local(store);
    assert_eq!((write(), cut()), (0, 0), "the own copy gives way");
    let record = SnapshotRecord {
        name: "s".to_owned(),
        time: Timestamp::default(),
        kind: SnapshotKind::User,
        inos_below: store.image().inos_below(),
        is_deleted: false,
        bytes: SnapshotBytes::Settled,
        serial: 0,
        holds: Vec::new(),
    };
    let id = SnapshotId::of_operation(osn_and_time(100).0);
    SnapshotAccess::of(store).create(id, record).unwrap();
    assert!(write() >= 65_536 && cut() >= 2 * 65_536);
    let (osn, time) = osn_and_time(101);
    for offset in [0, 8192] {
        store.write(ino, offset, &[2; 8192], osn, time).unwrap();
    }
    assert_eq!(write(), 0, "the chunk is kept");
    let young = client.create(&node, "young");
    client.write(&node, young, &[1; 8192]);
    assert_eq!(
        store
            .capacity()
            .room_for_write(young, 0, 8192)
            .unwrap()
            .bytes,
        0
    );
}

/// The bytes of a file as a snapshot sees them.
pub fn bytes_at(node: &Node, id: SnapshotId, ino: Ino) -> Vec<u8> {
    let view = SnapshotAccess::of(&node.store).view(id).unwrap();
    read_view(&view, ino)
}

/// The numbers of a node's own snapshots are given out again. So a pack that an opening has read must not be read by a later opening: the
/// snapshot of the pack may have gone meanwhile, and another one may have its number.
#[test]
fn a_pack_that_was_read_is_not_read_for_a_later_snapshot_of_the_same_number() {
    let (mut node, mut client) = (Node::new(), Client::new());
    let ino = client.create(&node, "f");
    client.write(&node, ino, b"older");
    let oldest = take_local(&node.store);
    let deleted = take_local(&node.store);
    client.write(&node, ino, b"newer");
    node.kill();
    let snapshots = SnapshotAccess::of(&node.store);
    assert!(snapshots.delete(deleted).unwrap());
    let same_number = take_local(&node.store);
    assert_eq!(same_number, deleted);
    node.kill();
    assert_eq!(bytes_at(&node, oldest, ino), b"older");
    assert_eq!(bytes_at(&node, same_number, ino), b"newer");
}

/// A pack whose making fails keeps its number: a pack of the same number for another snapshot would be lost at the next opening.
#[test]
fn a_pack_that_could_not_be_made_leaves_its_number_to_no_other_pack() {
    let (mut node, mut client) = (Node::new(), Client::new());
    let ino = client.create(&node, "f");
    client.write(&node, ino, b"old");
    let at = |sequence| SnapshotId::of_operation(osn_and_time(sequence).0);
    let take = |node: &Node, id| {
        let store = &node.store;
        let record = SnapshotRecord {
            name: format!("{id:?}"),
            time: Timestamp::default(),
            kind: SnapshotKind::User,
            inos_below: store.image().inos_below(),
            is_deleted: false,
            bytes: SnapshotBytes::Settled,
            serial: 0,
            holds: Vec::new(),
        };
        SnapshotAccess::of(store).create(id, record).unwrap();
    };
    // The name of the second pack is the first one in the directory.
    take(&node, at(0x9));
    node.disk.observe(Some(Arc::new(|call| {
        let is_header = call.kind == CallKind::Write && call.path.starts_with("packs/");
        if is_header {
            return Verdict::Fail(Errno::NoSpace);
        }
        Verdict::Go
    })));
    let (osn, time) = osn_and_time(0xa);
    assert!(node.store.write(ino, 0, b"new", osn, time).is_err());
    node.disk.observe(None);
    take(&node, at(0x10));
    let (osn, time) = osn_and_time(0x11);
    node.store.write(ino, 0, b"new", osn, time).unwrap();
    node.kill();
    for id in [at(0x9), at(0x10)] {
        assert_eq!(bytes_at(&node, id, ino), b"old");
    }
    assert_eq!(read_all(&node.store, ino), b"new");
}

/// Bytes that two snapshots see are of neither alone, and asking changes nothing.
#[test]
fn a_snapshot_takes_alone_the_bytes_that_its_deletion_gives_back() {
    const CHUNK: u64 = 65_536;
    let (node, mut client) = (Node::new(), Client::new());
    let [both, shared, removed] = ["both", "shared", "removed"].map(|name| {
        let ino = client.create(&node, name);
        client.write(&node, ino, &vec![1; 65_536]);
        ino
    });
    let snapshots = SnapshotAccess::of(&node.store);
    let bytes = |id| snapshots.space_alone(id).unwrap().bytes;
    let older = take_local(&node.store);
    assert_eq!(bytes(older), 0);
    client.write(&node, both, &vec![2; 65_536]);
    assert_eq!(bytes(older), CHUNK);
    let newer = take_local(&node.store);
    client.write(&node, both, &vec![3; 65_536]);
    client.write(&node, shared, &vec![3; 65_536]);
    client.unlink(&node, "removed");
    let reap = client.op(MetaRequest::Reap { ino: removed });
    node.store.commit(&reap).unwrap();
    node.store.collect_garbage().unwrap();
    for _ in 0..2 {
        assert_eq!([older, newer].map(bytes), [CHUNK, CHUNK]);
    }
    let records = || snapshots.space_alone(newer).unwrap().records;
    let before = records();
    for (ino, expected) in [(both, 2), (shared, 1), (removed, 1)] {
        assert_eq!(bytes_at(&node, newer, ino), vec![expected; 65_536]);
    }
    assert!(snapshots.delete(older).unwrap());
    assert_eq!(bytes(older), 0, "it is gone");
    assert_eq!(bytes(newer), 3 * CHUNK);
    assert!(records() > before, "both saw the name");
    assert!(snapshots.delete(newer).unwrap());
}

/// A hold keeps a snapshot over a kill of the node, and a snapshot has only so many.
#[test]
fn a_snapshot_with_a_hold_is_not_deleted() {
    let mut node = Node::new();
    let mut sequence = 1;
    let mut commit = |node: &Node, request| {
        sequence += 1;
        let (osn, time) = osn_and_time(sequence);
        let done = node.store.commit(&MetaOp { osn, time, request });
        done.map(|_| SnapshotId::of_operation(osn))
            .map_err(|error| error.errno())
    };
    let made = commit(
        &node,
        MetaRequest::SnapshotCreate {
            name: snapshot_name(0),
            kind: SnapshotKind::Scheduled,
            inos_below: 2,
        },
    );
    let id = made.unwrap();
    let hold = |number| MetaRequest::SnapshotHold {
        id,
        hold: snapshot_name(number),
    };
    let release = |number| MetaRequest::SnapshotRelease {
        id,
        hold: snapshot_name(number),
    };
    let delete = || MetaRequest::SnapshotDelete { id };
    for number in 0..SNAPSHOT_HOLDS_MAX {
        commit(&node, hold(u8::try_from(number).unwrap())).unwrap();
    }
    assert_eq!(commit(&node, hold(99)), Err(Errno::QuotaExceeded));
    assert_eq!(commit(&node, hold(3)), Err(Errno::Exists));
    assert_eq!(commit(&node, release(99)), Err(Errno::NoData));
    for number in 1..SNAPSHOT_HOLDS_MAX {
        commit(&node, release(u8::try_from(number).unwrap())).unwrap();
    }
    node.kill();
    assert_eq!(commit(&node, delete()), Err(Errno::Busy));
    commit(&node, release(0)).unwrap();
    commit(&node, delete()).unwrap();
    assert_eq!(commit(&node, hold(0)), Err(Errno::NoEntry));
}

/// Two copies of a datastore that has snapshots, and that went apart.
#[test]
fn the_end_of_an_image_makes_the_lists_of_snapshots_equal() {
    let (mut here, mut there) = (World::new(), World::new());
    let create = |world: &mut World, name| {
        world.commit(MetaRequest::SnapshotCreate {
            name: snapshot_name(name),
            kind: SnapshotKind::User,
            inos_below: 2,
        });
        *world.model.snapshots().keys().next_back().unwrap()
    };
    let both: Vec<SnapshotId> = (0..4)
        .map(|name| {
            let id = create(&mut here, name);
            assert_eq!(id, create(&mut there, name));
            id
        })
        .collect();
    let rename = |id| MetaRequest::SnapshotRename {
        id,
        name: snapshot_name(7),
    };
    here.commit(rename(both[0]));
    let hold = |id, hold| MetaRequest::SnapshotHold {
        id,
        hold: snapshot_name(hold),
    };
    here.commit(hold(both[3], 1));
    there.commit(hold(both[3], 2));
    there.commit(hold(both[1], 2));
    here.commit(MetaRequest::SnapshotDelete { id: both[1] });
    there.commit(MetaRequest::SnapshotDelete { id: both[2] });
    there.next_osn();
    there.next_osn();
    let there_alone = create(&mut there, 5);
    here.next_osn();
    here.next_osn();
    here.next_osn();
    let here_alone = create(&mut here, 6);
    let from = here.node.store.image().snapshots();
    let image = there.node.store.image();
    image.load_snapshots(&from, 0);
    image.finish(here.node.store.applied(), 2).unwrap();
    there.node.kill();
    let snapshots = SnapshotAccess::of(&there.node.store);
    snapshots.resume_deletions().unwrap();
    let all = snapshots.all();
    let listed = |id| all.get(&id).map(|record| (&*record.name, record.bytes));
    assert_eq!(
        all[&both[3]].holds,
        [snapshot_name(1)],
        "those of the sender"
    );
    assert_eq!(
        listed(both[0]),
        Some(("s7", SnapshotBytes::Unsettled)),
        "renamed"
    );
    assert_eq!(listed(both[1]), None, "deleted");
    assert_eq!(
        listed(both[2]),
        Some(("s2", SnapshotBytes::Missing)),
        "its deletion had begun"
    );
    assert_eq!(
        listed(both[3]),
        Some(("s3", SnapshotBytes::Unsettled)),
        "equal"
    );
    assert_eq!(listed(there_alone), None, "of the other past");
    assert_eq!(
        listed(here_alone),
        Some(("s6", SnapshotBytes::Missing)),
        "made apart"
    );
    assert!(snapshots.view(here_alone).is_none());
    let named = |(id, record): &(SnapshotId, SnapshotRecord)| {
        (*id, record.name.clone(), record.kind, record.holds.clone())
    };
    let there_now = there.node.store.image().snapshots();
    assert!(from.iter().map(named).eq(there_now.iter().map(named)));
    // Both nodes take the same operations on a missing snapshot.
    for world in [&mut here, &mut there] {
        let (osn, time) = osn_and_time(99);
        for request in [
            MetaRequest::SnapshotDelete { id: here_alone },
            MetaRequest::SnapshotDelete { id: both[2] },
        ] {
            let op = MetaOp { osn, time, request };
            world.node.store.commit(&op).unwrap();
        }
        SnapshotAccess::of(&world.node.store)
            .resume_deletions()
            .unwrap();
        assert_eq!(SnapshotAccess::of(&world.node.store).all().len(), 2);
    }
}
