//! The secondary as the sender of the namespace reaches it, with a count of the bytes that it is sent.

use lockstep_repl::message::{Request, Response};
use lockstep_resync::{Counter, Peer, PeerError, PendingAnswer};

use crate::replication::remote::RemotePeer;

/// See the head of this file.
pub(super) struct CountedPeer<'a> {
    pub peer: &'a RemotePeer,
    /// Bytes of the payloads so far.
    pub sent: &'a Counter,
}

impl Peer for CountedPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        self.begin(request, payload)()
    }

    fn begin(&self, request: Request, payload: &[u8]) -> PendingAnswer<'_> {
        self.sent.add(payload.len() as u64);
        self.peer.begin(request, payload)
    }
}
