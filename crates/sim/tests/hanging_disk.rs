//! A disk that hangs: its node answers pings, and completes no operation that waits for the disk. The primary gives a
//! secondary with such a disk up (P15), and gives way itself if its own disk hangs (R12 of roles.md).

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use lockstep_sim::history::Stop;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{
    ANSWER_LIMIT, Fault, IN_SYNC_WITHIN, ScriptedCluster, Settings, Users,
};
use lockstep_sim::workload::Options;
use lockstep_sim::world::Hang;
use lockstep_types::settings::{Durability, OnPeerLoss, OnPowerLoss, Role};

/// Number of seeds in each test.
const SEEDS: u64 = 10;
const PAUSE_LIMIT: Duration = Duration::from_secs(1);
const PEER_TIMEOUT: Duration = Duration::from_millis(500);
/// The limit of an answer for which the secondary reads its whole store. The primary counts the limit
/// in answered pings, and sends no ping before the previous ping is answered. So a slow network makes
/// the limit a quarter longer.
const WHOLE_STORE_LIMIT: Duration = Duration::from_millis(37_500);
/// The time until the clients continue, besides the limit of an answer: for the end of a connection,
/// for the pause, and for the mark.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(5);
/// Number of moments in the resync of a secondary that lost power, from its start on.
const RESYNC_MOMENTS: u32 = 60;
/// The time from one of these moments to the next.
const RESYNC_MOMENT: Duration = Duration::from_millis(5);
/// The limit after which the disk of a primary hangs, in tests of that.
const STALL_LIMIT: Duration = Duration::from_secs(2);
/// A limit that no test reaches.
const STALL_LIMIT_LONG: Duration = Duration::from_secs(30);
/// Longer than the time between two probes, and than the time from the loss of the connection to a takeover.
const PROBED_WITHIN: Duration = Duration::from_secs(5);
/// The time from the loss of the connection to a takeover.
const FAILOVER_AFTER: Duration = Duration::from_secs(1);
/// All clients wait for a flush after this time.
const FLUSHED_WITHIN: Duration = Duration::from_millis(400);
/// The time in which answers are counted.
const WHILE: Duration = Duration::from_secs(2);

const HANGS: [Hang; 2] = [Hang::Flushes, Hang::All];

fn worlds() -> impl Iterator<Item = (u64, Hang)> {
    (0..SEEDS).flat_map(|seed| HANGS.map(|hang| (seed, hang)))
}

/// Returns two nodes in sync, with clients whose operations all wait for both disks.
fn cluster(seed: u64, on_peer_loss: OnPeerLoss) -> ScriptedCluster {
    let mut cluster = new_cluster(seed, settings(on_peer_loss));
    start(&mut cluster);
    cluster
}

fn start(cluster: &mut ScriptedCluster) {
    cluster.start_both();
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
}

const fn settings(on_peer_loss: OnPeerLoss) -> Settings {
    Settings {
        durability: Durability::Always,
        on_peer_loss,
        on_power_loss: OnPowerLoss::Serve,
        pause_limit: PAUSE_LIMIT,
        peer_timeout: PEER_TIMEOUT,
        ..Settings::STEADY
    }
}

fn new_cluster(seed: u64, settings: Settings) -> ScriptedCluster {
    let mut random = Random::new(seed);
    let options = Options {
        clients: 3,
        operations_max: 2000,
        ..Options::default()
    };
    let users = Users::random(options, Duration::from_millis(100), random.fork());
    ScriptedCluster::new(&settings, users, 10, random.fork())
}

/// Returns the number of answers to clients in a while.
fn answers_in_a_while(cluster: &mut ScriptedCluster) -> u64 {
    let before = cluster.answered();
    cluster.run_for(WHILE).unwrap();
    cluster.answered() - before
}

/// Lets the disk work again: no data was lost, and both nodes become identical.
fn end_well(cluster: &mut ScriptedCluster) {
    cluster.apply_fault(Fault::Heal).unwrap();
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    assert!(answers_in_a_while(cluster) > 0);
    cluster.end_in_sync().unwrap();
}

#[test]
fn clients_continue_without_the_secondary() {
    for (seed, hang) in worlds() {
        let mut cluster = cluster(seed, OnPeerLoss::Continue);
        cluster.apply_fault(Fault::HangDisk(hang)).unwrap();
        cluster.run_for(ANSWER_LIMIT + GIVEN_UP_WITHIN).unwrap();
        assert!(!cluster.is_in_sync(), "{seed}, {hang:?}: not given up");
        // The primary sends the secondary no request before its disk works again.
        for _ in 0..10 {
            let answers = answers_in_a_while(&mut cluster);
            assert!(answers > 0, "{seed}, {hang:?}: clients wait");
        }
        end_well(&mut cluster);
    }
}

#[test]
fn status_says_why() {
    let mut cluster = cluster(1, OnPeerLoss::Continue);
    cluster.apply_fault(Fault::HangDisk(Hang::Flushes)).unwrap();
    let given_up = "the secondary is connected, but has not answered an operation for 3000 ms";
    for _ in 0..1000 {
        cluster.run_for(Duration::from_millis(10)).unwrap();
        let reason = cluster.reason();
        if reason.is_some_and(|reason| reason.starts_with(given_up)) {
            return;
        }
    }
    panic!("the reason is {:?}", cluster.reason());
}

