//! A primary that has lost power, and that the other node has replaced, is brought up to date from its last barrier on (P26, P29 of
//! docs/protocol/delta.md): a part is compared, and then a comparison of everything finds nothing.

use std::cell::Cell;
use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_sim::op::{Op, WriteOp};
use lockstep_sim::scenario::{Fault, PRIMARY, SECONDARY, ScriptedCluster, Settings};
use lockstep_sim::world::Side;
use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::settings::{OnPowerLoss, Role};

use super::barriers::{
    PART, PARTS, SETTINGS, change, is_identical, until_barrier_after_change, with_base,
    with_base_of,
};
use super::program::{self, FIRST, LATER};
use super::steps::{kill, run, until};

/// Most bytes that are compared for a few changes: regions of 1 MiB, of the writes and of the announcements of two intervals.
const COMPARED_MAX: u64 = 6 * PART;
/// A place that no program has written for two intervals.
const COLD: u64 = 7 * PART;

/// Two nodes in sync, whose file was not written for two intervals, but for its second region.
fn cold() -> ScriptedCluster {
    let mut cluster = with_base();
    for name in ["one", "two", "three"] {
        until_barrier_after_change(&mut cluster, name);
    }
    cluster
}

#[track_caller]
fn expect_part(cluster: &mut ScriptedCluster, compared: u64) {
    assert!(compared <= COMPARED_MAX, "{compared} bytes are compared");
    assert!(is_identical(cluster));
}

/// The secondary takes over from a node that is down.
fn take_over(cluster: &mut ScriptedCluster) {
    assert_eq!(cluster.promote(SECONDARY), Ok(true));
    until(cluster, "serves", |cluster| cluster.serves(SECONDARY));
}

/// The resync of a node that has come back.
struct Rejoin {
    /// The bytes that a resync compares. The one after an interruption has fewer.
    compared: u64,
    /// The connection was lost after the resync, and before the node had made its mark.
    was_interrupted: bool,
    /// The proof of a resync has found a difference.
    differed: bool,
}

/// Starts a node, and waits until it is in sync with the other one, which leads.
fn rejoin(cluster: &mut ScriptedCluster, side: Side) -> Rejoin {
    cluster.start(side);
    let (most, was_interrupted) = (Cell::new(0), Cell::new(false));
    let differed = Cell::new(false);
    until(cluster, "in sync", |cluster| {
        let verified = cluster
            .status(side.other())
            .and_then(|status| status.verified);
        if verified.is_some_and(|verified| !verified.identical) {
            differed.set(true);
        }
        let resync = cluster
            .status(side.other())
            .and_then(|status| status.resync);
        let total = resync.and_then(|resync| resync.bytes_total);
        most.set(most.get().max(total.unwrap_or(0)));
        if cluster.state(side.other()) == Some(State::Paused) {
            was_interrupted.set(true);
        }
        cluster.is_in_sync()
    });
    Rejoin {
        compared: most.get(),
        was_interrupted: was_interrupted.get(),
        differed: differed.get(),
    }
}

#[test]
fn a_deposed_primary_that_lost_power_gets_what_was_written_since_the_barrier() {
    let mut cluster = cold();
    change(&mut cluster, "mirrored", 5);
    cluster.cut_power(PRIMARY);
    take_over(&mut cluster);
    change(&mut cluster, "alone", 9);
    let compared = rejoin(&mut cluster, PRIMARY).compared;
    assert!(compared > 0);
    expect_part(&mut cluster, compared);
}

/// The marks of the node that has taken over outlive its process, too.
#[test]
fn a_node_that_has_taken_over_and_was_killed_knows_what_the_other_one_has_lost() {
    let mut cluster = cold();
    change(&mut cluster, "mirrored", 5);
    kill(&mut cluster, SECONDARY);
    cluster.start(SECONDARY);
    until(&mut cluster, "in sync", |cluster| cluster.is_in_sync());
    change(&mut cluster, "mirrored, too", 6);
    cluster.cut_power_after_write_back(PRIMARY);
    take_over(&mut cluster);
    change(&mut cluster, "alone", 9);
    kill(&mut cluster, SECONDARY);
    cluster.start(SECONDARY);
    let compared = rejoin(&mut cluster, PRIMARY).compared;
    expect_part(&mut cluster, compared);
}

