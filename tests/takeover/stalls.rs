//! Disks that hang: their calls do not return, and report no error (rule R12).

use std::time::Duration;

use lockstep_driver::report::{DatastoreStatus, ServiceStatus};
use lockstep_testbed::operator::{assert_identical, await_in_sync, await_status, role, run};
use lockstep_testbed::{NodeEnvironment, PATIENT, Pair, Settings, repetitions};
use lockstepfs::config::Role;

use super::{A, B, await_service, give_back, start_both};
use crate::records::{Writer, assert_records};
use crate::stalled_disk::StallingDisk;

/// A disk that hangs is noticed soon, but a busy machine is no such disk.
const WATCHFUL: Settings = Settings {
    disk_stall_limit_ms: 4000,
    ..PATIENT
};
/// Longer than everything by which a node could take over.
const LONG: Duration = Duration::from_secs(5);

/// The disk; `None` if this machine cannot mount.
fn disk() -> Option<StallingDisk> {
    repetitions("LOCKSTEP_TAKEOVER_ROUNDS", 1)?;
    Some(StallingDisk::make())
}

fn hangs(status: &DatastoreStatus) -> bool {
    status.sync.disk_stall.is_some()
}

fn peer_hangs(status: &DatastoreStatus) -> bool {
    let peer = status.peer.as_ref();
    peer.is_some_and(|peer| peer.disk_silent_ms.is_some())
}

fn why(pair: &Pair, which: super::Which) -> String {
    let asked = run(pair.node(which), "why", &[]);
    assert_eq!(asked.code, Some(0), "{}", asked.error);
    asked.output
}

#[test]
fn the_secondary_takes_over_from_a_primary_whose_disk_hangs() {
    let Some(disk) = disk() else { return };
    let of_nodes = [disk.environment("a"), NodeEnvironment::default()];
    let Some((mut pair, witness)) = start_both(WATCHFUL, of_nodes) else {
        return;
    };
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let mut first = Writer::start(&on_a, "first");
    first.await_progress();
    let stall = disk.stall();
    let mut second = Writer::start(&on_b, "second");
    second.await_progress();
    let status = await_service(&pair, B, ServiceStatus::Alone);
    assert_eq!(role(&status), (Role::Primary, 2));
    assert_eq!(witness.record().unwrap().primary, witness.member(B));
    let status = await_status(pair.node(A), "a disk that hangs", hangs);
    assert!(status.sync.disk_stall.unwrap().gave_way, "{status:#?}");
    assert_eq!(status.sync.service, ServiceStatus::Undecided);
    let text = why(&pair, A);
    assert!(
        text.contains("HANGS") && text.contains("has stopped serving"),
        "{text}"
    );
    await_status(pair.node(B), "the reason on the other node", |status| {
        let reason = status.sync.reason.as_deref().unwrap_or_default();
        reason.contains("the disk of the node hangs")
    });
    let refused = run(pair.node(A), "demote", &[]);
    assert!(refused.error.contains("hangs"), "{}", refused.error);
    second.await_progress();

    stall.end();
    await_in_sync(&mut pair, B, 2);
    // A may have had B's answer to the last record before its disk hung.
    assert_records(&on_b, "first", first.acknowledged());
    assert!(!hangs(&pair.node(A).status().unwrap()));
    give_back(&mut pair, first, second);
}

#[test]
fn without_a_witness_a_disk_that_hangs_is_only_reported() {
    let Some(disk) = disk() else { return };
    let of_nodes = [disk.environment("a"), NodeEnvironment::default()];
    let mut pair = Pair::prepare(WATCHFUL, of_nodes);
    pair.start();
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    let stall = disk.stall();
    let status = await_status(pair.node(A), "a disk that hangs", hangs);
    assert!(!status.sync.disk_stall.unwrap().gave_way, "{status:#?}");
    await_status(pair.node(B), "the word of the primary", peer_hangs);
    for (which, step) in [(A, "on the other node"), (B, "on this node")] {
        let text = why(&pair, which);
        let step = format!("`lockstep promote data` {step}");
        assert!(text.contains("HANGS") && text.contains(&step), "{text}");
    }
    std::thread::sleep(LONG);
    stall.end();
    first.await_progress();
    await_in_sync(&mut pair, A, 1);
    await_status(pair.node(B), "a disk that answers", |status| {
        !peer_hangs(status)
    });
    let of_first = first.finish();
    assert_records(&pair.node(A).mount(), "first", of_first);
    assert_identical(pair.node(A));
}

/// One cause stops both disks. A takeover would help nobody.
#[test]
fn a_primary_does_not_give_way_to_a_secondary_whose_disk_hangs_too() {
    let Some(disk) = disk() else { return };
    let of_nodes = ["a", "b"].map(|directory| disk.environment(directory));
    let Some((mut pair, witness)) = start_both(WATCHFUL, of_nodes) else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    let stall = disk.stall();
    for which in [A, B] {
        await_status(pair.node(which), "a disk that hangs", hangs);
    }
    std::thread::sleep(LONG);
    let status = pair.node(A).status().unwrap();
    assert!(!status.sync.disk_stall.unwrap().gave_way, "{status:#?}");
    // The reader of B may wait for the disk, too: then the connection is lost.
    let is_connected = status.peer.as_ref().is_some_and(|peer| peer.connected);
    assert!(peer_hangs(&status) || !is_connected, "{status:#?}");
    stall.end();
    first.await_progress();
    await_in_sync(&mut pair, A, 1);
    assert_eq!(witness.record().unwrap().primary, witness.member(A));
    let of_first = first.finish();
    assert_records(&pair.node(A).mount(), "first", of_first);
    assert_identical(pair.node(A));
}

/// A disk that hangs for a shorter time is no reason to change anything.
#[test]
fn a_short_stall_changes_nothing() {
    let Some(disk) = disk() else { return };
    let of_nodes = [disk.environment("a"), NodeEnvironment::default()];
    let Some((mut pair, _witness)) = start_both(PATIENT, of_nodes) else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    let stall = disk.stall();
    std::thread::sleep(LONG);
    assert!(!hangs(&pair.node(A).status().unwrap()));
    stall.end();
    first.await_progress();
    await_in_sync(&mut pair, A, 1);
    let of_first = first.finish();
    assert_records(&pair.node(A).mount(), "first", of_first);
    assert_identical(pair.node(A));
}
