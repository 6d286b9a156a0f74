//! Connects a datastore of this process to a peer.

use std::net::SocketAddr;
use std::sync::Arc;

use lockstep_driver::{Dial, DialError};
use lockstep_link::{Fingerprint, Identity, LinkOptions, ReceiveFrames, SendFrames, dial};

/// Dials the peer at one address.
pub struct LinkDialer {
    pub address: SocketAddr,
    pub identity: Arc<Identity>,
    /// The fingerprint of the peer.
    pub fingerprint: Fingerprint,
    pub options: LinkOptions,
}

impl Dial for LinkDialer {
    fn dial(&self) -> Result<(Arc<dyn SendFrames>, Box<dyn ReceiveFrames>), DialError> {
        let made = dial(
            self.address,
            &self.identity,
            self.fingerprint,
            &self.options,
        );
        let (sender, receiver) = made?.split();
        Ok((Arc::new(sender), Box::new(receiver)))
    }
}
