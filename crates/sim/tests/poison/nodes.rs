//! Two nodes, one with a disk that fails.

use std::time::Duration;

use lockstep_driver::{ClearError, RoleMarks};
use lockstep_fs::reserve::RESERVE_FILE;
use lockstep_repl::state::State;
use lockstep_sim::disk::CallClass;
use lockstep_sim::scenario::{Fault, Mount, PRIMARY, SECONDARY, ScriptedCluster};
use lockstep_sim::world::Side;
use lockstep_types::Errno;
use lockstep_types::settings::{OnPeerLoss, OnPowerLoss, Role};

use super::program::{self, FILE, FIRST, LATER, OTHER, THIRD};
use super::steps::{
    in_sync, is_marked, is_stably_in_sync, kill, make_file, read, restart, run, shut_down, stable,
    start_in_sync, start_until_it_runs, status, two_nodes, two_nodes_with, until, until_in_sync,
    until_poisoned, write,
};

const EIO: Result<(), Errno> = Err(Errno::Io);
/// Longer than any node waits before it tries something again.
const LONG: Duration = Duration::from_secs(40);

fn fail_next_sync(cluster: &mut ScriptedCluster, side: Side) {
    cluster.fail_disk(side, CallClass::Sync, 1, Errno::Io);
}

/// Asserts that a program can read, and do nothing else.
#[track_caller]
fn assert_read_only(cluster: &mut ScriptedCluster, expected: lockstep_sim::op::Mark) {
    assert_eq!(write(cluster, LATER, false), EIO);
    assert_eq!(write(cluster, LATER, true), EIO);
    assert_eq!(run(cluster, program::sync), EIO);
    assert_eq!(run(cluster, |mount| program::create(mount, "more")), EIO);
    assert_eq!(read(cluster), Ok(Some(expected)));
}

/// Returns whether the status of a node says that the nodes are in sync.
fn says_in_sync(cluster: &ScriptedCluster) -> bool {
    let mut statuses = Side::BOTH
        .into_iter()
        .filter_map(|side| cluster.status(side));
    statuses.any(|status| status.sync.in_sync)
}

/// Lets the next sync of a node's role file fail.
fn fail_next_role_sync(cluster: &ScriptedCluster, side: Side) {
    let disk = cluster.disk(side);
    disk.fail_call_on("role.json", CallClass::Sync, 1, Errno::Io);
}

/// The session of the earlier role is over then, and the session of another one cannot be made on that disk.
#[test]
fn a_primary_whose_disk_fails_as_it_gives_its_role_away_serves_reads() {
    let mut cluster = in_sync();
    fail_next_role_sync(&cluster, PRIMARY);
    cluster.apply_fault(Fault::HandOver).unwrap();
    until_poisoned(&mut cluster, PRIMARY);
    cluster.run_for(LONG).unwrap();
    let states = Side::BOTH.map(|side| cluster.state(side));
    let expected = [State::Poisoned, State::SecondaryDisconnected];
    assert_eq!(states, expected.map(Some));
    assert_read_only(&mut cluster, FIRST);
}

/// Only this primary can lead. While it waited for the other node, its session was that of a node which serves nothing.
#[test]
fn a_primary_whose_disk_fails_as_it_begins_to_lead_serves_reads() {
    let mut cluster = two_nodes_with(OnPeerLoss::Continue, OnPowerLoss::Wait);
    start_in_sync(&mut cluster);
    make_file(&mut cluster, FIRST);
    kill(&mut cluster, PRIMARY);
    cluster.cut_power(SECONDARY);
    cluster.start(PRIMARY);
    cluster.run_for(LONG).unwrap();
    assert_eq!(cluster.state(PRIMARY), Some(State::SecondaryDisconnected));
    fail_next_role_sync(&cluster, PRIMARY);
    cluster.start(SECONDARY);
    until_poisoned(&mut cluster, PRIMARY);
    cluster.run_for(LONG).unwrap();
    assert_eq!(cluster.state(PRIMARY), Some(State::Poisoned));
    assert_read_only(&mut cluster, FIRST);
}

