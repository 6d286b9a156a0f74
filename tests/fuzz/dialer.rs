//! Connects a datastore of this process to a peer.

use std::net::SocketAddr;
use std::sync::Arc;

use lockstep_driver::Dial;
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
    fn dial(&self) -> Result<(Arc<dyn SendFrames>, Box<dyn ReceiveFrames>), String> {
        let made = dial(
            self.address,
            &self.identity,
            self.fingerprint,
            &self.options,
        );
        let (sender, receiver) = made.map_err(|error| error.to_string())?.split();
        Ok((Arc::new(sender), Box::new(receiver)))
    }
}
