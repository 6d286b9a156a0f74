//! A resync whose secondary is killed goes on where it was: the base of the copy outlives the process. It outlives no loss of
//! power, and no other copy has it (rules P17, P24).

use lockstep_repl::state::State;
use lockstep_sim::scenario::{PRIMARY, SECONDARY, ScriptedCluster};
use lockstep_types::mutants::{Mutant, activate};

use super::resumed::{BETWEEN_LOSSES, Lost, before_resync, compared, expect_progress};
use super::steps::{kill, until, until_in_sync};

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

/// Whether the copies are equal after an interrupted resync.
fn is_identical(copy: Copy) -> bool {
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
    cluster.compare().unwrap().is_identical()
}

#[test]
fn finished_parts_count_for_the_copy_that_has_them() {
    for copy in [Copy::LostPower, Copy::Earlier] {
        assert!(is_identical(copy), "{copy:?}");
    }
}

#[test]
fn finished_parts_of_another_copy_are_missed() {
    activate(Some(Mutant::FinishedOfOtherCopy));
    let is_identical = is_identical(Copy::Earlier);
    activate(None);
    assert!(!is_identical);
}
