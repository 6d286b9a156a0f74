//! A node that has served alone, and has lost its power, brings the other one up to date from its last barrier on (P28 of
//! docs/protocol/delta.md): a part is compared, and then a comparison of everything finds nothing.

use std::cell::Cell;
use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_sim::op::Op;
use lockstep_sim::scenario::{PRIMARY, SECONDARY, ScriptedCluster};
use lockstep_sim::world::Side;
use lockstep_types::{Ino, MetaRequest, RenameMode};

use super::barriers::{
    PART, PARTS, change, is_identical, until_barrier_after_change, until_state, with_base,
};
use super::program::{self, LATER};
use super::steps::{kill, run, until};

/// Most bytes that are compared for a few changes: regions of 1 MiB.
const COMPARED_MAX: u64 = 8 * PART;
/// A node that serves alone has a trace within this time.
const TRACED_WITHIN: Duration = Duration::from_secs(5);
/// A store makes a checkpoint within this time.
const CHECKPOINT_WITHIN: Duration = Duration::from_secs(25);

/// The way in which a node is gone.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Process,
    Power,
}

fn lose(cluster: &mut ScriptedCluster, side: Side, loss: Loss) {
    match loss {
        Loss::Process => kill(cluster, side),
        Loss::Power => cluster.cut_power(side),
    }
}

fn is_traced(cluster: &ScriptedCluster, side: Side) -> bool {
    cluster
        .disk(side)
        .files()
        .contains(&"tables/trace".to_owned())
}

fn until_traced(cluster: &mut ScriptedCluster, side: Side) {
    cluster.run_for(TRACED_WITHIN).unwrap();
    assert!(is_traced(cluster, side));
}

/// A primary that serves alone, has mirrored since the barrier what it has not synced, and has a trace.
fn alone(loss: Loss) -> ScriptedCluster {
    let mut cluster = with_base();
    until_barrier_after_change(&mut cluster, "before");
    change(&mut cluster, "mirrored", 5);
    let appended = run(&mut cluster, |mount| {
        program::create(mount, "short")?;
        program::create(mount, "removed later")?;
        program::write_at(mount, LATER, PARTS * PART, 5000)
    });
    assert_eq!(appended, Ok(()));
    lose(&mut cluster, SECONDARY, loss);
    until_state(&mut cluster, State::OutOfSync);
    until_traced(&mut cluster, PRIMARY);
    cluster
}

/// Old regions, new files, names that go and move.
fn change_much(cluster: &mut ScriptedCluster) {
    change(cluster, "alone", 8);
    let changed = run(cluster, |mount| {
        let parent = Ino::ROOT;
        let change = |request| mount.submit(&Op::Change(request)).map(drop);
        change(MetaRequest::Unlink {
            parent,
            name: program::name("removed later"),
        })?;
        change(MetaRequest::Rename {
            parent,
            name: program::name("short"),
            new_parent: parent,
            new_name: program::name("moved"),
            mode: RenameMode::Replace,
        })?;
        program::create(mount, "short")
    });
    assert_eq!(changed, Ok(()));
}

/// The primary loses its power, and leads on.
fn lose_power(cluster: &mut ScriptedCluster, side: Side) {
    cluster.cut_power(side);
    cluster.start(side);
    until(cluster, "serves", |cluster| cluster.serves(side));
    let state = cluster.state(side);
    assert_eq!(state, Some(State::OutOfSync));
}

/// Starts the other node. Returns the most bytes that a resync compares.
fn rejoin(cluster: &mut ScriptedCluster, side: Side) -> u64 {
    cluster.start(side);
    let last = Cell::new(0);
    until(cluster, "in sync", |cluster| {
        let resync = cluster
            .status(side.other())
            .and_then(|status| status.resync);
        if let Some(total) = resync.and_then(|resync| resync.bytes_total) {
            last.set(last.get().max(total));
        }
        cluster.is_in_sync()
    });
    last.get()
}

#[track_caller]
fn expect_part(cluster: &mut ScriptedCluster, compared: u64) {
    assert!(compared > 0);
    assert!(compared <= COMPARED_MAX, "{compared} bytes are compared");
    assert!(is_identical(cluster));
}

#[test]
fn a_primary_that_lost_power_alone_sends_what_has_changed() {
    for loss in [Loss::Process, Loss::Power] {
        let mut cluster = alone(loss);
        change_much(&mut cluster);
        lose_power(&mut cluster, PRIMARY);
        let compared = rejoin(&mut cluster, SECONDARY);
        expect_part(&mut cluster, compared);
    }
}

