//! The snapshots of a store, in memory: which there are, and in which order.
//!
//! Only the list. The namespace (`namespace/history.rs`) has the durable records, and changes the list with them.
//!
//! Invariant: a snapshot that is being deleted is in the list and not alive. No reader sees the snapshot any more, and nothing
//! is kept for it; some of its kept values are still there. Nor is a snapshot alive of which this node has no bytes.
//!
//! Locks: one inside, held for no call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_types::{SnapshotId, SnapshotName, Timestamp};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

pub use lockstep_types::SnapshotKind;

/// The bytes of a snapshot on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotBytes {
    /// All of them, and some perhaps in the memory of the machine only.
    Unsettled,
    /// All of them, on stable storage.
    Settled,
    /// This node has lost its power before they were settled: some of them may be of an earlier moment, or zeros.
    Torn,
    /// None, or not all of them yet: the snapshot was made on the other node alone.
    Missing,
}

/// The record of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// The name, unique among the snapshots of a store that are alive.
    pub name: String,
    /// When the snapshot was made, by the clock of the node that has made it.
    pub time: Timestamp,
    /// Why the snapshot was made.
    pub kind: SnapshotKind,
    /// Every inode of the snapshot has a number below this.
    pub inos_below: u64,
    /// Its kept values are being removed.
    pub is_deleted: bool,
    /// Its bytes on this node.
    pub bytes: SnapshotBytes,
    /// Counts the snapshots of the datastore, from 1: for the inode numbers of a mount ([`SnapshotIno`](lockstep_types::SnapshotIno)). Zero for
    /// one that this node has made of its own copy.
    pub serial: u32,
    /// The holds, the oldest first: while there is one, the snapshot is not deleted. Those of a snapshot of the datastore only.
    pub holds: Vec<SnapshotName>,
}

/// The part of a [`SnapshotRecord`] that operations on the list change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPart<'a> {
    name: &'a str,
    kind: SnapshotKind,
    holds: &'a [SnapshotName],
}

impl SnapshotRecord {
    /// Whether the snapshot is one of the datastore, and not deleted: it counts, and no other may have its name.
    pub const fn is_taken(&self, id: SnapshotId) -> bool {
        !id.is_local() && !self.is_deleted
    }

    /// The part that operations on the list change, the same on both nodes.
    pub fn shared(&self) -> SharedPart<'_> {
        SharedPart {
            name: &self.name,
            kind: self.kind,
            holds: &self.holds,
        }
    }

    /// Takes over this part of the other node's record of the snapshot.
    pub fn take_over(&mut self, theirs: SharedPart<'_>) {
        theirs.name.clone_into(&mut self.name);
        self.kind = theirs.kind;
        theirs.holds.clone_into(&mut self.holds);
    }

    /// Takes the name that a user gives: from now on the snapshot is the user's own, also one that the schedule has made.
    pub fn make_user_own(&mut self, name: String) {
        self.name = name;
        self.kind = SnapshotKind::User;
    }

    /// Whether readers of this node see the snapshot, and changes keep old values for it.
    pub const fn is_alive(&self) -> bool {
        !self.is_deleted && !matches!(self.bytes, SnapshotBytes::Missing)
    }

    /// Whether the snapshot is alive, and has the bytes of its moment.
    pub const fn is_whole(&self) -> bool {
        self.is_alive() && !matches!(self.bytes, SnapshotBytes::Torn)
    }
}

/// Snapshots by the moment that they show.
type Records = BTreeMap<SnapshotId, Arc<SnapshotRecord>>;

/// See the head of this file.
#[derive(Default)]
pub struct SnapshotList {
    /// Whether any snapshot is alive, for writes, which ask at each call.
    keeps: AtomicBool,
    /// See [`Self::has_shared`].
    has_shared: AtomicBool,
    /// See [`Self::is_arriving`].
    is_arriving: AtomicBool,
    /// Counts the changes of the list.
    changes: AtomicU64,
    /// See [`Self::all_inos_below`].
    all_inos_below: AtomicU64,
    records: RwLock<Arc<Records>>,
}

impl SnapshotList {
    /// The list of these records.
    pub fn new(records: Records) -> Self {
        let list = Self::default();
        list.replace(records);
        list
    }