#[test]
fn with_freeze_clients_wait_and_the_secondary_is_not_given_up() {
    for (seed, hang) in worlds() {
        let mut cluster = cluster(seed, OnPeerLoss::Freeze);
        cluster.apply_fault(Fault::HangDisk(hang)).unwrap();
        cluster.run_for(GIVEN_UP_WITHIN).unwrap();
        for _ in 0..5 {
            let answers = answers_in_a_while(&mut cluster);
            assert_eq!(answers, 0, "{seed}, {hang:?}: done by the primary alone");
        }
        assert!(cluster.is_in_sync(), "{seed}, {hang:?}: given up");
        end_well(&mut cluster);
    }
}

/// Metadata operations wait for the end of the namespace's transfer, so this transfer must not wait
/// forever. The disk hangs from each moment of a resync on.
#[test]
fn a_resync_does_not_hold_clients_up() {
    for (moment, hang) in (0..RESYNC_MOMENTS).flat_map(|moment| HANGS.map(|hang| (moment, hang))) {
        let mut cluster = cluster(1, OnPeerLoss::Continue);
        let lost = Fault::Down(Role::Secondary, Stop::Power);
        cluster.apply_fault(lost).unwrap();
        cluster.run_for(PAUSE_LIMIT + GIVEN_UP_WITHIN).unwrap();
        let back = Fault::Restart(Role::Secondary, Stop::Process);
        cluster.apply_fault(back).unwrap();
        cluster.run_for(RESYNC_MOMENT * moment).unwrap();
        cluster.apply_fault(Fault::HangDisk(hang)).unwrap();
        let limit = WHOLE_STORE_LIMIT + GIVEN_UP_WITHIN;
        cluster.run_for(limit).unwrap();
        assert!(
            answers_in_a_while(&mut cluster) > 0,
            "{moment}, {hang:?}: clients wait"
        );
        end_well(&mut cluster);
    }
}

/// Returns two nodes with a witness that watch their disks.
fn watchful_cluster(seed: u64, limit: Duration) -> ScriptedCluster {
    let settings = Settings {
        failover_after: Some(FAILOVER_AFTER),
        ..settings(OnPeerLoss::Continue)
    };
    let mut cluster = new_cluster(seed, settings);
    cluster.watch_disks(limit);
    start(&mut cluster);
    // The witness learns that both nodes are in sync.
    cluster.run_for(WHILE).unwrap();
    cluster
}

#[test]
fn a_primary_whose_disk_hangs_gives_way() {
    for (seed, hang) in worlds() {
        let mut cluster = watchful_cluster(seed, STALL_LIMIT);
        assert_eq!(cluster.role_changes(), 0, "{seed}, {hang:?}: too early");
        cluster.hang_primary(hang);
        let limit = STALL_LIMIT + FAILOVER_AFTER + GIVEN_UP_WITHIN;
        cluster.run_for(limit).unwrap();
        assert_eq!(cluster.role_changes(), 1, "{seed}, {hang:?}: no takeover");
        for _ in 0..5 {
            let answers = answers_in_a_while(&mut cluster);
            assert!(answers > 0, "{seed}, {hang:?}: clients wait");
        }
        end_well(&mut cluster);
        assert_eq!(cluster.role_changes(), 1, "{seed}, {hang:?}: once only");
    }
}

/// A flush changes nothing that the next session could meet, and may take long.
#[test]
fn a_takeover_waits_for_no_flush() {
    for seed in 0..SEEDS {
        let mut cluster = watchful_cluster(seed, STALL_LIMIT_LONG);
        cluster.apply_fault(Fault::HangDisk(Hang::Flushes)).unwrap();
        // The clients wait for a flush by then. The primary has not given the secondary up.
        cluster.run_for(FLUSHED_WITHIN).unwrap();
        let down = Fault::Down(Role::Primary, Stop::Process);
        cluster.apply_fault(down).unwrap();
        cluster.run_for(FAILOVER_AFTER + GIVEN_UP_WITHIN).unwrap();
        assert_eq!(cluster.role_changes(), 1, "{seed}: no takeover");
        end_well(&mut cluster);
    }
}

#[test]
fn no_node_gives_way_if_both_disks_hang() {
    for (seed, hang) in worlds() {
        let mut cluster = watchful_cluster(seed, STALL_LIMIT);
        cluster.hang_primary(hang);
        cluster.apply_fault(Fault::HangDisk(hang)).unwrap();
        // Before the primary gives the secondary up, which it cannot do on its disk either.
        cluster.run_for(ANSWER_LIMIT + GIVEN_UP_WITHIN).unwrap();
        assert_eq!(cluster.role_changes(), 0, "{seed}, {hang:?}");
        end_well(&mut cluster);
    }
}

/// The connection is lost before the watch has reached its limit. The primary could not record that it serves alone.
#[test]
fn a_primary_whose_disk_gives_no_answer_does_not_keep_the_role() {
    for seed in 0..SEEDS {
        let mut cluster = watchful_cluster(seed, STALL_LIMIT_LONG);
        cluster.hang_primary(Hang::All);
        cluster.run_for(PROBED_WITHIN).unwrap();
        for role in [Role::Primary, Role::Secondary] {
            cluster.apply_fault(Fault::Mute(role)).unwrap();
        }
        cluster.run_for(FAILOVER_AFTER + GIVEN_UP_WITHIN).unwrap();
        assert_eq!(cluster.role_changes(), 1, "{seed}: no takeover");
        assert!(answers_in_a_while(&mut cluster) > 0, "{seed}: clients wait");
        end_well(&mut cluster);
    }
}