/// The old primary says that its copy is not complete to a node that asks while the resync runs. Then the mark needs another connection, and
/// not a comparison of everything.
#[test]
fn a_word_of_the_old_primary_costs_no_comparison_of_everything() {
    let mut was_interrupted = false;
    // The old primary is up when the new one tries to reach it.
    for delay in (102_000..106_000).step_by(500).map(Duration::from_micros) {
        let mut cluster = cold();
        change(&mut cluster, "mirrored", 5);
        cluster.cut_power(PRIMARY);
        take_over(&mut cluster);
        let begun = cluster.now();
        change(&mut cluster, "alone", 9);
        let rest = (begun + delay).saturating_sub(cluster.now());
        cluster.run_for(rest).unwrap();
        let rejoin = rejoin(&mut cluster, PRIMARY);
        expect_part(&mut cluster, rejoin.compared);
        was_interrupted |= rejoin.was_interrupted;
    }
    assert!(was_interrupted, "the moment of the word is met");
}

/// Within this time a write is made where it may be made.
const SOON: Duration = Duration::from_millis(10);

/// A program begins a write of which no byte reaches the secondary.
pub fn begin_unreceived(cluster: &mut ScriptedCluster, ino: Ino, offset: u64) {
    let write = Op::Write(WriteOp {
        ino,
        mark: LATER,
        offset,
        length: 4096,
        durable: false,
    });
    cluster.lose_frames();
    cluster.apply_fault(Fault::Mute(Role::Primary)).unwrap();
    cluster.leave(1, write, Duration::ZERO).unwrap();
    cluster.run_for(SOON).unwrap();
}

/// The primary loses its power in a write of which no byte reaches the secondary. Its disk has all bytes. The next resync is one since the
/// barrier. Returns whether both copies are equal.
fn is_identical_after_loss(
    mut cluster: ScriptedCluster,
    offset: u64,
    mutant: Option<Mutant>,
) -> bool {
    let ino = run(&mut cluster, program::file).unwrap();
    is_identical_after_loss_in(cluster, ino, offset, mutant)
}

fn is_identical_after_loss_in(
    mut cluster: ScriptedCluster,
    ino: Ino,
    offset: u64,
    mutant: Option<Mutant>,
) -> bool {
    activate(mutant);
    begin_unreceived(&mut cluster, ino, offset);
    cluster.cut_power_after_write_back(PRIMARY);
    activate(None);
    cluster.end_silence();
    take_over(&mut cluster);
    change(&mut cluster, "alone", 9);
    let compared = rejoin(&mut cluster, PRIMARY).compared;
    let is_identical = is_identical(&mut cluster);
    assert!(
        compared <= COMPARED_MAX || !is_identical,
        "{compared} bytes are compared"
    );
    is_identical
}

#[test]
fn a_write_waits_until_the_secondary_has_marked_its_region() {
    // The second one makes the file longer.
    for offset in [COLD, PARTS * PART] {
        assert!(is_identical_after_loss(cold(), offset, None));
    }
    let mutant = Some(Mutant::AnnounceAfterWrite);
    assert!(!is_identical_after_loss(cold(), COLD, mutant));
}

/// Two nodes in sync, where a region is announced. `mutant`: while the secondary answers.
fn announced(region: u64, mutant: Option<Mutant>) -> ScriptedCluster {
    let mut cluster = cold();
    activate(mutant);
    let written = run(&mut cluster, move |mount| {
        program::write_at(mount, LATER, region, 4096)
    });
    activate(None);
    assert_eq!(written, Ok(()));
    cluster
}

#[test]
fn an_announced_region_is_compared_as_a_whole() {
    for region in [COLD, PARTS * PART] {
        let cluster = announced(region, None);
        assert!(is_identical_after_loss(cluster, region + PART / 2, None));
    }
    let cluster = announced(COLD, Some(Mutant::AnnouncedUnmarked));
    assert!(!is_identical_after_loss(cluster, COLD + PART / 2, None));
}