    /// Whether any snapshot is alive. Costs one load.
    pub fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Acquire)
    }

    /// Counts the changes of the list. A number of a snapshot of this copy may be given out again after its deletion: with this count the
    /// two are told apart.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Every inode that any snapshot alive sees has a number below this. Costs one load.
    pub fn all_inos_below(&self) -> u64 {
        self.all_inos_below.load(Ordering::Acquire)
    }

    /// Whether any snapshot of the datastore is alive, not only those of this node's own copy. Costs one load.
    pub fn has_shared(&self) -> bool {
        self.has_shared.load(Ordering::Acquire)
    }

    /// Whether the values of a snapshot may be arriving (rule P37): a node does not know the sizes of files as of that snapshot then. Costs one load.
    pub fn is_arriving(&self) -> bool {
        self.is_arriving.load(Ordering::Acquire)
    }

    /// The newest snapshot that is alive, for which the old value of a change is kept.
    pub fn newest(&self) -> Option<(SnapshotId, Arc<SnapshotRecord>)> {
        if !self.keeps() {
            return None;
        }
        let records = self.all();
        records.iter().rev().find_map(alive)
    }

    /// The newest snapshot alive that is `id` or older.
    pub fn newest_up_to(&self, id: SnapshotId) -> Option<(SnapshotId, Arc<SnapshotRecord>)> {
        self.all().range(..=id).rev().find_map(alive)
    }

    /// The newest snapshot alive that is older than `id`.
    pub fn older(&self, id: SnapshotId) -> Option<(SnapshotId, Arc<SnapshotRecord>)> {
        self.all().range(..id).rev().find_map(alive)
    }

    /// The oldest snapshot newer than `id` that is not deleted, also one of which this node has no bytes.
    pub fn next_listed(&self, id: SnapshotId) -> Option<SnapshotId> {
        let from = (std::ops::Bound::Excluded(id), std::ops::Bound::Unbounded);
        let all = self.all();
        let mut newer = all.range(from);
        newer
            .find(|(_, record)| !record.is_deleted)
            .map(|(id, _)| *id)
    }

    /// Whether a snapshot up to `id` needs what is kept, or will need what has arrived for it.
    pub fn is_needed_up_to(&self, id: SnapshotId) -> bool {
        let all = self.all();
        let mut older = all.range(..=id);
        older.any(|(_, record)| !record.is_deleted)
    }

    /// Every inode of a snapshot up to `id` that is alive has a number below this.
    pub fn inos_below(&self, id: SnapshotId) -> u64 {
        let records = self.all();
        let alive = records.range(..=id).filter_map(alive);
        alive.map(|(_, it)| it.inos_below).max().unwrap_or(0)
    }

    /// The record of a snapshot that is alive.
    pub fn get(&self, id: SnapshotId) -> Option<Arc<SnapshotRecord>> {
        let record = self.all().get(&id).map(Arc::clone);
        record.filter(|record| record.is_alive())
    }

    /// Whether a snapshot is alive.
    pub fn is_alive(&self, id: SnapshotId) -> bool {
        self.get(id).is_some()
    }

    /// All snapshots, also those that are being deleted, as of this moment.
    pub fn all(&self) -> Arc<Records> {
        Arc::clone(&self.records.read())
    }

    /// Puts a record into the list, or takes one out.
    pub fn set(&self, id: SnapshotId, record: Option<SnapshotRecord>) {
        let mut records = Records::clone(&self.all());
        match record {
            Some(record) => records.insert(id, Arc::new(record)),
            None => records.remove(&id),
        };
        self.replace(records);
    }

    fn replace(&self, records: Records) {
        let keeps = records.iter().any(|record| alive(record).is_some());
        let mut shared = records.iter().filter(|(id, _)| !id.is_local());
        let has_shared = shared.any(|record| alive(record).is_some());
        let mut all_alive = records.iter().filter_map(alive);
        let is_arriving = all_alive.any(|(_, record)| record.kind == SnapshotKind::Arrival);
        let numbers = records.iter().filter_map(alive);
        let highest = numbers.map(|(_, record)| record.inos_below).max();
        self.all_inos_below
            .store(highest.unwrap_or(0), Ordering::Release);
        *self.records.write() = Arc::new(records);
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.has_shared.store(has_shared, Ordering::Release);
        self.is_arriving.store(is_arriving, Ordering::Release);
        self.keeps.store(keeps, Ordering::Release);
    }
}

fn alive(
    (id, record): (&SnapshotId, &Arc<SnapshotRecord>),
) -> Option<(SnapshotId, Arc<SnapshotRecord>)> {
    record.is_alive().then(|| (*id, Arc::clone(record)))
}

#[cfg(test)]
mod tests {
    use lockstep_types::Osn;

    use super::*;

    fn id(sequence: u64) -> SnapshotId {
        SnapshotId::of_operation(Osn {
            sequence,
            ..Osn::ZERO
        })
    }

    fn record(name: &str, is_deleted: bool) -> SnapshotRecord {
        SnapshotRecord {
            name: name.to_owned(),
            time: Timestamp::default(),
            kind: SnapshotKind::User,
            inos_below: 2,
            is_deleted,
            bytes: SnapshotBytes::Settled,
            serial: 0,
            holds: Vec::new(),
        }
    }

    #[test]
    fn a_snapshot_that_is_being_deleted_is_not_alive() {
        let list = SnapshotList::default();
        assert!(!list.keeps() && list.newest().is_none());
        for (sequence, name) in [(3, "a"), (5, "b"), (9, "c")] {
            list.set(id(sequence), Some(record(name, false)));
        }
        let ids = |found: Option<(SnapshotId, Arc<SnapshotRecord>)>| found.map(|(id, _)| id);
        assert_eq!(ids(list.newest()), Some(id(9)));
        assert_eq!(ids(list.older(id(9))), Some(id(5)));
        assert_eq!(list.next_listed(id(3)), Some(id(5)));
        list.set(id(5), Some(record("b", true)));
        assert_eq!(ids(list.older(id(9))), Some(id(3)));
        assert_eq!(list.next_listed(id(3)), Some(id(9)));
        assert!(list.get(id(5)).is_none() && list.all().contains_key(&id(5)));
        for sequence in [3, 9] {
            list.set(id(sequence), None);
        }
        assert!(!list.keeps() && list.newest().is_none());
    }

    #[test]
    fn a_snapshot_of_one_copy_or_without_bytes_is_none_of_the_datastore() {
        let list = SnapshotList::default();
        let local = SnapshotId { local: 1, ..id(3) };
        list.set(local, Some(record("lost-1", false)));
        let missing = SnapshotRecord {
            bytes: SnapshotBytes::Missing,
            ..record("a", false)
        };
        list.set(id(5), Some(missing));
        assert!(list.keeps() && !list.has_shared());
        assert_eq!(list.next_listed(id(3)), Some(local));
        assert_eq!(list.next_listed(local), Some(id(5)), "its values may come");
        assert!(list.is_needed_up_to(id(5)) && !list.is_needed_up_to(id(2)));
        list.set(id(6), Some(record("b", false)));
        assert!(list.has_shared());
        list.set(id(6), Some(record("b", true)));
        assert!(!list.has_shared());
    }
}
