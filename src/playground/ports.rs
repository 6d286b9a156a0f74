//! Free loopback ports for the nodes.
//!
//! They lie below the range from which the kernel takes ports for outgoing connections: a node's
//! port stays its own while the node is dead, and a peer that tries to reach it can never be given
//! that very port and so connect to itself.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Result, ensure};

/// The lowest port that is tried.
const LOWEST: u16 = 10_000;

/// Where the kernel says from which range it takes ports for outgoing connections.
const OUTGOING_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// What it is when the kernel does not say.
const OUTGOING_DEFAULT: u16 = 32_768;

/// `count` different free ports of the loopback address.
pub(super) fn free_ports(count: usize) -> Result<Vec<SocketAddr>> {
    // All are held until all are found, so that they differ.
    let held: Vec<TcpListener> = candidates()
        .filter_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
        .take(count)
        .collect();
    ensure!(
        held.len() == count,
        "there are not enough free ports on the loopback address\n  \
         cure: stop other playgrounds"
    );
    Ok(held
        .iter()
        .map(TcpListener::local_addr)
        .collect::<Result<_, _>>()?)
}

/// The ports to try, beginning at one that depends on the process, so that playgrounds started at
/// the same moment look in different places.
fn candidates() -> impl Iterator<Item = u16> {
    let end = outgoing_start().max(LOWEST + 1);
    let room = u32::from(end - LOWEST);
    let start = std::process::id().wrapping_mul(97) % room;
    let nth = move |step| u16::try_from((start + step) % room).unwrap_or(0) + LOWEST;
    (0..room).map(nth)
}

fn outgoing_start() -> u16 {
    std::fs::read_to_string(OUTGOING_RANGE)
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(OUTGOING_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_different_and_free() {
        let ports = free_ports(4).unwrap();
        let listeners: Vec<_> = ports
            .iter()
            .map(|port| TcpListener::bind(port).unwrap())
            .collect();
        assert_eq!(listeners.len(), 4);
    }
}
