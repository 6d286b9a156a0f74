//! Snapshots of the records, under the operations of clients: the kept values, and the records as of a snapshot after a crash at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::slice::from_ref;
use std::sync::Arc;

use lockstep_fs::snapshot_list::{SnapshotBytes, SnapshotKind, SnapshotRecord};
use lockstep_fs::store::SnapshotAccess;
use lockstep_fs::{Store, StoreView, keys, plan::View};
use lockstep_lossy::disk::{CallKind, Disk, Survivors, Verdict};
use lockstep_types::{BootId, FileName, Ino, MetaRequest, SnapshotId, Timestamp, XattrMode};
use parking_lot::Mutex;
use proptest::prelude::*;

use crate::durability::Client;
use crate::harness::{Node, World, open, open_in};
use crate::steps::{Step, step};

/// All records of the replicated tables.
type Copy = BTreeMap<Vec<u8>, Vec<u8>>;

fn copy_of<V: StoreView>(view: &V) -> Copy {
    let mut copy = Copy::new();
    for table in keys::REPLICATED {
        view.scan(&keys::table(table), &mut |key, value| {
            copy.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    copy
}

fn copy_at(store: &Store, id: SnapshotId) -> Copy {
    let at = SnapshotAccess::of(store).records(id).unwrap();
    let mut copy = Copy::new();
    for table in keys::REPLICATED {
        at.scan(&keys::table(table), &mut |key, value| {
            copy.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    copy
}

fn record(store: &Store) -> SnapshotRecord {
    SnapshotRecord {
        name: "name".to_owned(),
        time: Timestamp::default(),
        kind: SnapshotKind::User,
        inos_below: store.image().inos_below(),
        is_deleted: false,
        bytes: SnapshotBytes::Unsettled,
        serial: 0,
        holds: Vec::new(),
    }
}

fn keys_in(store: &Store, table: u8) -> Vec<Vec<u8>> {
    store.tree().keys(&keys::table(table)).unwrap()
}

/// The records of which something is kept, and for which snapshot.
fn kept(store: &Store) -> Vec<(Vec<u8>, SnapshotId)> {
    let keys = keys_in(store, keys::HISTORY);
    let parts = keys.iter().map(|key| {
        let record = keys::record_of_history(key).unwrap();
        (record.to_vec(), keys::snapshot_of(key).unwrap())
    });
    parts.collect()
}

fn delete_all(store: &Store) {
    for id in SnapshotAccess::of(store).all().keys() {
        SnapshotAccess::of(store).delete(*id).unwrap();
    }
    for table in keys::OF_SNAPSHOTS {
        let left = keys_in(store, table);
        assert!(left.is_empty(), "{left:?}");
    }
}

fn name(name: &str) -> FileName {
    FileName::new(name.as_bytes()).unwrap()
}

/// A node with a client and its snapshots.
struct Site {
    node: Node,
    client: Client,
}

impl Site {
    fn new() -> Self {
        let (node, client) = (Node::new(), Client::new());
        Self { node, client }
    }

    fn commit(&mut self, request: MetaRequest) {
        let op = self.client.op(request);
        self.node.store.commit(&op).unwrap();
    }

    fn create(&mut self, name: &str) -> Ino {
        self.client.create(&self.node, name)
    }

    /// The number of the next snapshot.
    fn next_id(&mut self) -> SnapshotId {
        let inos = Vec::new();
        SnapshotId::of_operation(self.client.op(MetaRequest::ReapAll { inos }).osn)
    }

    fn snapshot(&mut self) -> SnapshotId {
        let id = self.next_id();
        let store = &self.node.store;
        SnapshotAccess::of(store).create(id, record(store)).unwrap();
        id
    }
}

#[test]
fn what_comes_and_goes_after_a_snapshot_leaves_nothing() {
    let mut site = Site::new();
    let old = site.create("old");
    let id = site.snapshot();
    let root = (keys::inode(Ino::ROOT), id);
    site.create("first");
    assert_eq!(
        kept(&site.node.store),
        *from_ref(&root),
        "once, of the directory"
    );
    for number in 0..1_000 {
        let ino = site.create(&format!("{number}"));
        site.client.unlink(&site.node, &format!("{number}"));
        site.commit(MetaRequest::Reap { ino });
    }
    assert_eq!(kept(&site.node.store), *from_ref(&root));
    // An attribute of an old inode says nothing of its birth.
    let xattr = (keys::xattr(old, b"user.new"), id);
    for is_left in [true, false] {
        let name = b"user.new".to_vec();
        site.commit(if is_left {
            MetaRequest::SetXattr {
                ino: old,
                name,
                value: vec![1],
                mode: XattrMode::Create,
            }
        } else {
            MetaRequest::RemoveXattr { ino: old, name }
        });
        let found = kept(&site.node.store);
        assert_eq!(found.contains(&xattr), is_left);
    }
    let of_old = (keys::inode(old), id);
    assert_eq!(kept(&site.node.store), [root, of_old]);
    delete_all(&site.node.store);
}

/// The size of a file that is being written when the snapshot is made, and that of one that is written since.
#[test]
fn a_snapshot_has_the_sizes_of_its_moment() {
    let mut site = Site::new();
    let ino = site.create("f");
    site.client.write(&site.node, ino, b"four");
    let id = site.snapshot();
    site.client.write(&site.node, ino, b"and more");
    let size_in = |site: &Site| {
        let at = SnapshotAccess::of(&site.node.store).records(id).unwrap();
        at.inode(ino).unwrap().unwrap().attr(ino).size
    };
    assert_eq!(size_in(&site), 4, "the file is open, with another size");
    for way in 0..3 {
        match way {
            0 => site.node.kill(),
            1 => site.node.store.checkpoint().unwrap(),
            _ => site.node.lose_power(),
        }
        assert_eq!(size_in(&site), 4);
    }
    let history = SnapshotAccess::of(&site.node.store);
    assert!(history.rename(id, "other"));
    assert_eq!(history.get(id).unwrap().name, "other");
    site.node.restart();
    let history = SnapshotAccess::of(&site.node.store);
    assert_eq!(history.get(id).unwrap().name, "other");
    assert_eq!(size_in(&site), 4);
    delete_all(&site.node.store);
}

/// The snapshots that must be there after a crash at this moment.
#[derive(Clone, Default)]
struct Expected {
    /// The snapshots that were made, and are not deleted.
    alive: BTreeSet<SnapshotId>,
    /// The records as of each snapshot, also of those that are made or deleted at this moment.
    copies: BTreeMap<SnapshotId, Copy>,
}

/// A site whose disk is copied before each call.
struct Watched {
    site: Site,
    expected: Arc<Mutex<Expected>>,
    crashes: Arc<Mutex<Vec<(Disk, Expected)>>>,
}

impl Watched {
    fn of(site: Site) -> Self {
        let watched = Self {
            site,
            expected: Arc::default(),
            crashes: Arc::default(),
        };
        let disk = watched.site.node.disk.clone();
        let expected = Arc::clone(&watched.expected);
        let crashes = Arc::clone(&watched.crashes);
        watched.site.node.disk.observe(Some(Arc::new(move |call| {
            // Stores into the tables are none of our calls.
            if call.kind != CallKind::TableStore {
                let expected = expected.lock().clone();
                crashes.lock().push((disk.fork(), expected));
            }
            Verdict::Go
        })));
        watched
    }

    fn create(&mut self, is_local: bool) -> SnapshotId {
        let mut id = self.site.next_id();
        id.local = u8::from(is_local);
        let store = &self.site.node.store;
        store.checkpoint().unwrap();
        let copy = copy_of(&store.tree());
        self.expected.lock().copies.insert(id, copy);
        SnapshotAccess::of(store).create(id, record(store)).unwrap();
        self.expected.lock().alive.insert(id);
        id
    }

    fn delete(&self, id: SnapshotId) {
        self.expected.lock().alive.remove(&id);
        SnapshotAccess::of(&self.site.node.store)
            .delete(id)
            .unwrap();
    }
}

fn compare(store: &Store, expected: &Expected) {
    let all = SnapshotAccess::of(store).all();
    let alive = all.iter().filter(|(_, record)| !record.is_deleted);
    let alive: BTreeSet<SnapshotId> = alive.map(|(id, _)| *id).collect();
    assert!(alive.is_superset(&expected.alive));
    for id in alive {
        assert!(copy_at(store, id) == expected.copies[&id], "as of {id}");
    }
}

#[test]
fn snapshots_survive_a_crash_at_any_call() {
    let mut site = Site::new();
    let [one, two] = ["one", "two"].map(|name| site.create(name));
    site.client.write(&site.node, one, b"first");
    let mut watched = Watched::of(site);
    let older = watched.create(false);
    let site = &mut watched.site;
    site.client.write(&site.node, one, b"second one");
    site.create("three");
    site.client.unlink(&site.node, "two");
    site.node.store.sync_file(one, false).unwrap();
    let newer = watched.create(false);
    let site = &mut watched.site;
    site.commit(MetaRequest::Truncate {
        ino: one,
        size: 3,
        drop_set_id: false,
    });
    site.commit(MetaRequest::Reap { ino: two });
    let four = site.create("four");
    site.client.write(&site.node, four, b"4");
    let local = watched.create(true);
    let site = &mut watched.site;
    site.client.unlink(&site.node, "one");
    site.node.store.checkpoint().unwrap();
    watched.delete(newer);
    watched.delete(local);
    watched.site.node.store.checkpoint().unwrap();
    watched.delete(older);
    watched.site.node.disk.observe(None);
    let crashes = std::mem::take(&mut *watched.crashes.lock());
    assert!(crashes.len() > 50);
    for (nth, (disk, expected)) in crashes.iter().enumerate() {
        let power = [Survivors::Nothing, Survivors::Mixed { percent: 40 }];
        let lost = disk.after_power_loss(power[nth % 2], nth as u64);
        let stores = [
            open(&disk.fork()),
            open_in(&lost, BootId::from_bytes([9; 16])),
        ];
        for store in stores {
            compare(&store, expected);
            let op = watched.site.client.op(MetaRequest::Unlink {
                parent: Ino::ROOT,
                name: name("one"),
            });
            store.commit(&op).map(drop).unwrap_or_default();
            compare(&store, expected);
            delete_all(&store);
        }
    }
}

#[derive(Clone, Debug)]
enum Moment {
    Step(Step),
    Create,
    Delete(u8),
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Clients do anything, and the process is killed at any moment.
    #[test]
    fn snapshots_show_the_names_and_attributes_of_their_moments(
        moments in prop::collection::vec(prop_oneof![
            20 => step(4).prop_map(Moment::Step),
            2 => Just(Moment::Create),
            1 => any::<u8>().prop_map(Moment::Delete),
        ], 1..60),
    ) {
        let mut world = World::new();
        let mut copies = BTreeMap::new();
        for moment in &moments {
            match moment {
                Moment::Step(step) => world.step(step),
                Moment::Create => {
                    let id = SnapshotId::of_operation(world.next_osn());
                    let store = &world.node.store;
                    SnapshotAccess::of(store).create(id, record(store)).unwrap();
                    copies.insert(id, copy_of(&store.tree()));
                }
                Moment::Delete(nth) => {
                    let nth = usize::from(*nth) % copies.len().max(1);
                    if let Some(id) = copies.keys().nth(nth).copied() {
                        copies.remove(&id);
                        SnapshotAccess::of(&world.node.store).delete(id).unwrap();
                    }
                }
            }
        }
        world.node.kill();
        world.compare();
        for (id, copy) in &copies {
            assert!(copy_at(&world.node.store, *id) == *copy, "as of {id}");
        }
        delete_all(&world.node.store);
    }
}
