//! A disk that is not mounted: an empty store is in its place.

use std::time::Duration;

use lockstep_sim::disk::Disk;
use lockstep_sim::scenario::{PRIMARY, SECONDARY, ScriptedCluster};
use lockstep_sim::world::Side;
use lockstep_types::settings::OnPeerLoss;

use super::program::{self, FIRST, LATER, WRONG};
use super::steps::{
    in_sync, is_stably_in_sync, kill, make_file, names, read, restart, shut_down, stable,
    start_in_sync, start_until_it_runs, status, two_nodes, until, until_in_sync, write,
};

/// Longer than any attempt to connect takes, with the pause after it.
const LONG: Duration = Duration::from_secs(30);

/// Also if the new store is used meanwhile: the data belongs to the primary, but no part of it was
/// ever on the other node.
#[test]
fn a_new_store_never_replaces_the_data_of_the_other_node() {
    for is_used in [false, true] {
        let mut cluster = in_sync();
        kill(&mut cluster, PRIMARY);
        let good = stable(&cluster, SECONDARY);
        let mounted = cluster.empty_disk(PRIMARY);
        start_until_it_runs(&mut cluster, PRIMARY);
        if is_used {
            let created = cluster.use_mount(|mount| program::create(mount, "new"));
            assert_eq!(created, Ok(Ok(())));
            make_file(&mut cluster, WRONG);
        }
        assert_refused(&mut cluster, "the primary's store is new");
        let left = stable(&cluster, SECONDARY);
        assert_eq!(left, good, "used: {is_used}");
        kill(&mut cluster, PRIMARY);
        cluster.replace_disk(PRIMARY, mounted);
        cluster.start(PRIMARY);
        until_in_sync(&mut cluster);
        assert_eq!(read(&mut cluster), Ok(Some(FIRST)));
        assert_eq!(stable(&cluster, SECONDARY).content, Some(FIRST));
    }
}

/// Another copy was in sync in the place of the old copy. The old copy has none of the writes of that
/// time, although its mark says in sync. Plain writes do not advance the metadata OSN.
#[test]
fn a_copy_that_another_copy_replaced_is_not_treated_as_in_sync() {
    let mut cluster = in_sync();
    let old = replace_secondary(&mut cluster);
    shut_down(&mut cluster, SECONDARY);
    cluster.replace_disk(SECONDARY, old);
    restart(&mut cluster, SECONDARY);
    until_in_sync(&mut cluster);
    assert_eq!(stable(&cluster, SECONDARY).content, Some(LATER));
}

/// Neither disk is mounted, both new stores get in sync, and then one of the disks is mounted again.
/// The other node's new store must not overwrite it. With both disks, everything is as before.
#[test]
fn a_copy_of_another_store_is_left_as_it_is() {
    for back in [PRIMARY, SECONDARY] {
        let mut cluster = in_sync();
        shut_down_both(&mut cluster);
        let disks = Side::BOTH.map(|side| cluster.empty_disk(side));
        start_in_sync(&mut cluster);
        make_file(&mut cluster, WRONG);
        shut_down(&mut cluster, back);
        cluster.replace_disk(back, back.of(&disks).fork());
        let left = stable(&cluster, SECONDARY).content;
        restart(&mut cluster, back);
        assert_refused(&mut cluster, "a copy of another store");
        let found = stable(&cluster, SECONDARY).content;
        assert_eq!(found, left, "{back:?}");
        assert!(is_stably_in_sync(&cluster, SECONDARY), "{back:?}");
        shut_down_both(&mut cluster);
        for (side, disk) in Side::BOTH.into_iter().zip(disks) {
            cluster.replace_disk(side, disk);
        }
        start_in_sync(&mut cluster);
        assert_eq!(read(&mut cluster), Ok(Some(FIRST)));
        assert_eq!(stable(&cluster, SECONDARY).content, Some(FIRST));
    }
}

#[track_caller]
fn shut_down_both(cluster: &mut ScriptedCluster) {
    shut_down(cluster, SECONDARY);
    shut_down(cluster, PRIMARY);
}

/// Gives the secondary an empty disk, which a resync fills, and writes to the file. Returns the old
/// disk.
#[track_caller]
fn replace_secondary(cluster: &mut ScriptedCluster) -> Disk {
    shut_down(cluster, SECONDARY);
    let old = cluster.empty_disk(SECONDARY);
    restart(cluster, SECONDARY);
    until_in_sync(cluster);
    assert_eq!(write(cluster, LATER, true), Ok(()));
    old
}

/// Returns a copy of the primary's disk, made during a clean shutdown.
#[track_caller]
fn copy_primary(cluster: &mut ScriptedCluster) -> Disk {
    shut_down(cluster, PRIMARY);
    let copy = cluster.disk(PRIMARY).fork();
    restart(cluster, PRIMARY);
    until_in_sync(cluster);
    copy
}

/// Asserts that the secondary refuses the primary for a long time, and that the primary says why.
#[track_caller]
fn assert_refused(cluster: &mut ScriptedCluster, why: &str) {
    start_until_it_runs(cluster, PRIMARY);
    start_until_it_runs(cluster, SECONDARY);
    cluster.run_for(LONG).unwrap();
    let reason = status(cluster, PRIMARY).sync.reason.unwrap();
    assert!(reason.contains(why), "{reason}");
}

#[test]
fn an_older_copy_of_the_primary_does_not_overwrite_the_secondary() {
    let mut cluster = in_sync();
    let old = copy_primary(&mut cluster);
    replace_secondary(&mut cluster);
    shut_down(&mut cluster, PRIMARY);
    let newer = cluster.replace_disk(PRIMARY, old);
    restart(&mut cluster, PRIMARY);
    assert_refused(&mut cluster, "an older copy");
    assert_eq!(stable(&cluster, SECONDARY).content, Some(LATER));
    shut_down(&mut cluster, PRIMARY);
    cluster.replace_disk(PRIMARY, newer);
    restart(&mut cluster, PRIMARY);
    until_in_sync(&mut cluster);
    assert_eq!(read(&mut cluster), Ok(Some(LATER)));
}

#[test]
fn an_older_copy_of_the_primary_is_refused_after_an_unfinished_resync() {
    let mut cluster = in_sync();
    let old = copy_primary(&mut cluster);
    let away = replace_secondary(&mut cluster);
    shut_down(&mut cluster, SECONDARY);
    cluster.replace_disk(SECONDARY, away);
    restart(&mut cluster, SECONDARY);
    until(&mut cluster, "a resync has begun", |cluster| {
        names(cluster, SECONDARY) == names(cluster, PRIMARY)
    });
    assert!(!cluster.is_in_sync());
    kill(&mut cluster, SECONDARY);
    kill(&mut cluster, PRIMARY);
    cluster.replace_disk(PRIMARY, old);
    cluster.start_both();
    assert_refused(&mut cluster, "an older copy");
}

/// An empty secondary has nothing to lose.
#[test]
fn an_empty_copy_follows_any_primary() {
    let mut cluster = two_nodes(OnPeerLoss::Continue);
    start_in_sync(&mut cluster);
    shut_down(&mut cluster, PRIMARY);
    cluster.empty_disk(PRIMARY);
    restart(&mut cluster, PRIMARY);
    until_in_sync(&mut cluster);
    make_file(&mut cluster, FIRST);
    assert_eq!(stable(&cluster, SECONDARY).content, Some(FIRST));
}
