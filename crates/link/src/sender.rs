//! The sending half of a connection, as callers hold it. `outgoing.rs` does the work.
//!
//! Invariant: the connection is closed when the last clone of a [`Sender`] is dropped.

use std::sync::Arc;

use lockstep_sums::SumKey;

use crate::error::LinkError;
use crate::outgoing::Outgoing;
use crate::payload::Payload;
use crate::socket::WhenFull;
use crate::transport::SendFrames;

/// The sending half of a connection, for any number of threads. The connection is closed when the last clone is
/// dropped.
#[derive(Clone)]
pub struct Sender(Arc<CloseOnDrop>);

/// Closes the connection when dropped.
struct CloseOnDrop(Arc<Outgoing>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close("the sender was dropped");
    }
}

impl Sender {
    pub(crate) fn new(outgoing: Arc<Outgoing>) -> Self {
        Self(Arc::new(CloseOnDrop(outgoing)))
    }

    /// Bytes that the socket has not taken yet; for status and metrics.
    pub fn queued_bytes(&self) -> usize {
        self.outgoing().waiting_bytes()
    }

    fn outgoing(&self) -> &Arc<Outgoing> {
        let CloseOnDrop(outgoing) = &*self.0;
        outgoing
    }
}

impl SendFrames for Sender {
    fn send(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
        let sent = self.outgoing().send(header, payload, WhenFull::Wait);
        sent.map(drop)
    }

    fn post(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
        self.outgoing().post(header, payload)
    }

    fn enqueue(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
        self.outgoing().enqueue(header, payload)
    }

    fn send_deferred(&self, header: &[u8], payload: Payload<'_>) -> Result<bool, LinkError> {
        self.outgoing().send_deferred(header, payload)
    }

    fn flush(&self) -> Result<(), LinkError> {
        self.outgoing().flush()
    }

    fn flush_nowait(&self) -> Result<(), LinkError> {
        self.outgoing().flush_or_push()
    }

    fn use_sum_key(&self, key: &Arc<SumKey>) {
        self.outgoing().use_key(key);
    }

    fn shutdown(&self, reason: &str) {
        self.outgoing().close(reason);
    }
}