#[test]
fn a_secondary_whose_disk_failed_is_left_behind_until_an_operator_acts() {
    let mut cluster = in_sync();
    fail_next_sync(&mut cluster, SECONDARY);
    // At once, and not after the pause limit of an hour: the secondary answers, and reports its
    // failure.
    assert_eq!(write(&mut cluster, OTHER, true), Ok(()));
    until_poisoned(&mut cluster, SECONDARY);
    assert!(is_marked(&cluster, SECONDARY));
    for _restart in 0..3 {
        cluster.run_for(LONG).unwrap();
        let states = Side::BOTH.map(|side| cluster.state(side));
        let expected = [State::OutOfSync, State::SecondaryPoisoned];
        assert_eq!(states, expected.map(Some));
        assert!(!says_in_sync(&cluster));
        let reason = status(&cluster, PRIMARY).sync.reason.unwrap();
        assert!(
            reason.contains("the secondary's disk failed at ") && reason.contains("clear-poison"),
            "{reason}"
        );
        let own = status(&cluster, SECONDARY).poisoned.unwrap();
        assert!(own.reason.contains("cannot sync"), "{own:?}");
        // A restart of the process clears nothing.
        restart(&mut cluster, SECONDARY);
        until_poisoned(&mut cluster, SECONDARY);
    }
    let cleared = cluster.clear_poison(SECONDARY, false).unwrap();
    assert!(cleared.was_in_sync && cleared.cache_dropped);
    assert!(!is_marked(&cluster, SECONDARY));
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
    cluster.run_for(LONG).unwrap();
    // The data of the new sync is on the disk, not only in the cache that the failed sync left.
    assert!(is_stably_in_sync(&cluster, SECONDARY));
    assert_eq!(stable(&cluster, SECONDARY).content, Some(OTHER));
}

/// The policy is about a peer that does not answer. This peer answers.
#[test]
fn a_frozen_primary_continues_when_the_secondary_reports_that_its_disk_failed() {
    let mut cluster = two_nodes(OnPeerLoss::Freeze);
    start_in_sync(&mut cluster);
    fail_next_sync(&mut cluster, SECONDARY);
    let created = run(&mut cluster, |mount| program::create(mount, FILE));
    assert_eq!(created, Ok(()));
    assert_eq!(run(&mut cluster, program::sync), Ok(()));
    assert_eq!(cluster.state(PRIMARY), Some(State::OutOfSync));
}

#[test]
fn a_primary_whose_disk_failed_serves_reads_and_leaves_the_good_copy_alone() {
    let mut cluster = in_sync();
    fail_next_sync(&mut cluster, PRIMARY);
    assert_eq!(write(&mut cluster, OTHER, true), EIO);
    until_poisoned(&mut cluster, PRIMARY);
    let good = stable(&cluster, SECONDARY);
    for _restart in 0..3 {
        cluster.run_for(LONG).unwrap();
        assert_read_only(&mut cluster, OTHER);
        assert!(!says_in_sync(&cluster));
        assert!(status(&cluster, PRIMARY).poisoned.is_some());
        // The good copy is still marked as in sync.
        let states = Side::BOTH.map(|side| cluster.state(side));
        let expected = [State::Poisoned, State::SecondaryDisconnected];
        assert_eq!(states, expected.map(Some));
        assert_eq!(stable(&cluster, SECONDARY), good);
        assert!(is_stably_in_sync(&cluster, PRIMARY));
        let reason = status(&cluster, SECONDARY).sync.reason.unwrap();
        assert!(reason.contains("the primary's disk failed at "), "{reason}");
        restart(&mut cluster, PRIMARY);
        until_poisoned(&mut cluster, PRIMARY);
    }
    let refused = cluster.clear_poison(PRIMARY, false).unwrap_err();
    assert!(
        matches!(refused, ClearError::LossNotAccepted { .. }),
        "{refused}"
    );
    assert!(is_marked(&cluster, PRIMARY));
    cluster.clear_poison(PRIMARY, true).unwrap();
    cluster.start(PRIMARY);
    until_in_sync(&mut cluster);
    // The failed write was not acknowledged, and its sync failed: the disk has the older content.
    assert_eq!(read(&mut cluster), Ok(Some(FIRST)));
    cluster.run_for(LONG).unwrap();
    assert_eq!(stable(&cluster, SECONDARY).content, Some(FIRST));
    assert_eq!(write(&mut cluster, LATER, true), Ok(()), "in use again");
}

