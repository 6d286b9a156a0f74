//! The source of a resync loses its power in the middle of the content (rule P30 of docs/protocol/delta.md): after a barrier of the resync,
//! the next one looks at the rest only, and then a comparison of everything finds nothing.

use std::num::NonZeroU64;
use std::time::Duration;

use lockstep_driver::config::{DatastoreConfig, ResyncLimits};
use lockstep_repl::state::State;
use lockstep_sim::disk::Survivors;
use lockstep_sim::scenario::{PRIMARY, SECONDARY, ScriptedCluster};
use lockstep_sim::world::Side;
use lockstep_types::mutants::{Mutant, activate};

use super::barriers::{PART, PARTS, change, compared_until_in_sync, until_state};
use super::deposed::begin_unreceived;
use super::program::{self, LATER};
use super::resumed::{before_resync, compared};
use super::steps::{has_left_difference, kill, run, status, until};

/// Bytes that are under way at a loss, that have changed since, or that are in a region of such.
const AGAIN_MAX: u64 = 4 * PART;
/// So many bytes are compared before the barrier.
const BEFORE: u64 = 6 * PART;
/// A region that the resync has finished before the barrier: it goes from the first one on.
const FINISHED: u64 = 2 * PART;
/// The resync takes some seconds.
fn slow_down(cluster: &mut ScriptedCluster) {
    set_limit(cluster, NonZeroU64::new(PART));
}

fn set_limit(cluster: &mut ScriptedCluster, bytes_per_second: Option<NonZeroU64>) {
    let edit = |config: &mut DatastoreConfig| {
        config.policies.resync = ResyncLimits {
            bytes_per_second,
            pause_above: None,
        };
    };
    assert_eq!(cluster.reconfigure(PRIMARY, edit).unwrap(), None);
}

/// Waits for a barrier that begins from now on, in the resync.
fn until_barrier(cluster: &mut ScriptedCluster) {
    let begun = cluster.now();
    until(cluster, "a barrier in the resync", |cluster| {
        assert_eq!(cluster.state(PRIMARY), Some(State::ResyncContent));
        let since = status(cluster, PRIMARY).sync.barrier_since_ms;
        let since = since.map(|since| Duration::from_millis(since + 1));
        since.is_some_and(|since| begun + since < cluster.now())
    });
}

/// A resync in the middle of its content, behind a barrier.
fn behind_barrier(whole: bool) -> ScriptedCluster {
    let mut cluster = before_resync(whole);
    slow_down(&mut cluster);
    until(&mut cluster, "half is compared", |cluster| {
        compared(cluster).is_some_and(|(done, _)| done >= BEFORE)
    });
    until_barrier(&mut cluster);
    cluster
}

/// The unsynced changes that stay.
#[derive(Clone, Copy, Debug)]
enum Survival {
    Nothing,
    Everything,
    /// Some of them.
    Mixed(u64),
}

fn lose_power(cluster: &mut ScriptedCluster, side: Side, kept: Survival) {
    match kept {
        Survival::Nothing => cluster.cut_power(side),
        Survival::Everything => cluster.cut_power_after_write_back(side),
        Survival::Mixed(seed) => {
            cluster.cut_power_with(side, Survivors::Mixed { percent: 50 }, seed);
        }
    }
}

/// The source loses its power. Returns the bytes that are compared then, and whether the copies are equal.
fn resync_after_loss(cluster: &mut ScriptedCluster, kept: Survival) -> (u64, bool) {
    lose_power(cluster, PRIMARY, kept);
    activate(None);
    cluster.end_silence();
    cluster.start(PRIMARY);
    let compared = compared_until_in_sync(cluster);
    (compared, !has_left_difference(cluster))
}

#[track_caller]
fn expect_rest((compared, is_identical): (u64, bool)) {
    assert!(is_identical);
    let rest = PARTS * PART - BEFORE + AGAIN_MAX;
    assert!(compared > 0 && compared <= rest, "{compared} of {rest}");
}

#[test]
fn a_source_that_lost_power_compares_the_rest() {
    for whole in [true, false] {
        for kept in [Survival::Nothing, Survival::Everything] {
            let mut cluster = behind_barrier(whole);
            let loss = resync_after_loss(&mut cluster, kept);
            expect_rest(loss);
        }
    }
}

/// Changes after the barrier, in a finished region and in one of the rest.
fn change_both(cluster: &mut ScriptedCluster) {
    change(cluster, "in a finished region", FINISHED / PART);
    change(cluster, "in the rest", PARTS - 2);
}

#[test]
fn what_was_mirrored_in_the_resync_is_compared_too() {
    for whole in [true, false] {
        for kept in [Survival::Nothing, Survival::Everything] {
            let mut cluster = before_resync(whole);
            slow_down(&mut cluster);
            until_state(&mut cluster, State::ResyncContent);
            change(&mut cluster, "before the barrier", 0);
            until(&mut cluster, "half is compared", |cluster| {
                compared(cluster).is_some_and(|(done, _)| done >= BEFORE)
            });
            until_barrier(&mut cluster);
            change_both(&mut cluster);
            let loss = resync_after_loss(&mut cluster, kept);
            expect_rest(loss);
        }
    }
}

