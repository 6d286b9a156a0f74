//! Makes a connection with the peer.

use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_link::{Connection, Identity, LinkError, LinkOptions, ReceiveFrames, SendFrames};

use thiserror::Error;

use crate::config::{DatastoreConfig, PeerAddress, PeerConfig};

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
    peer: PeerConfig,
    peer_timeout: Duration,
    /// The last attempt was refused.
    refused: AtomicBool,
}

impl Dialer {
    /// The dialer of a datastore; `None` without a peer.
    pub fn new(config: &DatastoreConfig, identity: Arc<Identity>) -> Option<Self> {
        Some(Self {
            identity,
            peer: config.peer.clone()?,
            peer_timeout: config.peer_timeout,
            refused: AtomicBool::new(false),
        })
    }

    fn connect(&self) -> Result<Connection, DialError> {
        let address = &self.peer.address;
        let addresses =
            address
                .to_string()
                .to_socket_addrs()
                .map_err(|source| DialError::Resolve {
                    address: address.clone(),
                    source,
                })?;
        let options = self.options();
        self.refused.store(false, Ordering::Release);
        let mut last = DialError::NoAddress(address.clone());
        for address in addresses {
            match lockstep_link::dial(address, &self.identity, self.peer.fingerprint, &options) {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    self.refused.store(is_refusal(&error), Ordering::Release);
                    last = error.into();
                }
            }
        }
        Err(last)
    }

    fn options(&self) -> LinkOptions {
        LinkOptions {
            encryption: self.peer.encryption,
            connect_timeout: self.peer_timeout,
            greeting_timeout: self.peer_timeout.max(Duration::from_secs(2)),
            user_timeout: Some(self.peer_timeout),
            ..LinkOptions::default()
        }
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
