//! A copy that differs where no mark says so, because its disk has changed by itself. The comparison that follows a resync of what
//! has changed finds the difference in each file that the resync has touched (rule P21).
//!
//! A secondary that has not done what it has acknowledged. The comparison at the end of the resync finds the difference before the nodes
//! are in sync (rule P33).

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

#[test]
fn a_piece_that_the_secondary_has_dropped_is_sent_again_before_the_nodes_are_in_sync() {
    let mut cluster = alone(None);
    touch(&mut cluster);
    activate(Some(Mutant::ResyncDropsPiece));
    cluster.start(SECONDARY);
    until(&mut cluster, "the difference is found", |cluster| {
        assert!(!cluster.is_in_sync());
        verified(cluster).is_some_and(|verified| !verified.identical)
    });
    activate(None);
    until_in_sync(&mut cluster);
    let found = verified(&cluster).expect("the node still says what it has found");
    assert!(found.identical && found.only_touched, "{found:?}");
    assert_eq!(found.sent_again, 1);
    assert!(found.differences[0].contains(FILE), "{found:?}");
    assert!(cluster.compare().unwrap().is_identical());
}

/// The secondary drops everything. No resync loops, and after some of them the primary rests.
#[test]
fn nodes_whose_resync_cannot_be_proved_stay_out_of_sync() {
    let mut cluster = alone(None);
    touch(&mut cluster);
    activate(Some(Mutant::ResyncDropsPiece));
    cluster.start(SECONDARY);
    until(&mut cluster, "the primary rests", |cluster| {
        assert!(!cluster.is_in_sync());
        let reason = cluster.reason().unwrap_or_default();
        cluster.state(PRIMARY) == Some(State::OutOfSync) && reason.contains("resyncs in a row")
    });
    let reason = status(&cluster, PRIMARY).sync.reason.unwrap();
    assert!(
        reason.contains("still differ") && reason.contains(FILE),
        "{reason}"
    );
    cluster.run_for(LONG).unwrap();
    assert_eq!(cluster.state(PRIMARY), Some(State::OutOfSync));
    activate(None);
    kill(&mut cluster, PRIMARY);
    cluster.start(PRIMARY);
    until_in_sync(&mut cluster);
    assert!(cluster.compare().unwrap().is_identical());
}

#[test]
fn nodes_in_sync_without_a_proof_differ() {
    let mut cluster = alone(None);
    touch(&mut cluster);
    activate(Some(Mutant::InSyncUnproved));
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
    let found = cluster.compare();
    activate(None);
    assert!(!found.unwrap().is_identical());
}

/// The secondary loses its power before its mark, and with it what was sent again. No mark of the delta had named these bytes.
#[test]
fn what_was_sent_again_is_sent_once_more_after_a_loss_of_power() {
    let mut cluster = ScriptedCluster::manual(&settings(None));
    start_in_sync(&mut cluster);
    let made = run(&mut cluster, |mount| {
        program::create(mount, FILE)?;
        (0..4).try_for_each(|part| program::write_at(mount, FIRST, part * HALF, HALF))
    });
    assert_eq!(made, Ok(()));
    cluster.run_for(LONG).unwrap();
    kill(&mut cluster, SECONDARY);
    until(&mut cluster, "out of sync", |cluster| {
        cluster.state(PRIMARY) == Some(State::OutOfSync)
    });
    activate(Some(Mutant::DeltaForgetsWrites));
    let forgotten = run(&mut cluster, |mount| {
        program::write_at(mount, LATER, 3 * HALF, 4096)
    });
    activate(None);
    assert_eq!(forgotten, Ok(()));
    touch(&mut cluster);
    cluster.start(SECONDARY);
    until(&mut cluster, "sent again", |cluster| {
        assert!(!cluster.is_in_sync());
        verified(cluster).is_some_and(|verified| verified.sent_again == 1)
    });
    cluster.cut_power(SECONDARY);
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
    assert!(cluster.compare().unwrap().is_identical());
}

/// The process of the primary ends after content was sent, and its notes with it.
#[test]
fn a_primary_that_starts_again_proves_what_the_process_before_has_sent() {
    let mut cluster = alone(None);
    touch(&mut cluster);
    activate(Some(Mutant::ResyncDropsPiece));
    cluster.start(SECONDARY);
    until(&mut cluster, "the difference is found", |cluster| {
        verified(cluster).is_some_and(|verified| !verified.identical)
    });
    kill(&mut cluster, PRIMARY);
    // The secondary still does what it was sent.
    cluster.run_for(Duration::from_secs(1)).unwrap();
    activate(None);
    cluster.start(PRIMARY);
    until_in_sync(&mut cluster);
    assert!(cluster.compare().unwrap().is_identical());
    let found = verified(&cluster).expect("the file was found to differ once more");
    assert_eq!((found.identical, found.sent_again), (true, 1));
}
