//! A secondary that has lost power is brought up to date from its last barrier on (docs/protocol/delta.md): a part is compared, and
//! then a comparison of everything finds nothing.

use std::cell::Cell;
use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_sim::scenario::{Fault, PRIMARY, SECONDARY, ScriptedCluster, Settings};
use lockstep_sim::world::{Hang, Side};
use lockstep_types::settings::Role;

use super::program::{self, FILE, FIRST, LATER};
use super::resumed::compared;
use super::steps::{has_left_difference, kill, run, start_in_sync, status, until, until_in_sync};

/// The length of one write.
pub const PART: u64 = 1 << 20;
/// Number of writes of the file.
pub const PARTS: u64 = 12;
/// Most bytes that are compared for a few changes.
const COMPARED_MAX: u64 = 3 * PART;
/// A barrier begins within this time, if something is marked.
const BARRIER_WITHIN: Duration = Duration::from_secs(2);
/// A store makes a checkpoint within this time.
const CHECKPOINT_WITHIN: Duration = Duration::from_secs(25);

pub const SETTINGS: Settings = Settings {
    peer_timeout: Duration::from_secs(1),
    ..Settings::STEADY
};

/// Waits for a barrier that begins from now on. Something is marked.
fn until_barrier(cluster: &mut ScriptedCluster) {
    let begun = cluster.now();
    until_barrier_since(cluster, begun);
}

fn until_barrier_since(cluster: &mut ScriptedCluster, begun: Duration) {
    until(cluster, "a barrier", |cluster| {
        let since = status(cluster, PRIMARY).sync.barrier_since_ms;
        let since = since.map(|since| Duration::from_millis(since + 1));
        since.is_some_and(|since| begun + since < cluster.now())
    });
}

/// Two nodes in sync with a long file, all of which is behind a barrier.
pub fn with_base() -> ScriptedCluster {
    with_base_of(&SETTINGS)
}

pub fn with_base_of(settings: &Settings) -> ScriptedCluster {
    let mut cluster = ScriptedCluster::manual(settings);
    start_in_sync(&mut cluster);
    let made = run(&mut cluster, |mount| {
        program::create(mount, FILE)?;
        (0..PARTS).try_for_each(|part| program::write_at(mount, FIRST, part * PART, PART))
    });
    assert_eq!(made, Ok(()));
    until_barrier(&mut cluster);
    cluster
}

pub fn change(cluster: &mut ScriptedCluster, name: &'static str, part: u64) {
    let changed = run(cluster, move |mount| {
        program::create(mount, name)?;
        program::write_at(mount, LATER, part * PART, 5000)
    });
    assert_eq!(changed, Ok(()));
}

pub fn until_barrier_after_change(cluster: &mut ScriptedCluster, name: &'static str) {
    // A barrier that begins in the middle leaves nothing marked.
    let begun = cluster.now();
    change(cluster, name, 1);
    until_barrier_since(cluster, begun);
}

pub fn until_state(cluster: &mut ScriptedCluster, state: State) {
    until(cluster, state.describe(), |cluster| {
        cluster.state(PRIMARY) == Some(state)
    });
}

/// The secondary loses its power, and comes back. Returns the bytes that the resync compares.
fn lose_power(cluster: &mut ScriptedCluster) -> u64 {
    cluster.cut_power(SECONDARY);
    until_state(cluster, State::OutOfSync);
    resync(cluster)
}

/// Starts the secondary, and waits until the nodes are in sync. Returns the bytes that the resync compares.
fn resync(cluster: &mut ScriptedCluster) -> u64 {
    cluster.start(SECONDARY);
    compared_until_in_sync(cluster)
}

/// Runs the world until the nodes are in sync. Returns the bytes that the last resync compares.
pub fn compared_until_in_sync(cluster: &mut ScriptedCluster) -> u64 {
    let last = Cell::new(0);
    until(cluster, "in sync", |cluster| {
        // At first the numbers are those of the resync before.
        if let Some((_, total)) = compared(cluster) {
            last.set(total);
        }
        cluster.is_in_sync()
    });
    last.get()
}

