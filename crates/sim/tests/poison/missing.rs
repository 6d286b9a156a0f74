//! A disk that is not mounted: an empty store lies in its place.

use std::time::Duration;

use super::pair::{Client, Pair, Side};

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
        pair.run_for(LONG);
        let reason = pair.primary.status().reason.unwrap();
        assert!(reason.contains("the primary's store is new"), "{reason}");
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
    pair.stop(Side::Secondary);
    let away = pair.secondary.get_new_disk();
    pair.restart(Side::Secondary);
    pair.until_in_sync();
    assert_eq!(pair.client(|client| client.write(b"later", true)), Ok(()));
    pair.stop(Side::Secondary);
    pair.secondary.disk = away;
    pair.restart(Side::Secondary);
    pair.until_in_sync();
    assert_eq!(pair.secondary.stable().1.unwrap(), b"later");
}

/// Neither disk is mounted, both new stores get in sync, and then one of the disks is back: what is on it
/// is nothing to the other node's store.
#[test]
fn a_copy_of_another_store_is_left_as_it_is() {
    for back in [Side::Primary, Side::Secondary] {
        let mut pair = Pair::in_sync();
        pair.stop(Side::Secondary);
        pair.stop(Side::Primary);
        let disks = [pair.primary.get_new_disk(), pair.secondary.get_new_disk()];
        pair.restart(Side::Primary);
        pair.restart(Side::Secondary);
        pair.until_in_sync();
        assert_eq!(pair.client(Client::create), Ok(()));
        assert_eq!(pair.client(|client| client.write(b"wrong", true)), Ok(()));
        pair.stop(back);
        let [primary, secondary] = disks;
        match back {
            Side::Primary => pair.primary.disk = primary,
            Side::Secondary => pair.secondary.disk = secondary,
        }
        let left = pair.secondary.stable().1;
        pair.restart(back);
        pair.start_until_it_runs(back);
        pair.run_for(LONG);
        let reason = pair.primary.status().reason.unwrap();
        assert!(reason.contains("a copy of another store"), "{reason}");
        assert_eq!(pair.secondary.stable().1, left, "{back:?}");
    }
}
