//! Kills at moments that random steps do not hit: between a record and its effect.

use lockstep_fs::StoreView;
use lockstep_fs::store::FileTimes;
use lockstep_intentlog::{IntentLog, Record};
use lockstep_lossy::disk::DiskOptions;
use lockstep_types::{AllocateMode, FileName, Ino, MetaOp, MetaRequest};

use crate::durability::Client;
use crate::harness::{Node, log_options, open, osn_and_time, read_all};

/// Adds records to the log of a killed node, as the node would have done next.
fn append(node: &Node, records: &[Record]) {
    let (log, _) = IntentLog::open(&*node.disk.mount(), "log", &log_options()).unwrap();
    for record in records {
        log.append(record).unwrap();
    }
}

fn killed(node: &mut Node) {
    node.disk = node.disk.fork();
}

fn times_of(ino: Ino) -> Record {
    let (_, time) = osn_and_time(900);
    Record::FileTimes {
        ino,
        mtime: time,
        ctime: time,
    }
}

fn truncate(client: &mut Client, ino: Ino, size: u64) -> MetaOp {
    client.op(MetaRequest::Truncate {
        ino,
        size,
        drop_set_id: false,
    })
}

fn two_files() -> (Node, Client, Ino, Ino) {
    let node = Node::new();
    let mut client = Client::new();
    let (one, two) = (client.create(&node, "one"), client.create(&node, "two"));
    client.write(&node, one, b"0123456789");
    client.write(&node, two, b"else");
    node.store.checkpoint().unwrap();
    (node, client, one, two)
}

#[test]
fn an_effect_that_was_not_carried_out_is() {
    let (mut node, mut client, one, _) = two_files();
    let op = truncate(&mut client, one, 4);
    killed(&mut node);
    append(&node, &[Record::CommittedOp(op)]);
    assert_eq!(read_all(&open(&node.disk), one), b"0123");
}

/// A power loss may take reserved space back, which others may fill. The bytes of the file need no space.
#[test]
fn an_effect_is_repeated_on_a_disk_that_others_have_filled() {
    use AllocateMode::{Allocate, AllocateKeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize};
    const CAPACITY: u64 = 8 << 20;
    const LENGTH: u64 = 16 << 20;
    let cases = [
        (Allocate, b"0123456789", LENGTH),
        (AllocateKeepSize, b"0123456789", 10),
        (PunchHole, &[0; 10], 10),
        (ZeroRange, &[0; 10], LENGTH),
        (ZeroRangeKeepSize, &[0; 10], 10),
    ];
    for (mode, bytes, size) in cases {
        let (mut node, mut client, one, _) = two_files();
        let op = client.op(MetaRequest::Allocate {
            ino: one,
            offset: 0,
            length: LENGTH,
            mode,
        });
        killed(&mut node);
        append(&node, &[Record::CommittedOp(op)]);
        node.disk.set_capacity(DiskOptions {
            capacity_bytes: CAPACITY,
            capacity_files: 1 << 20,
        });
        let store = open(&node.disk);
        let found = store.tree().getattr(one).unwrap().size;
        assert_eq!(found, size, "{mode:?}");
        assert!(read_all(&store, one).starts_with(bytes), "{mode:?}");
    }
}

/// Another file was synced between the record of the operation and the kill.
#[test]
fn times_of_another_file_prove_nothing() {
    let (mut node, mut client, one, two) = two_files();
    let op = truncate(&mut client, one, 4);
    killed(&mut node);
    append(&node, &[Record::CommittedOp(op), times_of(two)]);
    assert_eq!(read_all(&open(&node.disk), one), b"0123");
}

#[test]
fn an_effect_that_was_taken_back_stays_so() {
    let (mut node, mut client, one, two) = two_files();
    let op = truncate(&mut client, one, 4);
    let osn = op.osn;
    killed(&mut node);
    append(
        &node,
        &[
            Record::CommittedOp(op),
            times_of(two),
            Record::RolledBack { osn },
        ],
    );
    assert_eq!(read_all(&open(&node.disk), one), b"0123456789");
}

/// A second execution would destroy the bytes written since.
#[test]
fn an_effect_that_was_carried_out_is_not_repeated() {
    let (mut node, mut client, one, _) = two_files();
    let op = client.op(MetaRequest::Allocate {
        ino: one,
        offset: 0,
        length: 10,
        mode: AllocateMode::ZeroRange,
    });
    node.store.commit(&op).unwrap();
    client.write(&node, one, b"again");
    node.kill();
    assert_eq!(read_all(&node.store, one), b"again\0\0\0\0\0");
}

