//! A thread that stands still, and a witness that answers late: leases and takeovers follow from time stamps alone (R7 of
//! roles.md).

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use lockstep_sim::random::Random;
use lockstep_sim::scenario::{Fault, HeldThread, IN_SYNC_WITHIN, ScriptedCluster, Settings, Users};
use lockstep_sim::workload::Options;
use lockstep_sim::world::ThreadRole;
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::settings::Role;

/// Number of seeds in each test.
const SEEDS: u64 = 10;
/// The time from the loss of the connection to a takeover.
const FAILOVER_AFTER: Duration = Duration::from_millis(1_500);
/// The time for which a thread stands still: shorter than that.
const HELD: Duration = Duration::from_millis(1_400);
/// The time that a call of the witness takes longer: its limit is half of [`FAILOVER_AFTER`].
const SLOWNESS: Duration = Duration::from_millis(700);
/// The primary is cut off so long before the thread goes on, or the witness answers.
const BEFORE_THE_END: Duration = Duration::from_millis(50);
/// The witness has heard by then that the nodes are in sync, and is asked again.
const ASKED_WITHIN: Duration = Duration::from_secs(12);
/// Enough for a takeover, although some calls of the witness are lost.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(12);

/// Returns two nodes in sync with a witness, and clients at the primary.
fn cluster(seed: u64) -> ScriptedCluster {
    let settings = Settings {
        failover_after: Some(FAILOVER_AFTER),
        ..Settings::STEADY
    };
    let mut random = Random::new(seed);
    let options = Options {
        clients: 3,
        operations_max: 2000,
        ..Options::default()
    };
    let users = Users::random(options, Duration::from_millis(20), random.fork());
    let mut cluster = ScriptedCluster::new(&settings, users, 10, random.fork());
    cluster.start_both();
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    // The witness lets the secondary take over by then.
    cluster.run_for(FAILOVER_AFTER * 2).unwrap();
    cluster
}

/// Runs until the secondary has taken over. The live checks see two nodes that serve at a time.
fn take_over(cluster: &mut ScriptedCluster) -> Result<(), String> {
    cluster.run_for(TAKEN_OVER_WITHIN)?;
    assert_eq!(cluster.role_changes(), 1, "no takeover");
    Ok(())
}

/// The secondary asks the witness, which answers late. Meanwhile the connection is lost.
fn a_slow_witness(seed: u64) -> Result<(), String> {
    let mut cluster = cluster(seed);
    cluster.slow_witness(Role::Secondary, SLOWNESS);
    cluster.until(ASKED_WITHIN, |cluster| {
        cluster.asks_witness(Role::Secondary)
    })?;
    cluster.slow_witness(Role::Secondary, Duration::ZERO);
    cluster.run_for(SLOWNESS.saturating_sub(BEFORE_THE_END))?;
    cluster.apply_fault(Fault::Isolate(Role::Primary))?;
    take_over(&mut cluster)?;
    cluster.end_in_sync()
}

/// The thread of the secondary that asks the witness stands still in a question. Meanwhile the connection is lost.
fn a_held_thread(seed: u64) -> Result<(), String> {
    let mut cluster = cluster(seed);
    cluster.until(ASKED_WITHIN, |cluster| {
        cluster.asks_witness(Role::Secondary)
    })?;
    cluster.hold_thread(HeldThread {
        role: Role::Secondary,
        thread: Some(ThreadRole::Asking),
        time: HELD,
    });
    cluster.run_for(HELD.saturating_sub(BEFORE_THE_END))?;
    cluster.apply_fault(Fault::Isolate(Role::Primary))?;
    take_over(&mut cluster)?;
    cluster.end_in_sync()
}

#[test]
fn a_slow_witness_shortens_no_promise() {
    for seed in 0..SEEDS {
        a_slow_witness(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn a_thread_that_stands_still_shortens_no_promise() {
    for seed in 0..SEEDS {
        a_held_thread(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

/// Counted from the last look of the thread, the silence begins before the question of the witness. Then both schedules have two
/// nodes that serve, unless a call of the witness is lost. A thread that stands still while it waits looks when it goes on.
#[test]
fn a_silence_that_counts_from_a_look_is_found() {
    activate(Some(Mutant::SilenceFromLook));
    let found = |schedule: fn(u64) -> Result<(), String>| {
        let outcomes = (0..SEEDS).filter_map(|seed| schedule(seed).err());
        outcomes.filter(|what| what.contains("one_primary")).count()
    };
    let [slow, held] = [found(a_slow_witness), found(a_held_thread)];
    activate(None);
    assert!(slow > 0 && held > 0, "found {slow} and {held} times");
}
