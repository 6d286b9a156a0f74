//! Changes of the configuration of running nodes: each is in force without a restart, and a refused one changes nothing.

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use lockstep_driver::config::{DatastoreConfig, DiskStallLimit, FlapWait};
use lockstep_repl::state::State;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{
    ANSWER_LIMIT, Fault, IN_SYNC_WITHIN, PRIMARY, SECONDARY, ScriptedCluster, Settings, Users,
};
use lockstep_sim::workload::Options;
use lockstep_sim::world::{Hang, Side};
use lockstep_types::settings::{Durability, OnPeerLoss, Role, Standby};

/// A pause that no test waits for.
const LONG: Duration = Duration::from_secs(300);
/// Longer than each limit that a test sets.
const WHILE: Duration = Duration::from_secs(5);

const SETTINGS: Settings = Settings {
    durability: Durability::Always,
    pause_limit: LONG,
    ..Settings::STEADY
};

/// Two nodes in sync, with clients that change files all the time.
fn cluster(settings: &Settings) -> ScriptedCluster {
    let mut random = Random::new(1);
    let options = Options {
        clients: 3,
        operations_max: 2000,
        ..Options::default()
    };
    let users = Users::random(options, Duration::from_millis(100), random.fork());
    let mut cluster = ScriptedCluster::new(settings, users, 0, random.fork());
    cluster.start_both();
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    cluster
}

#[track_caller]
fn change(cluster: &mut ScriptedCluster, side: Side, edit: impl FnOnce(&mut DatastoreConfig)) {
    assert_eq!(cluster.reconfigure(side, edit).unwrap(), None);
}

fn cut(cluster: &mut ScriptedCluster) {
    cluster.apply_fault(Fault::Mute(Role::Primary)).unwrap();
    cluster.apply_fault(Fault::Mute(Role::Secondary)).unwrap();
}

/// Runs the cluster until the primary has a state. Returns the time that it took.
fn time_until(cluster: &mut ScriptedCluster, state: State) -> Duration {
    let start = cluster.now();
    let has = |cluster: &ScriptedCluster| cluster.state(PRIMARY) == Some(state);
    cluster.until(LONG / 2, has).unwrap();
    cluster.now().saturating_sub(start)
}

/// No acknowledged operation was lost, and the nodes become identical.
fn end_well(cluster: &mut ScriptedCluster) {
    cluster.apply_fault(Fault::Heal).unwrap();
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    cluster.end_in_sync().unwrap();
}

#[test]
fn a_shorter_pause_limit_ends_the_present_pause() {
    let mut cluster = cluster(&SETTINGS);
    cut(&mut cluster);
    time_until(&mut cluster, State::Paused);
    cluster.run_for(WHILE).unwrap();
    assert_eq!(cluster.state(PRIMARY), Some(State::Paused));
    change(&mut cluster, PRIMARY, |it| it.pause_limit = WHILE / 2);
    assert!(time_until(&mut cluster, State::OutOfSync) < WHILE);
    end_well(&mut cluster);
}

#[test]
fn the_policy_of_this_moment_decides_after_a_pause() {
    let mut cluster = cluster(&SETTINGS);
    cut(&mut cluster);
    time_until(&mut cluster, State::Paused);
    change(&mut cluster, PRIMARY, |it| {
        it.policies.on_peer_loss = OnPeerLoss::Freeze;
    });
    change(&mut cluster, PRIMARY, |it| it.pause_limit = Duration::ZERO);
    time_until(&mut cluster, State::Frozen);
    let before = cluster.answered();
    cluster.run_for(WHILE).unwrap();
    assert_eq!(cluster.answered(), before);
    end_well(&mut cluster);
}

