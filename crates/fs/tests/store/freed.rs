//! The values that snapshots see, after the deletion of newer snapshots: those of freed inodes above all.

use lockstep_fs::snapshot_list::{SnapshotBytes, SnapshotKind, SnapshotRecord};
use lockstep_fs::store::SnapshotAccess;
use lockstep_types::{Ino, MetaOp, MetaRequest, SnapshotId, Timestamp};

use crate::durability::Client;
use crate::harness::{Node, osn_and_time};
use crate::snapshots::{bytes_at, take_local};

const BLOCK: u64 = 4096;

/// A file of two blocks, and its snapshots.
struct Site {
    node: Node,
    client: Client,
    ino: Ino,
    old: Vec<u8>,
}

impl Site {
    fn new() -> Self {
        let (node, mut client) = (Node::new(), Client::new());
        let ino = client.create(&node, "f");
        let old = vec![1; 2 * 4096];
        client.write(&node, ino, &old);
        Self {
            node,
            client,
            ino,
            old,
        }
    }

    /// Makes a snapshot of the datastore.
    fn take(&self, sequence: u64) -> SnapshotId {
        let id = SnapshotId::of_operation(osn_and_time(sequence).0);
        let record = SnapshotRecord {
            name: format!("{id:?}"),
            time: Timestamp::default(),
            kind: SnapshotKind::User,
            inos_below: self.node.store.image().inos_below(),
            is_deleted: false,
            bytes: SnapshotBytes::Settled,
            serial: 0,
            holds: Vec::new(),
        };
        let snapshots = SnapshotAccess::of(&self.node.store);
        snapshots.create(id, record).unwrap();
        id
    }

    fn delete(&self, id: SnapshotId) {
        let snapshots = SnapshotAccess::of(&self.node.store);
        assert!(snapshots.delete(id).unwrap());
    }

    fn change(&self, block: u64, sequence: u64) {
        self.change_of(self.ino, block, sequence);
    }

    fn change_of(&self, ino: Ino, block: u64, sequence: u64) {
        let (osn, time) = osn_and_time(sequence);
        let written = self.node.store.write(ino, block * BLOCK, b"new", osn, time);
        written.unwrap();
    }

    fn free(&mut self) {
        self.client.unlink(&self.node, "f");
        let reap = self.client.op(MetaRequest::Reap { ino: self.ino });
        self.node.store.commit(&reap).unwrap();
        self.node.store.collect_garbage().unwrap();
    }
}

#[test]
fn a_freed_content_has_the_blocks_that_a_deleted_snapshot_has_left_to_an_older_one() {
    let mut site = Site::new();
    let older = site.take(0x20);
    site.change(0, 0x21);
    let newer = site.take(0x22);
    site.change(1, 0x23);
    site.delete(newer);
    site.free();
    assert!(bytes_at(&site.node, older, site.ino) == site.old);
    site.node.kill();
    assert!(bytes_at(&site.node, older, site.ino) == site.old);
    site.delete(older);
}

#[test]
fn the_same_after_the_deletion_of_a_snapshot_of_one_copy() {
    let mut site = Site::new();
    let older = site.take(0x20);
    site.change(0, 0x21);
    let newer = site.take(0x22);
    site.change(1, 0x23);
    let local = take_local(&site.node.store);
    site.delete(newer);
    site.free();
    site.delete(local);
    assert!(bytes_at(&site.node, older, site.ino) == site.old);
}

/// The newest label is that of another file, and a stop takes the record of the moved content.
#[test]
fn a_moved_content_is_found_after_a_stop() {
    let mut site = Site::new();
    let other = site.client.create(&site.node, "other");
    site.client.write(&site.node, other, &site.old);
    let older = site.take(0x20);
    let newer = site.take(0x21);
    site.change_of(other, 0, 0x22);
    site.delete(newer);
    site.free();
    assert!(bytes_at(&site.node, older, site.ino) == site.old);
    site.node.kill();
    assert!(bytes_at(&site.node, older, site.ino) == site.old);
    site.node.store.collect_garbage().unwrap();
    site.node.kill();
    assert!(bytes_at(&site.node, older, site.ino) == site.old);
    assert!(bytes_at(&site.node, older, other) == site.old);
}

/// A block that a deleted snapshot has left to an older one comes before that of a later snapshot of this copy, whose values move.
#[test]
fn the_values_of_an_own_snapshot_move_behind_those_of_a_deleted_one() {
    let site = Site::new();
    let older = site.take(0x20);
    let newer = site.take(0x21);
    site.change(0, 0x22);
    site.delete(newer);
    // The own snapshot is the newest one.
    let (osn, time) = osn_and_time(0x22);
    let request = MetaRequest::ReapAll { inos: Vec::new() };
    let op = MetaOp { osn, time, request };
    site.node.store.commit(&op).unwrap();
    let own = take_local(&site.node.store);
    assert!(own > newer);
    site.change(0, 0x23);
    site.change(1, 0x24);
    site.delete(own);
    assert!(bytes_at(&site.node, older, site.ino) == site.old);
}

/// The nearest older snapshot sees a shorter file, and one before it sees zeros.
#[test]
fn zeros_stay_that_only_a_snapshot_further_back_sees() {
    let mut site = Site::new();
    let hole = site.client.create(&site.node, "hole");
    let truncate = |site: &mut Site, size| {
        let drop_set_id = false;
        let cut = site.client.op(MetaRequest::Truncate {
            ino: hole,
            size,
            drop_set_id,
        });
        site.node.store.commit(&cut).unwrap();
    };
    truncate(&mut site, 2 * BLOCK);
    let older = site.take(0x20);
    truncate(&mut site, 0);
    site.take(0x21);
    let newest = site.take(0x22);
    site.change_of(hole, 0, 0x23);
    site.delete(newest);
    assert!(bytes_at(&site.node, older, hole) == vec![0; 2 * 4096]);
}

/// The content is moved late, and gets the label of a snapshot that does not see the inode, as the one before it does not either.
#[test]
fn a_content_with_the_label_of_a_later_snapshot_stays_for_the_one_that_sees_it() {
    let mut site = Site::new();
    let other = site.client.create(&site.node, "other");
    site.client.write(&site.node, other, &site.old);
    let older = site.take(0x20);
    site.client.unlink(&site.node, "f");
    let reap = site.client.op(MetaRequest::Reap { ino: site.ino });
    site.node.store.commit(&reap).unwrap();
    site.take(0x21);
    let newest = site.take(0x22);
    site.change_of(other, 0, 0x23);
    site.node.store.collect_garbage().unwrap();
    site.delete(newest);
    assert!(bytes_at(&site.node, older, site.ino) == site.old);
}
