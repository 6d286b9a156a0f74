//! The cluster address of a datastore, for as much as this node has to know of it: a planned failover waits until the address
//! has left this server, so that no client reaches a server that does not serve any more.
//!
//! keepalived moves the address by the answers of `lockstep health`, and that command tells the node which address its
//! answers move. Before a planned failover the node answers that its role is about to change. keepalived then takes the
//! address off this server, and this node looks for that.
//!
//! Nothing here moves an address.
//!
//! Invariants:
//! - A node whose answers move no address, or whose server does not have the address, waits for nothing.
//! - Every wait has a bound.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use lockstep_driver::report::{AddressDeparture, ClusterStatus, ServiceStatus, SyncStatus};
use lockstep_types::time::millis;
use parking_lot::Mutex;

use super::nfs_probe::NfsProbe;

/// The time for which a note of an address holds. keepalived asks once a second, and a busy server may delay it.
const NOTE_HOLDS_FOR: Duration = Duration::from_secs(5);
/// The longest wait for the address to leave. keepalived needs about a quarter of a second, and two seconds if its script
/// has to be ended.
pub(super) const LEAVE_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct FollowedAddress {
    note: Mutex<Note>,
    nfs: NfsProbe,
}

/// The knowledge of this node.
#[derive(Debug, Default)]
struct Note {
    /// The address that the answers of this node move, and the time of the last such question.
    followed: Option<(IpAddr, Instant)>,
    /// Whether an NFS server is behind the address.
    has_nfs: bool,
    /// Where the address was at the last look.
    place: Option<Whereabouts>,
    /// The planned failovers that wait for the address to leave, or go on after that.
    departures: usize,
    /// The last time at which the answer of this node changed because of a departure.
    changed: Option<Instant>,
}

/// Whether this server has the address, and since which look.
#[derive(Clone, Copy, Debug)]
struct Whereabouts {
    here: bool,
    since: Instant,
}

impl Note {
    /// Notes whether this server has the address now. Returns since when it is so, as far as this node has looked.
    fn see(&mut self, here: bool, now: Instant) -> Whereabouts {
        let seen = self.place.filter(|place| place.here == here);
        let place = seen.unwrap_or(Whereabouts { here, since: now });
        self.place = Some(place);
        place
    }
}

impl FollowedAddress {
    /// Notes that the answers of this node move the address now, and whether an NFS server is behind it.
    pub(super) fn follow(&self, address: IpAddr, has_nfs: bool) {
        let mut note = self.note.lock();
        note.followed = Some((address, Instant::now()));
        note.has_nfs = has_nfs;
    }

    /// Looks where the address is, and whether the NFS server behind it answers, while this server has the address.
    pub(super) fn look(&self, service: impl FnOnce() -> ServiceStatus) {
        let Note {
            followed, has_nfs, ..
        } = *self.note.lock();
        if let Some((address, _)) = followed {
            self.place(address);
        }
        let here = if has_nfs { self.here() } else { None };
        self.nfs.look(here.map(|ip| (ip, service())));
    }

    fn place(&self, address: IpAddr) -> Whereabouts {
        let here = is_here(address);
        self.note.lock().see(here, Instant::now())
    }

    /// The status of the address, also if keepalived asks no more.
    fn status(&self) -> Option<ClusterStatus> {
        let (address, asked) = self.note.lock().followed?;
        let Whereabouts { here, since } = self.place(address);
        Some(ClusterStatus {
            address: address.to_string(),
            here,
            moved_ms: millis(since.elapsed()),
            asked_ms: millis(asked.elapsed()),
            nfs_silent_ms: self.nfs.silent_ms(),
        })
    }

    /// The address, if the answers of this node move it and this server has it.
    pub(super) fn here(&self) -> Option<IpAddr> {
        let (address, noted) = self.note.lock().followed?;
        let is_followed = noted.elapsed() < NOTE_HOLDS_FOR;
        (is_followed && is_here(address)).then_some(address)
    }

