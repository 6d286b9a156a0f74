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