#[test]
fn a_failed_primary_is_cleared_without_a_loss_if_it_waits_for_a_complete_secondary() {
    let mut cluster = two_nodes_with(OnPeerLoss::Continue, OnPowerLoss::Wait);
    start_in_sync(&mut cluster);
    make_file(&mut cluster, FIRST);
    assert_eq!(write(&mut cluster, OTHER, false), Ok(()));
    fail_next_sync(&mut cluster, PRIMARY);
    assert_eq!(run(&mut cluster, program::sync), EIO);
    until_poisoned(&mut cluster, PRIMARY);
    kill(&mut cluster, PRIMARY);
    let cleared = cluster.clear_poison(PRIMARY, false).unwrap();
    assert!(!cleared.content_counts);
    cluster.start(PRIMARY);
    until_in_sync(&mut cluster);
    let role_of = |side| status(&cluster, side).settings.role;
    assert_eq!(role_of(SECONDARY), Role::Primary);
    assert_eq!(role_of(PRIMARY), Role::Secondary);
    // The secondary has kept what the failed disk has not.
    cluster.run_for(LONG).unwrap();
    assert_eq!(stable(&cluster, PRIMARY).content, Some(OTHER));
}

/// An operation that waits for the other node ends with an error when the primary's disk fails.
#[test]
fn nothing_waits_forever_on_a_primary_whose_disk_failed() {
    let mut cluster = in_sync();
    kill(&mut cluster, SECONDARY);
    until(&mut cluster, "paused", |cluster| {
        cluster.state(PRIMARY) == Some(State::Paused)
    });
    // The write waits, because the secondary is down. A checkpoint meets the failure meanwhile.
    fail_next_sync(&mut cluster, PRIMARY);
    assert_eq!(write(&mut cluster, OTHER, false), EIO);
    assert_eq!(cluster.state(PRIMARY), Some(State::Poisoned));
    assert!(is_stably_in_sync(&cluster, PRIMARY));
}

fn is_any_marked(cluster: &ScriptedCluster) -> bool {
    Side::BOTH.into_iter().any(|side| is_marked(cluster, side))
}

/// Starts nodes for the first time, and uses them when they are in sync.
fn first_sync(cluster: &mut ScriptedCluster) {
    for side in Side::BOTH {
        start_until_it_runs(cluster, side);
    }
    for _ in 0..100 {
        if cluster.is_in_sync() || is_any_marked(cluster) {
            break;
        }
        cluster.run_for(Duration::from_millis(100)).unwrap();
    }
    if is_marked(cluster, PRIMARY) {
        return;
    }
    let _created = cluster.use_mount(|mount| program::create(mount, FILE));
    let _written = cluster.use_mount(|mount| program::write(mount, FIRST, true));
    let _synced = cluster.use_mount(program::sync);
    cluster.run_for(Duration::from_secs(25)).unwrap();
}

/// Every sync that a node makes from its first start on fails once: during the opening, for marks,
/// for a resync, for clients, for checkpoints. After each of them, no node reports or believes that
/// the nodes are in sync.
fn fails_at_every_sync(side: Side) {
    let mut met = 0;
    for nth in 1.. {
        let mut cluster = two_nodes(OnPeerLoss::Continue);
        cluster.fail_disk(side, CallClass::Sync, nth, Errno::Io);
        first_sync(&mut cluster);
        if !is_marked(&cluster, side) {
            break;
        }
        met += 1;
        start_until_it_runs(&mut cluster, side);
        until_poisoned(&mut cluster, side);
        // The other node hears of that.
        cluster.run_for(Duration::from_secs(1)).unwrap();
        let before = stable(&cluster, side).role;
        for _restart in 0..2 {
            assert!(!says_in_sync(&cluster), "sync {nth}");
            cluster.run_for(LONG).unwrap();
            assert!(
                !cluster.is_in_sync() && !says_in_sync(&cluster),
                "in sync after sync {nth} had failed"
            );
            assert_eq!(stable(&cluster, side).role, before, "sync {nth}");
            restart(&mut cluster, side);
            until_poisoned(&mut cluster, side);
        }
        cluster.clear_poison(side, true).unwrap();
        cluster.start(side);
        until_in_sync(&mut cluster);
    }
    assert!(met >= 10, "{met} syncs");
}