#[test]
fn a_secondary_that_lost_power_in_the_resync_gets_the_rest() {
    for whole in [true, false] {
        let mut cluster = behind_barrier(whole);
        change_both(&mut cluster);
        cluster.cut_power(SECONDARY);
        until_state(&mut cluster, State::OutOfSync);
        change(&mut cluster, "alone", FINISHED / PART);
        cluster.start(SECONDARY);
        until_state(&mut cluster, State::ResyncContent);
        let left = compared(&cluster).map_or(0, |(done, total)| total - done);
        compared_until_in_sync(&mut cluster);
        set_limit(&mut cluster, None);
        expect_rest((left, !has_left_difference(&mut cluster)));
    }
}

/// The source loses its power a second time, behind another barrier.
#[test]
fn a_resync_goes_on_after_each_loss_of_power() {
    let mut cluster = behind_barrier(true);
    lose_power(&mut cluster, PRIMARY, Survival::Nothing);
    cluster.start(PRIMARY);
    until(&mut cluster, "serves", |cluster| cluster.serves(PRIMARY));
    slow_down(&mut cluster);
    until(&mut cluster, "more is compared", |cluster| {
        compared(cluster).is_some_and(|(done, _)| done >= 2 * PART)
    });
    until_barrier(&mut cluster);
    let (compared, is_identical) = resync_after_loss(&mut cluster, Survival::Nothing);
    assert!(is_identical);
    let rest = PARTS * PART - BEFORE - 2 * PART + AGAIN_MAX;
    assert!(compared <= rest, "{compared} of {rest}");
}

/// A loss of power at the end of the resync, and behind it.
#[test]
fn a_source_that_lost_power_after_the_resync_gets_what_it_has_lost() {
    for state in [State::EnteringSync, State::Synced] {
        let mut cluster = behind_barrier(true);
        until_state(&mut cluster, state);
        let (_, is_identical) = resync_after_loss(&mut cluster, Survival::Nothing);
        assert!(is_identical, "{state:?}");
    }
}

/// The names of a resync are worth nothing once its source serves alone, until the trace begins. With a mutant: whether the copies are
/// equal.
fn alone_after_barrier(mutant: Option<Mutant>, delay: Duration) -> bool {
    activate(mutant);
    let mut cluster = behind_barrier(true);
    cluster.run_for(delay).unwrap();
    kill(&mut cluster, SECONDARY);
    until_state(&mut cluster, State::OutOfSync);
    let written = run(&mut cluster, |mount| {
        program::write_at(mount, LATER, FINISHED, 5000)
    });
    assert_eq!(written, Ok(()));
    cluster.start(SECONDARY);
    resync_after_loss(&mut cluster, Survival::Everything).1
}

#[test]
fn a_change_alone_ends_the_names_of_the_resync() {
    // A trace may begin at any moment.
    let delays = [0, 500, 1000, 1500].map(Duration::from_millis);
    let is_identical = |mutant| {
        delays
            .iter()
            .all(|delay| alone_after_barrier(mutant, *delay))
    };
    assert!(is_identical(None));
    assert!(!is_identical(Some(Mutant::NamesOutliveResync)));
}

/// A program begins a write of which no byte reaches the secondary, in a finished region.
fn unreceived_write(mutant: Option<Mutant>, seed: u64) -> bool {
    activate(mutant);
    let mut cluster = behind_barrier(true);
    let ino = run(&mut cluster, program::file).unwrap();
    begin_unreceived(&mut cluster, ino, FINISHED);
    resync_after_loss(&mut cluster, Survival::Mixed(seed)).1
}

#[test]
fn a_write_in_a_resync_waits_for_its_announcement() {
    // The table with the write may be lost, and its bytes not.
    let is_identical = |mutant| (0..8).all(|seed| unreceived_write(mutant, seed));
    assert!(is_identical(None));
    assert!(!is_identical(Some(Mutant::ResyncUnannounced)));
}

#[test]
fn the_rest_is_on_stable_storage_before_the_name_of_a_barrier() {
    activate(Some(Mutant::RestLacksContent));
    let mut cluster = behind_barrier(true);
    let (_, is_identical) = resync_after_loss(&mut cluster, Survival::Nothing);
    assert!(!is_identical);
    activate(Some(Mutant::RestUnsyncedAtBarrier));
    let mut cluster = behind_barrier(true);
    let (compared, is_identical) = resync_after_loss(&mut cluster, Survival::Nothing);
    // The names do not count without the rest, so everything is compared.
    assert!(is_identical);
    assert!(compared >= PARTS * PART, "{compared}");
}