/// Two nodes in sync with a new file, whose second region both have written. `mutant`: while the file is made.
fn with_new_file(mutant: Option<Mutant>) -> (ScriptedCluster, Ino) {
    let mut cluster = cold();
    activate(mutant);
    let made = run(&mut cluster, |mount| {
        let ino = mount.next_ino()?;
        mount.submit(&program::creation("new", ino))?;
        let write = WriteOp {
            ino,
            mark: FIRST,
            offset: PART,
            length: 4096,
            durable: false,
        };
        mount.submit(&Op::Write(write)).map(|_| ino)
    });
    activate(None);
    let ino = made.unwrap();
    (cluster, ino)
}

/// The first write to a region of a new file waits for no announcement: the secondary has marked the whole file with the creation.
#[test]
fn a_new_file_is_compared_as_a_whole() {
    let (cluster, ino) = with_new_file(None);
    assert!(is_identical_after_loss_in(cluster, ino, 0, None));
    let (cluster, ino) = with_new_file(Some(Mutant::NewFileUnmarked));
    assert!(!is_identical_after_loss_in(cluster, ino, 0, None));
}

/// In a later interval, a new file is one as any other.
#[test]
fn a_file_of_an_earlier_interval_is_announced() {
    for mutant in [None, Some(Mutant::NewFileUnannouncedForever)] {
        let (mut cluster, ino) = with_new_file(mutant);
        activate(mutant);
        until_barrier_after_change(&mut cluster, "four");
        let is_identical = is_identical_after_loss_in(cluster, ino, 0, mutant);
        assert_eq!(is_identical, mutant.is_none());
    }
}

/// Both nodes serve alone, one after the other. The changes of the first one are to be lost. Returns the resync, and whether it has left a
/// difference, which its proof or a comparison finds.
fn both_alone(mutant: Option<Mutant>) -> (Rejoin, bool) {
    let mut cluster = cold();
    change(&mut cluster, "mirrored", 5);
    kill(&mut cluster, PRIMARY);
    take_over(&mut cluster);
    change(&mut cluster, "alone and lost", 9);
    cluster.apply_fault(Fault::Demote).unwrap();
    kill(&mut cluster, SECONDARY);
    cluster.start(PRIMARY);
    cluster.promote_by_force(PRIMARY).unwrap();
    until(&mut cluster, "serves", |cluster| cluster.serves(PRIMARY));
    change(&mut cluster, "alone", 7);
    activate(mutant);
    let rejoin = rejoin(&mut cluster, SECONDARY);
    activate(None);
    let differs = rejoin.differed || !cluster.compare().unwrap().is_identical();
    (rejoin, differs)
}

#[test]
fn two_nodes_that_were_both_alone_differ_in_the_marks_of_both() {
    let (rejoin, differs) = both_alone(None);
    assert!(!differs);
    assert!(rejoin.compared > 0 && rejoin.compared <= COMPARED_MAX);
    assert!(both_alone(Some(Mutant::MarksUnasked)).1);
}

/// The primary loses its power while the nodes mirror, and leads on. `alone`: the secondary is killed meanwhile, and the primary serves
/// alone before the nodes meet. Returns the resync, and whether it has left a difference.
fn leads_on(alone: bool, mutant: Option<Mutant>) -> (Rejoin, bool) {
    let mut cluster = with_base_of(&Settings {
        on_power_loss: OnPowerLoss::Serve,
        ..SETTINGS
    });
    change(&mut cluster, "mirrored", 5);
    cluster.cut_power(PRIMARY);
    if alone {
        kill(&mut cluster, SECONDARY);
    }
    activate(mutant);
    cluster.start(PRIMARY);
    until(&mut cluster, "serves", |cluster| cluster.serves(PRIMARY));
    if alone {
        change(&mut cluster, "alone", 7);
    }
    let rejoin = rejoin(&mut cluster, SECONDARY);
    activate(None);
    let differs = rejoin.differed || !cluster.compare().unwrap().is_identical();
    (rejoin, differs)
}

#[test]
fn a_primary_that_lost_power_and_leads_on_asks_the_secondary_for_its_marks() {
    for alone in [false, true] {
        let (rejoin, differs) = leads_on(alone, None);
        assert!(!differs);
        assert!(rejoin.compared > 0 && rejoin.compared <= COMPARED_MAX);
        assert!(leads_on(alone, Some(Mutant::MarksUnasked)).1);
    }
}
