//! The schedule of snapshots on two nodes whose clocks jump, and whose roles change.

// Clippy knows test functions by their attribute. These helpers are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use lockstep_driver::config::SnapshotSchedule;
use lockstep_driver::report::{SnapshotCommand, SnapshotStatus};
use lockstep_sim::history::Stop;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{
    Fault, IN_SYNC_WITHIN, PRIMARY, SECONDARY, ScriptedCluster, Settings, Users,
};
use lockstep_sim::world::Side;

const HOUR: i64 = 3600;
/// Within this time the schedule has done what is due.
const WHILE: Duration = Duration::from_secs(6);

/// Two nodes in sync with the same schedule.
fn cluster(schedule: SnapshotSchedule) -> ScriptedCluster {
    let mut cluster = ScriptedCluster::new(&Settings::STEADY, Users::none(), 10, Random::new(7));
    cluster.start_both();
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    for side in [PRIMARY, SECONDARY] {
        set(&mut cluster, side, schedule);
    }
    cluster.run_for(WHILE).unwrap();
    cluster
}

fn set(cluster: &mut ScriptedCluster, side: Side, schedule: SnapshotSchedule) {
    let refused = cluster.reconfigure(side, |config| config.policies.snapshots = schedule);
    assert_eq!(refused.unwrap(), None);
}

const fn hourly(hourly: u16) -> SnapshotSchedule {
    SnapshotSchedule {
        hourly,
        daily: 0,
        weekly: 0,
        monthly: 0,
    }
}

#[track_caller]
fn done(
    cluster: &mut ScriptedCluster,
    side: Side,
    command: SnapshotCommand,
) -> Vec<SnapshotStatus> {
    cluster.snapshots(side, command).unwrap().unwrap()
}

/// The day and the hour in the name of each snapshot of a node, or else its name.
fn hours(cluster: &mut ScriptedCluster, side: Side) -> Vec<String> {
    let list = done(cluster, side, SnapshotCommand::List);
    let alive = list.into_iter().filter(|it| it.state != "deleting");
    let hour = |it: SnapshotStatus| match it.name.strip_prefix("@GMT-2023.11.") {
        Some(rest) if it.kind == "schedule" => rest[..5].to_owned(),
        _ => it.name,
    };
    alive.map(hour).collect()
}

/// Lets hours pass one by one.
fn pass(cluster: &mut ScriptedCluster, hours: u32) {
    for _ in 0..hours {
        cluster.jump_wall_clocks(HOUR);
        cluster.run_for(WHILE).unwrap();
    }
}

#[test]
fn the_node_that_serves_makes_one_in_each_hour_and_keeps_the_newest() {
    let mut cluster = cluster(hourly(3));
    assert_eq!(hours(&mut cluster, PRIMARY), ["14-22"]);
    pass(&mut cluster, 3);
    for side in [PRIMARY, SECONDARY] {
        assert_eq!(hours(&mut cluster, side), ["14-23", "15-00", "15-01"]);
    }
    // The other node serves: in the same hour it makes no second one.
    cluster.apply_fault(Fault::HandOver).unwrap();
    cluster.run_for(WHILE).unwrap();
    assert_eq!(cluster.role_changes(), 1);
    assert_eq!(hours(&mut cluster, SECONDARY), ["14-23", "15-00", "15-01"]);
    pass(&mut cluster, 1);
    assert_eq!(hours(&mut cluster, PRIMARY), ["15-00", "15-01", "15-02"]);
    // A process that starts anew knows by the list that the hour has one.
    cluster.stop(SECONDARY, Stop::Process);
    cluster.start(SECONDARY);
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    set(&mut cluster, SECONDARY, hourly(3));
    cluster.run_for(WHILE).unwrap();
    assert_eq!(hours(&mut cluster, SECONDARY), ["15-00", "15-01", "15-02"]);
    cluster.end_in_sync().unwrap();
}

#[test]
fn those_of_the_user_and_those_with_a_hold_stay() {
    let mut cluster = cluster(hourly(2));
    let list = done(&mut cluster, PRIMARY, SnapshotCommand::List);
    let first = list[0].name.clone();
    let create = SnapshotCommand::Create {
        name: "mine".to_owned(),
        hooks: true,
    };
    done(&mut cluster, PRIMARY, create);
    let hold = SnapshotCommand::Hold {
        name: first.clone(),
        hold: "backup".to_owned(),
    };
    done(&mut cluster, PRIMARY, hold);
    pass(&mut cluster, 1);
    let list = done(&mut cluster, PRIMARY, SnapshotCommand::List);
    let rename = SnapshotCommand::Rename {
        name: list[2].name.clone(),
        to: "kept".to_owned(),
    };
    let list = done(&mut cluster, PRIMARY, rename);
    assert_eq!(list[2].kind, "user");
    // The hour of a renamed one gets no other one.
    cluster.run_for(WHILE).unwrap();
    pass(&mut cluster, 3);
    let expected = ["14-22", "mine", "kept", "15-01", "15-02"];
    assert_eq!(hours(&mut cluster, PRIMARY), expected);
    let release = SnapshotCommand::Release {
        name: first,
        hold: "backup".to_owned(),
    };
    done(&mut cluster, PRIMARY, release);
    cluster.run_for(WHILE).unwrap();
    assert_eq!(hours(&mut cluster, SECONDARY), expected[1..]);
    cluster.end_in_sync().unwrap();
}

#[test]
fn a_clock_that_jumps_makes_no_mass_and_deletes_none() {
    let mut cluster = cluster(hourly(3));
    pass(&mut cluster, 2);
    let before = hours(&mut cluster, PRIMARY);
    assert_eq!(before, ["14-22", "14-23", "15-00"]);
    cluster.jump_wall_clocks(-100 * HOUR);
    cluster.run_for(WHILE).unwrap();
    cluster.jump_wall_clocks(100 * HOUR);
    cluster.run_for(WHILE).unwrap();
    assert_eq!(
        hours(&mut cluster, PRIMARY),
        before,
        "the one of the wrong hour is gone"
    );
    // A missed time brings one snapshot.
    cluster.jump_wall_clocks(9 * HOUR);
    cluster.run_for(WHILE).unwrap();
    assert_eq!(hours(&mut cluster, PRIMARY), ["14-23", "15-00", "15-09"]);
    cluster.end_in_sync().unwrap();
}

#[test]
fn a_node_alone_makes_them_and_after_a_resync_both_go_on() {
    let mut cluster = cluster(hourly(3));
    cluster.stop(SECONDARY, Stop::Process);
    cluster.run_for(Duration::from_secs(30)).unwrap();
    pass(&mut cluster, 1);
    assert_eq!(hours(&mut cluster, PRIMARY), ["14-22", "14-23"]);
    cluster.start(SECONDARY);
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    pass(&mut cluster, 2);
    for side in [PRIMARY, SECONDARY] {
        assert_eq!(hours(&mut cluster, side), ["14-23", "15-00", "15-01"]);
    }
    cluster.end_in_sync().unwrap();
}
