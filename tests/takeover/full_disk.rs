//! The disk of the witness is full.

use std::path::Path;

use lockstep_driver::report::{DatastoreStatus, ServiceStatus};
use lockstep_testbed::operator::{await_status, run};
use lockstep_testbed::small_disk::SmallDisk;
use lockstep_testbed::witness::Witness;
use lockstep_testbed::{NodeEnvironment, PATIENT, Pair, repetitions};

use super::{A, B, FAILOVER_AFTER_MS, await_protected, await_service};
use crate::records::{Writer, assert_records};

/// Room for a witness.
const DISK_BYTES: u64 = 64 << 20;

/// The disk; `None` if this machine cannot mount.
fn disk() -> Option<SmallDisk> {
    repetitions("LOCKSTEP_TAKEOVER_ROUNDS", 1)?;
    Some(SmallDisk::of(DISK_BYTES, &[]))
}

/// Two nodes with a witness that keeps its records on this disk.
fn start(place: &Path) -> (Pair, Witness) {
    let environments = [(); 2].map(|()| NodeEnvironment::default());
    let mut pair = Pair::prepare(PATIENT, environments);
    let witness = Witness::start_on(&pair, FAILOVER_AFTER_MS, place);
    pair.start();
    await_protected(&pair, A);
    (pair, witness)
}

/// Kills A, and checks that B takes over.
fn take_over(pair: &mut Pair) {
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    pair.node_mut(A).kill();
    let of_first = first.lose();
    await_service(pair, B, ServiceStatus::Alone);
    assert_records(&pair.node(B).mount(), "first", of_first);
}

fn cannot_record(status: &DatastoreStatus) -> bool {
    let witness = status.witness.as_ref();
    let trouble = witness.and_then(|it| it.trouble.as_ref());
    trouble.is_some_and(|text| text.contains("does not protect") && text.contains("make room"))
}

#[test]
fn the_secondary_takes_over_while_the_disk_of_the_witness_is_full() {
    let Some(disk) = disk() else { return };
    let (mut pair, _witness) = start(&disk.root());
    let _ballast = disk.fill();
    take_over(&mut pair);
}

/// The store is of an earlier version, and the disk was full before it got its space.
#[test]
fn both_nodes_say_that_the_witness_cannot_record() {
    let Some(disk) = disk() else { return };
    let (mut pair, mut witness) = start(&disk.root());
    witness.stop();
    witness.take_space();
    let ballast = disk.fill();
    witness.resume();
    for which in [A, B] {
        let node = pair.node(which);
        await_status(node, "a witness that cannot record", cannot_record);
        let status = run(node, "status", &[]);
        assert_eq!(status.code, Some(1), "{}", status.output);
        for command in ["status", "why"] {
            let asked = run(node, command, &[]);
            assert!(
                asked.output.contains("does not protect"),
                "{command}: {}",
                asked.output
            );
        }
    }
    drop(ballast);
    for which in [A, B] {
        await_status(pair.node(which), "an answer", |status| {
            status.witness.as_ref().is_some_and(|it| it.answers)
        });
    }
    await_protected(&pair, A);
    take_over(&mut pair);
}
