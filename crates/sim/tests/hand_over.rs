//! A planned failover at the end of a resync, when only the primary has marked the nodes in sync, and one whose record cannot
//! be written.

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_sim::history::Stop;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{
    Fault, IN_SYNC_WITHIN, PRIMARY, SECONDARY, ScriptedCluster, Settings, Users,
};
use lockstep_sim::workload::Options;
use lockstep_types::settings::{Durability, Role};

/// Number of seeds in each test.
const SEEDS: u64 = 40;
/// The time after a fault in which its effects are over.
const WHILE: Duration = Duration::from_secs(2);

/// Returns two nodes that have just started, with clients.
fn cluster(seed: u64) -> ScriptedCluster {
    let settings = Settings {
        durability: Durability::Always,
        ..Settings::STEADY
    };
    let mut random = Random::new(seed);
    let options = Options {
        clients: 2,
        ..Options::default()
    };
    let users = Users::random(options, Duration::from_millis(2), random.fork());
    let mut cluster = ScriptedCluster::new(&settings, users, 10, random.fork());
    cluster.start_both();
    cluster
}

/// Runs until the primary has marked the nodes in sync. Returns whether the secondary has not yet.
fn is_marked_by_primary_alone(cluster: &mut ScriptedCluster) -> bool {
    let is_synced = |cluster: &ScriptedCluster| cluster.state(PRIMARY) == Some(State::Synced);
    cluster.until(IN_SYNC_WITHIN, is_synced).unwrap();
    cluster.state(SECONDARY) == Some(State::SecondaryResyncing)
}

#[test]
fn a_secondary_that_was_never_complete_gets_no_role_and_costs_no_durable_operation() {
    let mut met = 0;
    for seed in 0..SEEDS {
        let mut cluster = cluster(seed);
        if !is_marked_by_primary_alone(&mut cluster) {
            continue;
        }
        met += 1;
        let down = Fault::Down(Role::Secondary, Stop::Power);
        cluster.apply_fault(down).unwrap();
        cluster.apply_fault(Fault::HandOver).unwrap();
        cluster.run_for(WHILE).unwrap();
        let both = Fault::RestartBoth(Stop::Power, Stop::Power);
        cluster.apply_fault(both).unwrap();
        cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
        assert_eq!(cluster.role_changes(), 0, "seed {seed}");
        cluster.end_in_sync().unwrap();
    }
    assert!(met > SEEDS / 2, "only {met} seeds meet the moment");
}

#[test]
fn a_failover_before_the_mark_of_the_secondary_waits_for_the_mark() {
    for seed in 0..SEEDS {
        let mut cluster = cluster(seed);
        is_marked_by_primary_alone(&mut cluster);
        cluster.apply_fault(Fault::HandOver).unwrap();
        cluster.run_for(WHILE).unwrap();
        assert_eq!(cluster.role_changes(), 1, "seed {seed}");
        cluster.end_in_sync().unwrap();
    }
}

/// The primary goes on in its generation, with a new session. The secondary must not take its operations for earlier ones.
#[test]
fn after_a_failover_whose_record_cannot_be_written_the_secondary_follows() {
    for seed in 0..SEEDS {
        let mut cluster = cluster(seed);
        cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
        cluster.run_for(WHILE / 10).unwrap();
        cluster.fail_next_role_write(PRIMARY);
        cluster.apply_fault(Fault::HandOver).unwrap();
        cluster.run_and_check(WHILE / 10).unwrap();
        assert_eq!(cluster.role_changes(), 0, "seed {seed}");
        cluster.end_in_sync().unwrap();
    }
}
