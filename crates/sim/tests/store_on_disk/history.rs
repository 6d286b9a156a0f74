//! The kept values of records: each mutant of keeping and of deletion shows in one of the checks.

use lockstep_fs::keys;
use lockstep_fs::plan::View;
use lockstep_fs::snapshot_list::{SnapshotBytes, SnapshotKind, SnapshotRecord};
use lockstep_fs::store::SnapshotAccess;
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::{MetaOp, SnapshotId, Timestamp, XattrMode};

use super::*;

const FOLD: &str = "a snapshot has the size of its moment";
const SEEN: &str = "an older snapshot sees what a deleted one saw";
const LABELS: &str = "what stays has its label";
const NOTHING_LEFT: &str = "what no snapshot saw leaves nothing";

/// A store, and the number of its last operation.
struct Run {
    store: Store,
    last: u64,
}

impl Run {
    fn new() -> Self {
        let store = open(&made_disk(), BOOT).unwrap().store;
        Self { store, last: 0 }
    }

    fn commit(&mut self, request: MetaRequest) {
        self.last += 1;
        let op = MetaOp {
            osn: osn(self.last),
            time: Timestamp::default(),
            request,
        };
        self.store.commit(&op).unwrap();
    }

    fn create(&mut self, name: &str) -> Ino {
        let ino = self.store.next_ino().unwrap();
        self.commit(creation(Ino::ROOT, file_name(name), ino, NodeKind::File));
        ino
    }

    fn write(&mut self, ino: Ino, bytes: &[u8]) {
        self.last += 1;
        let time = Timestamp::default();
        self.store
            .write(ino, 0, bytes, osn(self.last), time)
            .unwrap();
    }

    fn snapshot(&mut self) -> SnapshotId {
        self.last += 1;
        let id = SnapshotId::of_operation(osn(self.last));
        let snapshot = SnapshotRecord {
            name: self.last.to_string(),
            time: Timestamp::default(),
            kind: SnapshotKind::User,
            inos_below: self.store.image().inos_below(),
            is_deleted: false,
            bytes: SnapshotBytes::Unsettled,
            serial: 0,
            holds: Vec::new(),
        };
        SnapshotAccess::of(&self.store)
            .create(id, snapshot)
            .unwrap();
        id
    }
}

/// Returns the checks that fail.
fn failing() -> Vec<&'static str> {
    let mut run = Run::new();
    let (file, old) = (run.create("file"), run.create("old"));
    run.write(file, b"four");
    let older = run.snapshot();
    run.write(file, b"and more");
    run.store.checkpoint().unwrap();
    let deleted = run.snapshot();
    for is_set in [true, false] {
        let name = b"user.new".to_vec();
        run.commit(if is_set {
            MetaRequest::SetXattr {
                ino: old,
                name,
                value: vec![1],
                mode: XattrMode::Create,
            }
        } else {
            MetaRequest::RemoveXattr { ino: old, name }
        });
    }
    let kept = |run: &Run| {
        let range = keys::table(keys::HISTORY);
        run.store.tree().keys(&range).unwrap()
    };
    let xattr = keys::xattr(old, b"user.new");
    let left = kept(&run).contains(&keys::history(&xattr, deleted));
    run.commit(MetaRequest::Unlink {
        parent: Ino::ROOT,
        name: file_name("old"),
    });
    let history = SnapshotAccess::of(&run.store);
    history.delete(deleted).unwrap();
    let entry = keys::entry(Ino::ROOT, b"old");
    let at = history.records(older).unwrap();
    let size = at.inode(file).unwrap().unwrap().attr(file).size;
    let is_seen = at.get(&entry).unwrap().is_some();
    let is_moved = kept(&run).contains(&keys::history(&entry, older));
    let checks = [
        (FOLD, size == 4),
        (SEEN, is_seen),
        (LABELS, !is_moved),
        (NOTHING_LEFT, !left),
    ];
    let failing = checks.into_iter().filter(|(_, holds)| !holds);
    failing.map(|(check, _)| check).collect()
}

#[test]
fn each_mutant_of_the_history_fails_its_check() {
    assert_eq!(failing(), [""; 0]);
    for (mutant, check) in [
        (Mutant::HistoryMissesFold, FOLD),
        (Mutant::DeleteTakesNeighbours, SEEN),
        (Mutant::DeleteRelabels, LABELS),
        (Mutant::AbsentLeavesHistory, NOTHING_LEFT),
    ] {
        activate(Some(mutant));
        let failed = failing();
        activate(None);
        assert_eq!(failed, [check], "{mutant:?}");
    }
}
