//! A disk that is not mounted: an empty store lies in its place.

use std::time::Duration;

use lockstep_lossy::disk::Disk;
use lockstep_types::settings::OnPeerLoss;

use super::pair::{Client, Half, Pair, Side};

/// For longer than any attempt to connect takes, and the pause after it.
const LONG: Duration = Duration::from_secs(30);

/// Whatever is made in it meanwhile: it is the primary's, but nothing of it was ever on the other node.
#[test]
fn a_new_store_is_never_carried_over_what_the_other_node_has() {
    for is_used in [false, true] {
        let mut pair = Pair::in_sync();
        pair.kill(Side::Primary);
        let good = pair.secondary.stable();
        let mounted = pair.primary.get_new_disk();
        pair.start(Side::Primary);
        pair.start_until_it_runs(Side::Primary);
        if is_used {
            assert_eq!(pair.client(|client| client.create_named(b"new")), Ok(()));
            assert_eq!(pair.client(Client::create), Ok(()));
            assert_eq!(pair.client(|client| client.write(b"wrong", true)), Ok(()));
        }
        refused(&mut pair, "the primary's store is new");
        assert_eq!(pair.secondary.stable(), good, "used: {is_used}");
        pair.kill(Side::Primary);
        pair.primary.disk = mounted;
        pair.start(Side::Primary);
        pair.until_in_sync();
        assert_eq!(pair.client(Client::read), Ok(b"first".to_vec()));
        assert_eq!(pair.secondary.stable().1.unwrap(), b"first");
    }
}

/// A copy in whose place another was in sync for a time has nothing of what was written then, whatever its
/// mark says. Writes alone leave no trace in the order of metadata operations.
#[test]
fn a_copy_that_was_away_while_another_was_in_sync_is_not_taken_for_it() {
    let mut pair = Pair::in_sync();
    let away = replace_secondary(&mut pair);
    pair.stop(Side::Secondary);
    pair.secondary.disk = away;
    pair.restart(Side::Secondary);
    pair.until_in_sync();
    assert_eq!(pair.secondary.stable().1.unwrap(), b"later");
}

/// Neither disk is mounted, both new stores get in sync, and then one of the disks is back: what is on it
/// is nothing to the other node's store. When both are, everything is as it was.
#[test]
fn a_copy_of_another_store_is_left_as_it_is() {
    for back in [Side::Primary, Side::Secondary] {
        let mut pair = Pair::in_sync();
        pair.stop(Side::Secondary);
        pair.stop(Side::Primary);
        let primary = pair.primary.get_new_disk();
        let secondary = pair.secondary.get_new_disk();
        pair.restart(Side::Primary);
        pair.restart(Side::Secondary);
        pair.until_in_sync();
        assert_eq!(pair.client(Client::create), Ok(()));
        assert_eq!(pair.client(|client| client.write(b"wrong", true)), Ok(()));
        pair.stop(back);
        match back {
            Side::Primary => pair.primary.disk = primary.fork(),
            Side::Secondary => pair.secondary.disk = secondary.fork(),
        }
        let left = pair.secondary.stable().1;
        pair.restart(back);
        refused(&mut pair, "a copy of another store");
        let (role, bytes) = pair.secondary.stable();
        assert_eq!(bytes, left, "{back:?}");
        assert!(role.contains("\"in_sync\": true"), "{role}");
        pair.stop(Side::Secondary);
        pair.stop(Side::Primary);
        pair.primary.disk = primary;
        pair.secondary.disk = secondary;
        pair.restart(Side::Primary);
        pair.restart(Side::Secondary);
        pair.until_in_sync();
        assert_eq!(pair.client(Client::read), Ok(b"first".to_vec()));
        assert_eq!(pair.secondary.stable().1.unwrap(), b"first");
    }
}

/// The secondary gets an empty disk, which a resync fills, and the file is written. Gives the disk it had.
#[track_caller]
fn replace_secondary(pair: &mut Pair) -> Disk {
    pair.stop(Side::Secondary);
    let away = pair.secondary.get_new_disk();
    pair.restart(Side::Secondary);
    pair.until_in_sync();
    assert_eq!(pair.client(|client| client.write(b"later", true)), Ok(()));
    away
}

