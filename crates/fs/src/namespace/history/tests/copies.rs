//! Random changes and snapshots, against a deep copy of the records for each snapshot.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::LazyLock;

use lockstep_lossy::disk::Disk;
use proptest::prelude::*;

use super::super::Deletion;
use super::world::{Change, DIRECTORIES, Tree};
use super::*;
use crate::namespace::keys::KeyRange;
use crate::namespace::plan::View;

#[derive(Clone, Debug)]
enum Step {
    Change(Change),
    /// A snapshot, and whether it is a local one.
    Snapshot(bool),
    /// Begins to delete a snapshot.
    Delete(u8),
    /// Goes on to delete all that are being deleted.
    Judge(u8),
    /// The other node parts, ...
    Part,
    /// ... and a resync loads its records, in batches of this many.
    Load(Vec<Change>, u8),
    Checkpoint,
    /// A checkpoint, and another process.
    Restart,
}

fn change() -> impl Strategy<Value = Change> {
    let at = || (0..DIRECTORIES.len(), b'a'..b'd');
    prop_oneof![
        4 => (at(), prop::bool::weighted(0.2)).prop_map(|((directory, name), is_late)| {
            Change::Create { directory, name, is_late }
        }),
        3 => at().prop_map(|(directory, name)| Change::Remove { directory, name }),
        1 => [at(), at()].prop_map(|names| Change::Exchange { names }),
        1 => (at(), at()).prop_map(|(from, to)| Change::Move { from, to }),
        2 => (any::<u8>(), b'p'..b'r', 0..3_u8)
            .prop_map(|(inode, name, value)| Change::SetXattr { inode, name, value }),
        2 => (any::<u8>(), b'p'..b'r').prop_map(|(inode, name)| Change::RemoveXattr { inode, name }),
        1 => any::<u8>().prop_map(|inode| Change::SetAttr { inode }),
        1 => Just(Change::Reap),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let late = || prop::collection::vec(change(), 0..6);
    let step = prop_oneof![
        16 => change().prop_map(Step::Change),
        3 => prop::bool::weighted(0.3).prop_map(Step::Snapshot),
        2 => any::<u8>().prop_map(Step::Delete),
        2 => (1..6_u8).prop_map(Step::Judge),
        1 => Just(Step::Part),
        1 => (late(), 1..9_u8).prop_map(|(changes, batch)| Step::Load(changes, batch)),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

struct Run {
    disk: Disk,
    namespace: Namespace,
    tree: Tree,
    /// The tree of the other node, when it parted.
    parted: Tree,
    /// The records as of each snapshot that is alive.
    copies: BTreeMap<SnapshotId, Copy>,
    deletions: Vec<Deletion>,
    /// The last operation that made a snapshot.
    last: u64,
}

impl Run {
    fn new() -> Self {
        static MADE: LazyLock<Disk> = LazyLock::new(disk);
        let disk = MADE.fork();
        let namespace = open(&disk);
        let tree = Tree::new();
        namespace.apply(tree.load(&Copy::new())).unwrap();
        Self {
            disk,
            namespace,
            parted: tree.clone(),
            tree,
            copies: BTreeMap::new(),
            deletions: Vec::new(),
            last: 1,
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Change(change) => {
                let batch = self.tree.change(change);
                self.namespace.apply(batch).unwrap();
            }
            Step::Snapshot(is_local) => self.snapshot(*is_local),
            Step::Delete(which) => {
                let nth = usize::from(*which) % self.copies.len().max(1);
                let Some(id) = self.copies.keys().nth(nth).copied() else {
                    return;
                };
                self.copies.remove(&id);
                self.deletions
                    .push(self.namespace.delete_snapshot(id).unwrap());
                assert!(self.namespace.at(id).is_none());
            }
            Step::Judge(max) => self.judge((*max).into()),
            Step::Part => self.parted = self.tree.clone(),
            Step::Load(changes, batch) => {
                let mut other = self.parted.clone();
                other.next_own = self.tree.next_own;
                for change in changes {
                    other.change(change);
                }
                let all = other.load(&self.tree.records);
                for part in all.chunks((*batch).into()) {
                    self.namespace.apply(part.to_vec()).unwrap();
                }
                self.tree.become_other(other);
            }
            Step::Checkpoint => self.checkpoint(),
            Step::Restart => {
                self.checkpoint();
                self.disk = self.disk.fork();
                self.namespace = open(&self.disk);
                let all = self.namespace.snapshots().all();
                let deleted = all.iter().filter(|(_, record)| record.is_deleted);
                self.deletions = deleted.map(|(id, _)| Deletion::new(*id)).collect();
            }
        }
    }

    fn checkpoint(&self) {
        self.namespace.freeze();
        self.namespace.flush().unwrap();
    }

    /// The label of a local snapshot may be one that was in use before.
    fn snapshot(&mut self, is_local: bool) {
        let next = if is_local {
            let all = self.namespace.snapshots().all();
            let since = all.range(id(self.last, 0)..).next_back();
            id(self.last, since.map_or(0, |(id, _)| id.local) + 1)
        } else {
            self.last += 1;
            id(self.last, 0)
        };
        self.namespace
            .create_snapshot(next, snapshot(self.tree.next_own));
        self.copies.insert(next, self.tree.records.clone());
    }

    fn judge(&mut self, max: usize) {
        let kept = |namespace: &Namespace| -> BTreeSet<Vec<u8>> {
            keys_of(namespace, keys::HISTORY).into_iter().collect()
        };
        let is_local = |key: &Vec<u8>| keys::snapshot_of(key).unwrap().is_local();
        for deletion in &mut self.deletions {
            let before = kept(&self.namespace);
            self.namespace
                .delete_step(deletion, max, &mut |_, _, _| Ok(Vec::new()))
                .unwrap();
            let after = kept(&self.namespace);
            let has_local = before.iter().any(is_local);
            assert!(has_local || after.is_subset(&before), "a label has changed");
            if self.namespace.end_deletion(deletion) && deletion.id().is_local() {
                let label = Some(deletion.id());
                assert!(after.iter().all(|key| keys::snapshot_of(key) != label));
            }
        }
        self.deletions.retain(|deletion| !deletion.is_over());
    }

    fn compare(&self) {
        for (id, copy) in &self.copies {
            compare(&self.namespace, *id, copy);
        }
        let history = keys_of(&self.namespace, keys::HISTORY);
        let mut index = keys_of(&self.namespace, keys::KEPT_INDEX);
        for key in &mut index {
            *key = keys::kept_of_index(key).to_vec();
        }
        index.sort_unstable();
        assert_eq!(index, history, "each kept value is in the index");
    }

    fn finish(mut self) {
        for id in std::mem::take(&mut self.copies).into_keys() {
            self.deletions
                .push(self.namespace.delete_snapshot(id).unwrap());
        }
        while !self.deletions.is_empty() {
            self.judge(4);
        }
        for table in keys::OF_SNAPSHOTS {
            let left = keys_of(&self.namespace, table);
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

fn compare(namespace: &Namespace, id: SnapshotId, copy: &Copy) {
    let at = namespace.at(id).unwrap();
    let inos = DIRECTORIES.map(|it| keys::of_ino(keys::COOKIES, ino(it)));
    for range in keys::REPLICATED.map(keys::table).into_iter().chain(inos) {
        let expected = copy.range::<[u8], _>((range.from(), range.to()));
        let expected: Vec<(&[u8], &[u8])> =
            expected.map(|(key, value)| (&**key, &**value)).collect();
        let mut found = Vec::new();
        let mut each = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        at.scan(&range, &mut each).unwrap();
        let found_up = std::mem::take(&mut found);
        let mut each = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        at.scan_down(&range, &mut each).unwrap();
        found.reverse();
        let borrowed: Vec<(&[u8], &[u8])> = found_up
            .iter()
            .map(|(key, value)| (&**key, &**value))
            .collect();
        assert_eq!(borrowed, expected, "as of {id}");
        assert_eq!(found, found_up, "downwards as of {id}");
    }
    let present = keys::REPLICATED.map(keys::table);
    let present = present
        .iter()
        .flat_map(|range: &KeyRange| namespace.keys(range).unwrap());
    for key in present.chain(copy.keys().cloned()) {
        assert_eq!(at.get(&key).unwrap().as_ref(), copy.get(&key), "as of {id}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Each snapshot that is alive shows the records of its moment. Without snapshots nothing is kept.
    #[test]
    fn snapshots_show_the_records_of_their_moments(steps in steps()) {
        let mut run = Run::new();
        for (nth, step) in steps.iter().enumerate() {
            run.step(step);
            if nth % 4 == 3 {
                run.compare();
            }
        }
        run.compare();
        run.finish();
    }
}
