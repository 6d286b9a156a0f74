//! A secondary that is stopped says so, and its primary waits no longer than it must (R1 of roles.md).

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{
    AfterShutdown, CleanShutdown, Fault, IN_SYNC_WITHIN, PRIMARY, SECONDARY, ScriptedCluster,
    Settings, Users,
};
use lockstep_sim::workload::Options;
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::settings::{OnPeerLoss, Role};

/// Number of seeds in each test.
const SEEDS: u64 = 10;
/// Primaries that wait for a lost secondary wait longer than any test.
const LONG: Duration = Duration::from_secs(600);
/// The time from the loss of the connection to a takeover, where a test waits for one.
const FAILOVER_AFTER: Duration = Duration::from_millis(1_500);
/// The same time, where no takeover is to come.
const FAILOVER_SLOWLY: Duration = Duration::from_secs(60);
/// The witness lets the secondary take over by then.
const PROTECTED_WITHIN: Duration = Duration::from_secs(12);
/// Enough for a takeover, although some calls of the witness are lost.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(12);
/// The answer of the witness comes by then, if it is not lost. This is less than half of `FAILOVER_SLOWLY`, after which the primary
/// asks without a word of its secondary.
const SOON: Duration = Duration::from_secs(20);
/// The time in which the effects of a fault show.
const WHILE: Duration = Duration::from_secs(2);

const fn settings(failover_after: Option<Duration>, on_peer_loss: OnPeerLoss) -> Settings {
    Settings {
        on_peer_loss,
        pause_limit: LONG,
        failover_after,
        ..Settings::STEADY
    }
}

/// Returns two nodes in sync, and clients at the primary.
fn cluster(seed: u64, settings: &Settings) -> ScriptedCluster {
    let mut random = Random::new(seed);
    let options = Options {
        clients: 3,
        operations_max: 20_000,
        ..Options::default()
    };
    let users = Users::random(options, Duration::from_millis(20), random.fork());
    let mut cluster = ScriptedCluster::new(settings, users, 10, random.fork());
    cluster.start_both();
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    if settings.failover_after.is_some() {
        cluster.run_for(PROTECTED_WITHIN).unwrap();
    }
    cluster
}

/// Lets everything go on: no acknowledged operation was lost, and both nodes become identical.
fn end_well(cluster: &mut ScriptedCluster) -> Result<(), String> {
    cluster.apply_fault(Fault::Heal)?;
    cluster.until_in_sync(IN_SYNC_WITHIN)?;
    cluster.stop_clients();
    cluster.settle()?;
    cluster.until_in_sync(IN_SYNC_WITHIN)?;
    cluster.final_check()
}

/// Stops the secondary. Returns whether clients go on soon.
fn goes_on_soon(cluster: &mut ScriptedCluster) -> bool {
    let shutdown = Fault::CleanShutdown(CleanShutdown {
        role: Role::Secondary,
        crash: None,
        then: AfterShutdown {
            stays_down: true,
            ..AfterShutdown::default()
        },
    });
    cluster.apply_fault(shutdown).unwrap();
    let is_alone = |cluster: &ScriptedCluster| cluster.state(PRIMARY) == Some(State::OutOfSync);
    let goes_on = cluster.until(SOON, is_alone).is_ok();
    let before = cluster.answered();
    cluster.run_for(WHILE).unwrap();
    assert!(!goes_on || cluster.answered() > before, "clients wait");
    end_well(cluster).unwrap();
    goes_on
}

/// Without its word, the primary would wait for ten minutes.
#[test]
fn a_primary_goes_on_when_its_secondary_says_that_it_stops() {
    for seed in 0..SEEDS {
        let mut cluster = cluster(seed, &settings(None, OnPeerLoss::Continue));
        assert!(goes_on_soon(&mut cluster), "seed {seed}");
    }
}

/// Without the word of its secondary, the primary would ask after half a minute.
#[test]
fn a_primary_asks_the_witness_when_its_secondary_says_that_it_stops() {
    let mut soon = 0;
    for seed in 0..SEEDS {
        let settings = settings(Some(FAILOVER_SLOWLY), OnPeerLoss::Continue);
        soon += u64::from(goes_on_soon(&mut cluster(seed, &settings)));
    }
    // Many calls of the witness are lost, and each lost one takes longer than `SOON`.
    assert!(soon >= 2, "only {soon}");
}

#[test]
fn a_primary_that_is_to_freeze_waits_for_a_secondary_that_says_that_it_stops() {
    let mut cluster = cluster(0, &settings(None, OnPeerLoss::Freeze));
    cluster.shut_down(SECONDARY).unwrap();
    cluster.run_for(WHILE).unwrap();
    assert_eq!(cluster.state(PRIMARY), Some(State::Paused));
    end_well(&mut cluster).unwrap();
}

/// An operator who stops both nodes, or restarts a secondary that has nothing to do, needs no resync.
#[test]
fn a_primary_without_operations_stays_in_sync_with_a_secondary_that_stops() {
    for failover_after in [None, Some(FAILOVER_SLOWLY)] {
        let mut cluster = ScriptedCluster::manual(&settings(failover_after, OnPeerLoss::Continue));
        cluster.start_both();
        cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
        cluster.run_for(PROTECTED_WITHIN).unwrap();
        cluster.shut_down(SECONDARY).unwrap();
        cluster.run_for(WHILE).unwrap();
        assert_eq!(cluster.state(PRIMARY), Some(State::Paused));
        assert!(cluster.role_marks(PRIMARY).unwrap().in_sync);
        cluster.start(SECONDARY);
        cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    }
}

/// The witness does not hear the primary, whose secondary stops, comes back and takes over.
fn a_stop_without_the_witness(seed: u64) -> Result<(), String> {
    let settings = settings(Some(FAILOVER_AFTER), OnPeerLoss::Continue);
    let mut cluster = cluster(seed, &settings);
    cluster.apply_fault(Fault::CutWitness(Role::Primary))?;
    cluster.shut_down(SECONDARY)?;
    cluster.run_for(WHILE)?;
    cluster.apply_fault(Fault::Isolate(Role::Primary))?;
    cluster.start(SECONDARY);
    cluster.run_for(TAKEN_OVER_WITHIN)?;
    assert_eq!(cluster.role_changes(), 1, "seed {seed}: no takeover");
    end_well(&mut cluster)
}

#[test]
fn a_primary_does_not_serve_alone_by_the_word_of_its_secondary() {
    for seed in 0..SEEDS {
        a_stop_without_the_witness(seed).unwrap();
    }
    activate(Some(Mutant::GoAloneUnasked));
    let found = (0..SEEDS).find_map(|seed| a_stop_without_the_witness(seed).err());
    activate(None);
    println!("{}", found.expect("the mutant is found"));
}
