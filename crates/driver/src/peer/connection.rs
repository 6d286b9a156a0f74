//! The connection with the peer, and the ways in which a message leaves.
//!
//! Invariant: there is one connection at most. Its number tells late events of an earlier connection from its
//! own (rule P9).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_link::{LinkError, Payload, SendFrames};
use lockstep_paw_saw::InFlightEntry;
use lockstep_repl::core::ConnectionId;
use lockstep_repl::message::{Envelope, MarkAccount, MessageError};
use lockstep_resync::PeerBase;
use lockstep_sums::SummedBytes;
use lockstep_types::SyncId;
use parking_lot::RwLock;
use thiserror::Error;

use super::coalesce::{WriteCoalescer, post};
use crate::client::WaitingRequests;
use crate::host::signal::Signal;

/// How a message is handed to the socket.
#[derive(Clone, Copy)]
pub(crate) enum Delivery<'a> {
    /// Sent at once, or queued while another thread sends. Never waits for the peer (rule P19).
    Post,
    /// Waits while the peer does not read. For threads that carry a resync or a comparison.
    Wait,
    /// Queued; the reader of this connection flushes the queue.
    Queue,
    /// As `Post`, but a small write may stay in the queue for the next one while requests wait.
    Coalesce(Option<&'a dyn WaitingRequests>),
}

/// Why a message was not handed over.
#[derive(Debug, Error)]
enum DeliveryError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Encoding(#[from] MessageError),
}

/// Hands a message to the sending half of a connection. A failure closes the connection; returns whether there
/// was none.
pub(crate) fn deliver(
    sender: &dyn SendFrames,
    envelope: &Envelope,
    payload: SummedBytes<'_>,
    delivery: Delivery<'_>,
) -> bool {
    deliver_with(sender, None, envelope, payload, delivery)
}

fn deliver_with(
    sender: &dyn SendFrames,
    coalescer: Option<&WriteCoalescer>,
    envelope: &Envelope,
    payload: SummedBytes<'_>,
    delivery: Delivery<'_>,
) -> bool {
    let payload = Payload::at(envelope.message.payload_offset(), payload);
    let delivered = envelope
        .encode()
        .map_err(DeliveryError::from)
        .and_then(|header| match (delivery, coalescer) {
            (Delivery::Queue, _) => Ok(sender.enqueue(&header, payload)?),
            (Delivery::Wait, _) => Ok(sender.send(&header, payload)?),
            (Delivery::Coalesce(waiting), Some(coalescer)) => {
                Ok(coalescer.send(sender, &header, payload, waiting)?)
            }
            (Delivery::Post | Delivery::Coalesce(_), _) => Ok(post(sender, &header, payload)?),
        });
    if let Err(error) = &delivered {
        let error = error.to_string();
        tracing::debug!(datastore = %envelope.datastore, error, "send failed");
        sender.shutdown(&error);
    }
    delivered.is_ok()
}

/// The copy of the peer, from its greeting.
#[derive(Default)]
pub(crate) struct PeerCopy {
    /// The writes that may be on the peer only.
    pub waiting: Vec<InFlightEntry>,
    /// Primary: the state from which the copy can be brought up to date.
    pub base: Option<PeerBase>,
    /// Primary: the name of its sync, if the copy has a base.
    pub sync: Option<SyncId>,
    /// Primary: the barriers that the peer knows, and its marks since then.
    pub marks: MarkAccount,
}

/// One connection, established and greeted.
///
/// The marks `is_given_up` and `was_in_sync` are read after the connection is gone, too.
pub(crate) struct ActiveConnection {
    pub sender: Arc<dyn SendFrames>,
    pub id: ConnectionId,
    /// The copy of the peer, from its greeting.
    pub copy: PeerCopy,
    /// This node has ended the connection.
    is_given_up: AtomicBool,
    /// The nodes were in sync over this connection.
    was_in_sync: AtomicBool,
    /// Primary: writes that leave together.
    coalescer: WriteCoalescer,
    /// Primary: the secondary has not answered the last `Ping` yet.
    awaits_pong: AtomicBool,
    /// Primary: the moment of the last `Ping` on the host's clock, in nanoseconds.
    pinged_ns: AtomicU64,
    /// Primary: the secondary has said that its copy is complete.
    has_complete_peer: AtomicBool,
    /// Raised when that changes.
    changes: Arc<Signal>,
}

impl ActiveConnection {
    /// Whether this node has ended the connection.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }

    /// Whether the nodes were in sync over the connection.
    pub fn was_in_sync(&self) -> bool {
        self.was_in_sync.load(Ordering::Acquire)
    }

    /// Hands a message to this connection.
    pub fn deliver(
        &self,
        envelope: &Envelope,
        payload: SummedBytes<'_>,
        delivery: Delivery<'_>,
    ) -> bool {
        let coalescer = Some(&self.coalescer);
        deliver_with(&*self.sender, coalescer, envelope, payload, delivery)
    }

    /// Ends the connection for a reason that does not lie in the connection.
    pub fn give_up(&self, reason: &str) {
        self.is_given_up.store(true, Ordering::Release);
        self.sender.shutdown(reason);
    }

    /// Notes that a `Ping` goes out at the time `now`; returns whether the last one is still unanswered.
    pub fn begin_ping(&self, now: Duration) -> bool {
        if self.awaits_pong.swap(true, Ordering::AcqRel) {
            return true;
        }
        let now = u64::try_from(now.as_nanos()).unwrap_or(0);
        self.pinged_ns.store(now, Ordering::Release);
        false
    }

    /// Whether the secondary has said over this connection that its copy is complete.
    pub fn has_complete_peer(&self) -> bool {
        self.has_complete_peer.load(Ordering::Acquire)
    }