/// A process may be killed in the middle of storing a slot.
#[test]
fn a_torn_slot_costs_no_file() {
    let (mut node, mut client, one, _) = two_files();
    let longer = [7; 5000];
    client.write(&node, one, &longer);
    killed(&mut node);
    let tear = |bytes: &mut Vec<u8>| {
        for slot in bytes.chunks_mut(64).filter(|slot| slot[0] != 0) {
            slot[20] ^= 1;
        }
    };
    node.disk.edit("tables/times", tear).unwrap();
    let store = open(&node.disk);
    assert_eq!(read_all(&store, one), longer);
    store.close().unwrap();
    let left = node.disk.read_all("tables/times").unwrap();
    assert!(
        left.iter().all(|byte| *byte == 0),
        "torn slots are free again"
    );
}

/// The primary has restarted since the last write: it knows the times, but not the write that set them.
#[test]
fn times_taken_over_without_their_write_survive() {
    let (mut node, _, one, _) = two_files();
    let (osn, time) = osn_and_time(901);
    node.store.write(one, 0, b"later", osn, time).unwrap();
    let received = FileTimes {
        last_write: None,
        ..node.store.tree().file_times(one).unwrap().unwrap()
    };
    assert!(node.store.replica().set_file_times(one, &received).unwrap());
    killed(&mut node);
    let attr = open(&node.disk).tree().getattr(one).unwrap();
    assert_eq!((attr.mtime, attr.ctime), (time, time));
}

/// An operation puts the time of the last write into the file's record. Then recovery changes only the size,
/// and the process is killed. Both times survive.
#[track_caller]
fn assert_keeps_times_with_a_new_size(mut node: Node, ino: Ino) {
    let written = node.store.tree().getattr(ino).unwrap().mtime;
    let (osn, linked) = osn_and_time(902);
    let link = MetaOp {
        osn,
        time: linked,
        request: MetaRequest::Link {
            ino,
            parent: Ino::ROOT,
            name: FileName::new(b"link").unwrap(),
        },
    };
    node.store.commit(&link).unwrap();
    let received = FileTimes {
        size: 7000,
        ..node.store.tree().file_times(ino).unwrap().unwrap()
    };
    assert_eq!((received.mtime, received.last_write), (written, None));
    assert!(node.store.replica().set_file_times(ino, &received).unwrap());
    killed(&mut node);
    let attr = open(&node.disk).tree().getattr(ino).unwrap();
    assert_eq!((attr.mtime, attr.ctime), (written, linked));
}

/// Only the slot outlives the process.
#[test]
fn times_that_only_the_slot_knows_survive_a_new_size() {
    let (node, mut client, one, _) = two_files();
    client.write(&node, one, b"later");
    assert_keeps_times_with_a_new_size(node, one);
}

/// The log has known the time of a write that was taken back since and then sent again.
#[test]
fn times_that_the_log_has_lost_again_survive_a_new_size() {
    let (node, _, one, _) = two_files();
    let before = node.store.tree().file_times(one).unwrap().unwrap();
    let (osn, time) = osn_and_time(901);
    let write = || node.store.write(one, 0, b"later", osn, time).unwrap();
    write();
    node.store.sync_file(one, true).unwrap();
    let taken_back = FileTimes {
        last_write: None,
        ..before
    };
    assert!(
        node.store
            .replica()
            .set_file_times(one, &taken_back)
            .unwrap()
    );
    write();
    assert_eq!(node.store.tree().getattr(one).unwrap().mtime, time);
    assert_keeps_times_with_a_new_size(node, one);
}

/// Recovery takes back the times of a write that the primary had not completed. Then the write is sent again.
#[test]
fn a_write_sent_again_sets_the_times_that_were_taken_back() {
    let (node, _, one, _) = two_files();
    let before = node.store.tree().file_times(one).unwrap().unwrap();
    let (osn, time) = osn_and_time(901);
    node.store.write(one, 0, b"later", osn, time).unwrap();
    node.store.checkpoint().unwrap();
    let received = FileTimes {
        last_write: None,
        ..before
    };
    assert!(node.store.replica().set_file_times(one, &received).unwrap());
    node.store.write(one, 0, b"later", osn, time).unwrap();
    let attr = node.store.tree().getattr(one).unwrap();
    assert_eq!((attr.mtime, attr.ctime), (time, time));
}
