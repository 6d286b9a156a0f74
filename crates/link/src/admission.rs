//! Admission of connections whose peer is not authenticated yet: for the port of a node, and for that of a witness.
//!
//! Each such connection holds two open files, the memory of a TLS handshake, and a thread or a task. Any program on the
//! network can connect, so the number of such connections is bounded. Otherwise unauthenticated peers could exhaust what
//! this process needs.
//!
//! Invariants:
//! - At most [`PENDING_MAX`] connections are being authenticated, at most [`SOURCE_PENDING_MAX`] of them from one source,
//!   and at most [`ADMITTED_MAX`] are not given up by their threads.
//! - A new connection always finds a place, in that of a connection that stays pending: a configured peer authenticates at
//!   once. One source takes no place of another one before it has as many as that other.
//! - A connection from a source that has authenticated before makes room only for another such connection.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};

/// Most connections that are being authenticated at a time. A node has a few peers, which connect again every
/// fraction of a second.
const PENDING_MAX: usize = 64;

/// Most connections of one source that are being authenticated at a time.
const SOURCE_PENDING_MAX: usize = 16;

/// Most admitted connections whose guard still exists, including connections that were closed for a newer one.
const ADMITTED_MAX: usize = 2 * PENDING_MAX;

/// Most sources that are remembered as authenticated.
const KNOWN_MAX: usize = 256;

/// The source of a connection: an IPv4 address, or a network of 64 bits in IPv6, in which one host has all addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSource(IpAddr);

impl From<IpAddr> for ConnectionSource {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let network = address.to_bits() >> 64 << 64;
                IpAddr::V6(Ipv6Addr::from_bits(network))
            }
            address => address,
        })
    }
}

impl fmt::Display for ConnectionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V6(network) if !network.is_loopback() => write!(f, "{network}/64"),
            address => address.fmt(f),
        }
    }
}

/// Limits the connections whose peer is not authenticated yet.
#[derive(Debug, Default)]
pub struct PreAuthLimiter(Mutex<PreAuthState>);

#[derive(Debug, Default)]
struct PreAuthState {
    /// Connections that are being authenticated, in the order of their arrival.
    pending: VecDeque<PendingPeer>,
    /// Sources from which a peer has authenticated, the latest last.
    known: VecDeque<ConnectionSource>,
    /// Guards that exist: of pending connections, and of those that were closed.
    admitted: usize,
    arrivals: u64,
}

#[derive(Debug)]
struct PendingPeer {
    number: u64,
    source: ConnectionSource,
    socket: OwnedFd,
}

/// The place of one connection, until this is dropped.
#[derive(Debug)]
pub struct AdmissionGuard {
    limiter: Arc<PreAuthLimiter>,
    number: u64,
    source: ConnectionSource,
}

impl PreAuthLimiter {
    /// Admits a connection from this address. If too many connections are pending, closes one of them. `None` if too many
    /// guards exist, or if the connection is to make no room for itself.
    ///
    /// # Errors
    /// When the socket cannot be duplicated.
    pub fn enter(
        self: &Arc<Self>,
        socket: &impl AsFd,
        from: IpAddr,
    ) -> io::Result<Option<AdmissionGuard>> {
        let source = ConnectionSource::from(from);
        let socket = socket.as_fd().try_clone_to_owned()?;
        let mut state = self.0.lock();
        if state.admitted >= ADMITTED_MAX || !state.make_room(source) {
            return Ok(None);
        }
        state.arrivals += 1;
        let number = state.arrivals;
        state.pending.push_back(PendingPeer {
            number,
            source,
            socket,
        });
        state.admitted += 1;
        let limiter = Arc::clone(self);
        Ok(Some(AdmissionGuard {
            limiter,
            number,
            source,
        }))
    }
}

impl PreAuthState {
    /// Closes a pending connection if a new one from this source is one too many. `false` if only connections of sources are
    /// pending that have authenticated before, and this one has not.
    fn make_room(&mut self, source: ConnectionSource) -> bool {
        let given_up = if self.pending_of(source) >= SOURCE_PENDING_MAX {
            self.pending.iter().position(|peer| peer.source == source)
        } else if self.pending.len() >= PENDING_MAX {
            // The last of several equal maxima: in the reverse order, the longest pending one.
            let numbered = self.pending.iter().enumerate().rev();
            let of_source =
                |peer: &PendingPeer| (!self.is_known(peer.source), self.pending_of(peer.source));
            numbered
                .max_by_key(|(_, peer)| of_source(peer))
                .map(|(index, _)| index)
        } else {
            None
        };
        let yields = |index: usize| self.pending.get(index).map(|peer| peer.source);
        let yields = given_up.and_then(yields);
        if yields.is_some_and(|other| self.is_known(other) && !self.is_known(source)) {
            return false;
        }
        if let Some(peer) = given_up.and_then(|index| self.pending.remove(index)) {
            // An error means that the peer has closed the connection: then its thread ends, too.
            let _closed = shutdown(&peer.socket, Shutdown::Both);
        }
        true
    }

    fn pending_of(&self, source: ConnectionSource) -> usize {
        let pending = self.pending.iter();
        pending.filter(|peer| peer.source == source).count()
    }

    fn is_known(&self, source: ConnectionSource) -> bool {
        self.known.contains(&source)
    }