#[test]
fn a_secondary_promises_nothing_after_any_sync_that_failed() {
    fails_at_every_sync(SECONDARY);
}

#[test]
fn a_primary_promises_nothing_after_any_sync_that_failed() {
    fails_at_every_sync(PRIMARY);
}

/// Any call of the disk may fail, and any operations may wait for each other then.
#[test]
fn every_program_has_an_answer_when_a_disk_fails() {
    let mut met = 0;
    for side in Side::BOTH {
        for class in [CallClass::Write, CallClass::Name, CallClass::Read] {
            for nth in 1..=30 {
                let mut cluster = in_sync();
                cluster.fail_disk(side, class, nth, Errno::Io);
                let point = format!("{side:?}, {class:?} {nth}");
                let mut assert_answered = |body: fn(&Mount) -> Result<(), Errno>| {
                    let answered = cluster.use_mount(body).is_ok();
                    assert!(answered, "no answer: {point}");
                };
                assert_answered(|mount| program::create(mount, "more"));
                assert_answered(|mount| program::write(mount, OTHER, false));
                assert_answered(|mount| program::write(mount, THIRD, true));
                assert_answered(program::sync);
                assert_answered(|mount| program::read(mount).map(drop));
                if !is_marked(&cluster, side) {
                    break;
                }
                until_poisoned(&mut cluster, side);
                cluster.run_for(LONG).unwrap();
                assert!(!says_in_sync(&cluster), "{point}");
                met += 1;
            }
        }
    }
    assert!(met >= 8, "{met} calls");
}

/// A clean shutdown removes the boot id, and so says that all data is on stable storage.
#[test]
fn a_node_whose_disk_failed_is_not_closed_cleanly() {
    for side in Side::BOTH {
        for nth in 0..6 {
            let mut cluster = in_sync();
            assert_eq!(write(&mut cluster, OTHER, false), Ok(()));
            cluster.fail_disk(side, CallClass::Sync, nth + 1, Errno::Io);
            shut_down(&mut cluster, side);
            assert!(is_marked(&cluster, side), "{side:?}, sync {nth}");
            let marks = RoleMarks::of(&stable(&cluster, side).role).unwrap();
            assert!(!marks.is_closed, "{side:?}, sync {nth}");
        }
    }
}

/// The operator's command is interrupted at each of its syncs: the marker is removed last.
#[test]
fn an_interrupted_clear_leaves_the_marker() {
    let mut interrupted = 0;
    for nth in 1.. {
        let mut cluster = in_sync();
        fail_next_sync(&mut cluster, SECONDARY);
        write(&mut cluster, OTHER, true).unwrap();
        until_poisoned(&mut cluster, SECONDARY);
        cluster.fail_disk(SECONDARY, CallClass::Sync, nth, Errno::Io);
        let cleared = cluster.clear_poison(SECONDARY, false);
        cluster.disk(SECONDARY).stop_failing();
        if cleared.is_ok() {
            break;
        }
        assert!(is_marked(&cluster, SECONDARY), "sync {nth}");
        cluster.start(SECONDARY);
        until_poisoned(&mut cluster, SECONDARY);
        cluster.clear_poison(SECONDARY, false).unwrap();
        cluster.start(SECONDARY);
        until_in_sync(&mut cluster);
        interrupted += 1;
    }
    assert!(interrupted > 5, "{interrupted} syncs");
}

