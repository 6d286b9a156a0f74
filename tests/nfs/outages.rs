//! Outages of the servers while a virtual machine works on its disk.

use crate::guest::{Guest, assert_disk};
use crate::nodes::Which::{self, Primary as A, Secondary as B};
use crate::operator::{assert_identical, await_in_sync, other};
use crate::site::{Move, Site};

/// The server of the primary dies: Ganesha, the node, and the way to them.
fn kill(site: &mut Site, which: Which) {
    site.address.silence();
    site.ganesha_mut(which).kill();
    site.pair.node_mut(which).kill();
    site.move_from(which, Move::Automatic);
}

/// The server of a node that was killed comes back.
fn bring_back(site: &mut Site, which: Which, generation: u64) {
    site.pair.node_mut(which).start();
    await_in_sync(&mut site.pair, other(which), generation);
    site.restart_ganesha(which);
}

/// The server of the primary is cut from the other server, from the witness and from the clients, and works on. When the cut ends, the
/// node becomes the secondary by itself.
fn isolate(site: &mut Site, which: Which, generation: u64) {
    site.address.silence();
    site.isolate(which, true);
    site.move_from(which, Move::Automatic);
    site.isolate(which, false);
    await_in_sync(&mut site.pair, other(which), generation);
}

/// The service moves in each way, and the virtual machine gets no error and finds every record.
pub fn a_guest_survives(site: &mut Site) {
    let mut guest = Guest::start(site);
    site.move_from(A, Move::Planned);
    guest.await_progress();
    await_in_sync(&mut site.pair, B, 2);

    site.await_protected(B);
    kill(site, B);
    guest.await_progress();
    bring_back(site, B, 3);
    guest.await_progress();

    site.await_protected(A);
    isolate(site, A, 4);
    guest.await_progress();
    site.restart_ganesha(A);

    site.move_from(B, Move::Planned);
    guest.await_progress();
    let last = guest.end();
    println!("records: {last:?}");
    assert_disk(&site.pair.node(A).mount(), &last);
    await_in_sync(&mut site.pair, A, 5);
    assert_identical(site.pair.node(A));
    site.move_from(A, Move::Planned);
    assert_disk(&site.pair.node(B).mount(), &last);
}
