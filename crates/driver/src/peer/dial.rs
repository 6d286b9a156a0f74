//! Makes a connection with the peer.

use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_link::{Connection, Identity, LinkError, LinkOptions, ReceiveFrames, SendFrames};

use thiserror::Error;

use crate::config::{ConfigHandle, PeerAddress, PeerConfig};

/// The two halves of a connection.
pub type Halves = (Arc<dyn SendFrames>, Box<dyn ReceiveFrames>);

/// Why the peer cannot be reached, for the operator.
#[derive(Debug, Error)]
pub enum DialError {
    /// The name of the peer has no address.
    #[error("cannot resolve {address}: {source}")]
    Resolve {
        /// The configured address.
        address: PeerAddress,
        /// The resolver's error.
        source: std::io::Error,
    },
    /// The datastore has no peer.
    #[error("the datastore has no peer")]
    NoPeer,
    /// The resolver knows the name, and no address of it.
    #[error("{0} resolves to no address")]
    NoAddress(PeerAddress),
    /// The connection with the last address that was tried.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The transport below the connection.
    #[error(transparent)]
    Transport(#[from] std::io::Error),
}

/// Makes connections with the peer of one datastore.
pub trait Dial: Send + Sync {
    /// Connects. The node at the other end has proved to be the peer.
    fn dial(&self) -> Result<Halves, DialError>;

    /// Whether one of the nodes refused the other in the last attempt: an operator has to act.
    fn was_refused(&self) -> bool {
        false
    }
}

/// Over TCP, with the identity of this node.
pub struct Dialer {
    identity: Arc<Identity>,
    config: Arc<ConfigHandle>,
    /// The last attempt was refused.
    refused: AtomicBool,
}

impl Dialer {
    /// The dialer of a datastore; `None` without a peer.
    pub fn new(config: &Arc<ConfigHandle>, identity: Arc<Identity>) -> Option<Self> {
        config.current().peer.as_ref()?;
        Some(Self {
            identity,
            config: Arc::clone(config),
            refused: AtomicBool::new(false),
        })
    }

    /// Connects with the peer that the configuration names at this moment.
    fn connect(&self) -> Result<Connection, DialError> {
        let config = self.config.current();
        let peer = config.peer.as_ref().ok_or(DialError::NoPeer)?;
        let address = &peer.address;
        let addresses =
            address
                .to_string()
                .to_socket_addrs()
                .map_err(|source| DialError::Resolve {
                    address: address.clone(),
                    source,
                })?;
        let options = options(peer, config.peer_timeout);
        self.refused.store(false, Ordering::Release);
        let mut last = DialError::NoAddress(address.clone());
        for address in addresses {
            match lockstep_link::dial(address, &self.identity, peer.fingerprint, &options) {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    self.refused.store(is_refusal(&error), Ordering::Release);
                    last = error.into();
                }
            }
        }
        Err(last)
    }
}

fn options(peer: &PeerConfig, peer_timeout: Duration) -> LinkOptions {
    LinkOptions {
        encryption: peer.encryption,
        connect_timeout: peer_timeout,
        greeting_timeout: peer_timeout.max(Duration::from_secs(2)),
        user_timeout: Some(peer_timeout),
        ..LinkOptions::default()
    }
}

impl Dial for Dialer {
    fn dial(&self) -> Result<Halves, DialError> {
        let (sender, receiver) = self.connect()?.split();
        Ok((Arc::new(sender), Box::new(receiver)))
    }

    fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }
}

/// Whether a node answered, and one of the two nodes refuses the other.
const fn is_refusal(error: &LinkError) -> bool {
    matches!(
        error,
        LinkError::WrongFingerprint { .. }
            | LinkError::RefusedByPeer { .. }
            | LinkError::ProtocolMismatch { .. }
            | LinkError::Unauthenticated { .. }
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::path::PathBuf;
    use std::thread;

    use lockstep_fs::InoRanges;
    use lockstep_types::DatastoreUuid;
    use lockstep_types::settings::{Encryption, Role};

    use super::*;
    use crate::config::DatastoreConfig;

    /// The configuration of a node whose peer listens at `at`.
    fn config(uuid: DatastoreUuid, at: &TcpListener) -> DatastoreConfig {
        let places = ["/store", "/mount"].map(PathBuf::from);
        DatastoreConfig {
            peer: Some(PeerConfig {
                address: at.local_addr().unwrap().to_string().parse().unwrap(),
                fingerprint: lockstep_link::Fingerprint::of_certificate(b"peer"),
                encryption: Encryption::On,
                ino_ranges: InoRanges::default(),
                witness: None,
            }),
            ..DatastoreConfig::new("alpha", uuid, places, Role::Primary)
        }
    }

    /// Whether a dialer reaches a listener, which closes the connection at once.
    fn reaches(dialer: &Dialer, listener: &TcpListener) -> bool {
        listener.set_nonblocking(true).unwrap();
        thread::scope(|scope| {
            let dialing = scope.spawn(|| dialer.dial().is_ok());
            let mut is_reached = false;
            while !dialing.is_finished() {
                is_reached |= listener.accept().is_ok();
                thread::yield_now();
            }
            is_reached
        })
    }

    #[test]
    fn the_next_connection_goes_to_the_address_of_this_moment() {
        let uuid = DatastoreUuid::random();
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let handle = Arc::new(ConfigHandle::new(config(uuid, &listeners[0])));
        let identity = Arc::new(Identity::ephemeral("a").unwrap());
        let dialer = Dialer::new(&handle, identity).unwrap();
        assert!(reaches(&dialer, &listeners[0]));
        let changed = handle.replace(config(uuid, &listeners[1])).unwrap();
        assert_eq!(changed.len(), 1);
        assert!(reaches(&dialer, &listeners[1]));
        assert!(
            listeners[0].accept().is_err(),
            "the earlier address is dialled"
        );
    }

    #[test]
    fn the_limits_of_a_connection_are_those_of_its_beginning() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let config = config(DatastoreUuid::random(), &listener);
        let timeout = Duration::from_secs(7);
        let options = options(config.peer.as_ref().unwrap(), timeout);
        assert_eq!(
            (options.connect_timeout, options.user_timeout),
            (timeout, Some(timeout))
        );
    }
}