/// Half of the changes are on stable storage, and their operations are not in the log any more.
#[test]
fn a_checkpoint_takes_no_change_from_the_trace() {
    let mut cluster = alone(Loss::Process);
    change_much(&mut cluster);
    cluster.run_for(CHECKPOINT_WITHIN).unwrap();
    change(&mut cluster, "later", 9);
    lose_power(&mut cluster, PRIMARY);
    change(&mut cluster, "last", 7);
    let compared = rejoin(&mut cluster, SECONDARY);
    expect_part(&mut cluster, compared);
}

#[test]
fn a_primary_that_lost_power_twice_knows_all_of_its_changes() {
    let mut cluster = alone(Loss::Power);
    change_much(&mut cluster);
    lose_power(&mut cluster, PRIMARY);
    change(&mut cluster, "second", 6);
    kill(&mut cluster, PRIMARY);
    cluster.start(PRIMARY);
    until_state(&mut cluster, State::OutOfSync);
    change(&mut cluster, "third", 7);
    cluster.cut_power_after_write_back(PRIMARY);
    cluster.start(PRIMARY);
    until_state(&mut cluster, State::OutOfSync);
    let compared = rejoin(&mut cluster, SECONDARY);
    expect_part(&mut cluster, compared);
}

#[test]
fn a_process_that_was_killed_before_keeps_the_trace() {
    let mut cluster = alone(Loss::Process);
    change(&mut cluster, "alone", 8);
    kill(&mut cluster, PRIMARY);
    cluster.start(PRIMARY);
    until_state(&mut cluster, State::OutOfSync);
    change(&mut cluster, "again", 3);
    lose_power(&mut cluster, PRIMARY);
    let compared = rejoin(&mut cluster, SECONDARY);
    expect_part(&mut cluster, compared);
}

/// The source of a resync that loses its power has given the other node what it has lost.
#[test]
fn a_primary_that_loses_power_in_the_resync_leaves_no_difference() {
    for state in [
        State::ResyncNamespace,
        State::ResyncContent,
        State::EnteringSync,
        State::Synced,
    ] {
        let mut cluster = alone(Loss::Process);
        change_much(&mut cluster);
        lose_power(&mut cluster, PRIMARY);
        change(&mut cluster, "not stable", 3);
        cluster.start(SECONDARY);
        until_state(&mut cluster, state);
        cluster.cut_power(PRIMARY);
        cluster.start(PRIMARY);
        until(&mut cluster, "in sync", |cluster| cluster.is_in_sync());
        assert!(is_identical(&mut cluster), "{state:?}");
    }
}

/// After a resync that was interrupted, the trace begins again, with each place that the other node may have got.
#[test]
fn a_trace_begins_again_after_an_interrupted_resync() {
    for state in [State::ResyncNamespace, State::ResyncContent] {
        let mut cluster = alone(Loss::Process);
        change_much(&mut cluster);
        cluster.start(SECONDARY);
        until_state(&mut cluster, state);
        cluster.cut_power(SECONDARY);
        until_state(&mut cluster, State::OutOfSync);
        until_traced(&mut cluster, PRIMARY);
        change(&mut cluster, "alone again", 3);
        lose_power(&mut cluster, PRIMARY);
        let compared = rejoin(&mut cluster, SECONDARY);
        expect_part(&mut cluster, compared);
    }
}

/// The other node has removed a file that this node gets back with the loss of its power.
#[test]
fn a_file_that_comes_back_is_sent_as_a_whole() {
    let mut cluster = with_base();
    until_barrier_after_change(&mut cluster, "before");
    let removed = run(&mut cluster, |mount| {
        let (parent, name) = (Ino::ROOT, program::name(program::FILE));
        let unlink = Op::Change(MetaRequest::Unlink { parent, name });
        mount.submit(&unlink).map(drop)
    });
    assert_eq!(removed, Ok(()));
    cluster.run_for(Duration::from_millis(300)).unwrap();
    kill(&mut cluster, SECONDARY);
    until_state(&mut cluster, State::OutOfSync);
    until_traced(&mut cluster, PRIMARY);
    lose_power(&mut cluster, PRIMARY);
    rejoin(&mut cluster, SECONDARY);
    assert!(is_identical(&mut cluster));
}

/// A node that has taken over, and serves alone.
#[test]
fn a_node_that_took_over_and_lost_power_knows_what_the_other_one_lacks() {
    for loss in [Loss::Process, Loss::Power] {
        let mut cluster = with_base();
        until_barrier_after_change(&mut cluster, "before");
        change(&mut cluster, "mirrored", 5);
        lose(&mut cluster, PRIMARY, loss);
        assert_eq!(cluster.promote(SECONDARY), Ok(true));
        until(&mut cluster, "serves", |cluster| cluster.serves(SECONDARY));
        until_traced(&mut cluster, SECONDARY);
        change(&mut cluster, "alone", 8);
        lose_power(&mut cluster, SECONDARY);
        let compared = rejoin(&mut cluster, PRIMARY);
        expect_part(&mut cluster, compared);
    }
}
