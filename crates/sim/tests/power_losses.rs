//! Both nodes lose power, and only the secondary comes back (P12, R9 of the protocol).

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use lockstep_sim::history::Stop;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{Fault, IN_SYNC_WITHIN, ScriptedCluster, Settings, Users};
use lockstep_sim::workload::Options;
use lockstep_types::settings::{Durability, Role};

/// Number of seeds in each test.
const SEEDS: u64 = 20;
/// The time from the loss of the connection to a takeover.
const FAILOVER_AFTER: Duration = Duration::from_secs(1);
/// Enough for a takeover, although some calls of the witness are lost.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(12);
/// The time in which answers are counted.
const WHILE: Duration = Duration::from_secs(2);

/// Returns two nodes in sync with a witness that lets the secondary take over, and clients.
fn cluster(seed: u64, durability: Durability) -> ScriptedCluster {
    let settings = Settings {
        durability,
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
    cluster.run_for(WHILE).unwrap();
    cluster
}

/// Both nodes lose power; only the secondary starts again.
fn leave_the_secondary(cluster: &mut ScriptedCluster) {
    let down = Fault::Down(Role::Primary, Stop::Power);
    cluster.apply_fault(down).unwrap();
    let restart = Fault::Restart(Role::Secondary, Stop::Power);
    cluster.apply_fault(restart).unwrap();
    cluster.run_for(TAKEN_OVER_WITHIN).unwrap();
}

#[test]
fn a_secondary_that_always_syncs_serves_after_both_have_lost_power() {
    for seed in 0..SEEDS {
        let mut cluster = cluster(seed, Durability::Always);
        leave_the_secondary(&mut cluster);
        assert_eq!(cluster.role_changes(), 1, "seed {seed}: nothing serves");
        let before = cluster.answered();
        cluster.run_for(WHILE).unwrap();
        assert!(cluster.answered() > before, "seed {seed}: clients wait");
        cluster.end_in_sync().unwrap();
    }
}

/// The copy of the primary may hold more, or that of the secondary: only an operator chooses.
#[test]
fn a_secondary_that_lost_power_takes_nothing_over_otherwise() {
    for seed in 0..SEEDS {
        let mut cluster = cluster(seed, Durability::Posix);
        leave_the_secondary(&mut cluster);
        assert_eq!(cluster.role_changes(), 0, "seed {seed}");
        cluster.end_in_sync().unwrap();
    }
}
