//! The silence of a peer, as the reader of a connection measures it by the time limit of the present configuration.

use std::time::Duration;

use lockstep_link::{LinkError, ReceiveFrames};

use crate::engine::Engine;

/// Looks at the silence in the time limit.
const LOOKS: u32 = 4;

/// See the head of this file.
pub(super) struct PeerSilence<'a> {
    engine: &'a Engine,
    since: Duration,
}

impl<'a> PeerSilence<'a> {
    /// A silence that begins now. The receiver is to time out at each look.
    pub fn begin(engine: &'a Engine, receiver: &mut dyn ReceiveFrames) -> Result<Self, LinkError> {
        receiver.set_timeout(Some(engine.config.current().peer_timeout / LOOKS))?;
        Ok(Self {
            engine,
            since: engine.host.now(),
        })
    }

    /// The peer has given a sign of life.
    pub fn end(&mut self) {
        self.since = self.engine.host.now();
    }

    /// The receiver has timed out. Returns the limit if the peer has been silent for so long.
    pub fn look(&self, receiver: &mut dyn ReceiveFrames) -> Result<Option<Duration>, LinkError> {
        let limit = self.engine.config.current().peer_timeout;
        if self.engine.host.since(self.since) >= limit {
            return Ok(Some(limit));
        }
        receiver.set_timeout(Some(limit / LOOKS))?;
        Ok(None)
    }
}
