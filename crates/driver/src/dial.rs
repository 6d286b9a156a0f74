//! How the primary gets a connection with its peer.

use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_link::{Connection, Identity, LinkError, LinkOptions, ReceiveFrames, SendFrames};

use crate::config::{DatastoreConfig, PeerConfig};

/// The two halves of a connection.
pub type Halves = (Arc<dyn SendFrames>, Box<dyn ReceiveFrames>);

/// Makes connections with the peer of one datastore.
pub trait Dial: Send + Sync {
    /// Connects; who answers is the peer. An error is for the operator.
    fn dial(&self) -> Result<Halves, String>;

    /// Whether the last attempt met a node that refused this one, or that this one refused: an operator has to
    /// see to that.
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
    /// For a datastore that has a peer.
    pub fn new(config: &DatastoreConfig, identity: Arc<Identity>) -> Option<Self> {
        Some(Self {
            identity,
            peer: config.peer.clone()?,
            peer_timeout: config.peer_timeout,
            refused: AtomicBool::new(false),
        })
    }

    fn connect(&self) -> Result<Connection, String> {
        let address = &self.peer.address;
        let addresses = address
            .to_string()
            .to_socket_addrs()
            .map_err(|error| format!("cannot resolve {address}: {error}"))?;
        let options = self.options();
        self.refused.store(false, Ordering::Release);
        let mut last = format!("{address} resolves to no address");
        for address in addresses {
            match lockstep_link::dial(address, &self.identity, self.peer.fingerprint, &options) {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    self.refused.store(is_refusal(&error), Ordering::Release);
                    last = error.to_string();
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
    fn dial(&self) -> Result<Halves, String> {
        let (sender, receiver) = self.connect()?.split();
        Ok((Arc::new(sender), Box::new(receiver)))
    }

    fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }
}

/// Whether somebody is there, and one of the two ends does not want the other.
const fn is_refusal(error: &LinkError) -> bool {
    matches!(
        error,
        LinkError::WrongFingerprint { .. }
            | LinkError::RefusedByPeer { .. }
            | LinkError::ProtocolMismatch { .. }
            | LinkError::Unauthenticated { .. }
    )
}