    /// Notes that the secondary has said over this connection that its copy is complete.
    pub fn note_complete_peer(&self) {
        self.has_complete_peer.store(true, Ordering::Release);
        self.changes.raise();
    }
}

/// The connection of the moment, if there is one.
#[derive(Default)]
pub(crate) struct PeerConnection {
    current: RwLock<Option<Arc<ActiveConnection>>>,
    /// Number of connections so far.
    connections: AtomicU64,
    /// Raised when there is another connection, or none.
    changes: Arc<Signal>,
}

impl PeerConnection {
    /// No connection. Raises `changes` when there is one, and when it is gone.
    pub fn new(changes: Arc<Signal>) -> Self {
        Self {
            changes,
            ..Self::default()
        }
    }

    /// A number that no other connection of this replication has.
    pub fn next_id(&self) -> ConnectionId {
        ConnectionId(self.connections.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Number of connections so far.
    pub fn count(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }

    /// Makes a connection the current one.
    pub fn open(
        &self,
        id: ConnectionId,
        sender: Arc<dyn SendFrames>,
        copy: PeerCopy,
    ) -> Arc<ActiveConnection> {
        let connection = Arc::new(ActiveConnection {
            sender,
            id,
            copy,
            is_given_up: AtomicBool::default(),
            was_in_sync: AtomicBool::default(),
            coalescer: WriteCoalescer::default(),
            awaits_pong: AtomicBool::default(),
            pinged_ns: AtomicU64::default(),
            has_complete_peer: AtomicBool::default(),
            changes: Arc::clone(&self.changes),
        });
        *self.current.write() = Some(Arc::clone(&connection));
        self.changes.raise();
        connection
    }

    /// The connection with this number, unless it is gone.
    pub fn get(&self, id: ConnectionId) -> Option<Arc<ActiveConnection>> {
        let current = self.current.read();
        current.as_ref().filter(|found| found.id == id).cloned()
    }

    /// The connection of the moment.
    pub fn current(&self) -> Option<Arc<ActiveConnection>> {
        self.current.read().clone()
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.current.read().is_some()
    }

    /// Whether the secondary has said over the connection of the moment that its copy is complete. Its record on the disk
    /// says so, too.
    pub fn is_complete(&self) -> bool {
        let current = self.current.read();
        current
            .as_ref()
            .is_some_and(|found| found.has_complete_peer())
    }

    /// Ends the connection of the moment.
    pub fn close(&self, reason: &str) {
        let mut current = self.current.write();
        if let Some(connection) = current.take() {
            connection.give_up(reason);
            drop(current);
            self.changes.raise();
        }
    }

    /// Removes a connection that was lost, unless another one has replaced it.
    pub fn remove(&self, id: ConnectionId) {
        let mut current = self.current.write();
        if current.as_ref().is_some_and(|found| found.id == id) {
            *current = None;
            drop(current);
            self.changes.raise();
        }
    }

    /// The nodes are in sync over the connection of the moment.
    pub fn note_in_sync(&self) {
        if let Some(connection) = &*self.current.read() {
            connection.was_in_sync.store(true, Ordering::Release);
        }
    }

    /// The peer has answered the last `Ping`. Returns the moment of that `Ping`, or of an earlier one.
    pub fn note_pong(&self) -> Option<Duration> {
        let current = self.current.read();
        let connection = current.as_ref()?;
        // Read first: the next `Ping` may go out as soon as this one is answered.
        let pinged = connection.pinged_ns.load(Ordering::Acquire);
        connection.awaits_pong.store(false, Ordering::Release);
        Some(Duration::from_nanos(pinged))
    }

    /// Sends the write that was deferred, if there is one, and all frames that were queued meanwhile. Never
    /// waits for the peer: the caller may be a client that needs nothing from the peer.
    pub fn flush_deferred(&self) {
        let has_deferred = |found: &&Arc<ActiveConnection>| found.coalescer.take();
        let connection = self.current.read().as_ref().filter(has_deferred).cloned();
        // The reader of the connection sees its loss.
        if let Some(connection) = connection {
            let _flushed = connection.sender.flush_nowait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::coalesce::tests::Recorder;

    fn open(peer: &PeerConnection) -> Arc<ActiveConnection> {
        let sender = Arc::new(Recorder::default());
        peer.open(peer.next_id(), sender, PeerCopy::default())
    }

    #[test]
    fn a_replaced_connection_is_neither_found_nor_removed_again() {
        let peer = PeerConnection::default();
        let (first, second) = (open(&peer), open(&peer));
        assert_ne!(first.id, second.id);
        assert!(peer.get(first.id).is_none());
        peer.remove(first.id);
        assert!(peer.get(second.id).is_some());
        peer.close("the test ends it");
        assert!(!peer.is_connected());
        assert!(second.is_given_up() && !first.is_given_up());
    }

    #[test]
    fn a_peer_is_complete_over_the_connection_over_which_it_said_so() {
        let peer = PeerConnection::default();
        let first = open(&peer);
        assert!(!peer.is_complete());
        first.note_complete_peer();
        assert!(peer.is_complete());
        let second = open(&peer);
        first.note_complete_peer();
        assert!(!peer.is_complete(), "said over the earlier connection");
        second.note_complete_peer();
        assert!(peer.is_complete());
        peer.remove(second.id);
        assert!(!peer.is_complete());
    }

    #[test]
    fn a_second_ping_knows_that_the_first_is_unanswered() {
        let peer = PeerConnection::default();
        let connection = peer.open(
            peer.next_id(),
            Arc::new(Recorder::default()),
            PeerCopy::default(),
        );
        assert!(!connection.begin_ping(Duration::ZERO));
        assert!(connection.begin_ping(Duration::ZERO));
        peer.note_pong();
        assert!(!connection.begin_ping(Duration::ZERO));
    }
}
