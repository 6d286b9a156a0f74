//! Distributed recovery: after the recovery, and after the resent writes of waiting clients,
//! both nodes are identical.

use lockstep_fs::StoreView;
use lockstep_paw_saw::InFlightEntry;
use lockstep_resync::{JobProgress, ResyncSource, recover_ranges, send_content};
use lockstep_types::{Ino, MetaRequest};
use lockstep_verify::compare;

use super::nodes::{FreeLocks, LocalPeer, Node, send_namespace, stamp};

fn in_sync() -> (Node, Node, Ino) {
    let (primary, secondary) = (Node::new(), Node::new());
    let ino = primary.file("file", &[1; 10_000]);
    let progress = JobProgress::default();
    let peer = LocalPeer::new(&secondary);
    send_namespace(primary.store(), &peer).unwrap();
    let view = primary.store().tree();
    let source = ResyncSource::new(&view, primary.store());
    send_content(source, &peer, &FreeLocks, &progress, None, &drop).unwrap();
    primary.later_than(100);
    (primary, secondary, ino)
}

fn entry(ino: Ino, sequence: u64, offset: u64, length: u32) -> InFlightEntry {
    InFlightEntry {
        ino,
        osn: stamp(sequence).0,
        offset,
        length,
    }
}

fn write(node: &Node, ino: Ino, sequence: u64, offset: u64, data: &[u8]) {
    let (osn, time) = stamp(sequence);
    node.store().write(ino, offset, data, osn, time).unwrap();
}

fn assert_equal(primary: &Node, secondary: &Node) {
    let peer = LocalPeer::new(secondary);
    let report = compare(
        &primary.store().tree(),
        &peer,
        &FreeLocks,
        &JobProgress::default(),
    )
    .unwrap();
    assert!(report.is_identical(), "{:#?}", report.differences);
}

#[test]
fn a_write_without_a_waiting_client_gets_the_primarys_outcome() {
    let (primary, mut secondary, ino) = in_sync();
    write(&secondary, ino, 50, 5000, &[2; 100]);
    write(&secondary, ino, 51, 20_000, &[2; 100]);
    write(&primary, ino, 52, 9000, &[3; 5000]);
    let (paw, saw) = (
        [entry(ino, 52, 9000, 5000)],
        [entry(ino, 50, 5000, 100), entry(ino, 51, 20_000, 100)],
    );
    let gone = entry(Ino::new(999).unwrap(), 60, 0, 100);
    let recovered = recover_ranges(
        &primary.store().tree(),
        &LocalPeer::new(&secondary),
        &paw,
        &[&saw[..], &[gone]].concat(),
    );
    assert_eq!(recovered.unwrap(), [ino].into());
    assert_equal(&primary, &secondary);
    secondary.restart();
    assert_equal(&primary, &secondary);
}

#[test]
fn a_restarted_primary_publishes_its_bytes() {
    let (mut primary, mut secondary, ino) = in_sync();
    let (osn, time) = stamp(60);
    let ticket = primary
        .store()
        .begin_write(ino, 30_000, 100, false)
        .unwrap();
    primary
        .store()
        .write_begun(&ticket, 30_000, &[4; 100])
        .unwrap();
    drop(ticket);
    secondary
        .store()
        .write(ino, 12_000, &[5; 9], osn, time)
        .unwrap();
    primary.restart();
    let (paw, saw) = ([entry(ino, 59, 30_000, 100)], [entry(ino, 60, 12_000, 9)]);
    recover_ranges(
        &primary.store().tree(),
        &LocalPeer::new(&secondary),
        &paw,
        &saw,
    )
    .unwrap();
    assert_equal(&primary, &secondary);
    secondary.restart();
    assert_equal(&primary, &secondary);
}

/// Write 70 is done on both nodes. Write 69, to another range, is in place on the primary, and its client still waits.
#[test]
fn a_resent_write_does_not_turn_times_back() {
    for secondary_restarts in [false, true] {
        let (primary, mut secondary, ino) = in_sync();
        let (osn, time) = stamp(69);
        let ticket = primary
            .store()
            .begin_write(ino, 40_000, 100, false)
            .unwrap();
        primary
            .store()
            .write_begun(&ticket, 40_000, &[6; 100])
            .unwrap();
        write(&primary, ino, 70, 0, &[7; 10]);
        write(&secondary, ino, 70, 0, &[7; 10]);
        if secondary_restarts {
            secondary.restart();
        }
        let paw = [entry(ino, 69, 40_000, 100), entry(ino, 70, 0, 10)];
        recover_ranges(
            &primary.store().tree(),
            &LocalPeer::new(&secondary),
            &paw,
            &[],
        )
        .unwrap();
        write(&secondary, ino, 69, 40_000, &[6; 100]);
        primary.store().complete_write(&ticket, 40_100, osn, time);
        drop(ticket);
        assert_equal(&primary, &secondary);
        assert_eq!(
            secondary.store().tree().getattr(ino).unwrap().mtime,
            stamp(70).1
        );
    }
}

#[test]
fn files_that_are_gone_are_skipped() {
    let (primary, secondary, ino) = in_sync();
    for node in [&primary, &secondary] {
        let unlink = MetaRequest::Unlink {
            parent: Ino::ROOT,
            name: super::nodes::name("file"),
        };
        node.later_than(200);
        assert!(node.meta(unlink) && node.meta(MetaRequest::Reap { ino }));
    }
    let paw = [entry(ino, 80, 0, 100)];
    recover_ranges(
        &primary.store().tree(),
        &LocalPeer::new(&secondary),
        &paw,
        &[],
    )
    .unwrap();
}
