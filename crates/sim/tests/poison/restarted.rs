//! A resync whose secondary is killed goes on where it was: the base of the copy outlives the process. It outlives no loss of
//! power, and no other copy has it (rules P17, P24).

use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{PRIMARY, SECONDARY, ScriptedCluster};
use lockstep_sim::world::Side;
use lockstep_types::mutants::{Mutant, activate};

use super::program::{self, LATER};
use super::resumed::{BETWEEN_LOSSES, Lost, before_resync, compared, expect_progress};
use super::steps::{has_left_difference, kill, until, until_in_sync};

#[test]
fn a_resync_of_everything_goes_on_after_each_death_of_the_secondary() {
    expect_progress(true, Lost::Secondary);
}

#[test]
fn a_resync_of_what_has_changed_goes_on_after_each_death_of_the_secondary() {
    expect_progress(false, Lost::Secondary);
}

/// A resync of everything that has compared so many bytes.
fn until_compared(cluster: &mut ScriptedCluster, bytes: u64) {
    until(cluster, "compared", |cluster| {
        compared(cluster).is_some_and(|(done, _)| done >= bytes)
    });
}

/// The copy of the secondary after the interruption of its resync.
#[derive(Clone, Copy, Debug)]
enum Copy {
    /// The machine has lost its power: some of the finished bytes are lost.
    LostPower,
    /// The snapshot of the disk from an earlier moment of the same resync.
    Earlier,
}

/// Whether an interrupted resync leaves a difference.
fn leaves_difference(copy: Copy) -> bool {
    let mut cluster = before_resync(true);
    until_compared(&mut cluster, BETWEEN_LOSSES);
    let earlier = cluster.disk(SECONDARY).fork();
    until_compared(&mut cluster, 3 * BETWEEN_LOSSES);
    match copy {
        Copy::LostPower => cluster.cut_power(SECONDARY),
        Copy::Earlier => {
            kill(&mut cluster, SECONDARY);
            cluster.replace_disk(SECONDARY, earlier);
        }
    }
    until(&mut cluster, "out of sync", |cluster| {
        cluster.state(PRIMARY) == Some(State::OutOfSync)
    });
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
    has_left_difference(&mut cluster)
}

#[test]
fn finished_parts_count_for_the_copy_that_has_them() {
    for copy in [Copy::LostPower, Copy::Earlier] {
        assert!(!leaves_difference(copy), "{copy:?}");
    }
}

#[test]
fn finished_parts_of_another_copy_are_missed() {
    activate(Some(Mutant::FinishedOfOtherCopy));
    let is_missed = leaves_difference(Copy::Earlier);
    activate(None);
    assert!(is_missed);
}

/// Number of schedules of deaths.
const SEEDS: u64 = 12;
/// Number of deaths in one schedule.
const DEATHS: usize = 15;
/// Longer than the time to the end of a resync that nothing interrupts.
const PAUSE_MAX_MS: u64 = 600;

/// Kills either node at any moment: before a resync begins, in its namespace, in its content, between its marks.
fn die_anywhere(seed: u64) {
    let mut random = Random::new(seed);
    let mut cluster = before_resync(random.percent(50));
    for death in 0..DEATHS {
        let pause = Duration::from_millis(random.below(PAUSE_MAX_MS));
        cluster.run_for(pause).unwrap();
        let side = *random.pick(&Side::BOTH);
        kill(&mut cluster, side);
        cluster.start(side);
        until(&mut cluster, "started", |cluster| {
            cluster.state(side).is_some()
        });
        if random.percent(50) {
            // Refused, or without an answer, if the primary waits for its secondary.
            let _changed = cluster.use_mount(move |mount| {
                program::create(mount, &format!("late {death}"))?;
                program::write_at(mount, LATER, death as u64 * 5000, 5000)
            });
        }
    }
    until_in_sync(&mut cluster);
    assert!(!has_left_difference(&mut cluster), "seed {seed}");
}

#[test]
fn deaths_of_both_nodes_leave_no_difference() {
    (0..SEEDS).for_each(die_anywhere);
}
