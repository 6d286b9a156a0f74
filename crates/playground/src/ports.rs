//! Free loopback ports for the nodes.
//!
//! The ports lie below the range from which the kernel takes ports for outgoing connections. So the port of a dead
//! node stays free for it, and a connecting peer cannot get that port as its own and connect to itself.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};

/// The lowest port that is tried.
const LOWEST: u16 = 10_000;

/// The file with the range of ports for outgoing connections.
const OUTGOING_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// The start of that range if the file cannot be read.
const OUTGOING_DEFAULT: u16 = 32_768;

/// Distance between the first ports of two searches of one process.
const STRIDE: u32 = 16;
/// Number of searches that this process has made.
static SEARCHES: AtomicU32 = AtomicU32::new(0);

/// `count` different free ports of the loopback address.
pub(crate) fn free_ports(count: usize) -> Result<Vec<SocketAddr>> {
    // Every port is held until all are found, so that they differ.
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

/// The ports to try. The first one depends on the process and on the number of its searches, so that simultaneous
/// searches begin at different ports.
fn candidates() -> impl Iterator<Item = u16> {
    let end = outgoing_start().max(LOWEST + 1);
    let room = u32::from(end - LOWEST);
    let searches = SEARCHES.fetch_add(1, Ordering::Relaxed);
    let of_process = std::process::id().wrapping_mul(97);
    let start = of_process.wrapping_add(searches.wrapping_mul(STRIDE)) % room;
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn ports_are_different_and_free() {
        let ports = free_ports(4).unwrap();
        let listeners: Vec<_> = ports.iter().map(|port| bind(*port).unwrap()).collect();
        assert_eq!(listeners.len(), 4);
    }

    /// Tries again while another test, or a program that a test has just started, holds the port for a moment.
    fn bind(port: SocketAddr) -> std::io::Result<TcpListener> {
        let taken = |error: &std::io::Error| error.kind() == std::io::ErrorKind::AddrInUse;
        for _ in 0..1000 {
            match TcpListener::bind(port) {
                Err(error) if taken(&error) => std::thread::sleep(Duration::from_millis(1)),
                bound => return bound,
            }
        }
        TcpListener::bind(port)
    }
}