    fn note_known(&mut self, source: ConnectionSource) {
        self.known.retain(|known| *known != source);
        if self.known.len() >= KNOWN_MAX {
            self.known.pop_front();
        }
        self.known.push_back(source);
    }
}

impl AdmissionGuard {
    /// Ends the admission of a connection whose peer has authenticated. The peers that can are configured, so their number
    /// is small.
    pub fn authenticated(self) {
        self.limiter.0.lock().note_known(self.source);
    }

    /// The source of the connection.
    pub const fn source(&self) -> ConnectionSource {
        self.source
    }
}

impl Drop for AdmissionGuard {
    fn drop(&mut self) {
        let mut state = self.limiter.0.lock();
        state.pending.retain(|peer| peer.number != self.number);
        state.admitted -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    /// A connection at a limiter, and its client.
    struct Entered {
        guard: AdmissionGuard,
        client: TcpStream,
        _server: TcpStream,
    }

    impl Entered {
        /// Whether the limiter has closed the connection.
        fn is_closed(&mut self) -> bool {
            self.client.set_nonblocking(true).unwrap();
            match self.client.read(&mut [0]) {
                Ok(bytes) => bytes == 0,
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    struct Site {
        listener: TcpListener,
        limiter: Arc<PreAuthLimiter>,
    }

    impl Site {
        fn new() -> Self {
            Self {
                listener: TcpListener::bind("127.0.0.1:0").unwrap(),
                limiter: Arc::default(),
            }
        }

        fn enter(&self, from: IpAddr) -> Entered {
            let client = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
            let server = self.listener.accept().unwrap().0;
            Entered {
                guard: self.limiter.enter(&server, from).unwrap().unwrap(),
                client,
                _server: server,
            }
        }

        fn enter_many(&self, source: u8, count: usize) -> Vec<Entered> {
            let from = stranger(source);
            (0..count).map(|_| self.enter(from)).collect()
        }
    }

    fn stranger(source: u8) -> IpAddr {
        IpAddr::from([10, 0, 1, source])
    }

    #[test]
    fn one_source_makes_room_for_itself() {
        let site = Site::new();
        let mut node = site.enter(NODE);
        let mut strangers = site.enter_many(1, SOURCE_PENDING_MAX + 3);
        assert!(!node.is_closed());
        for (number, entered) in strangers.iter_mut().enumerate() {
            assert_eq!(entered.is_closed(), number < 3, "connection {number}");
        }
    }

    #[test]
    fn the_source_with_the_most_connections_makes_room_for_another_one() {
        let site = Site::new();
        let mut few = site.enter_many(9, 2);
        let mut strangers: Vec<_> = (0..4)
            .flat_map(|source| site.enter_many(source, SOURCE_PENDING_MAX))
            .collect();
        let mut node = site.enter(NODE);
        assert!(!node.is_closed());
        assert!(few.iter_mut().all(|entered| !entered.is_closed()));
        let closed: Vec<_> = strangers.iter_mut().map(Entered::is_closed).collect();
        assert_eq!(closed.iter().filter(|is_closed| **is_closed).count(), 3);
        assert!(closed[0], "the longest pending one");
    }

    #[test]
    fn many_sources_take_no_place_of_a_source_that_has_authenticated() {
        let site = Site::new();
        site.enter(NODE).guard.authenticated();
        let mut node = site.enter(NODE);
        let sources = 0..u8::try_from(ADMITTED_MAX - 1).unwrap();
        let _strangers: Vec<_> = sources.map(|source| site.enter(stranger(source))).collect();
        assert!(!node.is_closed());
    }

    #[test]
    fn sources_that_have_authenticated_and_have_all_places_make_room_for_each_other_only() {
        let site = Site::new();
        let sources = || 0..u8::try_from(PENDING_MAX).unwrap();
        for source in sources() {
            site.enter(stranger(source)).guard.authenticated();
        }
        let mut known: Vec<_> = sources()
            .map(|source| site.enter(stranger(source)))
            .collect();
        let (client, unknown) = (&known[0].client, stranger(200));
        assert!(site.limiter.enter(client, unknown).unwrap().is_none());
        assert!(known.iter_mut().all(|entered| !entered.is_closed()));
        let mut again = site.enter(stranger(7));
        assert!(!again.is_closed());
        let closed = known
            .iter_mut()
            .filter_map(|entered| entered.is_closed().then_some(()));
        assert_eq!(closed.count(), 1);
    }

    #[test]
    fn threads_that_do_not_end_keep_new_connections_out() {
        let site = Site::new();
        let mut entered = site.enter_many(1, ADMITTED_MAX);
        let (client, from) = (&entered[0].client, stranger(2));
        assert!(site.limiter.enter(client, from).unwrap().is_none());
        entered.pop();
        site.enter(from).guard.authenticated();
        entered.clear();
        let state = site.limiter.0.lock();
        assert!(state.admitted == 0 && state.pending.is_empty());
    }

    #[test]
    fn a_host_has_all_addresses_of_its_network() {
        let source = |text: &str| ConnectionSource::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::2:3"));
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_eq!(source("2001:db8::1").to_string(), "2001:db8::/64");
        assert_eq!(source("::1").to_string(), "::1");
    }
}
