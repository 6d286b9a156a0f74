//! A resync that loses its connection again and again goes on where it was each time (rule P24), and so does one whose primary
//! is killed again and again (rule P21).

use std::cell::Cell;
use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_sim::scenario::{Fault, PRIMARY, SECONDARY, ScriptedCluster, Settings};
use lockstep_types::ResyncPhase;
use lockstep_types::mutants::{Mutant, activate};

use super::program::{self, FILE, FIRST, LATER};
use super::steps::{has_left_difference, kill, run, start_in_sync, status, until};

/// The length of one write.
const PART: u64 = 1 << 20;
/// Number of writes.
const PARTS: u64 = 12;
/// Small files.
const FILES: usize = 100;
/// The connection is lost each time that so many bytes were compared.
pub const BETWEEN_LOSSES: u64 = 2 * PART;
/// Bytes that were under way at a loss, or have changed since.
const AGAIN_MAX: u64 = 5 << 20;

/// The interruption of a resync.
#[derive(Clone, Copy, Debug)]
pub enum Lost {
    /// The connection.
    Connection,
    /// The process of the secondary.
    Secondary,
}

fn cluster() -> ScriptedCluster {
    ScriptedCluster::manual(&Settings {
        peer_timeout: Duration::from_secs(1),
        ..Settings::STEADY
    })
}

fn fill(cluster: &mut ScriptedCluster) {
    let made = run(cluster, |mount| {
        program::create(mount, FILE)?;
        for number in 0..FILES {
            program::create(mount, &format!("small {number}"))?;
        }
        for part in 0..PARTS {
            program::write_at(mount, FIRST, part * PART, PART)?;
        }
        Ok(())
    });
    assert_eq!(made, Ok(()));
}

/// The primary has a long file, and the secondary is about to be brought up to date: by a comparison of everything, or of what
/// has changed.
pub fn before_resync(whole: bool) -> ScriptedCluster {
    let mut cluster = cluster();
    if whole {
        cluster.start(PRIMARY);
        until(&mut cluster, "served", |cluster| {
            cluster.state(PRIMARY) == Some(State::OutOfSync)
        });
    } else {
        start_in_sync(&mut cluster);
        kill(&mut cluster, SECONDARY);
        until(&mut cluster, "out of sync", |cluster| {
            cluster.state(PRIMARY) == Some(State::OutOfSync)
        });
    }
    fill(&mut cluster);
    cluster.start(SECONDARY);
    cluster
}

/// Bytes that the resync has compared so far, and all of its bytes.
pub fn compared(cluster: &ScriptedCluster) -> Option<(u64, u64)> {
    let resync = cluster.status(PRIMARY)?.resync?;
    let is_content = resync.phase == ResyncPhase::Content;
    let total = resync.bytes_total.filter(|_| is_content)?;
    Some((resync.bytes_done, total))
}

/// Interrupts the resync again and again, until the nodes are in sync. Returns the number of losses.
pub fn lose_often(cluster: &mut ScriptedCluster, lost: Lost) -> u64 {
    let most = Cell::new(0);
    for losses in 0.. {
        let next = most.get() + BETWEEN_LOSSES;
        until(cluster, "more is compared", |cluster| {
            if let Some((done, total)) = compared(cluster) {
                assert!(done >= most.get(), "it begins anew: {done} of {total}");
                assert!(total <= PARTS * PART + losses * AGAIN_MAX);
                most.set(done);
            }
            most.get() >= next || cluster.is_in_sync()
        });
        if cluster.is_in_sync() {
            return losses;
        }
        match lost {
            Lost::Connection => cluster.apply_fault(Fault::Disconnect).unwrap(),
            Lost::Secondary => kill(cluster, SECONDARY),
        }
        until(cluster, "lost", |cluster| {
            cluster.state(PRIMARY) == Some(State::OutOfSync)
        });
        // Of compared bytes, and of others.
        let touched = run(cluster, move |mount| {
            program::create(mount, &format!("alone {losses}"))?;
            program::write_at(mount, LATER, 0, 5000)?;
            program::write_at(mount, LATER, (PARTS - 1) * PART, 5000)
        });
        assert_eq!(touched, Ok(()));
        // After a loss of the connection the process still runs. A second one would write to the same store.
        if matches!(lost, Lost::Secondary) {
            cluster.start(SECONDARY);
        }
    }
    0
}