    /// Begins to answer that the role of this node is about to change.
    pub(super) fn depart(&self, address: IpAddr) -> Departure<'_> {
        let mut note = self.note.lock();
        note.departures += 1;
        note.changed = Some(Instant::now());
        Departure {
            note: &self.note,
            address,
        }
    }

    /// Adds the address and its departure to a status.
    pub(super) fn amend(&self, status: &mut SyncStatus) {
        status.cluster = self.status();
        let note = self.note.lock();
        let Some(changed) = note.changed else { return };
        if note.departures > 0 {
            status.service = ServiceStatus::None;
            status.restart_within_ms = None;
            status.service_since_ms = millis(changed.elapsed());
        } else {
            status.service_since_ms = status.service_since_ms.min(millis(changed.elapsed()));
        }
    }
}

/// A planned failover for which the address leaves. A drop ends it: from then on the role alone decides the answer.
pub(super) struct Departure<'a> {
    note: &'a Mutex<Note>,
    address: IpAddr,
}

impl Departure<'_> {
    /// Waits until this server does not have the address, for [`LEAVE_LIMIT`] at most, and not beyond `is_over`.
    pub(super) fn wait(&self, is_over: impl Fn() -> bool) -> AddressDeparture {
        wait(|| !is_here(self.address), is_over, LEAVE_LIMIT)
    }
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        let mut note = self.note.lock();
        note.departures -= 1;
        note.changed = Some(Instant::now());
    }
}

