//! A copy that differs where no mark says so, because its disk has changed by itself. The comparison that follows a resync of what
//! has changed finds the difference in each file that the resync has touched (rule P21).

use std::time::Duration;

use lockstep_driver::report::VerifiedStatus;
use lockstep_repl::state::State;
use lockstep_sim::scenario::{PRIMARY, SECONDARY, ScriptedCluster, Settings};
use lockstep_types::mutants::{Mutant, activate};

use super::program::{self, FILE, FIRST, LATER, OTHER};
use super::steps::{kill, run, start_in_sync, status, until, until_in_sync};

/// The comparison of the few files here takes less.
const LONG: Duration = Duration::from_secs(30);
/// The length of one write, and half of the length of a file. A resync compares a file of this length as a whole, and the
/// changed bytes of a longer one.
const HALF: u64 = 1 << 20;
/// A block that no program writes again.
const UNTOUCHED: u64 = HALF + HALF / 2;

fn settings(failover_after: Option<Duration>) -> Settings {
    Settings {
        peer_timeout: Duration::from_secs(1),
        failover_after,
        ..Settings::STEADY
    }
}

/// Two nodes in sync, and a long file. The secondary is killed, and the primary has gone on alone.
fn alone(failover_after: Option<Duration>) -> ScriptedCluster {
    let mut cluster = ScriptedCluster::manual(&settings(failover_after));
    start_in_sync(&mut cluster);
    let made = run(&mut cluster, |mount| {
        program::create(mount, FILE)?;
        program::write_at(mount, FIRST, 0, HALF)?;
        program::write_at(mount, OTHER, HALF, HALF)
    });
    assert_eq!(made, Ok(()));
    // The witness hears meanwhile that the nodes are in sync.
    cluster.run_for(LONG).unwrap();
    kill(&mut cluster, SECONDARY);
    until(&mut cluster, "out of sync", |cluster| {
        cluster.state(PRIMARY) == Some(State::OutOfSync)
    });
    cluster
}

/// Writes a block at the beginning of the file.
fn touch(cluster: &mut ScriptedCluster) {
    let touched = run(cluster, |mount| program::write_at(mount, LATER, 0, 4096));
    assert_eq!(touched, Ok(()));
}

/// Changes a bit of the secondary's file, far from the block that is written.
fn rot(cluster: &ScriptedCluster) {
    let disk = cluster.disk(SECONDARY);
    let is_file = |file: &&String| {
        let content = file.starts_with("content/").then(|| disk.read_all(file));
        content
            .flatten()
            .is_some_and(|bytes| bytes.len() as u64 == 2 * HALF)
    };
    let files = disk.files();
    let file = files.iter().find(is_file).expect("the file has content");
    assert!(disk.flip_bit(file, UNTOUCHED, 3));
}

fn verified(cluster: &ScriptedCluster) -> Option<VerifiedStatus> {
    cluster.status(PRIMARY)?.verified
}

#[track_caller]
fn expect_found_and_healed(cluster: &mut ScriptedCluster) {
    until(cluster, "the difference is found", |cluster| {
        verified(cluster).is_some_and(|verified| !verified.identical)
    });
    let found = verified(cluster).unwrap();
    assert!(found.only_touched);
    let first = &found.differences[0];
    assert!(first.contains(FILE) && first.contains("content"), "{first}");
    until(cluster, "the sync has ended", |cluster| {
        cluster.state(PRIMARY) == Some(State::OutOfSync)
    });
    let reason = status(cluster, PRIMARY).sync.reason.unwrap();
    assert!(reason.contains("everything is compared"), "{reason}");
    until_in_sync(cluster);
    assert_eq!(verified(cluster), None, "everything was compared");
    assert!(cluster.compare().unwrap().is_identical());
}

#[test]
fn a_difference_beside_the_changed_bytes_is_found_and_healed() {
    for failover_after in [None, Some(Duration::from_secs(2))] {
        let mut cluster = alone(failover_after);
        touch(&mut cluster);
        rot(&cluster);
        cluster.start(SECONDARY);
        until_in_sync(&mut cluster);
        expect_found_and_healed(&mut cluster);
    }
}

/// The comparison goes on after a recovery.
#[test]
fn a_lost_connection_does_not_end_the_comparison() {
    let mut cluster = alone(None);
    touch(&mut cluster);
    rot(&cluster);
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
    assert_eq!(verified(&cluster), None, "not compared yet");
    kill(&mut cluster, SECONDARY);
    cluster.start(SECONDARY);
    expect_found_and_healed(&mut cluster);
}

#[test]
fn equal_files_are_called_identical() {
    let mut cluster = alone(None);
    touch(&mut cluster);
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
    until(&mut cluster, "compared", |cluster| {
        assert!(cluster.is_in_sync(), "{:?}", cluster.reason());
        verified(cluster).is_some()
    });
    let found = verified(&cluster).unwrap();
    assert!(found.identical && found.only_touched, "{found:?}");
    cluster.run_for(LONG).unwrap();
    assert!(cluster.is_in_sync());
}

/// Only a comparison of everything finds the difference. A later resync of what has changed does not hide that difference.
#[test]
fn a_difference_in_another_file_stays_known() {
    let mut cluster = alone(None);
    rot(&cluster);
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
    cluster.run_for(LONG).unwrap();
    assert!(cluster.is_in_sync());
    let found = run(&mut cluster, |mount| Ok(mount.verify()));
    assert_eq!(found, Ok(Ok(false)));
    kill(&mut cluster, SECONDARY);
    until(&mut cluster, "out of sync", |cluster| {
        cluster.state(PRIMARY) == Some(State::OutOfSync)
    });
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
    cluster.run_for(LONG).unwrap();
    assert!(!verified(&cluster).unwrap().identical);
}

#[test]
fn a_resync_that_is_trusted_is_found() {
    activate(Some(Mutant::TrustResync));
    let mut cluster = alone(None);
    touch(&mut cluster);
    rot(&cluster);
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
    cluster.run_for(LONG).unwrap();
    let found = (verified(&cluster), cluster.compare().unwrap());
    activate(None);
    assert_eq!(found.0, None);
    assert!(!found.1.is_identical());
}