pub fn expect_progress(whole: bool, lost: Lost) {
    let mut cluster = before_resync(whole);
    let losses = lose_often(&mut cluster, lost);
    assert!(losses >= 3, "{losses}");
    let verified = status(&cluster, PRIMARY).verified;
    assert!(verified.is_none_or(|verified| verified.identical));
    assert!(!has_left_difference(&mut cluster));
}

#[test]
fn a_resync_of_everything_goes_on() {
    expect_progress(true, Lost::Connection);
}

#[test]
fn a_resync_of_what_has_changed_goes_on() {
    expect_progress(false, Lost::Connection);
}

fn start_alone(cluster: &mut ScriptedCluster) {
    cluster.start(PRIMARY);
    until(cluster, "serves alone", |cluster| {
        cluster.state(PRIMARY).is_some()
    });
}

/// Kills the primary again and again, until the nodes are in sync. Returns the number of deaths.
fn die_often(cluster: &mut ScriptedCluster) -> u64 {
    let mut left_max = PARTS * PART;
    for deaths in 0.. {
        let seen = Cell::new((0, 0));
        until(cluster, "more is compared", |cluster| {
            if let Some((done, total)) = compared(cluster) {
                assert!(total <= left_max + AGAIN_MAX, "{total}, {left_max} left");
                seen.set((done, total));
            }
            seen.get().0 >= BETWEEN_LOSSES || cluster.is_in_sync()
        });
        if cluster.is_in_sync() {
            return deaths;
        }
        let (done, total) = seen.get();
        left_max = total - done;
        kill(cluster, PRIMARY);
        start_alone(cluster);
    }
    0
}

#[test]
fn a_resync_of_everything_goes_on_after_each_death_of_the_primary() {
    let mut cluster = before_resync(true);
    let deaths = die_often(&mut cluster);
    assert!(deaths >= 3, "{deaths}");
    assert!(!has_left_difference(&mut cluster));
}

/// The bytes that the resync compares after the primary was killed while it was alone.
fn compared_after_death() -> (u64, bool) {
    let mut cluster = cluster();
    start_in_sync(&mut cluster);
    fill(&mut cluster);
    kill(&mut cluster, SECONDARY);
    until(&mut cluster, "out of sync", |cluster| {
        cluster.state(PRIMARY) == Some(State::OutOfSync)
    });
    for offset in [0, 5 * PART] {
        let touched = run(&mut cluster, move |mount| {
            program::create(mount, &format!("alone {offset}"))?;
            program::write_at(mount, LATER, offset, 5000)
        });
        assert_eq!(touched, Ok(()));
        kill(&mut cluster, PRIMARY);
        start_alone(&mut cluster);
    }
    cluster.start(SECONDARY);
    let most = Cell::new(0);
    until(&mut cluster, "in sync", |cluster| {
        let total = compared(cluster).map_or(0, |(_, total)| total);
        most.set(most.get().max(total));
        cluster.is_in_sync()
    });
    (most.get(), !has_left_difference(&mut cluster))
}

#[test]
fn a_primary_that_was_killed_while_it_was_alone_sends_what_has_changed() {
    let (compared, is_identical) = compared_after_death();
    assert!(is_identical);
    assert!(compared <= 2 * PART, "{compared} bytes");
}

#[test]
fn changes_that_die_with_the_process_are_missed() {
    activate(Some(Mutant::MarksDieWithProcess));
    let (_, is_identical) = compared_after_death();
    activate(None);
    assert!(!is_identical);
}

/// Whether a resync that lost its connection leaves a difference, with a mutant.
fn differs_with(mutant: Mutant, whole: bool) -> bool {
    activate(Some(mutant));
    let mut cluster = before_resync(whole);
    lose_often(&mut cluster, Lost::Connection);
    let differs = has_left_difference(&mut cluster);
    activate(None);
    differs
}

#[test]
fn a_resync_that_goes_on_too_far_is_found() {
    assert!(differs_with(Mutant::ResumeTooFar, true));
}