fn wait(
    has_left: impl Fn() -> bool,
    is_over: impl Fn() -> bool,
    limit: Duration,
) -> AddressDeparture {
    let begin = Instant::now();
    loop {
        let left = has_left();
        let waited = begin.elapsed();
        if left || waited >= limit || is_over() {
            let waited_ms = millis(waited);
            return AddressDeparture { left, waited_ms };
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Whether this server has the address. A server whose addresses cannot be read has none that a failover could wait for.
fn is_here(address: IpAddr) -> bool {
    let found = match address {
        IpAddr::V4(ip) => read("fib_trie").map(|text| is_in_trie(&text, &ip.to_string())),
        IpAddr::V6(ip) => {
            let digits = format!("{:032x}", ip.to_bits());
            read("if_inet6").map(|text| text.lines().any(|line| line.starts_with(&digits)))
        }
    };
    found.unwrap_or_else(|error| {
        tracing::warn!(%address, %error, "cannot read the addresses of this server");
        false
    })
}

/// Reads a table of the network. A socket cannot tell instead: with `ip_nonlocal_bind` the kernel binds to any address.
fn read(table: &str) -> io::Result<String> {
    fs::read_to_string(format!("/proc/thread-self/net/{table}"))
}

/// Whether the routes of the kernel have this address as one of this server: `|-- ADDRESS`, and its kinds below.
fn is_in_trie(text: &str, address: &str) -> bool {
    let mut is_below = false;
    text.lines().map(str::trim).any(|line| {
        match line.strip_prefix("|-- ") {
            Some(leaf) => is_below = leaf == address,
            None if line.starts_with("+-- ") => is_below = false,
            None => return is_below && line == "/32 host LOCAL",
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use lockstep_driver::report::CopyStatus;

    use super::*;

    const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];

    #[test]
    fn only_the_addresses_of_this_server_are_here() {
        // A machine may have no IPv6.
        let own = LOOPBACK.map(|text| text.parse::<IpAddr>().unwrap());
        let known = own
            .iter()
            .filter(|ip| std::net::UdpSocket::bind((**ip, 0)).is_ok());
        for ip in known {
            assert!(is_here(*ip), "{ip}");
        }
        for text in ["192.0.2.77", "127.0.0.0", "127.255.255.255", "2001:db8::77"] {
            assert!(!is_here(text.parse().unwrap()), "{text}");
        }
    }

    /// A second address of an interface, the network of the first, and an address behind a router.
    #[test]
    fn an_address_of_the_trie_counts_only_as_one_of_this_server() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                    \x20    +-- 192.0.2.0/24 2 0 2\n        |-- 192.0.2.0\n           /24 link UNICAST\n\
                    \x20    |-- 192.0.2.9\n        /32 universe UNICAST\nLocal:\n  +-- 192.0.2.0/28 2 0 2\n\
                    \x20    |-- 192.0.2.1\n        /32 host LOCAL\n     |-- 192.0.2.10\n        /32 host LOCAL\n\
                    \x20 |-- 192.0.2.255\n     /32 link BROADCAST\n";
        for own in ["192.0.2.1", "192.0.2.10"] {
            assert!(is_in_trie(trie, own), "{own}");
        }
        for other in [
            "192.0.2.0",
            "192.0.2.9",
            "192.0.2.255",
            "192.0.2.11",
            "0.0.0.0",
        ] {
            assert!(!is_in_trie(trie, other), "{other}");
        }
    }

    #[test]
    fn a_failover_waits_only_for_an_address_that_moves_by_its_answers_and_is_here() {
        let address = FollowedAddress::default();
        assert_eq!(address.here(), None);
        address.follow("192.0.2.77".parse().unwrap(), false);
        assert_eq!(address.here(), None);
        let own = LOOPBACK[0].parse().unwrap();
        address.follow(own, false);
        assert_eq!(address.here(), Some(own));
        address.note.lock().followed = Instant::now()
            .checked_sub(NOTE_HOLDS_FOR)
            .map(|long_ago| (own, long_ago));
        assert_eq!(address.here(), None, "nobody asks any more");
    }

    #[test]
    fn an_address_is_where_it_is_since_the_look_that_first_saw_it() {
        let mut note = Note::default();
        let [first, second, third] = [0, 3, 6].map(|s| Instant::now() + Duration::from_secs(s));
        assert_eq!(note.see(true, first).since, first);
        assert_eq!(note.see(true, second).since, first);
        assert_eq!(note.see(false, second).since, second);
        assert_eq!(note.see(false, third).since, second);
    }

    #[test]
    fn the_wait_ends_with_the_departure_with_its_limit_and_with_the_node() {
        let looks = AtomicUsize::new(0);
        let third = || looks.fetch_add(1, Ordering::Relaxed) == 2;
        let never = || false;
        assert!(wait(third, never, LEAVE_LIMIT).left);
        let stayed = wait(never, never, Duration::from_millis(20));
        assert!(!stayed.left && stayed.waited_ms >= 20, "{stayed:?}");
        assert!(!wait(never, || true, LEAVE_LIMIT).left);
    }

    #[test]
    fn a_status_shows_the_departure_until_the_failover_is_over() {
        let mut status = SyncStatus {
            state: "synced and connected".to_owned(),
            service: ServiceStatus::Mirrored,
            service_since_ms: 3_600_000,
            restart_within_ms: Some(900),
            in_sync: true,
            copy: CopyStatus {
                marked_in_sync: true,
                complete: true,
                write_verifier: Some(7),
                ..CopyStatus::default()
            },
            since_ms: 3_600_000,
            barrier_since_ms: None,
            reason: None,
            started: true,
            disk_stall: None,
            cluster: None,
        };
        let address = FollowedAddress::default();
        let before = status.clone();
        address.amend(&mut status);
        assert_eq!(status, before);
        let departure = address.depart("192.0.2.77".parse().unwrap());
        address.amend(&mut status);
        assert_eq!(status.service, ServiceStatus::None);
        assert!(status.service_since_ms < 3_600_000, "the answer is fresh");
        drop(departure);
        let mut after = before;
        address.amend(&mut after);
        assert_eq!(after.service, ServiceStatus::Mirrored);
        assert!(
            after.service_since_ms < 3_600_000,
            "the answer is fresh again"
        );
    }
}
