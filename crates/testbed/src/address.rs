//! Addresses of the loopback network, one for each test.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::wait::await_that;

/// An address of the loopback network that no other test and no foreign connection uses: outgoing connections there come
/// from 127.0.0.1.
pub fn own_address() -> IpAddr {
    static TESTS: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let test = TESTS.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::new(127, 100 + test % 150, high, low).into()
}

/// Gives a port back that was held, so that a server can have it. A process that another test starts has a copy of the port for a
/// moment.
pub(crate) fn release(held: TcpListener) {
    let address = held.local_addr().unwrap();
    drop(held);
    await_that("a port that was held", || {
        TcpListener::bind(address).is_ok()
    });
}
