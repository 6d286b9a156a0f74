//! A link between the nodes that comes and goes for minutes: the share of the time in which programs get no answer to their
//! changes, with a primary that waits for a steady link (rule P23) and with one that does not.

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::{Duration, Instant};

use lockstep_driver::config::FlapWait;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{Fault, IN_SYNC_WITHIN, ScriptedCluster, Settings, Users};
use lockstep_sim::test_output::print_result;
use lockstep_sim::workload::Options;
use lockstep_types::settings::Role;

/// The time for which the link comes and goes.
const TIME: Duration = Duration::from_secs(290);
/// Number of links.
const SEEDS: u64 = 8;
/// The link is up for this long, and then down for as long.
const HALF_PERIOD: Duration = Duration::from_secs(5);
/// Clients work all the time, so a time of this length without an answer is one without service.
const WINDOW: Duration = Duration::from_millis(500);

fn settings(failover_after: Option<Duration>, flap_wait_max: FlapWait) -> Settings {
    Settings {
        pause_limit: Duration::from_secs(10),
        peer_timeout: Duration::from_secs(3),
        failover_after,
        flap_wait_max,
        ..Settings::STEADY
    }
}

fn cluster(seed: u64, settings: &Settings) -> ScriptedCluster {
    let mut random = Random::new(seed);
    let options = Options {
        clients: 2,
        ..Options::default()
    };
    let users = Users::random(options, Duration::from_millis(150), random.fork());
    let mut cluster = ScriptedCluster::new(settings, users, 0, random.fork());
    cluster.start_both();
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    cluster
}

/// A link that comes and goes, as programs see the link.
#[derive(Default)]
struct Seen {
    /// Windows without an answer, in percent.
    without_service: u128,
    /// Times without service, however long.
    pauses: u32,
    /// Windows in which the nodes were in sync, in percent.
    in_sync: u128,
}

impl Seen {
    /// Lets the link of a cluster come and go. The witness can be reached all the time.
    fn of(cluster: &mut ScriptedCluster) -> Self {
        let (mut waited, mut pauses, mut in_sync, mut windows) = (0, 0, 0, 0);
        let end = cluster.now() + TIME;
        let mut did_wait = false;
        while cluster.now() < end {
            for is_up in [true, false] {
                if is_up {
                    cluster.apply_fault(Fault::Heal).unwrap();
                } else {
                    cluster.apply_fault(Fault::Mute(Role::Primary)).unwrap();
                    cluster.apply_fault(Fault::Mute(Role::Secondary)).unwrap();
                }
                let until = cluster.now() + HALF_PERIOD;
                while cluster.now() < until {
                    let before = cluster.answered();
                    cluster.run_for(WINDOW).unwrap();
                    let waits = cluster.answered() == before;
                    windows += 1;
                    waited += u128::from(waits);
                    in_sync += u128::from(cluster.is_in_sync());
                    pauses += u32::from(waits && !did_wait);
                    did_wait = waits;
                }
            }
        }
        Self {
            without_service: waited * 100 / windows,
            pauses,
            in_sync: in_sync * 100 / windows,
        }
    }
}

/// Runs flapping links to a good end, and prints what was seen in the mean. A call of the witness may be lost, so that the other
/// node takes over: one link alone says little.
fn seen(name: &str, failover_after: Option<Duration>, flap_wait_max: FlapWait) -> Seen {
    let mut sum = Seen::default();
    for seed in 1..=SEEDS {
        let seen = seen_once(seed, name, settings(failover_after, flap_wait_max));
        sum.without_service += seen.without_service;
        sum.pauses += seen.pauses;
        sum.in_sync += seen.in_sync;
    }
    sum
}

/// Runs a flapping link to a good end, and prints what was seen.
fn seen_once(seed: u64, name: &str, settings: Settings) -> Seen {
    let start = Instant::now();
    let mut cluster = cluster(seed, &settings);
    let found = Seen::of(&mut cluster);
    cluster.apply_fault(Fault::Heal).unwrap();
    // The longest wait, and a resync.
    cluster.until_in_sync(IN_SYNC_WITHIN * 2).unwrap();
    cluster.stop_clients();
    cluster.settle().unwrap();
    // The comparison after the last resync ends, too.
    cluster.run_for(IN_SYNC_WITHIN).unwrap();
    cluster.final_check().unwrap();
    let Seen {
        without_service,
        pauses,
        in_sync,
    } = found;
    let takeovers = cluster.role_changes();
    let result = format!(
        "{without_service} % of {TIME:?} without service in {pauses} pauses, {in_sync} % in sync, {takeovers} takeovers"
    );
    print_result(name, result, start.elapsed());
    found
}

fn check(name: &str, failover_after: Option<Duration>) {
    let at_once = seen(
        &format!("{name}, back at once"),
        failover_after,
        FlapWait::OFF,
    );
    let steady = seen(
        &format!("{name}, waits for a steady link"),
        failover_after,
        FlapWait::default(),
    );
    assert!(at_once.pauses >= 2 * steady.pauses);
    // With a witness the other node may take over. The new primary knows of no losses.
    let less = if failover_after.is_some() { 2 } else { 3 };
    assert!(at_once.without_service >= less * steady.without_service);
}

#[test]
fn a_flapping_link_without_a_witness_costs_few_pauses() {
    check("without a witness", None);
}

#[test]
fn a_flapping_link_with_a_witness_costs_few_pauses() {
    check("with a witness", Some(Duration::from_millis(1500)));
}