/// Whether both copies are equal, and no resync has had to heal them.
pub fn is_identical(cluster: &mut ScriptedCluster) -> bool {
    let is_identical = !has_left_difference(cluster);
    if !is_identical {
        println!("{:#?}", cluster.compare().unwrap());
    }
    is_identical
}

/// The resync compares a part, and leaves no difference.
#[track_caller]
pub fn expect_part(cluster: &mut ScriptedCluster, compared: u64) {
    assert!(compared <= COMPARED_MAX, "{compared} bytes are compared");
    assert!(is_identical(cluster));
}

#[test]
fn a_secondary_that_lost_power_gets_what_was_written_since_the_barrier() {
    let mut cluster = with_base();
    change(&mut cluster, "mirrored", 5);
    cluster.cut_power(SECONDARY);
    until_state(&mut cluster, State::OutOfSync);
    change(&mut cluster, "alone", 9);
    let compared = resync(&mut cluster);
    assert!(compared > 0);
    expect_part(&mut cluster, compared);
    change(&mut cluster, "mirrored again", 2);
    let compared = lose_power(&mut cluster);
    expect_part(&mut cluster, compared);
}

/// A place that a resync has finished is lost again with the power: the marks hold the place until a barrier.
#[test]
fn a_secondary_that_loses_power_in_its_resync_gets_all_of_it_again() {
    let mut cluster = with_base();
    change(&mut cluster, "mirrored", 5);
    cluster.cut_power(SECONDARY);
    until_state(&mut cluster, State::OutOfSync);
    change(&mut cluster, "alone", 9);
    for state in [
        State::ResyncNamespace,
        State::ResyncContent,
        State::EnteringSync,
    ] {
        cluster.start(SECONDARY);
        until_state(&mut cluster, state);
        cluster.cut_power(SECONDARY);
        until_state(&mut cluster, State::OutOfSync);
    }
    let compared = resync(&mut cluster);
    expect_part(&mut cluster, compared);
}

/// A resync by the delta of a secondary that has lost nothing is no barrier, either.
#[test]
fn a_secondary_that_loses_power_in_a_resync_of_the_changes_has_its_barrier_still() {
    let mut cluster = with_base();
    kill(&mut cluster, SECONDARY);
    until_state(&mut cluster, State::OutOfSync);
    change(&mut cluster, "alone", 9);
    cluster.start(SECONDARY);
    until_state(&mut cluster, State::EnteringSync);
    cluster.cut_power(SECONDARY);
    until_state(&mut cluster, State::OutOfSync);
    let compared = resync(&mut cluster);
    expect_part(&mut cluster, compared);
}

/// The marks of the primary outlive its process: in sync, and alone.
#[test]
fn a_primary_that_was_killed_knows_what_its_secondary_has_lost() {
    let mut cluster = with_base();
    change(&mut cluster, "mirrored", 5);
    kill(&mut cluster, PRIMARY);
    cluster.cut_power(SECONDARY);
    cluster.start(PRIMARY);
    let compared = resync(&mut cluster);
    expect_part(&mut cluster, compared);
    change(&mut cluster, "mirrored again", 6);
    cluster.cut_power(SECONDARY);
    until_state(&mut cluster, State::OutOfSync);
    change(&mut cluster, "alone", 9);
    kill(&mut cluster, PRIMARY);
    cluster.start(PRIMARY);
    until_state(&mut cluster, State::OutOfSync);
    let compared = resync(&mut cluster);
    expect_part(&mut cluster, compared);
}

/// The marks of the primary do not outlive its own loss of power.
#[test]
fn everything_is_compared_after_both_nodes_have_lost_power() {
    let mut cluster = with_base();
    cluster.cut_power(SECONDARY);
    until_state(&mut cluster, State::OutOfSync);
    cluster.cut_power(PRIMARY);
    cluster.start(PRIMARY);
    until_state(&mut cluster, State::OutOfSync);
    let compared = resync(&mut cluster);
    assert!(compared >= PARTS * PART, "{compared} bytes");
    assert!(is_identical(&mut cluster));
    // From here on there is a base again.
    until_barrier_after_change(&mut cluster, "base");
    change(&mut cluster, "mirrored", 5);
    let compared = lose_power(&mut cluster);
    expect_part(&mut cluster, compared);
}