/// The primary's disk as it is when its node is stopped in order, which then goes on.
#[track_caller]
fn copy_primary(pair: &mut Pair) -> Disk {
    pair.stop(Side::Primary);
    let copy = pair.primary.disk.fork();
    pair.restart(Side::Primary);
    pair.until_in_sync();
    copy
}

/// The secondary refuses the primary for long, and the primary says why.
#[track_caller]
fn refused(pair: &mut Pair, why: &str) {
    pair.start_until_it_runs(Side::Primary);
    pair.start_until_it_runs(Side::Secondary);
    pair.run_for(LONG);
    let reason = pair.primary.status().reason.unwrap();
    assert!(reason.contains(why), "{reason}");
}

/// A copy that is left of the primary's store from some time ago, started in place of it.
#[test]
fn an_older_copy_of_the_primary_is_not_carried_over_the_secondary() {
    let mut pair = Pair::in_sync();
    let old = copy_primary(&mut pair);
    replace_secondary(&mut pair);
    pair.stop(Side::Primary);
    let newer = std::mem::replace(&mut pair.primary.disk, old);
    pair.restart(Side::Primary);
    refused(&mut pair, "an older copy");
    assert_eq!(pair.secondary.stable().1.unwrap(), b"later");
    pair.stop(Side::Primary);
    pair.primary.disk = newer;
    pair.restart(Side::Primary);
    pair.until_in_sync();
    assert_eq!(pair.client(Client::read), Ok(b"later".to_vec()));
}

/// Also if the last resync was begun and not ended.
#[test]
fn nor_if_the_last_resync_was_cut_off() {
    let mut pair = Pair::in_sync();
    let old = copy_primary(&mut pair);
    let away = replace_secondary(&mut pair);
    pair.stop(Side::Secondary);
    pair.secondary.disk = away;
    pair.restart(Side::Secondary);
    pair.until("a resync is begun", |pair| {
        pair.secondary.names() == pair.primary.names()
    });
    assert!(!pair.is_in_sync());
    pair.kill(Side::Secondary);
    pair.kill(Side::Primary);
    pair.primary.disk = old;
    pair.restart(Side::Primary);
    pair.restart(Side::Secondary);
    refused(&mut pair, "an older copy");
}

/// There is nothing on the secondary that could be lost.
#[test]
fn an_empty_copy_follows_any_primary() {
    let mut pair = Pair::new(OnPeerLoss::Continue);
    pair.start(Side::Primary);
    pair.start(Side::Secondary);
    pair.until_in_sync();
    pair.stop(Side::Primary);
    pair.primary.get_new_disk();
    pair.restart(Side::Primary);
    pair.until_in_sync();
    assert_eq!(pair.client(Client::create), Ok(()));
    assert_eq!(pair.client(|client| client.write(b"first", true)), Ok(()));
    assert_eq!(pair.secondary.stable().1.unwrap(), b"first");
}

/// A version that gave no names has left both stores in sync: they are compared once, and have names then.
#[test]
fn stores_without_names_are_compared_once() {
    let mut pair = Pair::in_sync();
    for side in [Side::Secondary, Side::Primary] {
        pair.stop(side);
        pair.half(side).forget_names();
    }
    assert_eq!(pair.secondary.names(), None);
    pair.restart(Side::Primary);
    pair.restart(Side::Secondary);
    pair.until_in_sync();
    let [here, there] = [&pair.primary, &pair.secondary].map(Half::names);
    assert!(
        here.as_ref().is_some_and(|names| names.contains("sync")),
        "{here:?}"
    );
    assert_eq!(here, there);
}

/// And a copy of that time that comes only after that is not taken for one of this store.
#[test]
fn a_copy_without_a_name_is_left_as_it_is() {
    let mut pair = Pair::in_sync();
    pair.stop(Side::Secondary);
    pair.secondary.forget_names();
    pair.restart(Side::Secondary);
    refused(&mut pair, "a copy of another store");
    assert_eq!(pair.secondary.stable().1.unwrap(), b"first");
}