/// Returns two nodes, of which the secondary has failed and is stopped.
fn with_failed_secondary() -> ScriptedCluster {
    let mut cluster = in_sync();
    fail_next_sync(&mut cluster, SECONDARY);
    write(&mut cluster, OTHER, true).unwrap();
    until_poisoned(&mut cluster, SECONDARY);
    kill(&mut cluster, SECONDARY);
    cluster
}

/// Nobody can delete anything on a failed disk, so the command must find its own room.
#[test]
fn a_full_disk_is_cleared_with_the_room_of_the_reserve() {
    let mut cluster = with_failed_secondary();
    let disk = cluster.disk(SECONDARY);
    assert!(disk.files().contains(&RESERVE_FILE.to_owned()));
    disk.fill();
    cluster.clear_poison(SECONDARY, false).unwrap();
    assert!(!is_marked(&cluster, SECONDARY));
    cluster.limit_disks(None);
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
}

/// Other programs have taken the reserve, too.
#[test]
fn a_disk_without_any_room_is_cleared_once_it_has_some() {
    let mut cluster = with_failed_secondary();
    let disk = cluster.disk(SECONDARY);
    disk.put(RESERVE_FILE, b"").unwrap();
    disk.fill();
    for _again in 0..2 {
        let refused = cluster.clear_poison(SECONDARY, false).unwrap_err();
        assert!(refused.to_string().contains("No space left"), "{refused}");
        assert!(is_marked(&cluster, SECONDARY));
    }
    cluster.limit_disks(None);
    cluster.clear_poison(SECONDARY, false).unwrap();
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
}

#[test]
fn there_is_nothing_to_clear_without_a_marker() {
    let mut cluster = in_sync();
    let refused = cluster.clear_poison(SECONDARY, false).unwrap_err();
    assert!(matches!(refused, ClearError::NotPoisoned { .. }));
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
}

/// The promotion is refused, so the operator makes the old primary serve. The disk may have the role that the node never took:
/// the last write of the role file comes after the role is in one of its two places.
#[test]
fn a_node_whose_role_could_not_be_written_never_serves_beside_the_other_node() {
    let calls = [CallClass::Write, CallClass::Sync]
        .into_iter()
        .flat_map(|class| (1..=4).map(move |nth| (class, nth)));
    let mut not_accepted = Vec::new();
    for (class, nth) in calls {
        let mut cluster = two_nodes_with(OnPeerLoss::Continue, OnPowerLoss::Wait);
        start_in_sync(&mut cluster);
        make_file(&mut cluster, FIRST);
        kill(&mut cluster, PRIMARY);
        cluster.run_for(LONG).unwrap();
        let disk = cluster.disk(SECONDARY);
        disk.fail_call_on("role.json", class, nth, Errno::Io);
        assert!(!cluster.promote(SECONDARY).unwrap(), "{class:?} {nth}");
        until_poisoned(&mut cluster, SECONDARY);
        kill(&mut cluster, SECONDARY);
        cluster.start(PRIMARY);
        assert!(cluster.promote(PRIMARY).unwrap(), "{class:?} {nth}");
        assert_eq!(write(&mut cluster, OTHER, true), Ok(()));
        // The process starts by itself, before anybody repairs the disk.
        cluster.start(SECONDARY);
        until_poisoned(&mut cluster, SECONDARY);
        cluster.run_for(LONG).unwrap();
        assert!(!cluster.serves(SECONDARY), "{class:?} {nth}");
        kill(&mut cluster, SECONDARY);
        match cluster.clear_poison(SECONDARY, false) {
            Ok(cleared) => assert_eq!(cleared.role, Role::Secondary, "{class:?} {nth}"),
            Err(ClearError::LossNotAccepted { .. }) => {
                not_accepted.push((class, nth));
                continue;
            }
            Err(error) => panic!("{class:?} {nth}: {error}"),
        }
        cluster.start(SECONDARY);
        until_in_sync(&mut cluster);
        assert_eq!(read(&mut cluster), Ok(Some(OTHER)), "{class:?} {nth}");
    }
    // Both places have the new role: only the operator can tell.
    assert_eq!(not_accepted, [(CallClass::Sync, 4)]);
}