/// An operation that the primary has sent, and not applied before its process was killed, is on the stable storage of the secondary.
#[test]
fn an_operation_in_doubt_is_marked_for_a_secondary_that_has_lost_power() {
    for takes_stable in [true, false] {
        let mut cluster = with_base();
        let ino = cluster.next_ino().unwrap().unwrap();
        let before = status(&cluster, SECONDARY).work.osn;
        cluster.apply_fault(Fault::Mute(Role::Secondary)).unwrap();
        let creation = program::creation("doubtful", ino);
        cluster.leave(1, creation, Duration::ZERO).unwrap();
        until(&mut cluster, "executed", |cluster| {
            status(cluster, SECONDARY).work.osn != before
        });
        kill(&mut cluster, PRIMARY);
        if takes_stable {
            cluster.run_for(CHECKPOINT_WITHIN).unwrap();
        }
        cluster.cut_power(SECONDARY);
        cluster.apply_fault(Fault::Heal).unwrap();
        cluster.start_both();
        until_in_sync(&mut cluster);
        assert!(is_identical(&mut cluster), "stable: {takes_stable}");
    }
}

/// A barrier under way goes on over a lost connection, and over the end of the secondary's process.
#[test]
fn a_barrier_goes_on_over_a_lost_connection() {
    let mut cluster = with_base();
    for process in [false, true] {
        cluster.hang(SECONDARY, Some(Hang::Flushes));
        change(&mut cluster, if process { "one" } else { "other" }, 5);
        cluster.run_for(BARRIER_WITHIN).unwrap();
        if process {
            kill(&mut cluster, SECONDARY);
            cluster.start(SECONDARY);
        } else {
            cluster.apply_fault(Fault::Disconnect).unwrap();
        }
        cluster.hang(SECONDARY, None);
        until_in_sync(&mut cluster);
        until_barrier_after_change(&mut cluster, if process { "two" } else { "third" });
        let compared = lose_power(&mut cluster);
        expect_part(&mut cluster, compared);
    }
}

/// The other node has served, and has no marks of the intervals before: a copy that has lost power since has no base.
#[test]
fn a_node_that_takes_over_knows_no_barrier() {
    let mut cluster = with_base();
    change(&mut cluster, "mirrored", 5);
    kill(&mut cluster, PRIMARY);
    assert_eq!(cluster.promote(SECONDARY), Ok(true));
    until(&mut cluster, "serves", |cluster| cluster.serves(SECONDARY));
    cluster.start(PRIMARY);
    lose_power_unsynced(&mut cluster, PRIMARY);
}

/// A node loses its power when its resync is over, and nothing of the resync is on stable storage. The next resync leaves no
/// difference.
fn lose_power_unsynced(cluster: &mut ScriptedCluster, side: Side) {
    let other = side.other();
    until(cluster, "equal", |cluster| {
        cluster.state(other) == Some(State::EnteringSync)
    });
    cluster.hang(side, Some(Hang::All));
    until(cluster, "in sync", |cluster| {
        cluster.state(other) == Some(State::Synced)
    });
    cluster.cut_power(side);
    cluster.start(side);
    cluster.hang(side, None);
    until_in_sync(cluster);
    assert!(is_identical(cluster));
}

/// A resync of everything leaves no base, until there is another barrier.
#[test]
fn a_resync_of_everything_leaves_no_barrier() {
    let mut cluster = with_base();
    cluster.cut_power(SECONDARY);
    until_state(&mut cluster, State::OutOfSync);
    change(&mut cluster, "alone", 5);
    cluster.cut_power(PRIMARY);
    cluster.start(PRIMARY);
    until_state(&mut cluster, State::OutOfSync);
    cluster.start(SECONDARY);
    lose_power_unsynced(&mut cluster, SECONDARY);
}