#[test]
fn a_silent_peer_is_missed_by_the_time_of_this_moment() {
    for (timeout, least) in [(1, 0), (8, 7)]
        .map(|it: (u64, u64)| (Duration::from_secs(it.0), Duration::from_secs(it.1)))
    {
        let mut cluster = cluster(&Settings {
            peer_timeout: Duration::from_secs(2),
            ..SETTINGS
        });
        for side in [PRIMARY, SECONDARY] {
            change(&mut cluster, side, |it| it.peer_timeout = timeout);
        }
        cluster.run_for(WHILE).unwrap();
        assert!(cluster.is_in_sync(), "the connection stands");
        cut(&mut cluster);
        let missed = time_until(&mut cluster, State::Paused);
        assert!(
            (least..timeout * 3 / 2).contains(&missed),
            "{timeout:?}: {missed:?}"
        );
        end_well(&mut cluster);
    }
}

#[test]
fn a_peer_that_does_not_answer_is_given_up_by_the_limit_of_this_moment() {
    let mut cluster = cluster(&Settings {
        answer_limit: LONG,
        ..SETTINGS
    });
    change(&mut cluster, PRIMARY, |it| it.answer_limit = ANSWER_LIMIT);
    cluster.apply_fault(Fault::HangDisk(Hang::Flushes)).unwrap();
    let given_up = time_until(&mut cluster, State::OutOfSync);
    assert!(given_up < ANSWER_LIMIT + WHILE, "{given_up:?}");
    end_well(&mut cluster);
}

#[test]
fn a_link_that_comes_and_goes_must_stand_for_the_time_of_this_moment() {
    let back = |wait: FlapWait| {
        let mut cluster = cluster(&Settings {
            pause_limit: Duration::from_secs(1),
            ..SETTINGS
        });
        change(&mut cluster, PRIMARY, |it| it.policies.flap_wait_max = wait);
        for _ in 0..5 {
            cut(&mut cluster);
            time_until(&mut cluster, State::OutOfSync);
            cluster.apply_fault(Fault::Heal).unwrap();
            cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
        }
        cut(&mut cluster);
        time_until(&mut cluster, State::OutOfSync);
        cluster.apply_fault(Fault::Heal).unwrap();
        let start = cluster.now();
        cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
        let back = cluster.now().saturating_sub(start);
        end_well(&mut cluster);
        back
    };
    let (at_once, later) = (back(FlapWait::OFF), back(FlapWait::new(Some(WHILE))));
    assert!(at_once + WHILE / 2 < later, "{at_once:?}, {later:?}");
}

#[test]
fn a_disk_hangs_by_the_limit_of_this_moment() {
    let mut cluster = ScriptedCluster::new(&SETTINGS, Users::none(), 0, Random::new(1));
    cluster.watch_disks(LONG);
    cluster.start_both();
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    change(&mut cluster, PRIMARY, |it| {
        it.policies.disk_stall_limit = DiskStallLimit::new(Some(WHILE / 2));
    });
    cluster.hang_primary(Hang::All);
    let is_stuck = |cluster: &ScriptedCluster| {
        let status = cluster.status(PRIMARY);
        status.is_some_and(|status| status.sync.disk_stall.is_some())
    };
    cluster.until(WHILE * 2, is_stuck).unwrap();
    let off = |it: &mut DatastoreConfig| it.policies.disk_stall_limit = DiskStallLimit::OFF;
    let refused = cluster.reconfigure(PRIMARY, off).unwrap().unwrap();
    assert!(refused.contains("disk_stall_limit_ms"), "{refused}");
    end_well(&mut cluster);
}

#[test]
fn a_refused_change_changes_nothing() {
    let mut cluster = cluster(&SETTINGS);
    let config = |cluster: &ScriptedCluster| cluster.status(PRIMARY).unwrap().times;
    let before = config(&cluster);
    let refused = cluster.reconfigure(PRIMARY, |it| {
        it.pause_limit = Duration::ZERO;
        it.policies.standby = Standby::Eagain;
    });
    let refused = refused.unwrap().unwrap();
    assert!(
        refused.contains("standby") && refused.contains("cure: "),
        "{refused}"
    );
    assert_eq!(config(&cluster), before);
    cut(&mut cluster);
    time_until(&mut cluster, State::Paused);
    cluster.run_for(WHILE).unwrap();
    assert_eq!(cluster.state(PRIMARY), Some(State::Paused));
    end_well(&mut cluster);
}
